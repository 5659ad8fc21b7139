#!/usr/bin/env python3
"""Checks the documents (CTest's `links`): links between them lead to files and headings that exist, and so do paths of this repository;
options that they name occur somewhere in the sources.

    ci/links.py
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = "src|runtime|cl|ci|bench|tests|docs|configs|data|examples|cmake"
MADE = ("data/corpus",)  # paths that commands of the documents make
FOREIGN = {"standalone", "nproc_per_node", "shm_size", "hostfile", "output_path", "num_fewshot", "model_args"}  # options of other programs


def slug(heading):
    """The anchor of a heading, as GitHub makes it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip()).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def words(files):
    """All words of the sources in the form of option names."""
    found = set()
    for name in files:
        if not name.endswith((".md", ".png", ".svg")):
            found.update(word.replace("-", "_") for word in re.findall(r"[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*", (ROOT / name).read_text(errors="replace")))
    return found


def check(document, known):
    """Returns texts of what is wrong in a document."""
    text, wrong = (ROOT / document).read_text(encoding="utf-8"), []
    for link in re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", text):
        path, _, anchor = (link[0] or link[1]).partition("#")
        if re.match(r"https?:|mailto:", path):
            continue
        target = pathlib.Path(os.path.normpath((ROOT / document).parent / path)) if path else ROOT / document
        if not target.exists():
            wrong.append(f"there is no {path}")
        elif anchor and anchor not in map(slug, re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.M)):
            wrong.append(f"{path} has no heading #{anchor}")
    if document != "CHANGELOG.md":  # which names what is gone
        wrong += [f"there is no {path}" for path in set(re.findall(rf"(?<![\w/.])(?<!python )(?:{FOLDERS})/[\w./-]+\.\w+", text))
                  if not (ROOT / path).exists() and not path.startswith(MADE)]
        wrong += [f"no source has the option --{option}" for option in set(re.findall(r"(?<![\w-])--([a-z][a-z0-9_-]+)", text))
                  if option.replace("-", "_") not in known | FOREIGN]
    return [f"{document}: {one}" for one in wrong]


def main():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=False).stdout.split("\n")
    files = [name for name in files if name and (ROOT / name).is_file()]
    if not files:
        print("SKIPPED: this is no git checkout")
        return 77
    known = words(files)
    documents = [name for name in files if name.endswith(".md") and not name.startswith("tests/golden/")]
    wrong = [text for document in documents for text in check(document, known)]
    print("\n".join(wrong + [f"{len(documents)} documents, {len(wrong)} faults"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
