"""mHC-lite's layout: nanoGPT's config and tensors, with branches that stand there more than once."""
from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Mapping

from ..checkpoints import LARGEST_JSON, Checkpoint
from ..files import Error, printable, read_object, shown
from . import connection
from .tensors import Arrays, Converted, Names, Sizes, as_json, check_streams, number, of_checkpoint, open_safetensors

KINDS = {"none": "rc", "hc": "hc", "mhc": "mhc", "mhc_lite": "mhc_lite"}  # hyper_conn_type: residual
SIZES = ("block_size", "vocab_size", "n_layer", "n_head", "n_embd")
KEYS = (*SIZES, "dropout", "bias", "hyper_conn_n", "hyper_conn_type")
GPT2_ROWS = (50257, 50304)  # of an embedding of GPT-2's tokens, without and with padding
FIXED = {**connection.COMMON, "stream_reduce": "norm_sum", "position": "learned", "qk_norm": False, "norm": "layernorm", "norm_eps": 1e-5, "mlp": "gelu",
         "tie_embeddings": True}


def _our_config(theirs: Mapping[str, Any], place: str) -> dict[str, Any]:
    """hctrain's config of a GPTConfig."""
    for name in theirs:
        if name not in KEYS:
            raise Error(f"{place}: '{shown(name)}' is not a setting of mHC-lite, and what it changes is not known here")
    kind, bias, dropout = theirs.get("hyper_conn_type", "none"), theirs.get("bias", True), theirs.get("dropout", 0.0)
    if not isinstance(kind, str) or kind not in KINDS:
        raise Error(f"{place}: hyper_conn_type is {as_json(kind)}, none of {', '.join(KINDS)}")
    if not isinstance(bias, bool):
        raise Error(f"{place}: bias is {as_json(bias)}, not true or false")
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise Error(f"{place}: dropout is {as_json(dropout)}, not a number from 0 to below 1")
    sizes, residual = {name: number(theirs, name, place) for name in SIZES}, KINDS[kind]
    if sizes["n_embd"] % sizes["n_head"]:
        raise Error(f"{place}: n_embd {sizes['n_embd']} is not a multiple of n_head {sizes['n_head']}")
    streams = 1 if residual == "rc" else check_streams(number(theirs, "hyper_conn_n", place), residual, place)
    return {**FIXED, **sizes, "residual": residual, "n_streams": streams, "n_kv_head": sizes["n_head"], "head_dim": sizes["n_embd"] // sizes["n_head"],
            "mlp_width": 4 * sizes["n_embd"], "bias": bias, "qkv_bias": bias, "dropout": float(dropout), "h_res_transposed": residual == "mhc",
            **({"tokenizer": "gpt2"} if sizes["vocab_size"] in GPT2_ROWS else {})}


def _layer(config: Mapping[str, Any]) -> Names:
    channels = config["n_embd"]
    weights = {"ln_1": ("branch_attn.0", (channels,)), "attn.c_attn": ("branch_attn.1.c_attn", (3 * channels, channels)),
               "attn.c_proj": ("branch_attn.1.c_proj", (channels, channels)), "ln_2": ("branch_mlp.0", (channels,)),
               "mlp.c_fc": ("branch_mlp.1.c_fc", (4 * channels, channels)), "mlp.c_proj": ("branch_mlp.1.c_proj", (channels, 4 * channels))}
    names: Names = {}
    for ours, (theirs, sizes) in weights.items():
        names[ours + ".weight"] = (theirs + ".weight", sizes)
        if config["bias"]:
            names[ours + ".bias"] = (theirs + ".bias", sizes[:1])
    return names


def _top(config: Mapping[str, Any]) -> dict[str, Sizes]:
    """Tensors outside layers, which have the same names."""
    shapes: dict[str, Sizes] = {"wte.weight": (config["vocab_size"], config["n_embd"]), "wpe.weight": (config["block_size"], config["n_embd"]),
                                "ln_f.weight": (config["n_embd"],), **({"ln_f.bias": (config["n_embd"],)} if config["bias"] else {})}
    return {"transformer." + name: sizes for name, sizes in shapes.items()}


def _canonical(name: str) -> str:
    name = re.sub(r"\.hc_(attn|mlp)\.branch\.", r".branch_\1.", re.sub(r"^_orig_mod\.", "", name))
    return "transformer.wte.weight" if name == "lm_head.weight" else name


def from_theirs(folder: Path) -> Converted:
    """Config and weights of ours."""
    place = folder / "config.json"
    config = _our_config(read_object(place, LARGEST_JSON), printable(place))
    source = open_safetensors(folder).merge(_canonical)
    weights = {name: source.take(name, *sizes) for name, sizes in _top(config).items()}
    weights.update(connection.read_layers(source, config, _layer(config)))
    source.left = {name for name in source.left if not re.fullmatch(r"transformer\.h\.\d+\.branch_attn\.1\.bias", name)}  # attention's mask
    source.end()
    return config, weights


def to_theirs(checkpoint: Checkpoint) -> Converted:
    """Config and weights of theirs."""
    config, source = {"hc_norm_eps": 1e-6, "h_res_transposed": False, **checkpoint.config}, of_checkpoint(checkpoint)
    kinds = {ours: theirs for theirs, ours in KINDS.items()}
    if not isinstance(config.get("residual"), str) or config["residual"] not in kinds:
        raise Error(f"{source.name}: residual is {as_json(config.get('residual'))}, and mHC-lite has {', '.join(kinds)}")
    theirs = {**{name: config.get(name) for name in (*SIZES, "dropout", "bias")}, "hyper_conn_n": config.get("n_streams"), "hyper_conn_type": kinds[config["residual"]]}
    wanted = _our_config(theirs, source.name)
    if not isinstance(config["h_res_transposed"], bool):
        raise Error(f"{source.name}: h_res_transposed is {as_json(config['h_res_transposed'])}, not true or false")
    free = {"rc": ("stream_reduce", "hc_norm_eps", "hc_norm_gain"), "mhc_lite": ("h_res_transposed",)}.get(config["residual"], ())
    for name, value in wanted.items():
        if name not in ("tokenizer", *free) and config.get(name, value) != value:
            raise Error(f"{source.name}: {name} is {as_json(config[name])}, and {as_json(value)} in mHC-lite's {theirs['hyper_conn_type']}")
    weights = {name: source.take(name, *sizes) for name, sizes in _top(wanted).items()}
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    for block in (f"transformer.h.{layer}." for layer in range(wanted["n_layer"])):
        for ours, (name, sizes) in _layer(wanted).items():
            weights[block + name] = weights[block + re.sub(r"^branch_(attn|mlp)\.", r"hc_\1.branch.", name)] = source.take(block + ours, *sizes)
        for base in (block + module + "." for module in connection.MODULES if wanted["residual"] != "rc"):
            written = connection.write(source, base, connection.shape_of(wanted), config["h_res_transposed"])
            weights.update({base + name: array for name, array in written.items()})
    source.end()
    return theirs, weights
