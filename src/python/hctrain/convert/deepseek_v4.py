"""DeepSeek-V4's hyper-connections, as transformers and the release name their tensors: those of mhc with hc_eps and without a gain."""
from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple

from ..checkpoints import LARGEST_JSON, Checkpoint
from ..files import Error, printable, read_object
from .tensors import Arrays, Converted, as_json, check_streams, number, of_checkpoint, open_safetensors

KINDS = ("fn", "base", "scale")  # of their tensors; they have the rows of the leaves w_*, b_*, alpha_*
GROUPS = ("pre", "post", "res")
SHARED = {"num_hidden_layers": ("n_layer", None), "hidden_size": ("n_embd", None), "hc_mult": ("n_streams", None), "hc_sinkhorn_iters": ("sinkhorn_iters", 20),
          "hc_eps": ("hc_eps", 0.0), "rms_norm_eps": ("hc_norm_eps", 1e-6)}  # their setting: ours, and its value where a config has none


class Module(NamedTuple):
    """A module with H_pre, or with all three matrices: the beginnings of our names and of theirs."""

    ours: str
    theirs: str
    groups: tuple[str, ...]


def _modules(config: Mapping[str, Any]) -> Iterator[Module]:
    for layer in range(config["n_layer"]):
        yield Module(f"transformer.h.{layer}.hc_attn.", f"layers.{layer}.attn_hc.", GROUPS)
        yield Module(f"transformer.h.{layer}.hc_mlp.", f"layers.{layer}.ffn_hc.", GROUPS)
    if config.get("stream_reduce") == "head":
        yield Module("transformer.hc_head.", "hc_head.hc_", GROUPS[:1])


def _canonical(name: str) -> str:
    """transformers' name without "model.", also of the release's names."""
    name = re.sub(r"^model\.", "", name)
    return re.sub(r"^(layers\.\d+)\.hc_(attn|ffn)_", r"\1.\2_hc.", re.sub(r"^hc_head_", "hc_head.hc_", name))


def _check(config: Mapping[str, Any], place: str) -> tuple[int, int]:
    """Streams and channels of a model whose connections have this form."""
    needed = {"residual": ("mhc", "DeepSeek-V4's hyper-connections are mhc"),
              "hc_norm_gain": (False, "their norm has no gain, so give --no-hc-norm-gain when the run begins"),
              "h_res_transposed": (False, "their form is that without it"), "stream_expand": ("copy", "their streams have no scales"),
              "read_delay": (False, "their sublayers read with their own H_pre"), "hc_dynamic": (True, "their matrices depend on the token"),
              "hc_until": (0, "all their sublayers mix the streams"), "x0_lambdas": (False, "their layers add no earlier streams")}
    values = {"hc_norm_gain": True, "h_res_transposed": False, "stream_expand": "copy", "read_delay": False, "hc_dynamic": True, "hc_until": 0, "x0_lambdas": False, **config}
    for name, (value, words) in needed.items():
        if values.get(name) != value:
            raise Error(f"{place}: {name} is {as_json(values.get(name))}: {words}")
    number(config, "n_layer", place, 1 << 16)
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
        weights.update({f"model.{module.theirs}{kind}": np.concatenate(parts) for kind, parts in rows.items()})
    return {theirs: config.get(ours, absent) for theirs, (ours, absent) in SHARED.items()}, weights


def _check_theirs(path: Path, config: Mapping[str, Any], place: str) -> None:
    """Compares the settings of a config.json that lies beside their tensors."""
    beside = (path if path.is_dir() else path.parent) / "config.json"
    theirs = read_object(beside, LARGEST_JSON) if beside.exists() else {}
    for name, (ours, absent) in SHARED.items():
        if name in theirs and theirs[name] != config.get(ours, absent):
            raise Error(f"{place}: {ours} is {as_json(config.get(ours, absent))}, and {name} is {as_json(theirs[name])} in {printable(beside)}")


def from_theirs(path: Path, checkpoint: Checkpoint) -> Converted:
    """Config and weights of the checkpoint, with their hyper-connections; other tensors of theirs are left."""
    config, ours = checkpoint.config, of_checkpoint(checkpoint)
    n, channels = _check(config, ours.name)
    _check_theirs(path, config, ours.name)
    source = open_safetensors(path).merge(_canonical)
    depth = config["n_layer"]
    if f"layers.{depth}.attn_hc.fn" in source.shapes:
        raise Error(f"{source.name} has hyper-connections of more layers than the {depth} of {ours.name}")
    if config.get("stream_reduce") != "head" and "hc_head.hc_fn" in source.shapes:
        raise Error(f"{source.name} has hc_head, with which {ours.name} does not end: give --stream-reduce head when the run begins")
    weights = {name: ours.take(name, *sizes) for name, sizes in ours.shapes.items()}
    advice = f"{ours.name} has {depth} layers, {n} streams and {channels} channels"
    for module in _modules(config):
        count = sum(n * n if group == "res" else n for group in module.groups)
        if module.theirs + "fn" not in source.shapes:
            raise Error(f"{source.name} has no tensor '{module.theirs}fn', nor one of the release's name: {advice}")
        fn, base, scale = (source.take(module.theirs + kind, *sizes, advice=advice)
                           for kind, sizes in zip(KINDS, ((count, n * channels), (count,), (len(module.groups),))))
        for i, group in enumerate(module.groups):
            sizes = (n, n) if group == "res" else (n,)
            rows = slice(i * n, i * n + math.prod(sizes))
            weights[f"{module.ours}w_{group}"] = fn[rows].reshape(*sizes, -1).T.reshape(n * channels, -1)
            weights[f"{module.ours}b_{group}"] = base[rows].reshape(sizes).T
            weights[f"{module.ours}alpha_{group}"] = scale[i].reshape(())
    return config, weights
