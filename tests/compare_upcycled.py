#!/usr/bin/env python3
"""Plain models of Hugging Face's that go on with another residual connection: the logits of transformers at first, and exports afterwards.

  tests/compare_upcycled.py [--build build] [--device pocl]

Needs torch, transformers and safetensors (pip install torch transformers safetensors) and no network. For random GPT-2, Llama, Qwen2 and
Qwen3 models and every connection, logits and loss after `hc_train --init-from FOLDER --residual NAME --max-iters 0`, against those of
transformers: logits may differ by 1e-5 of the largest, the loss by 1e-5 of itself. attnres is refused, and gated where the model has
LayerNorms. Then four steps of training: plain models must be the same in transformers after hc_export, the others in the exported
model.py. The exit status says whether all were.
"""
import argparse
import os
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers
from compare_transformers import MODERN, batch, head, load_program, loss_of, off_by, random_model
from compared_programs import Programs

TOLERANCE, CONTEXT, VOCABULARY = 1e-5, 24, 97
MODULE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src", "python", "hctrain")

failed = 0


def report(name, scale, logits, loss):
    global failed
    held = logits <= TOLERANCE * scale and loss <= TOLERANCE
    failed += not held
    print("  %-4s %-52s %9.2g %9.1e %9.1e" % ("ok" if held else "DIFF", name, scale, logits / scale, loss), flush=True)


class Bench(Programs):
    def command(self, data, folder, residual, steps, *options):
        """hc_train's arguments, and the checkpoint that it makes."""
        out = self.path("run")
        words = ("--init-from", folder, "--residual", residual, "--max-iters", steps, "--data-dir", data, "--out-dir", out, "--device", self.device,
                 "--batch-size", 2, "--eval-iters", 0, "--dtype", "fp32", "--warmup-iters", 1, "--learning-rate", 1e-3, *options)
        return words, os.path.join(out, "ckpt-%d" % steps)

    def train(self, *arguments):
        words, checkpoint = self.command(*arguments)
        self.run("hc_train", *words)
        return checkpoint

    def refusal(self, *arguments):
        words, _ = self.command(*arguments)
        done = subprocess.run([os.path.join(self.build, "hc_train"), *map(str, words)], capture_output=True, text=True)
        return done.stderr if done.returncode else ""


def families():
    gpt2 = {"vocab_size": VOCABULARY, "n_positions": CONTEXT, "n_embd": 48, "n_layer": 3, "n_head": 4}
    modern = {"vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
              "num_key_value_heads": 4, "max_position_embeddings": CONTEXT}
    return [("gpt2", gpt2), *((kind, {**modern, **more}) for kind, more in (MODERN[0], MODERN[2], MODERN[3], MODERN[5]))]


@torch.no_grad()
def compare(bench, data, kind, shape, connections):
    global failed
    model, folder = random_model(kind, shape), bench.path("saved")
    model.save_pretrained(folder)
    tokens, targets = (x % VOCABULARY for x in batch(VOCABULARY))
    targets[:, 5] = -1
    wanted = model(tokens).logits
    scale, loss = wanted.abs().max().item(), loss_of(wanted, targets)
    for name in connections:
        if name == "attnres" or (name == "gated" and kind == "gpt2"):
            refused = "cannot go on with residual = %s as the same function" % name in bench.refusal(data, folder, name, 0)
            failed += not refused
            print("  %-4s %s, %s: refused in words" % ("ok" if refused else "DIFF", kind, name))
            continue
        logits, ours, _ = bench.probe(bench.train(data, folder, name, 0), tokens, targets)
        report("%s, %s" % (kind, name), scale, off_by(logits, wanted), abs(ours / loss - 1))
        trained, out = bench.train(data, folder, name, 4), bench.path("export")
        logits, ours, _ = bench.probe(trained, tokens, targets)
        if name == "rc":
            bench.run("hc_export", "--checkpoint", trained, "--out", out)
            back = transformers.AutoModelForCausalLM.from_pretrained(out).eval()(tokens).logits
        else:
            bench.run("hc_export", "--checkpoint", trained, "--out", out, "--format", "torch")
            back = load_program(out).load(out)(tokens, targets)[0]
        report("  after four steps, in %s" % ("transformers" if name == "rc" else "model.py"), back.abs().max().item(), off_by(logits, back),
               abs(ours / loss_of(back, targets) - 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--device", default="pocl")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    transformers.utils.logging.disable_progress_bar()
    head("plain models with other connections")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments, folder)
        data = bench.data(VOCABULARY, "byte")
        connections = list(load_program(MODULE).CONNECTIONS)
        for kind, shape in families():
            compare(bench, data, kind, shape, ["rc", *(name for name in connections if name != "rc")])
    print("%d different; torch %s, transformers %s" % (failed, torch.__version__, transformers.__version__))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
