#!/usr/bin/env python3
"""A GPT with hyper-connections in plain PyTorch, for folders that hctrain's hc_export --format torch writes.

  import model
  gpt = model.load("folder")               # config.json and model.safetensors; in eval mode, on the CPU
  logits, loss = gpt(tokens, targets)      # int64 [B, T] each, a target of -1 is ignored -> [B, T, V], mean loss (or None)
  tokens = gpt.generate(tokens, 100)       # [B, T] -> [B, T + 100]

  python model.py --state-dict state.pt    # the weights as an ordinary state dict
  python model.py --prompt "Once"          # a quick try; --tokens "464 2068" for models that are not of bytes

Needs torch (2.0 or later) and nothing else. Shapes: B sequences of T tokens, n streams of C channels, V tokens of vocabulary.
A sublayer is an attention or an MLP branch with its residual connection.
"""
# mypy: disable-error-code="no-any-return,no-untyped-call"
from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import struct
import sys
from typing import Any, Callable, Dict, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

Config = Dict[str, Any]  # the content of config.json


def choose(choices: Dict[str, Any], setting: str, name: str) -> Any:
    """What a table has for the value of a setting."""
    if name not in choices:
        raise ValueError("this file has nothing for %s '%s': add it" % (setting, name))
    return choices[name]


class LayerNorm(nn.Module):
    """Over the channels, with or without a bias."""

    def __init__(self, width: int, bias: bool, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


def norm_epsilon(config: Config) -> float:
    return config.get("norm_eps", 1e-6 if config["norm"] == "rmsnorm" else 1e-5)


class RMSNorm(nn.Module):
    """x over the root of its mean square, times a gain. epsilon 0: over that root itself, as torch.nn.functional.normalize."""

    def __init__(self, width: int, epsilon: float = 1e-6, gain: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width)) if gain else None
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        if self.epsilon == 0:
            x = functional.normalize(x, dim=-1) * math.sqrt(x.shape[-1])
        else:
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)
        return x if self.weight is None else x * self.weight


def norm_of(config: Config) -> nn.Module:
    """A norm before a branch or before the logits."""
    width, epsilon = config["n_embd"], norm_epsilon(config)
    kinds = {"layernorm": lambda: LayerNorm(width, config["bias"], epsilon), "rmsnorm": lambda: RMSNorm(width, epsilon)}
    return choose(kinds, "norm", config["norm"])()


# ---- branches: [B, T, C] -> [B, T, C]

def rotate(x: Tensor, theta: float, fraction: float) -> Tensor:
    """RoPE of x [B, heads, T, D]: component d < D/2 of position t turns with component d + D/2 by t theta^(-2d/D). With fraction < 1
    the first r = fraction D/2 pairs turn by t theta^(-d/(r-1)), and the others do not."""
    length, size = x.shape[-2:]
    exponents = torch.arange(0, size, 2, dtype=torch.float64, device=x.device) / size
    frequencies = theta ** -exponents
    if fraction < 1:
        frequencies = torch.zeros_like(exponents)
        turning = round(fraction * size / 2)
        frequencies[:turning] = theta ** -torch.linspace(0, 1, turning, dtype=torch.float64, device=x.device)
    angles = torch.arange(length, dtype=torch.float64, device=x.device).unsqueeze(1) * frequencies
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


VALUE_GATE_CHANNELS = 12  # of the input of the values, from which the gates of their embeddings are computed


class Attention(nn.Module):
    """embeds_values: values have an embedding of their token added, through a gate for each head."""

    def __init__(self, config: Config, embeds_values: bool = False) -> None:
        super().__init__()
        self.heads: int = config["n_head"]
        self.dropout: float = config["dropout"]
        width, bias = int(config["n_embd"]), bool(config["bias"])
        self.kv_heads: int = config["n_kv_head"] if "n_kv_head" in config else self.heads  # of keys and of values
        self.size: int = config.get("head_dim", width // self.heads)
        self.c_attn = nn.Linear(width, (self.heads + 2 * self.kv_heads) * self.size, bias=config.get("qkv_bias", bias))
        normed = config.get("qk_norm", False)                        # of each head of queries and of keys
        self.q_norm, self.k_norm = (RMSNorm(self.size, norm_epsilon(config), normed != "plain") if normed else None for _ in "qk")
        rotates = choose({"learned": False, "rope": True, "none": False}, "position", config["position"])
        self.theta = config.get("rope_theta", 10000.0) if rotates else None
        self.fraction = config.get("rope_fraction", 1.0)             # of a head's pairs of channels, those that turn
        self.scale = config.get("attn_scale", 0.0)                   # of scores; 0: 1 / sqrt(D)
        self.value_embed = nn.Embedding(config["vocab_size"], self.kv_heads * self.size) if embeds_values else None
        self.ve_gate = nn.Linear(VALUE_GATE_CHANNELS, self.kv_heads, bias=False) if embeds_values else None
        self.c_proj = nn.Linear(self.heads * self.size, width, bias=bias)

    def project(self, inputs: Sequence[Tensor]) -> Tensor:
        """Queries, keys and values of one input, or each of its own."""
        if len(inputs) == 1:
            return self.c_attn(inputs[0])
        rows = [count * self.size for count in (self.heads, self.kv_heads, self.kv_heads)]
        biases = [None] * 3 if self.c_attn.bias is None else self.c_attn.bias.split(rows)
        return torch.cat([functional.linear(*part) for part in zip(inputs, self.c_attn.weight.split(rows), biases)], dim=-1)

    def forward(self, *inputs: Tensor, tokens: Tensor | None = None) -> Tensor:
        batch, length, _ = inputs[0].shape
        heads = self.project(inputs).view(batch, length, -1, self.size).transpose(1, 2)
        query, key, value = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if self.value_embed is not None and self.ve_gate is not None:
            gate = 3.0 * torch.sigmoid(self.ve_gate(inputs[-1][..., :VALUE_GATE_CHANNELS]))  # [B, T, heads]
            embedded = self.value_embed(tokens).unflatten(-1, (self.kv_heads, self.size))
            value = value + (gate.unsqueeze(-1) * embedded).transpose(1, 2)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        if self.theta is not None:
            query, key = rotate(query, self.theta, self.fraction), rotate(key, self.theta, self.fraction)
        if self.kv_heads != self.heads:                              # neighbouring query heads share one
            key, value = (part.repeat_interleave(self.heads // self.kv_heads, dim=1) for part in (key, value))
        rate = self.dropout if self.training else 0.0
        if self.scale:                                               # the function below has 1 / sqrt(D)
            query = query * (self.scale * math.sqrt(self.size))
        y = functional.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
        y = self.c_proj(y.transpose(1, 2).reshape(batch, length, -1))
        return functional.dropout(y, self.dropout, self.training)


# Kinds of MLPs: the activation, None being the one that the config has, and whether it is of a gate.
MLPS: Dict[str, Any] = {"gelu": (None, False), "swiglu": (functional.silu, True), "relu2": (lambda x: functional.relu(x).square(), False)}
ACTIVATIONS: Dict[str, Any] = {"gelu": functional.gelu, "gelu_tanh": functools.partial(functional.gelu, approximate="tanh")}


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, bias = config["n_embd"], config["bias"]
        activation, gated = choose(MLPS, "mlp", config["mlp"])
        hidden = config.get("mlp_width") or ((8 * width + 191) // 192 * 64 if gated else 4 * width)
        self.activation = activation or choose(ACTIVATIONS, "activation", config["activation"])
        self.dropout = config["dropout"]
        self.c_gate = nn.Linear(width, hidden, bias=bias) if gated else None
        self.c_fc = nn.Linear(width, hidden, bias=bias)
        self.c_proj = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.c_gate is None:
            y = self.activation(self.c_fc(x))
        else:
            y = self.activation(self.c_gate(x)) * self.c_fc(x)
        return functional.dropout(self.c_proj(y), self.dropout, self.training)


# ---- residual connections: from the streams X [B, T, n, C] the weights of a sublayer, H_pre and H_post [B, T, n] and
# H_res [B, T, n, n], with which
#   u = sum_s H_pre[s] x_s,   o = branch(norm(u)),   x'_i = sum_j H_res[i, j] x_j + H_post[i] o
# With h_res_transposed H_res is the transpose of what the class computes. Classes get the number of the sublayer: from hc_until on
# H_res is the identity.

def mixes(config: Config, sublayer: int) -> bool:
    """Whether the sublayer has an H_res of its own."""
    return not config["hc_until"] or sublayer < config["hc_until"]


def identity(streams: Tensor) -> Tensor:
    """For streams [B, T, n, C] an H_res that leaves them as they are."""
    count = streams.shape[-2]
    return torch.eye(count, dtype=streams.dtype, device=streams.device).expand(*streams.shape[:-2], count, count)


class HyperConnection(nn.Module):
    """H_pre and H_post as most have them, from z = RMSNorm of all streams together; H_res is a subclass's."""

    each_stream = False  # whether z has a row for each stream
    w_pre: Tensor
    w_post: Tensor
    w_res: Tensor
    b_pre: Tensor
    b_post: Tensor
    b_res: Tensor
    alpha_pre: Tensor
    alpha_post: Tensor
    alpha_res: Tensor

    def __init__(self, config: Config, sublayer: int) -> None:
        super().__init__()
        self.streams, self.dynamic, self.mixes = config["n_streams"], config["hc_dynamic"], mixes(config, sublayer)
        self.row = config["n_embd"] * (1 if self.each_stream else self.streams)
        self.norm = RMSNorm(self.row, config["hc_norm_eps"], config["hc_norm_gain"] and self.dynamic)
        self.eps = config["hc_eps"]
        self.transposed = config["h_res_transposed"]
        self.describe_gates(1 if self.each_stream else self.streams)
        if self.mixes:
            self.describe(config)

    def add(self, suffix: str, columns: int, *shape: int, scales: Sequence[str] = ("alpha",)) -> None:
        """Adds the parameters w_<suffix> [row, columns] and b_<suffix> [shape], if there are columns, and the scales []. Without hc_dynamic
        only b_<suffix> is learned, and w_<suffix> is zero."""
        shapes: Dict[str, Sequence[int]] = {"w": (self.row, columns), "b": shape or (columns,)} if columns else {}
        for name, sizes in {**shapes, **dict.fromkeys(scales, ())}.items():
            if self.dynamic or name == "b":
                setattr(self, f"{name}_{suffix}", nn.Parameter(torch.zeros(tuple(sizes))))
            else:
                self.register_buffer(f"{name}_{suffix}", torch.full(tuple(sizes), float(name == "gamma")), persistent=False)

    def describe_gates(self, reads: int) -> None:
        """Adds the parameters of H_pre and H_post."""
        self.add("pre", reads, self.streams)
        self.add("post", reads, self.streams)

    def describe(self, config: Config) -> None:
        """Adds the parameters of H_res."""

    def logits(self, z: Tensor) -> Tensor:
        """What most compute H_res from: [B, T, *b_res.shape]."""
        return self.alpha_res * (z @ self.w_res).unflatten(-1, self.b_res.shape) + self.b_res

    def residual(self, z: Tensor) -> Tensor:
        """H_res from z [B, T, nC]."""
        raise NotImplementedError

    def pre_and_post(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return (torch.sigmoid(self.alpha_pre * (z @ self.w_pre) + self.b_pre) + self.eps,
                2.0 * torch.sigmoid(self.alpha_post * (z @ self.w_post) + self.b_post))

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = self.norm(streams if self.each_stream else streams.flatten(-2))
        pre, post = self.pre_and_post(z)
        residual = self.residual(z) if self.mixes else identity(streams)
        return pre, post, residual.transpose(-1, -2) if self.transposed else residual


class Identity(HyperConnection):
    """H_res = I"""

    def residual(self, z: Tensor) -> Tensor:
        return identity(z.unflatten(-1, (self.streams, -1)))


class HC(HyperConnection):
    """Unconstrained, from z_s = RMSNorm of each stream."""

    each_stream = True

    def describe(self, config: Config) -> None:
        self.add("res", self.streams, self.streams, self.streams)

    def pre_and_post(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return (self.alpha_pre * torch.tanh(z @ self.w_pre).squeeze(-1) + self.b_pre,
                self.alpha_post * torch.tanh(z @ self.w_post).squeeze(-1) + self.b_post)

    def residual(self, z: Tensor) -> Tensor:
        return self.alpha_res * torch.tanh(z @ self.w_res).transpose(-1, -2) + self.b_res


class Frac(HyperConnection):
    """Fractions of the stream's channels in place of streams, with z_i = RMSNorm of each: H_pre is a matrix, too, with which
      u_i = sum_j H_pre[i, j] x_j,   o = branch(norm(u_1 .. u_m)),   x'_i = sum_j H_res[i, j] x_j + H_post[i] o_i"""

    each_stream = True
    alpha_mix: Tensor

    def __init__(self, config: Config, sublayer: int) -> None:
        super().__init__({**config, "n_embd": config["n_embd"] // config["n_streams"]}, sublayer)

    def describe_gates(self, reads: int) -> None:
        self.add("pre", self.streams, self.streams, self.streams, scales=())
        self.add("post", reads, self.streams)
        self.add("mix", 0)

    def describe(self, config: Config) -> None:
        self.add("res", self.streams, self.streams, self.streams, scales=())

    def pre_and_post(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return (self.alpha_mix * torch.tanh(z @ self.w_pre).transpose(-1, -2) + self.b_pre,
                self.alpha_post * torch.tanh(z @ self.w_post).squeeze(-1) + self.b_post)

    def residual(self, z: Tensor) -> Tensor:
        return self.alpha_mix * torch.tanh(z @ self.w_res).transpose(-1, -2) + self.b_res


class MHC(HyperConnection):
    """H_res doubly stochastic, nearly: Sinkhorn's iterations on the logits' logarithms, columns first, then rows."""

    def describe(self, config: Config) -> None:
        self.iterations = config["sinkhorn_iters"]
        self.add("res", self.streams ** 2, self.streams, self.streams)

    def residual(self, z: Tensor) -> Tensor:
        logits = self.logits(z)
        if self.eps > 0:  # DeepSeek-V4's form
            matrix = logits.softmax(dim=-2) + self.eps
            for dim in (-1, *(-2, -1) * (self.iterations - 1)):
                matrix = matrix / (matrix.sum(dim, keepdim=True) + self.eps)
            return matrix
        for _ in range(self.iterations):
            logits = logits.log_softmax(dim=-2).log_softmax(dim=-1)
        return logits.exp()


class MHCLite(HyperConnection):
    """H_res doubly stochastic: a mixture of all permutation matrices, in lexicographic order of the permutations."""

    permutations: Tensor

    def describe(self, config: Config) -> None:
        self.add("res", math.factorial(self.streams))
        order = torch.tensor(list(itertools.permutations(range(self.streams))))
        matrices = functional.one_hot(order, self.streams).float()  # [n!, n, n], row i of a matrix has its 1 at perm(i)
        self.register_buffer("permutations", matrices.flatten(1), persistent=False)

    def residual(self, z: Tensor) -> Tensor:
        return (self.logits(z).softmax(-1) @ self.permutations).unflatten(-1, (self.streams, self.streams))


def cayley(angles: Tensor, size: int, above: Tensor) -> Tensor:
    """The rotation (I + A)^-1 (I - A) of a skew-symmetric A with these angles at the places `above` its diagonal: [..., size, size]."""
    upper = angles.new_zeros(*angles.shape[:-1], size, size)
    upper[..., above[0], above[1]] = angles
    skew = (upper - upper.transpose(-1, -2)).float()  # solving has no 16-bit form
    one = torch.eye(size, device=angles.device)
    return torch.linalg.solve(one + skew, one - skew).to(angles.dtype)


class SHC(HyperConnection):
    """H_res = J + U S V^T: rows and columns sum to 1, singular values tanh(...) of at most 1, between rotations of the space
    that is orthogonal to the mean of the streams."""

    w_s: Tensor
    b_s: Tensor
    tau_s: Tensor
    basis: Tensor
    above: Tensor

    def describe(self, config: Config) -> None:
        size = self.streams - 1
        for side in "uv":
            self.add(side, size * (size - 1) // 2, scales=("tau", "gamma"))
        self.add("s", size, scales=("tau",))
        basis = torch.zeros(self.streams, size)  # Helmert's: orthonormal columns, each orthogonal to all ones
        for column in range(size):
            scale = 1.0 / math.sqrt((column + 1) * (column + 2))
            basis[:column + 1, column] = scale
            basis[column + 1, column] = -(column + 1) * scale
        self.register_buffer("basis", basis, persistent=False)
        self.register_buffer("above", torch.triu_indices(size, size, 1), persistent=False)

    def rotation(self, z: Tensor, side: str) -> Tensor:
        """The basis turned by Cayley's transform (I + A)^-1 (I - A) of a skew-symmetric A: [B, T, n, n - 1]."""
        size = self.streams - 1
        if size == 1:  # one dimension has no angle
            return self.basis.expand(*z.shape[:-1], -1, -1)
        w, b, tau, gamma = (getattr(self, name + "_" + side) for name in ("w", "b", "tau", "gamma"))
        return self.basis @ cayley(gamma * torch.tanh(tau * (z @ w) + b), size, self.above)

    def residual(self, z: Tensor) -> Tensor:
        scales = torch.tanh(self.tau_s * (z @ self.w_s) + self.b_s)
        turned = self.rotation(z, "u") * scales.unsqueeze(-2)
        return turned @ self.rotation(z, "v").transpose(-1, -2) + 1.0 / self.streams


class KromHC(HyperConnection):
    """H_res doubly stochastic: a Kronecker product of matrices [[p, 1 - p], [1 - p, p]], the first outermost."""

    def describe(self, config: Config) -> None:
        self.add("res", 2 * (self.streams.bit_length() - 1))

    def residual(self, z: Tensor) -> Tensor:
        shares = self.logits(z).unflatten(-1, (-1, 2)).softmax(-1)
        whole = shares.new_ones(*shares.shape[:-2], 1, 1)
        for pair in shares.unbind(-2):
            factor = torch.stack((pair, pair.flip(-1)), -2)
            whole = (whole[..., :, None, :, None] * factor[..., None, :, None, :]).flatten(-4, -3).flatten(-2, -1)
        return whole


class Circulant(HyperConnection):
    """H_res doubly stochastic: the identity and a mixture of the rotations of the streams, which has the smaller share the deeper
    the model is."""

    rotations: Tensor

    def describe(self, config: Config) -> None:
        self.share = min(1.0, config["circulant_beta"] / (4 * config["n_layer"]))
        self.add("res", self.streams)
        one = torch.eye(self.streams)
        rotations = torch.stack([one.roll(k, 1) for k in range(self.streams)])  # row i of the k-th has its 1 at i + k
        self.register_buffer("rotations", rotations.flatten(1), persistent=False)

    def residual(self, z: Tensor) -> Tensor:
        shares = self.share * self.logits(z).softmax(-1)
        shares = torch.cat((shares[..., :1] + 1.0 - self.share, shares[..., 1:]), -1)
        return (shares @ self.rotations).unflatten(-1, (self.streams, self.streams))


class GoMHC(HyperConnection):
    """H_res doubly stochastic: the mean squares of the 2 x 2 blocks of a rotation of 2 n dimensions."""

    above: Tensor

    def describe(self, config: Config) -> None:
        size = 2 * self.streams
        self.add("res", size * (size - 1) // 2)
        self.register_buffer("above", torch.triu_indices(size, size, 1), persistent=False)

    def residual(self, z: Tensor) -> Tensor:
        rotation = cayley(self.logits(z), 2 * self.streams, self.above)
        return rotation.square().unflatten(-1, (self.streams, 2)).unflatten(-3, (self.streams, 2)).sum((-3, -1)) / 2


class OHC(HyperConnection):
    """H_res orthogonal: the matrix of x -> q x conj(r) on the streams as a quaternion (w, x, y, z)."""

    def describe(self, config: Config) -> None:
        if self.streams != 4:
            raise ValueError("residual 'ohc' has 4 streams, not %d" % self.streams)
        self.add("res", 8)

    def residual(self, z: Tensor) -> Tensor:
        logits = self.logits(z).unflatten(-1, (2, 4))
        logits = logits + logits.new_tensor([1.0, 0.0, 0.0, 0.0])
        units = logits / torch.sqrt(logits.square().sum(-1, keepdim=True) + 1e-12)
        (w, x, y, z), (a, b, c, d) = units[..., 0, :].unbind(-1), units[..., 1, :].unbind(-1)
        left = torch.stack((w, -x, -y, -z, x, w, -z, y, y, z, w, -x, z, -y, x, w), -1).unflatten(-1, (4, 4))
        right = torch.stack((a, b, c, d, -b, a, -d, c, -c, d, a, -b, -d, -c, b, a), -1).unflatten(-1, (4, 4))
        return left @ right


class Gated(nn.Module):
    """Reads the streams through a gate for each stream and channel, and has no matrices: from X the branch's input u [B, T, C],
    which no other norm sees, and unless it is the top's the weights s [B, T, n] in x'_i = x_i + s_i branch(u)."""

    def __init__(self, config: Config, sublayer: int | None = None) -> None:
        super().__init__()
        self.streams, width = config["n_streams"], config["n_embd"]
        row, rank = self.streams * width, config["gated_rank"] or (width + 7) // 8
        self.epsilon = norm_epsilon(config)
        self.norm: Any = nn.Module()
        self.norm.register_parameter("weight", nn.Parameter(torch.zeros(row)) if config["hc_norm_gain"] else None)  # a gain less 1
        self.w_down = nn.Parameter(torch.zeros(row, rank))
        self.w_up = nn.Parameter(torch.zeros(rank, row))
        self.w_post = None if sublayer is None else nn.Parameter(torch.zeros(row, self.streams))

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor | None]:
        z = (streams * torch.rsqrt(streams.square().mean(-1, keepdim=True) + self.epsilon)).flatten(-2)
        if self.norm.weight is not None:
            z = z * (1.0 + self.norm.weight)
        gates = torch.sigmoid(functional.silu(z @ self.w_down / self.streams) @ self.w_up)
        read = (gates * z).unflatten(-1, (self.streams, -1)).mean(-2)
        return read, None if self.w_post is None else 2.0 * torch.sigmoid(z @ self.w_post / self.streams)


def weighted_sum(weights: Tensor, streams: Tensor) -> Tensor:
    """The sum over streams [B, T, n, C] with weights [B, T, n] or [n]: [B, T, C]."""
    return (weights.unsqueeze(-2) @ streams).squeeze(-2)


class DepthRead(nn.Module):
    """Attention residuals: a mixture of earlier states, by a softmax over them for each head of channels."""

    def __init__(self, config: Config, sublayer: int | None = None) -> None:
        super().__init__()
        self.heads = config["attnres_heads"]
        self.norm = RMSNorm(config["n_embd"], norm_epsilon(config), gain=config["hc_norm_gain"])
        self.query = nn.Parameter(torch.zeros(config["n_embd"]))

    def mix(self, states: list[Tensor]) -> Tensor:
        stacked = torch.stack(states, -2)  # [B, T, states, C]
        weights = (self.norm(stacked) * self.query).unflatten(-1, (self.heads, -1)).sum(-1).softmax(-2)
        return (weights.unsqueeze(-1) * stacked.unflatten(-1, (self.heads, -1))).sum(-3).flatten(-2)

    def forward(self, states: States) -> Tensor:
        return self.mix(states.all())


class DeltaRead(DepthRead):
    """Delta attention residuals: what a branch reads beside the stream, through a gate a mixture of the states that are complete."""

    def __init__(self, config: Config, sublayer: int) -> None:
        super().__init__(config)
        self.gate = nn.Parameter(torch.zeros(())) if config["dar_gate"] == "zero" else None

    def forward(self, states: States) -> Tensor:
        mixture = self.mix(states.complete)
        return mixture if self.gate is None else self.gate * mixture


class States:
    """What attention residuals carry in place of streams, or beside the stream: the embedding, then sums of the outputs of `block` sublayers each."""

    def __init__(self, embedded: Tensor, block: int) -> None:
        self.complete, self.block, self.outputs = [embedded], block, 0
        self.newest: Tensor | None = None

    def all(self) -> list[Tensor]:
        return self.complete + ([] if self.newest is None else [self.newest])

    def add(self, output: Tensor) -> None:
        self.newest = output if self.newest is None else self.newest + output
        self.outputs += 1
        if self.outputs % self.block == 0:
            self.complete, self.newest = self.all(), None


class Laurel(nn.Module):
    """x' = a o + b (x + x w_down w_up) for the branch's output o, with learned weights a + b = 2, or without them or the product."""

    def __init__(self, config: Config, sublayer: int) -> None:
        super().__init__()
        width, rank, form = config["n_embd"], config["laurel_rank"], config["laurel_form"]
        self.b_mix = nn.Parameter(torch.zeros(2)) if "rw" in form else None
        self.w_down = nn.Parameter(torch.zeros(width, rank)) if "lr" in form else None
        self.w_up = nn.Parameter(torch.zeros(rank, width)) if "lr" in form else None

    def forward(self, stream: Tensor, output: Tensor) -> Tensor:
        if self.w_down is not None and self.w_up is not None:
            stream = stream + stream @ self.w_down @ self.w_up
        new, kept = (1.0, 1.0) if self.b_mix is None else 2.0 * self.b_mix.softmax(0)
        return new * output + kept * stream


class Wide(nn.Module):
    """Weights that no token changes: H_res is the identity, or with retention a diagonal from 0.9 to 1."""

    def __init__(self, config: Config, sublayer: int) -> None:
        super().__init__()
        retains = config.get("wide_retention", False) and mixes(config, sublayer)
        self.eps = config["hc_eps"]
        self.b_pre = nn.Parameter(torch.zeros(config["n_streams"]))
        self.b_post = nn.Parameter(torch.zeros(config["n_streams"]))
        self.b_res = nn.Parameter(torch.zeros(config["n_streams"])) if retains else None

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kept = torch.ones_like(self.b_pre) if self.b_res is None else 1.0 - 0.1 * torch.sigmoid(-self.b_res)
        each = streams.shape[:-1]  # [B, T, n]
        return ((torch.sigmoid(self.b_pre) + self.eps).expand(each), (2.0 * torch.sigmoid(self.b_post)).expand(each),
                torch.diag(kept).expand(*each, each[-1]))


def mudd_norm(config: Config) -> nn.Module:
    return RMSNorm(config["n_embd"], norm_epsilon(config)) if config["mudd_norm"] == "prepost" else nn.Identity()


class Ways(nn.Module):
    """Multiway dense connections: after a layer, mixtures of all states so far for the next one's queries, keys, values and stream, or
    one for the top, with weights that depend on the newest. With mudd_norm states are normed, mixtures are added to the newest, and
    that of the stream is normed before."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        last = layer == config["n_layer"] - 1
        ways, states, unit = 1 if last else 4, layer + 2, config["mudd_round"]
        hidden = ways * states * (4 if last else 1)
        hidden = (hidden // unit + 1) * unit if unit else hidden
        self.norm = RMSNorm(config["n_embd"], norm_epsilon(config), gain=False)
        self.norm_pre, self.norm_post = mudd_norm(config), mudd_norm(config)
        self.w_1 = nn.Parameter(torch.zeros(config["n_embd"], hidden))
        self.w_2 = nn.Parameter(torch.zeros(hidden, ways * states))
        self.b = nn.Parameter(torch.zeros(ways, states))

    def forward(self, states: list[Tensor], newest: Tensor) -> tuple[Tensor, ...]:
        weights = (functional.gelu(self.norm(newest) @ self.w_1) @ self.w_2).unflatten(-1, self.b.shape) + self.b
        mixtures = (weights @ torch.stack(states, -2)).unbind(-2)
        if isinstance(self.norm_post, nn.Identity):
            return mixtures
        return tuple(newest + mixture for mixture in (*mixtures[:-1], self.norm_post(mixtures[-1])))


class Average(nn.Module):
    """DenseFormer: after a layer, a learned sum of the embedding and of what all layers so far have given."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(layer + 2))

    def forward(self, states: list[Tensor]) -> Tensor:
        return self.b @ torch.stack(states, -2)


SINGLE = ("rc", "attnres", "mudd", "dense", "laurel", "dar")  # connections with one stream
CONNECTIONS = {"rc": None, "identity": Identity, "hc": HC, "mhc": MHC, "mhc_lite": MHCLite, "shc": SHC, "krom": KromHC,
               "circulant": Circulant, "go_mhc": GoMHC, "ohc": OHC, "gated": Gated, "attnres": DepthRead, "mudd": None, "wide": Wide,
               "dense": None, "laurel": Laurel, "dar": DeltaRead, "frac": Frac}


# ---- the model

def attention_of(config: Config, layer: int) -> Attention:
    """With value_embeds that of every other layer, the last one included, has embeddings."""
    return Attention(config, config["value_embeds"] and (config["n_layer"] - 1 - layer) % 2 == 0)


class Block(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        connection = choose(CONNECTIONS, "residual", config["residual"])
        self.ln_1 = None if connection is Gated else norm_of(config)
        self.attn = attention_of(config, layer)
        self.ln_2 = None if connection is Gated else norm_of(config)
        self.mlp = MLP(config)
        self.hc_attn = connection(config, 2 * layer) if connection else None
        self.hc_mlp = connection(config, 2 * layer + 1) if connection else None
        self.dense = Average(config, layer) if config["residual"] == "dense" else None
        self.lambda_resid = nn.Parameter(torch.ones(())) if config["x0_lambdas"] else None
        self.lambda_x0 = nn.Parameter(torch.zeros(())) if config["x0_lambdas"] else None

    @staticmethod
    def sublayer(streams: Any, read: Any, connection: nn.Module | None, norm: Any, branch: Callable[..., Tensor]) -> tuple[Any, Any]:
        """The streams behind the branch, and what the next sublayer reads them with: `read` [B, T, n], or if that is None, each
        reads with its own weights. Of dar it is the earlier states."""
        if connection is None:  # rc: one stream
            return streams + branch(norm(streams.squeeze(-2))).unsqueeze(-2), None
        if isinstance(connection, Laurel):
            return connection(streams, branch(norm(streams.squeeze(-2))).unsqueeze(-2)), None
        if isinstance(connection, Gated):
            inner, post = connection(streams)
            return streams + post.unsqueeze(-1) * branch(inner).unsqueeze(-2), None
        if isinstance(connection, DeltaRead):
            output = branch(norm(streams.squeeze(-2) + connection(read)))
            read.add(output)
            return streams + output.unsqueeze(-2), read
        if isinstance(connection, DepthRead):
            streams.add(branch(norm(connection(streams))))
            return streams, None
        pre, post, residual = connection(streams)
        if isinstance(connection, Frac):
            output = branch(norm((pre @ streams).flatten(-2))).unflatten(-1, streams.shape[-2:])
        else:
            output = branch(norm(weighted_sum(pre if read is None else read, streams))).unsqueeze(-2)
        return residual @ streams + post.unsqueeze(-1) * output, None if read is None else pre

    def forward(self, streams: Any, read: Any, tokens: Tensor) -> tuple[Any, Any]:
        streams, read = self.sublayer(streams, read, self.hc_attn, self.ln_1, functools.partial(self.attn, tokens=tokens))
        return self.sublayer(streams, read, self.hc_mlp, self.ln_2, self.mlp)


class MultiwayBlock(nn.Module):
    """A layer of mudd. It carries all states, and what it reads: mixtures of them."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.norms = ("ln_q", "ln_k", "ln_v") if layer else ("ln_1",)
        for name in self.norms:
            setattr(self, name, norm_of(config))
        self.attn = attention_of(config, layer)
        self.ln_2 = norm_of(config)
        self.mlp = MLP(config)
        self.mudd = Ways(config, layer)

    def forward(self, states: list[Tensor], mixtures: Sequence[Tensor], tokens: Tensor) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        inputs = (getattr(self, name)(read) for name, read in zip(self.norms, mixtures))
        stream = mixtures[-1] + self.attn(*inputs, tokens=tokens)
        newest = stream + self.mlp(self.ln_2(stream))
        states = [*states, self.mudd.norm_pre(newest)]
        return states, self.mudd(states, newest)


class Collapse(nn.Module):
    """The sum of the streams with learned weights, which depend on the streams or are fixed."""

    def __init__(self, config: Config, fixed: bool) -> None:
        super().__init__()
        streams, row = config["n_streams"], config["n_streams"] * config["n_embd"]
        self.eps = config["hc_eps"]
        self.norm = None if fixed else RMSNorm(row, gain=False)
        self.w_pre = None if fixed else nn.Parameter(torch.zeros(row, streams))
        self.b_pre = nn.Parameter(torch.zeros(streams))
        self.alpha_pre = None if fixed else nn.Parameter(torch.ones(()))

    def forward(self, streams: Tensor) -> Tensor:
        logits = self.b_pre if self.norm is None else self.alpha_pre * (self.norm(streams.flatten(-2)) @ self.w_pre) + self.b_pre
        return weighted_sum(torch.sigmoid(logits) + self.eps, streams)


class Transformer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config["n_embd"]
        self.wte = nn.Embedding(config["vocab_size"], width)
        self.wpe = nn.Embedding(config["block_size"], width) if config["position"] == "learned" else None
        self.ln_e = RMSNorm(width, norm_epsilon(config)) if config["embed_norm"] else None
        scaled = config["stream_expand"] == "scaled" and config["residual"] not in SINGLE
        self.stream_scale = nn.Parameter(torch.ones(config["n_streams"], width)) if scaled else None
        multiway = config["residual"] == "mudd"
        self.mudd: Any = nn.ModuleDict({"norm_pre": mudd_norm(config)}) if multiway else None  # of the embedding
        self.h = nn.ModuleList((MultiwayBlock if multiway else Block)(config, i) for i in range(config["n_layer"]))
        gated = config["residual"] == "gated"
        self.ln_f: Any = None if gated else norm_of(config)
        self.hc_head: Any = None
        if gated:
            self.hc_head = Gated(config)
        elif config["residual"] == "attnres":
            self.hc_head = DepthRead(config)
        elif config["residual"] not in (*SINGLE, "frac") and config["stream_reduce"] in ("head", "read"):
            self.hc_head = Collapse(config, fixed=config["stream_reduce"] == "read" or not config["hc_dynamic"])


class Head(nn.Module):
    """What logits are made with. Without weights of its own it takes those of the token embedding."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        vocabulary = config["vocab_size"]
        self.weight = None if config["tie_embeddings"] else nn.Parameter(0.02 * torch.randn(vocabulary, config["n_embd"]))
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if config["head_bias"] else None

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return functional.linear(x, embedding if self.weight is None else self.weight, self.bias)


def rsqrt_softcap(ratio: Tensor, most: float) -> Tensor:
    ratio = ratio.clamp(-1e4, 1e4)  # its square is finite, and beyond it the quotient is 1
    return most * ratio * torch.rsqrt(ratio.square() + 1)


SOFTCAPS: Dict[str, Any] = {"tanh": lambda ratio, most: most * torch.tanh(ratio), "rsqrt": rsqrt_softcap}

# Of settings that older files do not have.
DEFAULTS: Config = {
    "bias": False, "dropout": 0.0, "norm": "layernorm", "position": "learned", "mlp": "gelu", "activation": "gelu", "tie_embeddings": True,
    "head_bias": False, "embed_norm": False, "logit_softcap": 0.0, "softcap_kind": "tanh", "n_streams": 1,
    "stream_expand": "copy", "read_delay": False, "hc_norm_gain": True, "hc_eps": 0.0, "hc_norm_eps": 1e-6, "h_res_transposed": False, "sinkhorn_iters": 20, "circulant_beta": 4.0,
    "hc_dynamic": True, "hc_until": 0, "x0_lambdas": False, "value_embeds": False, "gated_rank": 0, "attnres_block": 1, "attnres_heads": 1,
    "mudd_round": 64, "mudd_norm": "none", "laurel_form": "rw_lr", "laurel_rank": 16, "dar_gate": "zero"}


class GPT(nn.Module):
    """The language model; config is the content of config.json. A new one has PyTorch's initial weights, which are not those of
    hc_train: see load."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = {**DEFAULTS, **config}
        self.config.setdefault("stream_reduce", "last_pre" if self.config["read_delay"] else "read" if config["residual"] == "wide" else "norm_sum")
        self.transformer = Transformer(self.config)
        self.lm_head = Head(self.config)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        parts, config = self.transformer, self.config
        if tokens.shape[1] > config["block_size"]:
            raise ValueError("%d tokens are more than the model's context of %d" % (tokens.shape[1], config["block_size"]))
        embedded = parts.wte(tokens)
        if parts.wpe is not None:
            embedded = embedded + parts.wpe.weight[:tokens.shape[1]]
        if parts.ln_e is not None:
            embedded = parts.ln_e(embedded)
        embedded = functional.dropout(embedded, config["dropout"], self.training)
        count = 1 if config["residual"] in SINGLE else config["n_streams"]
        streams: Any = embedded.unsqueeze(-2).repeat(1, 1, count, 1)
        if config["residual"] == "attnres":
            streams = States(embedded, config["attnres_block"])
        if parts.stream_scale is not None:
            streams = streams * parts.stream_scale
        read: Any = functional.one_hot(torch.zeros_like(tokens), count).to(streams.dtype) if config["read_delay"] else None  # stream 0
        if config["residual"] == "mudd":
            streams, read = [parts.mudd.norm_pre(embedded)], [embedded]
        elif config["residual"] == "dar":
            read = States(embedded, config["attnres_block"])
        elif config["residual"] == "frac":
            streams = embedded.unflatten(-1, (count, -1))
        states = [streams]  # of x0_lambdas and dense: the first streams, then those behind each layer
        block: Any
        for block in parts.h:
            if config["x0_lambdas"]:
                streams = block.lambda_resid * streams + block.lambda_x0 * states[0]
            streams, read = block(streams, read, tokens)
            if config["residual"] == "dense":
                states.append(streams)
                streams = block.dense(states)
        if config["residual"] == "gated":
            top, _ = parts.hc_head(streams)
        elif config["residual"] == "mudd":
            top = parts.ln_f(*read)
        elif parts.hc_head is not None:
            top = parts.ln_f(parts.hc_head(streams))
        elif config["residual"] == "frac":
            top = parts.ln_f(streams.flatten(-2))
        elif config["stream_reduce"] == "last_pre":
            top = parts.ln_f(weighted_sum(read, streams))
        elif config["stream_reduce"] != "sum_norm":
            top = parts.ln_f(streams).sum(-2)
        else:
            top = parts.ln_f(streams.sum(-2))
        logits = self.lm_head(top, parts.wte.weight)
        if config["logit_softcap"]:
            logits = choose(SOFTCAPS, "softcap_kind", config["softcap_kind"])(logits / config["logit_softcap"], config["logit_softcap"])
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    def connections(self) -> list[Any]:
        """The modules that compute each sublayer's weights from the streams, in the order of the sublayers; mudd and dense have one for each layer,
        and rc has none (None)."""
        of_layer = {"mudd": ("mudd",), "dense": ("dense",)}.get(self.config["residual"], ("hc_attn", "hc_mlp"))
        return [getattr(block, name) for block in self.transformer.h for name in of_layer]

    @torch.no_grad()
    def generate(self, tokens: Tensor, count: int, temperature: float = 0.8, top_k: int | None = None) -> Tensor:
        """Adds tokens drawn from the model; temperature 0 takes the likeliest, top_k chooses among so many."""
        for _ in range(count):
            logits = self(tokens[:, -self.config["block_size"]:])[0][:, -1]
            if temperature == 0:
                following = logits.argmax(-1, keepdim=True)
            else:
                if top_k is not None:
                    least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
                    logits = logits.masked_fill(logits < least, -math.inf)
                following = torch.multinomial((logits / temperature).softmax(-1), 1)
            tokens = torch.cat((tokens, following), dim=1)
        return tokens


# ---- files

def read_safetensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a file by their names; they are views of the file, read when they are used."""
    types = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    content = torch.from_file(os.fspath(path), shared=False, size=os.path.getsize(path), dtype=torch.uint8)[8 + length:]
    return {name: content[slice(*entry["data_offsets"])].view(types[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in header.items()}


def load(folder: str | os.PathLike[str]) -> GPT:
    """The model of a folder with config.json and model.safetensors, in eval mode."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        gpt = GPT(json.load(file))
    gpt.load_state_dict(read_safetensors(os.path.join(folder, "model.safetensors")))
    return gpt.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=os.path.dirname(os.path.abspath(__file__)), help="default: where this file is")
    parser.add_argument("--state-dict", metavar="FILE", help="write the weights with torch.save")
    parser.add_argument("--prompt", help="continue this text, with a model whose tokens are bytes")
    parser.add_argument("--tokens", help="continue these tokens: numbers with spaces between them")
    parser.add_argument("--count", type=int, default=100, help="tokens to add")
    parser.add_argument("--temperature", type=float, default=0.8)
    arguments = parser.parse_args()
    gpt = load(arguments.folder)
    if arguments.state_dict:
        torch.save(gpt.state_dict(), arguments.state_dict)
    if arguments.prompt is not None and gpt.config.get("tokenizer", "byte") != "byte":
        sys.exit("model.py: the tokens are %s's, not bytes: give --tokens" % gpt.config["tokenizer"])
    if arguments.prompt is None and arguments.tokens is None:
        return
    given = list(arguments.prompt.encode() or b"\n") if arguments.prompt is not None else [int(x) for x in arguments.tokens.split()]
    tokens = gpt.generate(torch.tensor([given]), arguments.count, arguments.temperature)[0].tolist()
    if arguments.prompt is not None:
        sys.stdout.buffer.write(bytes(token if token < 256 else 63 for token in tokens) + b"\n")
    else:
        print(*tokens)


if __name__ == "__main__":
    main()
