#!/usr/bin/env python3
"""Residual connections here and in the public code that others train with: the same losses, logits and gradients.

  tests/compare_residuals.py [--build build] [--device pocl]

Needs torch, safetensors and transformers 5.24 or later (pip install torch safetensors transformers) and no network. Models of random weights are built
around the public modules, with attention and MLPs of src/python/hctrain/model.py; the script writes each as a checkpoint, runs hc_probe on it
in fp32, and prints by how much loss, logits and gradients differ, relative to the loss, the largest logit and the gradients' norms:

  deepseek_v4   mhc with hc_eps and without gain: transformers' DeepseekV4HyperConnection and DeepseekV4HyperHead
  qwen4_exp     gated: transformers' Qwen4ExpTextGatedResidual

All may differ by 1e-5. Exit status: 0, or 1 if one differs by more.
"""
import argparse
import os
import sys
import tempfile
import types

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from compared_programs import Programs, gradients_off_by, load_file_as, off_by
from torch import nn
from transformers.models.deepseek_v4 import modeling_deepseek_v4
from transformers.models.qwen4_exp import modeling_qwen4_exp

TOLERANCE = 1e-5
BATCH, CONTEXT, VOCABULARY = 3, 24, 97
SHAPE = {"n_layer": 3, "n_head": 4, "n_embd": 48, "vocab_size": VOCABULARY, "block_size": CONTEXT, "bias": False, "dropout": 0.0,
         "norm": "rmsnorm", "norm_eps": 1e-6, "position": "rope", "mlp": "swiglu", "mlp_width": 80, "tie_embeddings": False}

failed = 0


def report(name, loss, logits, gradients):
    global failed
    held = max(loss, logits, gradients) <= TOLERANCE
    failed += not held
    print("  %-4s %-56s %9.1e %9.1e %9.1e" % ("ok" if held else "DIFF", name, loss, logits, gradients), flush=True)


# ---- models around public modules

class Layer(nn.Module):
    def __init__(self, parts, config):
        super().__init__()
        self.ln_1, self.attn = parts.norm_of(config), parts.Attention(config)
        self.ln_2, self.mlp = parts.norm_of(config), parts.MLP(config)


class Model(nn.Module):
    """All but the residual connections, by our names. Subclasses add these, and say what theirs are called here."""

    def __init__(self, parts, config):
        super().__init__()
        config = {**parts.GPT(config).config}  # with all defaults
        self.transformer = nn.Module()
        self.transformer.wte = nn.Embedding(config["vocab_size"], config["n_embd"])
        self.transformer.h = nn.ModuleList(Layer(parts, config) for _ in range(config["n_layer"]))
        self.transformer.ln_f = parts.norm_of(config)
        self.lm_head = nn.Linear(config["n_embd"], config["vocab_size"], bias=False)

    def forward(self, tokens):
        return self.lm_head(self.top(self.transformer.wte(tokens)))

    def tensors(self, value):
        """Ours by their names: the value of each parameter, itself or its gradient."""
        found = {}
        for name, parameter in self.named_parameters():
            words = name.split(".")
            place = next((i for i, word in enumerate(words) if word in ("hc_attn", "hc_mlp", "hc_head", "hc_all")), None)
            if place is not None:
                found.setdefault(".".join(words[:place + 1]), {})[".".join(words[place + 1:])] = value(parameter)
            else:
                found[name] = value(parameter)
        ours = {}
        for name, tensor in found.items():
            ours.update({name: tensor} if torch.is_tensor(tensor) else {"%s.%s" % (name, leaf): x for leaf, x in self.leaves(tensor).items()})
        return ours


class DeepSeekV4(Model):
    """As DeepseekV4DecoderLayer and DeepseekV4Model connect them."""

    def __init__(self, parts, config):
        super().__init__(parts, config)
        self.streams = config["n_streams"]
        theirs = types.SimpleNamespace(hc_mult=self.streams, hc_sinkhorn_iters=config["sinkhorn_iters"], hc_eps=config["hc_eps"], rms_norm_eps=1e-6,
                                       hidden_size=config["n_embd"])
        for layer in self.transformer.h:
            layer.hc_attn, layer.hc_mlp = modeling_deepseek_v4.DeepseekV4HyperConnection(theirs), modeling_deepseek_v4.DeepseekV4HyperConnection(theirs)
        self.transformer.hc_head = modeling_deepseek_v4.DeepseekV4HyperHead(theirs)

    def top(self, embedded):
        streams = embedded.unsqueeze(2).expand(-1, -1, self.streams, -1).contiguous()
        for layer in self.transformer.h:
            for connection, norm, branch in ((layer.hc_attn, layer.ln_1, layer.attn), (layer.hc_mlp, layer.ln_2, layer.mlp)):
                post, comb, collapsed = connection(streams)
                streams = post.unsqueeze(-1) * branch(norm(collapsed)).unsqueeze(-2) + torch.matmul(comb.transpose(-1, -2), streams)
        return self.transformer.ln_f(self.transformer.hc_head(streams))

    def leaves(self, theirs):
        n = self.streams
        if "hc_fn" in theirs:
            return {"w_pre": theirs["hc_fn"].T, "b_pre": theirs["hc_base"], "alpha_pre": theirs["hc_scale"][0]}
        fn, base, scale = theirs["fn"], theirs["base"], theirs["scale"]
        res = fn[2 * n:].unflatten(0, (n, n)).transpose(0, 1).flatten(0, 1)
        return {"w_pre": fn[:n].T, "w_post": fn[n:2 * n].T, "w_res": res.T, "b_pre": base[:n], "b_post": base[n:2 * n],
                "b_res": base[2 * n:].view(n, n).T, "alpha_pre": scale[0], "alpha_post": scale[1], "alpha_res": scale[2]}


class Gated(Model):
    """As Qwen4ExpTextDecoderLayer and Qwen4ExpTextModel connect them: without norms of their own."""

    def __init__(self, parts, config):
        super().__init__(parts, config)
        self.streams = config["n_streams"]
        theirs = types.SimpleNamespace(hc_count=self.streams, hidden_size=config["n_embd"], hc_lowrank=config["gated_rank"], rms_norm_eps=config["norm_eps"])
        for layer in self.transformer.h:
            del layer.ln_1, layer.ln_2
            layer.hc_attn, layer.hc_mlp = modeling_qwen4_exp.Qwen4ExpTextGatedResidual(theirs), modeling_qwen4_exp.Qwen4ExpTextGatedResidual(theirs)
        del self.transformer.ln_f
        self.transformer.hc_head = modeling_qwen4_exp.Qwen4ExpTextGatedResidual(theirs, use_combine=False)

    def top(self, embedded):
        streams = embedded.repeat(1, 1, self.streams)
        for layer in self.transformer.h:
            for connection, branch in ((layer.hc_attn, layer.attn), (layer.hc_mlp, layer.mlp)):
                mixed, before, weights = connection(streams)
                streams = before + (branch(mixed).unsqueeze(-2) * weights.unsqueeze(-1)).flatten(-2)
        return self.transformer.hc_head(streams)

    def leaves(self, theirs):
        names = {"hc_norm.weight": "norm.weight", "input_mix_weight_down.weight": "w_down", "input_mix_weight_up.weight": "w_up",
                 "block_inject_weight.weight": "w_post"}
        return {names[name]: x.T if x.dim() > 1 else x for name, x in theirs.items()}


# ---- comparisons

@torch.no_grad()
def shake(model):
    """Random weights, of connections so large that their matrices differ from token to token."""
    for name, parameter in model.named_parameters():
        connection = ".hc_" in name
        parameter.copy_(torch.randn_like(parameter) * (0.5 if connection and parameter.dim() < 2 else 0.1))
        parameter += 1.0 if ".ln_" in name else 0.0


def compare(bench, name, config, model):
    shake(model)
    tokens, targets = torch.randint(VOCABULARY, (2, BATCH, CONTEXT))
    targets[:, 5] = -1
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    loss.backward()
    folder = bench.checkpoint(config, model.tensors(lambda parameter: parameter.detach()))
    ours = bench.probe(folder, tokens, targets, "--dtype", "fp32")
    wanted = model.tensors(lambda parameter: parameter.grad)
    report(name, abs(ours[1] - loss.item()) / loss.item(), off_by(ours[0], logits.detach()), gradients_off_by(ours[2], wanted))


def deepseek_v4(bench, parts):
    for streams, eps, iterations in ((4, 1e-6, 20), (4, 0.01, 6), (2, 1e-6, 20), (3, 0.1, 1)):
        config = {**SHAPE, "residual": "mhc", "n_streams": streams, "hc_eps": eps, "sinkhorn_iters": iterations, "hc_norm_gain": False,
                  "stream_reduce": "head"}
        compare(bench, "deepseek_v4, %d streams, hc_eps %g, %d iterations" % (streams, eps, iterations), config, DeepSeekV4(parts, config))


def qwen4_exp(bench, parts):
    for streams, rank in ((4, 6), (2, 5), (8, 12)):
        config = {**SHAPE, "residual": "gated", "n_streams": streams, "gated_rank": rank}
        compare(bench, "qwen4_exp, %d streams, rank %d" % (streams, rank), config, Gated(parts, config))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder of the programs")
    parser.add_argument("--device", default="pocl")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    print("%-63s %9s %9s %9s" % ("off by", "loss", "logits", "gradients"))
    with tempfile.TemporaryDirectory() as folder:
        bench = Programs(arguments, folder)
        parts = load_file_as("model", os.path.join(HERE, "..", "src", "python", "hctrain", "model.py"))  # for attention, MLPs and norms
        deepseek_v4(bench, parts)
        qwen4_exp(bench, parts)
    print("%d comparisons differ" % failed if failed else "all agree")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
