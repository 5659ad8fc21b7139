#!/usr/bin/env python3
"""The same model in PyTorch, taking training steps when told to: what bench/vs_torch.py compares hctrain with.

The model is src/python/hctrain/model.py, plain modules as research code has them: the maps of a hyper-connection are matrix products
and elementwise functions on whole tensors, attention is PyTorch's fused one; the optimizer is its fused AdamW. On CPU threads, or
on a GPU with --device cuda; float32, or mixed precision by autocast with --dtype; eager, or compiled (inductor) with --compile,
which takes a minute before the first step. With --transformers the model is Llama of the package transformers. Lines on stdin and stdout as `hc_bench --step-on-demand` has them.
"""
import argparse
import contextlib
import json
import math
import os
import resource
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src", "python"))
sys.dont_write_bytecode = True
from hctrain import model as checkpoint_model  # noqa: E402, found by the line above

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def attend(query, key, value, dropout_p, is_causal):
    """What PyTorch has not before 2.0, as nanoGPT does it there; always causal and without dropout."""
    sequence = query.shape[2]
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    future = torch.ones(sequence, sequence, dtype=torch.bool, device=query.device).triu(1)
    return F.softmax(scores.masked_fill(future, -math.inf), dim=-1) @ value


if not hasattr(F, "scaled_dot_product_attention"):
    F.scaled_dot_product_attention = attend


def make_optimizer(parameters):
    settings = {"lr": 6e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
    try:
        return torch.optim.AdamW(parameters, fused=True, **settings)
    except (TypeError, RuntimeError):  # an older PyTorch has it for GPUs only, or not at all
        return torch.optim.AdamW(parameters, **settings)


class Llama(nn.Module):
    """transformers' Llama with the arguments and results of checkpoint_model.GPT."""

    def __init__(self, settings):
        super().__init__()
        import transformers
        self.llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=settings.vocab_size, hidden_size=settings.n_embd, intermediate_size=-(-8 * settings.n_embd // 3 // 64) * 64,
            num_hidden_layers=settings.n_layer, num_attention_heads=settings.n_head, num_key_value_heads=settings.n_kv_head,
            max_position_embeddings=settings.block_size, tie_word_embeddings=True, use_cache=False, attn_implementation="sdpa"))

    def forward(self, tokens, targets):
        logits = self.llama(input_ids=tokens).logits
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def initialise(gpt):
    """Numbers of the size that training begins with: streams neither vanish nor grow through the layers."""
    for path, parameter in gpt.named_parameters():
        name = path.rpartition(".")[2]
        if name.startswith(("alpha_", "tau_")):
            parameter.fill_(0.01)
        elif name == "b_res" and parameter.dim() == 2:
            parameter.copy_(torch.eye(len(parameter)))
        elif name.startswith(("b_", "gamma_")):
            parameter.fill_(1.0)
    for module in gpt.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)


def synchronise(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def mixed_precision(settings, device):
    if settings.dtype == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, DTYPES[settings.dtype])


def make_scaler(settings, device):
    enabled = settings.dtype == "fp16"
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device.type, enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)  # before PyTorch 2.3


def step(model, optimizer, scaler, settings, device):
    shape = (settings.batch_size, settings.block_size)
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    for _ in range(settings.gradient_accumulation_steps):
        tokens = torch.randint(settings.vocab_size, shape, device=device)
        targets = torch.randint(settings.vocab_size, shape, device=device)
        with mixed_precision(settings, device):
            loss = model(tokens, targets)[1] / settings.gradient_accumulation_steps
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    loss.item()
    synchronise(device)
    return time.perf_counter() - start


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--residual", choices=sorted(checkpoint_model.CONNECTIONS), default="shc")
    for name, value in (("n_streams", 4), ("n_layer", 12), ("n_head", 12), ("n_embd", 768), ("block_size", 1024),
                        ("vocab_size", 50304), ("batch_size", 1), ("gradient_accumulation_steps", 1), ("threads", 0)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--n_kv_head", type=int, help="default: n_head")
    for name, value in (("norm", "layernorm"), ("position", "learned"), ("mlp", "gelu")):
        parser.add_argument("--" + name, default=value)
    parser.add_argument("--transformers", action="store_true", help="Llama of the package transformers, plain residual connections")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="fp32")
    parser.add_argument("--compile", action="store_true", help="torch.compile for the model")
    settings = parser.parse_args()
    settings.n_kv_head = settings.n_kv_head or settings.n_head
    return settings


def say(**facts):
    print(json.dumps(facts), flush=True)


def peak_bytes(device):
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main():
    settings = parse()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = torch.device(settings.device)
    torch.manual_seed(1)
    model = Llama(settings) if settings.transformers else checkpoint_model.GPT(vars(settings))
    initialise(model)
    model.to(device)
    optimizer = make_optimizer(model.parameters())
    scaler = make_scaler(settings, device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if settings.compile:
        model = torch.compile(model)
    say(torch=torch.__version__, threads=torch.get_num_threads(), parameters=parameters)
    for _ in sys.stdin:
        print(json.dumps({"seconds": step(model, optimizer, scaler, settings, device)}), flush=True)
    say(torch=torch.__version__, parameters=parameters, peak_bytes=peak_bytes(device))


if __name__ == "__main__":
    main()
