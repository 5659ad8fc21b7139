"""DeepSeek-V4's hyper-connections, as transformers and the release name their tensors: those of mhc with hc_eps and without a gain."""
from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Iterator, Mapping

from ..checkpoints import Checkpoint
from ..files import Error
from .tensors import Arrays, Converted, Source, as_json, check_streams, number, of_checkpoint, open_safetensors

KINDS = {"fn": "w_", "base": "b_", "scale": "alpha_"}  # of their tensors, and of the leaves whose rows they have
GROUPS = ("pre", "post", "res")


class Module:
    """A module with H_pre, or with all three matrices: the beginnings of our names and theirs, which end in a kind."""

    def __init__(self, ours: str, usual: str, released: str, groups: tuple[str, ...] = GROUPS):
        self.ours, self.usual, self.released, self.groups = ours, usual, released, groups


def _modules(config: Mapping[str, Any]) -> Iterator[Module]:
    for layer in range(config["n_layer"]):
        for ours, theirs in (("hc_attn", "attn"), ("hc_mlp", "ffn")):
            yield Module(f"transformer.h.{layer}.{ours}.", f"layers.{layer}.{theirs}_hc.", f"layers.{layer}.hc_{theirs}_")
    if config.get("stream_reduce") == "head":
        yield Module("transformer.hc_head.", "hc_head.hc_", "hc_head_", GROUPS[:1])


def _check(config: Mapping[str, Any], place: str) -> tuple[int, int]:
    """Streams and channels of a model whose connections have this form."""
    needed = {"residual": ("mhc", "DeepSeek-V4's hyper-connections are mhc"),
              "hc_norm_gain": (False, "their norm has no gain, so give --no-hc-norm-gain when the run begins"),
              "h_res_transposed": (False, "their form is that without it"), "stream_expand": ("copy", "their streams have no scales")}
    values = {"hc_norm_gain": True, "h_res_transposed": False, "stream_expand": "copy", **config}
    for name, (value, words) in needed.items():
        if values.get(name) != value:
            raise Error(f"{place}: {name} is {as_json(values.get(name))}: {words}")
    number(config, "n_layer", place)
    return check_streams(number(config, "n_streams", place), "mhc", place), number(config, "n_embd", place)


def to_theirs(checkpoint: Checkpoint) -> Converted:
    """Their config and tensors of hyper-connections alone."""
    import numpy as np

    config, source = checkpoint.config, of_checkpoint(checkpoint)
    n, channels = _check(config, source.name)
    weights: Arrays = {}
    for module in _modules(config):
        rows: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        for group in module.groups:
            sizes = (n, n) if group == "res" else (n,)
            projection = source.take(f"{module.ours}w_{group}", n * channels, math.prod(sizes)).reshape(-1, *sizes)
            rows["fn"].append(projection.T.reshape(-1, n * channels))  # of w_res they have columns as rows: entry j, i beside i, j
            rows["base"].append(source.take(f"{module.ours}b_{group}", *sizes).T.reshape(-1))
            rows["scale"].append(source.take(f"{module.ours}alpha_{group}").reshape(1))
        weights.update({f"model.{module.usual}{kind}": np.concatenate(parts) for kind, parts in rows.items()})
    return {"num_hidden_layers": config["n_layer"], "hidden_size": channels, "hc_mult": n, "hc_sinkhorn_iters": config.get("sinkhorn_iters", 20),
            "hc_eps": config.get("hc_eps", 0.0), "rms_norm_eps": config.get("hc_norm_eps", 1e-6)}, weights


def _find(source: Source, module: Module, kind: str) -> str:
    return module.usual + kind if module.usual + kind in source.shapes or module.released + kind not in source.shapes else module.released + kind


def from_theirs(path: Path, checkpoint: Checkpoint) -> Converted:
    """Config and weights of the checkpoint, with their hyper-connections; other tensors of theirs are left."""
    config, place = checkpoint.config, of_checkpoint(checkpoint).name
    n, channels = _check(config, place)
    source = open_safetensors(path).merge(lambda name: re.sub(r"^model\.", "", name))
    deeper = {**config, "n_layer": config["n_layer"] + 1, "stream_reduce": "head"}
    known = {module.ours for module in _modules(config)}
    for module in _modules(deeper):
        if module.ours not in known and _find(source, module, "fn") in source.shapes:
            words = "give --stream-reduce head when the run begins" if module.groups != GROUPS else f"of more layers than the {config['n_layer']} there"
            raise Error(f"{source.name} has hyper-connections that {place} has not: {words}")
    weights = dict(checkpoint.weights)
    for module in _modules(config):
        count = sum(n * n if group == "res" else n for group in module.groups)
        fn, base, scale = (source.take(_find(source, module, kind), *sizes)
                           for kind, sizes in (("fn", (count, n * channels)), ("base", (count,)), ("scale", (len(module.groups),))))
        for i, group in enumerate(module.groups):
            sizes = (n, n) if group == "res" else (n,)
            rows = slice(i * n, i * n + math.prod(sizes))
            weights[f"{module.ours}w_{group}"] = fn[rows].reshape(*sizes, -1).T.reshape(n * channels, -1)
            weights[f"{module.ours}b_{group}"] = base[rows].reshape(sizes).T
            weights[f"{module.ours}alpha_{group}"] = scale[i].reshape(())
    return config, weights
