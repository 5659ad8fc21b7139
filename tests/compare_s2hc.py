#!/usr/bin/env python3
"""The public code of s2HC and mHC-lite beside hctrain: models of theirs, with random weights, through hctrain.convert.

  tests/compare_s2hc.py [--mhc-lite PATH] [--s2hc PATH] [--build build] [--device pocl]

Needs torch, einops and safetensors, and checkouts of the public code; for s2HC's also litgpt and pyyaml (pip install litgpt), over which it lies:

  git clone https://github.com/FFTYYY/mhc-lite          model.py and hyper_conn/, which folders of Realmbird/mhc-781m-* have, too
  git clone https://github.com/6zHAOyi/s2HC             litgpt/model.py and litgpt/hyper_conn/

For each connection and several numbers of streams the script saves a model of theirs in its own layout, converts it, and prints by how much hc_probe's
loss, logits and gradients differ from theirs in fp32, relative to the loss, the largest logit and the gradients' norms. mHC-lite's are converted back, and must
have the same bits. Losses may differ by 1e-6, logits and gradients by 1e-5. Exit status: 0, or 1 if one differs by more or nothing was compared.
"""
import argparse
import contextlib
import functools
import importlib.util
import io
import os
import sys
import tempfile
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "src", "python"))
import torch
from compared_programs import Programs, gradients_off_by, off_by
from hctrain import convert
from safetensors.torch import load_file
from torch import nn

LOSS, TOLERANCE = 1e-6, 1e-5
BATCH, CONTEXT, VOCABULARY, LAYERS, HEADS, CHANNELS = 3, 24, 97, 3, 4, 48
SCALE = 2.0 ** 20  # of gradients while they are converted: the converter adds 1 to what it takes for a gain less 1

failed = compared = 0


def report(name, loss, logits, gradients, same=None):
    global failed, compared
    compared += 1
    held = loss <= LOSS and max(logits, gradients) <= TOLERANCE and same is not False
    failed += not held
    bits = "" if same is None else "  back: the same bits" if same else "  back: other bits"
    print("  %-4s %-40s %9.1e %9.1e %9.1e%s" % ("ok" if held else "DIFF", name, loss, logits, gradients, bits), flush=True)


@torch.no_grad()
def shake(model, kind):
    """Random weights, of connections so large that their matrices differ from token to token. Gains less 1 are such that adding 1 is exact. hc's
    stay near their first values: streams of others may nearly cancel, and PyTorch's own fp32 is then off by 3e-4 of float64."""
    for name, parameter in model.named_parameters():
        near = parameter.clone() if kind == "hc" and "static" in name else 0.0
        parameter.copy_(near + torch.randn_like(parameter) * (0.5 if ".hc_" in name and parameter.dim() < 2 and kind != "hc" else 0.1))
        if name.endswith("norm.gamma"):
            parameter.copy_((parameter * 1024).round() / 1024)
        parameter += 1.0 if "norm" in name and not name.endswith("gamma") or name.endswith(("branch_attn.0.weight", "branch_mlp.0.weight", "ln_f.weight")) else 0.0


def gradients_of(model):
    """By the names of the state dict, copies under each of their names."""
    return {name: parameter.grad * SCALE for name, parameter in model.named_parameters(remove_duplicate=False)}


def converted_gradients(bench, layout, folder):
    """Theirs by our names."""
    out = bench.path("gradients")
    convert.convert_from(layout, folder, out)
    return {name: (tensor - 1.0 if name.endswith("norm.weight") and ".hc_" in name else tensor) / SCALE
            for name, tensor in load_file(os.path.join(out, "model.safetensors")).items()}


def join_scales(gradients):
    """hc has one parameter there for what are two here: their gradients add up, and the converter writes theirs twice."""
    return {name: tensor for name, tensor in gradients.items() if not name.endswith("alpha_res")}


def compare(bench, name, layout, kind, model, forward, write):
    """`write` makes a folder of tensors in the layout."""
    shake(model, kind)
    tokens, targets = torch.randint(VOCABULARY, (2, BATCH, CONTEXT))
    logits = forward(model, tokens, targets)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    folder, out = write(model.state_dict()), bench.path("ours")
    ours_config = convert.convert_from(layout, folder, out)
    ours, theirs = bench.probe(out, tokens, targets, "--dtype", "fp32"), converted_gradients(bench, layout, write(gradients_of(model)))
    gradients = ours[2]
    if ours_config["residual"] == "hc":
        for place in [place for place in gradients if place.endswith("alpha_pre")]:
            gradients[place] = gradients[place] + gradients[place.replace("alpha_pre", "alpha_res")]
        gradients, theirs = join_scales(gradients), join_scales(theirs)
    same = None
    if layout == "mhc_lite":
        back = bench.path("back")
        convert.convert_to(layout, out, back)
        before, after = (load_file(os.path.join(place, "model.safetensors")) for place in (folder, back))
        same = before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    report(name, abs(ours[1] - loss.item()) / loss.item(), off_by(ours[0], logits.detach()), gradients_off_by(gradients, theirs), same)


# ---- mHC-lite

def mhc_lite(bench, path):
    sys.path.insert(0, path)
    from model import GPT, GPTConfig
    for kind, streams in (("none", 1), ("hc", 4), ("hc", 3), ("mhc", 4), ("mhc", 2), ("mhc_lite", 4), ("mhc_lite", 3), ("mhc_lite", 2)):
        for bias in (True, False):
            config = {"block_size": CONTEXT, "vocab_size": VOCABULARY, "n_layer": LAYERS, "n_head": HEADS, "n_embd": CHANNELS, "dropout": 0.0, "bias": bias,
                      "hyper_conn_n": streams, "hyper_conn_type": kind}
            with contextlib.redirect_stdout(io.StringIO()):  # it prints its number of parameters
                model = GPT(GPTConfig(**config))
            compare(bench, "mHC-lite's %s, %d streams%s" % (kind, streams, ", biases" if bias else ""), "mhc_lite", kind, model,
                    lambda model, x, y: model(x, y)[0], functools.partial(bench.checkpoint, config))


# ---- s2HC

def s2hc(bench, path):
    installed = importlib.util.find_spec("litgpt")
    if not installed:
        print("  skip s2HC: litgpt is not installed; pip install litgpt")
        return
    overlay = sys.modules["litgpt"] = types.ModuleType("litgpt")  # its own __init__ imports what trains
    overlay.__path__ = [os.path.join(path, "litgpt"), os.path.dirname(installed.origin)]
    import yaml
    from litgpt.config import Config
    from litgpt.model import GPT
    settings = {"block_size": CONTEXT, "vocab_size": VOCABULARY, "padded_vocab_size": VOCABULARY, "n_layer": LAYERS, "n_head": HEADS, "n_query_groups": 2, "head_size": 16,
                "n_embd": CHANNELS, "intermediate_size": 80, "rotary_percentage": 1.0, "rope_base": 1000000, "parallel_residual": False, "bias": False, "norm_qk": True,
                "norm_class_name": "RMSNorm", "norm_eps": 1e-6, "mlp_class_name": "LLaMAMLP"}

    def write(tensors):
        """As LitGPT saves a run."""
        folder = bench.path("checkpoint")
        os.mkdir(folder)
        torch.save({"model": tensors, "step_count": 1}, os.path.join(folder, "lit_model.pth"))
        with open(os.path.join(folder, "model_config.yaml"), "w", encoding="utf-8") as file:
            yaml.safe_dump(settings, file)
        return folder

    for kind, streams in (("none", 1), ("hc", 4), ("mhc", 4), ("mhc", 3), ("mhc_lite", 4), ("mhc_lite", 3), ("kromhc", 4), ("kromhc", 8), ("shc", 2), ("shc", 3), ("shc", 4), ("shc", 5)):
        with contextlib.redirect_stdout(io.StringIO()):
            model = GPT(Config(**settings), hyper_conn_type=kind, hyper_conn_n=streams)
        compare(bench, "s2HC's %s, %d streams" % (kind, streams), "s2hc", kind, model, lambda model, x, y: model(x), write)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mhc-lite", metavar="PATH", help="a checkout of mHC-lite, or another folder with its model.py and hyper_conn")
    parser.add_argument("--s2hc", metavar="PATH", help="a checkout of s2HC")
    parser.add_argument("--build", default="build", help="folder of the programs")
    parser.add_argument("--device", default="pocl")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    print("%-47s %9s %9s %9s" % ("off by", "loss", "logits", "gradients"))
    with tempfile.TemporaryDirectory() as folder:
        bench = Programs(arguments, folder)
        for name, path, comparison in (("mHC-lite", arguments.mhc_lite, mhc_lite), ("s2HC", arguments.s2hc, s2hc)):
            if path:
                comparison(bench, path)
            else:
                print("  skip %s: no --%s PATH; see --help" % (name, name.lower()))
    print("%d comparisons differ" % failed if failed else "all %d agree" % compared if compared else "nothing was compared")
    return 0 if compared and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
