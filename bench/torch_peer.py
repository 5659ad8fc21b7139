#!/usr/bin/env python3
"""The same model in eager PyTorch, taking training steps when told to: what bench/vs_torch.py compares hctrain with.

Plain modules, as research code has them: the maps of a hyper-connection are matrix products and elementwise functions on
whole tensors, mixes are einsum, attention is PyTorch's fused one, the optimiser its fused AdamW. On CPU threads, or on a GPU
with --device cuda; float32, or mixed precision by autocast with --dtype. Lines on stdin and stdout as `hc_bench --turns` has them.
"""
import argparse
import contextlib
import itertools
import json
import math
import resource
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class LayerNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


def attend(q, k, v):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    sequence = q.shape[2]  # before PyTorch 2.0, as nanoGPT does it there
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    future = torch.ones(sequence, sequence, dtype=torch.bool, device=q.device).triu(1)
    return F.softmax(scores.masked_fill(future, -math.inf), dim=-1) @ v


def make_optimiser(parameters):
    settings = {"lr": 6e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
    try:
        return torch.optim.AdamW(parameters, fused=True, **settings)
    except (TypeError, RuntimeError):  # an older PyTorch has it for GPUs only, or not at all
        return torch.optim.AdamW(parameters, **settings)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, sequence, width = x.shape
        parts = self.c_attn(x).view(batch, sequence, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = attend(q, k, v)
        return self.c_proj(y.transpose(1, 2).reshape(batch, sequence, width))


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=False)
        self.c_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))


def projection(rows, columns):
    return nn.Parameter(torch.zeros(rows, columns))


def scalar(value):
    return nn.Parameter(torch.tensor(value))


class Maps(nn.Module):
    """H_pre [B, T, n] and H_post of all but hc; H_res [B, T, n, n] is the subclass's."""

    def __init__(self, streams, width, sublayer):
        super().__init__()
        self.streams = streams
        self.norm = RMSNorm(streams * width)
        bias = -torch.ones(streams)
        bias[sublayer % streams] = 1.0
        self.w_pre, self.w_post = projection(streams * width, streams), projection(streams * width, streams)
        self.b_pre, self.b_post = nn.Parameter(bias), nn.Parameter(bias.clone())
        self.alpha_pre, self.alpha_post = scalar(0.01), scalar(0.01)

    def forward(self, x):
        z = self.norm(x.flatten(2))
        pre = torch.sigmoid(self.alpha_pre * (z @ self.w_pre) + self.b_pre)
        post = 2 * torch.sigmoid(self.alpha_post * (z @ self.w_post) + self.b_post)
        return pre, post, self.residual(z)


class Identity(Maps):
    def residual(self, z):
        return torch.eye(self.streams, device=z.device).expand(*z.shape[:2], -1, -1)


class Sinkhorn(Maps):
    def __init__(self, streams, width, sublayer):
        super().__init__(streams, width, sublayer)
        self.w_res = projection(streams * width, streams * streams)
        self.b_res = nn.Parameter(-8.0 * (1 - torch.eye(streams)))
        self.alpha_res = scalar(0.01)

    def residual(self, z):
        logits = self.alpha_res * (z @ self.w_res).unflatten(-1, (self.streams, self.streams)) + self.b_res
        for _ in range(20):
            logits = logits - torch.logsumexp(logits, -2, keepdim=True)
            logits = logits - torch.logsumexp(logits, -1, keepdim=True)
        return logits.exp()


class Permutations(Maps):
    def __init__(self, streams, width, sublayer):
        super().__init__(streams, width, sublayer)
        orders = torch.tensor(list(itertools.permutations(range(streams))))
        self.register_buffer("matrices", torch.eye(streams)[orders])
        self.w_res = projection(streams * width, len(orders))
        bias = torch.full((len(orders),), -8.0)
        bias[0] = 0.0
        self.b_res = nn.Parameter(bias)
        self.alpha_res = scalar(0.01)

    def residual(self, z):
        weights = torch.softmax(self.alpha_res * (z @ self.w_res) + self.b_res, -1)
        return torch.einsum("btr,rij->btij", weights, self.matrices)


class Spectral(Maps):
    def __init__(self, streams, width, sublayer):
        super().__init__(streams, width, sublayer)
        side, k = streams - 1, (streams - 1) * (streams - 2) // 2
        rows = streams * width
        helmert = torch.zeros(streams, side)
        for column in range(1, streams):
            helmert[:column, column - 1] = 1 / math.sqrt(column * (column + 1))
            helmert[column, column - 1] = -column / math.sqrt(column * (column + 1))
        self.register_buffer("helmert", helmert)
        self.register_buffer("upper", torch.triu_indices(side, side, 1))
        self.w_u, self.w_v, self.w_s = projection(rows, k), projection(rows, k), projection(rows, side)
        self.b_u, self.b_v = nn.Parameter(torch.zeros(k)), nn.Parameter(torch.zeros(k))
        self.b_s = nn.Parameter(torch.full((side,), 4.0))
        self.tau_u, self.tau_v, self.tau_s = scalar(0.01), scalar(0.01), scalar(0.01)
        self.gamma_u, self.gamma_v = scalar(1.0), scalar(1.0)

    def rotation(self, q):
        side = self.streams - 1
        skew = q.new_zeros(*q.shape[:-1], side, side)
        skew[..., self.upper[0], self.upper[1]] = q
        skew = skew - skew.transpose(-1, -2)
        eye = torch.eye(side, device=q.device)
        return self.helmert @ torch.linalg.solve(eye + skew, eye - skew)

    def residual(self, z):
        u = self.rotation(self.gamma_u * torch.tanh(self.tau_u * (z @ self.w_u) + self.b_u))
        v = self.rotation(self.gamma_v * torch.tanh(self.tau_v * (z @ self.w_v) + self.b_v))
        sigma = torch.tanh(self.tau_s * (z @ self.w_s) + self.b_s)
        return 1 / self.streams + (u * sigma.unsqueeze(-2)) @ v.transpose(-1, -2)


class Free(nn.Module):
    """hc: every stream is normalised by itself; nothing holds H_res."""

    def __init__(self, streams, width, sublayer):
        super().__init__()
        self.norm = RMSNorm(width)
        self.w_pre, self.w_post, self.w_res = projection(width, 1), projection(width, 1), projection(width, streams)
        self.b_pre = nn.Parameter(F.one_hot(torch.tensor(sublayer % streams), streams).float())
        self.b_post, self.b_res = nn.Parameter(torch.ones(streams)), nn.Parameter(torch.eye(streams))
        self.alpha_pre, self.alpha_post, self.alpha_res = scalar(0.01), scalar(0.01), scalar(0.01)

    def forward(self, x):
        z = self.norm(x)
        pre = self.alpha_pre * torch.tanh(z @ self.w_pre).squeeze(-1) + self.b_pre
        post = self.alpha_post * torch.tanh(z @ self.w_post).squeeze(-1) + self.b_post
        res = self.alpha_res * torch.tanh(z @ self.w_res).transpose(-1, -2) + self.b_res
        return pre, post, res


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MAPS = {"identity": Identity, "hc": Free, "mhc": Sinkhorn, "mhc_lite": Permutations, "shc": Spectral}


class Sublayer(nn.Module):
    def __init__(self, branch, settings, number):
        super().__init__()
        self.ln, self.branch = LayerNorm(settings.n_embd), branch
        self.maps = None
        if settings.residual != "rc":
            self.maps = MAPS[settings.residual](settings.n_streams, settings.n_embd, number)

    def forward(self, x):
        if self.maps is None:
            return x + self.branch(self.ln(x))
        pre, post, res = self.maps(x)
        output = self.branch(self.ln(torch.einsum("btn,btnc->btc", pre, x)))
        return torch.einsum("btij,btjc->btic", res, x) + post.unsqueeze(-1) * output.unsqueeze(-2)


class GPT(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.streams = settings.n_streams if settings.residual != "rc" else 0
        self.wte = nn.Embedding(settings.vocab_size, settings.n_embd)
        self.wpe = nn.Embedding(settings.block_size, settings.n_embd)
        layers = []
        for layer in range(settings.n_layer):
            layers.append(Sublayer(Attention(settings.n_embd, settings.n_head), settings, 2 * layer))
            layers.append(Sublayer(MLP(settings.n_embd), settings, 2 * layer + 1))
        self.layers = nn.ModuleList(layers)
        self.ln_f = LayerNorm(settings.n_embd)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        if self.streams:
            x = x.unsqueeze(2).repeat(1, 1, self.streams, 1)
        for layer in self.layers:
            x = layer(x)
        x = self.ln_f(x)
        if self.streams:
            x = x.sum(2)
        logits = F.linear(x, self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1), ignore_index=-1)


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


def step(model, optimiser, scaler, settings, device):
    shape = (settings.batch_size, settings.block_size)
    start = time.perf_counter()
    optimiser.zero_grad(set_to_none=True)
    for _ in range(settings.gradient_accumulation_steps):
        tokens = torch.randint(settings.vocab_size, shape, device=device)
        targets = torch.randint(settings.vocab_size, shape, device=device)
        with mixed_precision(settings, device):
            loss = model(tokens, targets) / settings.gradient_accumulation_steps
        scaler.scale(loss).backward()
    scaler.unscale_(optimiser)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimiser)
    scaler.update()
    loss.item()
    synchronise(device)
    return time.perf_counter() - start


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--residual", choices=["rc"] + sorted(MAPS), default="shc")
    for name, value in (("n_streams", 4), ("n_layer", 12), ("n_head", 12), ("n_embd", 768), ("block_size", 1024),
                        ("vocab_size", 50304), ("batch_size", 1), ("gradient_accumulation_steps", 1), ("threads", 0)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="fp32")
    return parser.parse_args()


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
    model = GPT(settings).to(device)
    optimiser = make_optimiser(model.parameters())
    scaler = make_scaler(settings, device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    say(torch=torch.__version__, threads=torch.get_num_threads(), parameters=parameters)
    for _ in sys.stdin:
        print(json.dumps({"seconds": step(model, optimiser, scaler, settings, device)}), flush=True)
    say(torch=torch.__version__, parameters=parameters, peak_bytes=peak_bytes(device))


if __name__ == "__main__":
    main()
