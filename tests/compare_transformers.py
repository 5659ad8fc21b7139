#!/usr/bin/env python3
"""Models here and the same models in Hugging Face's transformers and in PyTorch: the same logits and losses.

  tests/compare_transformers.py [--build build] [--device pocl]

Needs torch, transformers and safetensors (pip install torch transformers safetensors) and no network. Three tables of the largest logit, by how much
logits differ at most, losses, and the gradients of the tensors, relative to their norms:

  to transformers    rc models trained here for a few steps and shaken -> hc_export -> GPT2LMHeadModel
  from transformers  random GPT2LMHeadModel -> save_pretrained -> hc_probe, and hc_train --init-from
  to PyTorch         a model of every variant, shaken -> hc_export --format torch -> model.py

Logits may differ by 1e-4, losses by 1e-5, gradients by 1e-4. The exit status says whether all did.
"""
import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers
from safetensors.torch import load_file, save_file

LOGITS, LOSS, GRADIENT = 1e-4, 1e-5, 1e-4
BATCH, CONTEXT = 3, 24

failed = 0


def report(name, scale, logits, loss=None, gradient=None):
    global failed
    held = logits <= LOGITS and (loss is None or loss <= LOSS) and (gradient is None or gradient <= GRADIENT)
    failed += not held
    print("  %-4s %-52s %9.2g %9.1e%s%s" % ("ok" if held else "DIFF", name, scale, logits, "" if loss is None else " %9.1e" % loss,
                                          "" if gradient is None else " %9.1e" % gradient), flush=True)


def head(title):
    print("%-59s%9s %9s %9s %9s" % (title, "largest", "off by", "loss", "gradient"))


class Bench:
    """The programs of a build, and a folder for what they make."""

    def __init__(self, arguments, folder):
        self.build, self.device, self.folder = arguments.build, arguments.device, folder
        self.made = 0

    def path(self, name):
        self.made += 1
        return os.path.join(self.folder, "%d-%s" % (self.made, name))

    def run(self, program, *arguments):
        done = subprocess.run([os.path.join(self.build, program), *map(str, arguments)], capture_output=True, text=True)
        if done.returncode:
            sys.exit("compare_transformers.py: %s %s\n%s" % (program, " ".join(map(str, arguments)), done.stderr))

    def train(self, data, *options):
        """The folder of the last checkpoint."""
        out = self.path("run")
        self.run("hc_train", "--data-dir", data, "--out-dir", out, "--device", self.device, "--batch-size", 2, "--eval-iters", 0,
                 "--no-tensorboard", "--warmup-iters", 1, *options)
        return os.path.join(out, max(os.listdir(out), key=lambda name: name.startswith("ckpt-")))

    def data(self, vocabulary, tokenizer):
        folder = self.path("data")
        os.mkdir(folder)
        for name in ("train.bin", "val.bin"):
            tokens = torch.randint(vocabulary, (4096,), dtype=torch.int32).to(torch.uint16)
            with open(os.path.join(folder, name), "wb") as file:
                file.write(tokens.numpy().tobytes())
        with open(os.path.join(folder, "meta.json"), "w", encoding="utf-8") as file:
            json.dump({"vocab_size": vocabulary, "tokenizer": tokenizer}, file)
        return folder

    def probe(self, folder, tokens, targets):
        """Logits [B, T, V], loss, and gradients by the parameters' names."""
        batch, out = self.path("batch"), self.path("probe")
        save_file({"x": tokens.int(), "y": targets.int()}, batch)
        self.run("hc_probe", "--checkpoint", folder, "--batch", batch, "--out", out, "--logits", "--device", self.device)
        found = load_file(out)
        gradients = {name[5:]: tensor for name, tensor in found.items() if name.startswith("grad.")}
        return found["logits"], found["loss"].item(), gradients


def shake(folder):
    """Changes every weight of a checkpoint, gates by as much as makes H differ from token to token."""
    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    for name, tensor in tensors.items():
        gate = ".hc_" in name and not name.endswith("norm.weight")
        wide = gate and not name.rpartition(".")[2].startswith("w_")
        tensor += (0.5 if wide else 0.1) * torch.randn_like(tensor)
    save_file(tensors, path, metadata={"format": "pt"})


def batch(vocabulary):
    tokens, targets = torch.randint(vocabulary, (2, BATCH, CONTEXT))
    targets[:, 5] = -1
    return tokens, targets


def loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1).item()


def off_by(ours, theirs):
    return (ours - theirs).abs().max().item()


def gradients_off_by(ours, theirs):
    """Some are zero in exact arithmetic, those of H_res for one while all streams are equal: a thousandth of the norm of all
    is the least that differences are compared with."""
    assert ours.keys() == theirs.keys()
    whole = torch.stack([tensor.norm() for tensor in theirs.values()]).norm()
    return max(((ours[name] - theirs[name]).norm() / torch.maximum(theirs[name].norm(), 1e-3 * whole)).item() for name in ours)


SHAPE = ("--n-layer", 3, "--n-head", 4, "--n-embd", 48, "--block-size", CONTEXT, "--max-iters", 3)


@torch.no_grad()
def to_transformers(bench):
    head("to transformers")
    for vocabulary, padded, tokenizer in ((97, 97, "byte"), (50257, 50304, "gpt2")):
        data = bench.data(vocabulary, tokenizer)
        for bias in ("--no-bias", "--bias"):
            for activation in ("gelu", "gelu_tanh"):
                checkpoint = bench.train(data, *SHAPE, "--residual", "rc", bias, "--activation", activation, "--vocab-size", padded)
                shake(checkpoint)
                out = bench.path("export")
                bench.run("hc_export", "--checkpoint", checkpoint, "--out", out)
                model, info = transformers.GPT2LMHeadModel.from_pretrained(out, output_loading_info=True)
                assert not any(info.values()), info
                tokens, targets = batch(vocabulary)
                ours = bench.probe(checkpoint, tokens, targets)[0][..., :vocabulary]  # the rest is padding, which is left out
                theirs = model.eval()(tokens).logits
                report("%s, %s, vocabulary %d of %d" % (bias[2:], activation, vocabulary, padded), theirs.abs().max().item(),
                       off_by(ours, theirs), abs(loss_of(ours, targets) - loss_of(theirs, targets)))


@torch.no_grad()
def from_transformers(bench):
    head("from transformers")
    vocabulary = 97
    for activation in ("gelu_new", "gelu"):
        for base, kind in ((False, torch.float32), (True, torch.float32), (False, torch.float16), (False, torch.bfloat16)):
            config = transformers.GPT2Config(vocab_size=vocabulary, n_positions=CONTEXT, n_embd=48, n_layer=3, n_head=4,
                                             activation_function=activation, bos_token_id=None, eos_token_id=None)
            model = transformers.GPT2LMHeadModel(config).eval()
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
            model.to(kind)
            folder = bench.path("saved")
            (model.transformer if base else model).save_pretrained(folder)
            tokens, targets = batch(vocabulary)
            wanted = model.float()(tokens).logits
            logits, loss, _ = bench.probe(folder, tokens, targets)
            report("%s, %s, %s" % (activation, "GPT2Model" if base else "GPT2LMHeadModel", str(kind)[6:]),
                   wanted.abs().max().item(), off_by(logits, wanted), abs(loss - loss_of(wanted, targets)))
    grown = bench.train(bench.data(vocabulary, "byte"), "--init-from", folder, "--vocab-size", 128, "--max-iters", 0)
    logits = bench.probe(grown, tokens, targets)[0]
    report("hc_train --init-from it, vocabulary 128: the first 97", wanted.abs().max().item(), off_by(logits[..., :97], wanted))
    mean = wanted.mean(-1, keepdim=True)
    report("  and the others against the mean of the first", mean.abs().max().item(), off_by(logits[..., 97:], mean))


def load_program(folder):
    spec = importlib.util.spec_from_file_location("model", os.path.join(folder, "model.py"))
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


def to_torch(bench):
    head("to PyTorch")
    data = bench.data(97, "byte")
    cases = [("rc", 1, ()), ("rc", 1, ("--bias", "--activation", "gelu_tanh")), ("identity", 4, ()), ("hc", 4, ()),
             ("hc", 3, ("--bias", "--stream-reduce", "sum_norm")), ("mhc", 4, ()), ("mhc", 5, ("--sinkhorn-iters", 3)),
             ("mhc_lite", 4, ()), ("mhc_lite", 3, ("--bias",)), ("shc", 4, ()), ("shc", 2, ()), ("shc", 3, ("--bias",)),
             ("shc", 8, ("--stream-reduce", "sum_norm")), ("shc", 4, ("--stream-expand", "scaled")),
             ("mhc", 3, ("--bias", "--stream-expand", "scaled"))]
    known = load_program(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src", "checkpoint"))
    cases += [(residual, 4, ()) for residual in known.CONNECTIONS if residual not in {case[0] for case in cases}]
    for residual, streams, options in cases:
        checkpoint = bench.train(data, *SHAPE, "--residual", residual, "--n-streams", streams, *options)
        shake(checkpoint)
        out = bench.path("export")
        bench.run("hc_export", "--checkpoint", checkpoint, "--out", out, "--format", "torch")
        tokens, targets = batch(97)
        model = load_program(out).load(out)
        logits, loss = model(tokens, targets)
        loss.backward()
        ours = bench.probe(checkpoint, tokens, targets)
        # with two streams shc has no angles, so that their gates change nothing
        gradients = {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in model.named_parameters()}
        report(" ".join([residual, "of", str(streams), *map(str, options)]), logits.abs().max().item(), off_by(ours[0], logits),
               abs(ours[1] - loss.item()), gradients_off_by(ours[2], gradients))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--device", default="pocl")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments, folder)
        to_transformers(bench)
        from_transformers(bench)
        to_torch(bench)
    print("%d different; torch %s, transformers %s" % (failed, torch.__version__, transformers.__version__))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
