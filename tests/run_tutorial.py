#!/usr/bin/env python3
"""Runs every command of docs/tutorial.md, in its order, in a copy of what they need; training is cut short.

  tests/run_tutorial.py BUILD_FOLDER

Commands are the document's indented lines; those of set-up and building are left out,
and so is what stands behind "#". After each one the files that it is said to make have to be there."""
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = ("sh ci/setup.sh", "sh ci/build.sh")
SHORT = ["--lr-decay-iters", "20", "--warmup-iters", "2", "--eval-interval", "10", "--eval-iters", "1", "--statistics-interval", "5", "--checkpoint-interval", "10"]
STEPS = {"scratch": "20", "resume": "30"}
MADE = {"hc_prepare": ("--out", "meta.json"), "hc_train": ("--out-dir", "ckpt-best/model.safetensors"), "hc_analyze": ("--out", "report.html"),
        "hc_export": ("--out", "model.safetensors")}


def commands():
    """The document's commands, lines that end with a backslash joined."""
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^    (\S.*)$", text, re.MULTILINE)
    unknown = [line for line in lines if not line.startswith(("build/", "sh ", "data/"))]
    if unknown:
        sys.exit(f"no commands that are known here: {unknown}")
    found = [shlex.split(line, comments=True) for line in lines]
    return [words for words in found if words and " ".join(words) not in LEFT_OUT]


def shortened(words):
    if Path(words[0]).name != "hc_train":
        return words
    kind = "resume" if "resume" in words else "scratch"
    return [*words, "--max-iters", STEPS[kind], *(SHORT if kind == "scratch" else [])]


def option(words, name):
    return words[words.index(name) + 1]


def main():
    build = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="hc-tutorial-") as name:
        folder = Path(name)
        for part in ("configs", "data"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("corpus", "__pycache__"))
        (folder / "build").symlink_to(build)
        all_commands = commands()
        for words in all_commands:
            done = subprocess.run(shortened(words), cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
            if done.returncode != 0:
                sys.exit(f"{' '.join(words)}: exit {done.returncode}: {done.stderr[-2000:]}")
            place, file = MADE.get(Path(words[0]).name, (None, None))
            if place and not (folder / option(words, place) / file).is_file():
                sys.exit(f"{' '.join(words)}: there is no {option(words, place)}/{file}")
        programs = {Path(words[0]).name for words in all_commands}
        missing = {"hc_prepare", "hc_train", "hc_sample", "hc_eval", "hc_analyze", "hc_export"} - programs
        if missing:
            sys.exit(f"the tutorial lacks {sorted(missing)}")
        print(f"{len(all_commands)} commands, all well")


if __name__ == "__main__":
    main()
