#!/usr/bin/env python3
"""Runs every command of a document, in its order, in a copy of what they need; training is cut short.

  tests/run_document.py BUILD_FOLDER tutorial|pretrained

Commands are the indented lines of docs/NAME.md without what stands behind "#". Those that set up, build, download or start Python are left
out. After each of the others the files that it makes have to be there. A small random model takes the place of a pretrained one."""
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src" / "python"))
from hctrain.checkpoints import write_tensors  # noqa: E402

LEFT_OUT = ("sh ci/setup.sh", "sh ci/build.sh", "hf download", "pip install", "python3 -", "PYTHONPATH=src/python python3 -m hctrain.")
NEEDED = {"tutorial": {"hc_prepare", "hc_train", "hc_sample", "hc_eval", "hc_analyze", "hc_export"},
          "pretrained": {"hc_prepare", "hc_train", "hc_sample", "hc_eval", "hc_analyze", "hc_export"}}
SHORT = ["--lr-decay-iters", "20", "--warmup-iters", "2", "--eval-interval", "10", "--eval-iters", "1", "--statistics-interval", "5", "--checkpoint-interval", "10"]
SMALL = {"tutorial": [], "pretrained": ["--gradient-accumulation-steps", "1", "--block-size", "64"]}
STEPS = {"scratch": "20", "resume": "30"}
MADE = {"hc_prepare": ("--out", "meta.json"), "hc_train": ("--out-dir", "ckpt-best/state.json"), "hc_analyze": ("--out", "report.html"),
        "hc_export": ("--out", "model.safetensors")}


def commands(document):
    """The document's commands, lines that end with a backslash joined."""
    text = (ROOT / "docs" / f"{document}.md").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^    (\S.*)$", text, re.MULTILINE)
    unknown = [line for line in lines if not line.startswith(("build/", "data/", *LEFT_OUT))]
    if unknown:
        sys.exit(f"no commands that are known here: {unknown}")
    found = [shlex.split(line, comments=True) for line in lines]
    return [words for words in found if words and not " ".join(words).startswith(LEFT_OUT)]


def shortened(words, document):
    if Path(words[0]).name != "hc_train" or "--plan-only" in words:
        return words
    kind = "resume" if "resume" in words else "scratch"
    return [*words, "--max-iters", STEPS[kind], *SMALL[document], *(SHORT if kind == "scratch" else [])]


def option(words, name):
    return words[words.index(name) + 1]


def write_llama(folder):
    """A random model, as save_pretrained writes it."""
    generator = numpy.random.default_rng(1)
    tokenizer = (ROOT / "tests/text/tokenizers/smollm2.json").read_text(encoding="utf-8")
    vocabulary, width, hidden, layers = len(json.loads(tokenizer)["model"]["vocab"]), 32, 64, 2
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": width, "intermediate_size": hidden,
              "num_hidden_layers": layers, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": vocabulary, "max_position_embeddings": 2048,
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True}
    shapes = {"model.embed_tokens.weight": (vocabulary, width), "model.norm.weight": (width,)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + "input_layernorm.weight": (width,), prefix + "post_attention_layernorm.weight": (width,),
                   prefix + "self_attn.q_proj.weight": (width, width), prefix + "self_attn.k_proj.weight": (width // 2, width),
                   prefix + "self_attn.v_proj.weight": (width // 2, width), prefix + "self_attn.o_proj.weight": (width, width),
                   prefix + "mlp.gate_proj.weight": (hidden, width), prefix + "mlp.up_proj.weight": (hidden, width),
                   prefix + "mlp.down_proj.weight": (width, hidden)}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    write_tensors(folder / "model.safetensors",
                  {name: generator.normal(1.0 if len(shape) == 1 else 0.0, 0.1, shape).astype(numpy.float32) for name, shape in shapes.items()})


def write_inputs(folder):
    """What the documents take for granted."""
    write_llama(folder / "SmolLM2")
    (folder / "Qwen3").symlink_to(folder / "SmolLM2")
    text = (ROOT / "data/shakespeare/shakespeare.txt").read_text(encoding="utf-8")
    (folder / "notes.txt").write_text(text[:60000], encoding="utf-8")
    (folder / "book.txt").write_text(text[60000:120000], encoding="utf-8")
    questions = ({"question": f"What is {i} + {i}?", "choices": {"text": [str(2 * i), str(3 * i + 1)], "label": ["A", "B"]}, "answerKey": "A"} for i in range(9))
    (folder / "arc_easy.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions), encoding="utf-8")
    lines = "".join(json.dumps({"prompt": f"What is {i} + {i}?\n", "completion": f"It is {2 * i}."}) + "\n" for i in range(60))
    for name in ("answers.jsonl", "pairs.jsonl"):
        (folder / name).write_text(lines, encoding="utf-8")
    (folder / "question.txt").write_text("What is 2 + 2?\n", encoding="utf-8")


def main():
    build, document = Path(sys.argv[1]).resolve(), sys.argv[2]
    with tempfile.TemporaryDirectory(prefix="hc-document-") as name:
        folder = Path(name)
        for part in ("configs", "data"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("corpus", "__pycache__"))
        (folder / "build").symlink_to(build)
        write_inputs(folder)
        all_commands = commands(document)
        for words in all_commands:
            done = subprocess.run(shortened(words, document), cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
            if done.returncode != 0:
                sys.exit(f"{' '.join(words)}: exit {done.returncode}: {done.stderr[-2000:]}")
            place, file = MADE.get(Path(words[0]).name, (None, None))
            if place and "--plan-only" not in words and not (folder / option(words, place) / file).is_file():
                sys.exit(f"{' '.join(words)}: there is no {option(words, place)}/{file}")
        programs = {Path(words[0]).name for words in all_commands}
        missing = NEEDED[document] - programs
        if missing:
            sys.exit(f"docs/{document}.md lacks {sorted(missing)}")
        print(f"{len(all_commands)} commands, all well")


if __name__ == "__main__":
    main()
