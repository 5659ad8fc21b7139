"""Hyper-connections as mHC-lite's modules store them, whose form s2HC and KromHC took over: their tensors and our leaves."""
from __future__ import annotations

import itertools
import math
import re
from typing import Any, Mapping, NamedTuple

from ..files import Error
from .tensors import Arrays, Names, Sizes, Source

MODULES = ("hc_attn", "hc_mlp")  # of a layer, there and here

# Their code mixes the streams with the transpose of H_res. Of these connections the transpose is a matrix of the same connection, so that
# ours need no h_res_transposed; hc's form is ours already, and mhc's needs the setting: its rows and columns are normalised in turn.
TRANSPOSED_ALIKE = ("shc", "mhc_lite", "krom")
# What their models are, whatever the config says.
COMMON = {"embed_norm": False, "stream_expand": "copy", "read_delay": False, "hc_norm_gain": True, "hc_eps": 0.0, "hc_norm_eps": 0.0, "rope_fraction": 1.0,
          "attn_scale": 0.0, "head_bias": False, "logit_softcap": 0.0, "activation": "gelu", "sinkhorn_iters": 20, "hc_dynamic": True, "hc_until": 0, "x0_lambdas": False,
          "value_embeds": False}


class Shape(NamedTuple):
    residual: str
    streams: int
    channels: int

    @property
    def row(self) -> int:
        """Channels that a connection's norm and projections see together."""
        return self.channels if self.residual == "hc" else self.streams * self.channels

    @property
    def b_res(self) -> Sizes:
        n = self.streams
        return {"hc": (n, n), "mhc": (n, n), "mhc_lite": (math.factorial(n),), "krom": (2 * (n.bit_length() - 1),)}[self.residual]


def shape_of(config: Mapping[str, Any]) -> Shape:
    return Shape(config["residual"], config["n_streams"], config["n_embd"])


def leaf_shapes(shape: Shape) -> dict[str, Sizes]:
    """Our leaves of all but shc."""
    n, row = shape.streams, shape.row
    reads, mixes = (1, n) if shape.residual == "hc" else (n, math.prod(shape.b_res))
    return {"norm.weight": (row,), "w_pre": (row, reads), "w_post": (row, reads), "w_res": (row, mixes), "b_pre": (n,), "b_post": (n,), "b_res": shape.b_res,
            "alpha_pre": (), "alpha_post": (), "alpha_res": ()}


def transpose(shape: Shape, leaves: Arrays) -> Arrays:
    """The leaves with which H_res is its transpose. It is its own inverse."""
    if shape.residual == "shc":  # u and v change places
        return {re.sub("_[uv]$", lambda side: "_v" if side.group() == "_u" else "_u", name): leaf for name, leaf in leaves.items()}
    if shape.residual == "mhc_lite":  # each permutation becomes its inverse
        orders = list(itertools.permutations(range(shape.streams)))
        places = {order: place for place, order in enumerate(orders)}
        inverse = [places[tuple(sorted(range(shape.streams), key=order.__getitem__))] for order in orders]
        return {**leaves, "w_res": leaves["w_res"][:, inverse], "b_res": leaves["b_res"][inverse]}
    return leaves  # krom's H_res is symmetric


def _read_hc(source: Source, base: str, shape: Shape) -> Arrays:
    n, row = shape.streams, shape.row
    mixed, fixed = source.take(base + "dynamic_alpha_fn", row, n + 1), source.take(base + "static_alpha", n, n + 1)
    scale = source.take_scalar(base + "dynamic_alpha_scale")
    return {"w_pre": mixed[:, :1], "w_res": mixed[:, 1:], "b_pre": fixed[:, 0], "b_res": fixed[:, 1:].T, "alpha_pre": scale, "alpha_res": scale,
            "w_post": source.take(base + "dynamic_beta_fn", row).reshape(row, 1), "alpha_post": source.take_scalar(base + "dynamic_beta_scale")}


def _read_shc(source: Source, base: str, shape: Shape) -> Arrays:
    n, row = shape.streams, shape.row
    angles = (n - 1) * (n - 2) // 2
    mixed, fixed = source.take(base + "to_alpha_residual.weight", 2 * angles + n - 1, row), source.take(base + "static_alpha_residual", 2 * angles + n - 1)
    leaves = {"w_pre": source.take(base + "to_alpha_pre.weight", n, row).T, "b_pre": source.take(base + "static_alpha_pre", n, 1)[:, 0],
              "w_post": source.take(base + "to_beta.weight", n, row).T, "w_s": mixed[2 * angles:].T, "b_s": fixed[2 * angles:]}
    if angles:
        leaves.update(w_u=mixed[:angles].T, b_u=fixed[:angles], w_v=mixed[angles:2 * angles].T, b_v=fixed[angles:2 * angles])
    scalars = {"tau_u": "residual_rot_scale_u", "tau_v": "residual_rot_scale_v", "tau_s": "residual_val_scale", "gamma_u": "gamma_u", "gamma_v": "gamma_v"}
    return {**leaves, **{leaf: source.take_scalar(base + name) for leaf, name in scalars.items()}}


def _read_mapped(source: Source, base: str, shape: Shape) -> Arrays:
    """mhc, mhc_lite and krom."""
    n, row, mixes = shape.streams, shape.row, math.prod(shape.b_res)
    leaves = {"alpha_res": source.take_scalar(base + "residual_scale"), "w_post": source.take(base + "dynamic_beta_fn", row, n)}
    if shape.residual == "mhc":  # n + 1 columns for each stream, of which the first reads it
        mixed, fixed = source.take(base + "dynamic_alpha_fn", row, n * (n + 1)).reshape(row, n, n + 1), source.take(base + "static_alpha", n, n + 1)
        return {**leaves, "w_pre": mixed[:, :, 0], "w_res": mixed[:, :, 1:].reshape(row, mixes), "b_pre": fixed[:, 0], "b_res": fixed[:, 1:]}
    mixed, fixed = source.take(base + "dynamic_alpha_fn", row, n + mixes), source.take(base + "static_alpha", n + mixes)
    return {**leaves, "w_pre": mixed[:, :n], "w_res": mixed[:, n:], "b_pre": fixed[:n], "b_res": fixed[n:]}


def read(source: Source, base: str, shape: Shape) -> Arrays:
    """Our leaves of the module whose tensors' names begin with `base`. Of mhc they are for h_res_transposed, of the others without it."""
    read_rest = {"hc": _read_hc, "shc": _read_shc}.get(shape.residual, _read_mapped)
    leaves = {"norm.weight": source.take(base + "norm.gamma", shape.row) + 1, "b_post": source.take(base + "static_beta", shape.streams),
              **read_rest(source, base, shape)}
    if shape.residual != "hc":
        leaves.update(alpha_pre=source.take_scalar(base + "pre_branch_scale"), alpha_post=source.take_scalar(base + "h_post_scale"))
    return transpose(shape, leaves) if shape.residual in TRANSPOSED_ALIKE else leaves


def read_layers(source: Source, config: Mapping[str, Any], names: Names) -> Arrays:
    """All layers: the tensors of `names`, and hyper-connections."""
    shape, weights = shape_of(config), {}
    for block in (f"transformer.h.{layer}." for layer in range(config["n_layer"])):
        weights.update({block + ours: source.take(block + theirs, *sizes) for ours, (theirs, sizes) in names.items()})
        for base in (block + module + "." for module in MODULES if shape.residual != "rc"):
            weights.update({base + name: leaf for name, leaf in read(source, base, shape).items()})
    return weights


def write(source: Source, base: str, shape: Shape, transposed: bool) -> Arrays:
    """Their tensors, without `base`, of a connection of ours: hc, mhc or mhc_lite."""
    import numpy as np

    leaves = {name: source.take(base + name, *sizes) for name, sizes in leaf_shapes(shape).items()}
    leaves = transpose(shape, leaves) if shape.residual in TRANSPOSED_ALIKE and not transposed else leaves
    n, row = shape.streams, shape.row
    theirs = {"norm.gamma": leaves["norm.weight"] - 1, "static_beta": leaves["b_post"]}
    if shape.residual == "hc":
        if leaves["alpha_pre"] != leaves["alpha_res"]:
            raise Error(f"{source.name}: {base}alpha_pre is {leaves['alpha_pre']} and alpha_res {leaves['alpha_res']}, and hc has one number for both there")
        return {**theirs, "dynamic_alpha_fn": np.concatenate((leaves["w_pre"], leaves["w_res"]), 1), "dynamic_alpha_scale": leaves["alpha_pre"],
                "static_alpha": np.concatenate((leaves["b_pre"].reshape(n, 1), leaves["b_res"].T), 1), "dynamic_beta_fn": leaves["w_post"].reshape(row),
                "dynamic_beta_scale": leaves["alpha_post"]}
    theirs.update(pre_branch_scale=leaves["alpha_pre"].reshape(1), residual_scale=leaves["alpha_res"].reshape(1), h_post_scale=leaves["alpha_post"],
                  dynamic_beta_fn=leaves["w_post"])
    if shape.residual == "mhc":
        mixed = np.concatenate((leaves["w_pre"].reshape(row, n, 1), leaves["w_res"].reshape(row, n, n)), 2).reshape(row, n * (n + 1))
        return {**theirs, "dynamic_alpha_fn": mixed, "static_alpha": np.concatenate((leaves["b_pre"].reshape(n, 1), leaves["b_res"]), 1)}
    return {**theirs, "dynamic_alpha_fn": np.concatenate((leaves["w_pre"], leaves["w_res"]), 1), "static_alpha": np.concatenate((leaves["b_pre"], leaves["b_res"]))}
