"""s2HC's layout: LitGPT's tensors, with branches that stand there more than once."""
from __future__ import annotations

import math
import os
import re
import sys
from pathlib import Path
from typing import Any, Mapping

from ..checkpoints import LARGEST_JSON
from ..files import Error, printable, read_file, shown
from . import connection
from .tensors import Arrays, Converted, Names, Source, as_json, check_streams, number, open_pickle, open_safetensors

FIXED = {**connection.COMMON, "stream_reduce": "sum_norm", "position": "rope", "qk_norm": True, "norm": "rmsnorm", "mlp": "swiglu", "tie_embeddings": False,
         "bias": False, "qkv_bias": False, "dropout": 0.0, "hc_start": "layer", "hc_init": "litgpt", "init": "litgpt"}
# Settings of LitGPT's that change what a model computes, with the values that ours has. A file that lacks one is taken to have ours.
NEEDED: dict[str, tuple[Any, ...]] = {
    "bias": (False,), "attn_bias": (False,), "lm_head_bias": (False,), "norm_class_name": ("RMSNorm",), "mlp_class_name": ("LLaMAMLP",), "norm_qk": (True,),
    "norm_qk_type": ("default",), "rotary_percentage": (1,), "rope_condense_ratio": (1,), "rope_adjustments": (None,), "rope_interleave": (False,),
    "parallel_residual": (False,), "scale_embeddings": (False,), "attention_scores_scalar": (None,), "attention_logit_softcapping": (None,),
    "final_logit_softcapping": (None,), "sliding_window_size": (None,), "latent_attention": (None, False), "post_attention_norm": (False,), "post_mlp_norm": (False,)}
COUNTS = {"n_layer": "n_layer", "n_embd": "n_embd", "n_head": "n_head", "n_query_groups": "n_kv_head", "head_size": "head_dim", "intermediate_size": "mlp_width",
          "padded_vocab_size": "vocab_size"}  # theirs: ours, which the tensors tell, too
QWEN3 = {"rope_base": 1000000, "norm_eps": 1e-6, "block_size": 2048}  # as s2HC trains it


def _settings(path: Path) -> Mapping[str, Any]:
    """What tensors do not say: model_config.yaml, which LitGPT saves beside them, or the settings of s2HC's Qwen3."""
    if not os.path.lexists(path):
        taken = ", ".join(f"{name} {value}" for name, value in QWEN3.items())
        print(f"hctrain.convert: there is no {printable(path)}; taken are s2HC's settings of Qwen3: {taken}", file=sys.stderr)
        return QWEN3
    try:
        import yaml  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise Error(f"{printable(path)} is YAML: pip install pyyaml") from None
    content = read_file(path, LARGEST_JSON)
    try:
        settings = yaml.safe_load(content)
    except Exception as error:  # values of odd types raise anything
        raise Error(f"{printable(path)} is not YAML: {shown(' '.join(str(error).split()))}") from None
    if not isinstance(settings, dict):
        raise Error(f"{printable(path)} has no settings")
    for name, values in NEEDED.items():
        value = settings.get(name, values[0])
        if isinstance(value, (list, dict)) or value not in values:
            raise Error(f"{printable(path)}: {name} is {as_json(value)}, and {as_json(values[0])} in hctrain's model of this layout")
    if "gemma" in str(settings.get("name")).lower():
        raise Error(f"{printable(path)}: {shown(settings['name'])} has a block that hctrain does not have")
    return settings


def _connection(source: Source) -> tuple[str, int]:
    """The residual connection and its streams, which the tensors alone tell."""
    base = f"transformer.h.0.{connection.MODULES[0]}."
    if base + "norm.gamma" not in source.shapes:
        return "rc", 1
    n = check_streams(source.shape(base + "static_beta", 1)[0], "a hyper-connection", source.name)
    for residual, tensor in (("shc", "to_alpha_residual.weight"), ("hc", "dynamic_alpha_scale")):
        if base + tensor in source.shapes:
            return residual, n
    found = {(n, n + 1): "mhc", (n + math.factorial(n),): "mhc_lite"}
    if n & (n - 1) == 0:
        found.setdefault((n + 2 * (n.bit_length() - 1),), "krom")  # of two streams both are the same function
    fixed = source.shape(base + "static_alpha")
    if fixed not in found:
        raise Error(f"{source.name}: {base}static_alpha has shape {list(fixed)}, as no connection of s2HC's of {n} streams")
    return found[fixed], n


def _our_config(source: Source, settings: Mapping[str, Any], place: str) -> dict[str, Any]:
    """hctrain's config, from the shapes of the tensors and the settings that they do not tell."""
    residual, streams = _connection(source)
    block = "transformer.h.0."
    vocabulary, channels = source.shape("transformer.wte.weight", 2)
    size, width = source.shape(block + "attn.norm_q.weight", 1)[0], source.shape(block + "attn.proj.weight", 2)[1]
    rows = source.shape(block + "attn.qkv.weight", 2)[0]
    keys = (rows - width) // 2
    if min(size, width, keys) < 1 or width % size or keys % size or rows != width + 2 * keys or width % keys:
        raise Error(f"{source.name}: attn.qkv of {rows} rows and attn.proj of {width} columns are not of heads of {size} channels")
    rates = {name: settings.get(name, default) for name, default in (("rope_base", 10000), ("norm_eps", 1e-5))}
    for name, value in rates.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
            raise Error(f"{place}: {name} is {as_json(value)}, not a number above 0 (YAML has 1.0e-6 for what elsewhere is 1e-6)")
    layers = {int(found.group(1)) for found in (re.match(r"transformer\.h\.(\d{1,6})\.", name) for name in source.shapes) if found}
    config: dict[str, Any] = {**FIXED, "residual": residual, "n_streams": streams, "n_layer": max(layers) + 1, "n_embd": channels, "vocab_size": vocabulary, "n_head": width // size,
              "n_kv_head": keys // size, "head_dim": size, "mlp_width": source.shape(block + "mlp.fc_1.weight", 2)[0], "rope_theta": float(rates["rope_base"]),
              "norm_eps": float(rates["norm_eps"]), "block_size": number(settings, "block_size", place), "h_res_transposed": residual == "mhc"}
    for theirs, ours in COUNTS.items():
        if config[ours] < 1 or settings.get(theirs, config[ours]) != config[ours]:
            raise Error(f"{place}: {theirs} is {as_json(settings.get(theirs))}, and {config[ours]} by the tensors of {source.name}")
    return config


def _layer(config: Mapping[str, Any]) -> Names:
    channels, size, hidden = config["n_embd"], config["head_dim"], config["mlp_width"]
    width, keys = config["n_head"] * size, config["n_kv_head"] * size
    return {"ln_1.weight": ("norm_1.weight", (channels,)), "ln_2.weight": ("norm_2.weight", (channels,)),
            "attn.c_attn.weight": ("attn.qkv.weight", (width + 2 * keys, channels)), "attn.c_proj.weight": ("attn.proj.weight", (channels, width)),
            "attn.q_norm.weight": ("attn.norm_q.weight", (size,)), "attn.k_norm.weight": ("attn.norm_k.weight", (size,)), "mlp.c_gate.weight": ("mlp.fc_1.weight", (hidden, channels)),
            "mlp.c_fc.weight": ("mlp.fc_2.weight", (hidden, channels)), "mlp.c_proj.weight": ("mlp.proj.weight", (channels, hidden))}


def _canonical(name: str) -> str:
    name = re.sub(r"^(?:_forward_module\.|_orig_mod\.)*", "", name)
    return re.sub(r"^(transformer\.h\.\d+\.)(?:branch_(?:attn|mlp)|hc_(?:attn|mlp)\.branch)\.", r"\1", name)


def from_theirs(path: Path) -> Converted:
    """Config and weights of ours."""
    folder = path if path.is_dir() else path.parent
    pickle = folder / "lit_model.pth" if path.is_dir() else path
    if path.is_dir() and not pickle.exists() and not any(path.glob("model.safetensors*")):
        raise Error(f"{printable(path)} has neither lit_model.pth nor model.safetensors")
    source = (open_safetensors(path) if path.suffix == ".safetensors" or not pickle.exists() else open_pickle(pickle)).merge(_canonical)
    settings = folder / "model_config.yaml"
    config = _our_config(source, _settings(settings), printable(settings))
    weights = {name: source.take(name, config["vocab_size"], config["n_embd"]) for name in ("transformer.wte.weight", "lm_head.weight")}
    weights["transformer.ln_f.weight"] = source.take("transformer.ln_f.weight", config["n_embd"])
    weights.update(connection.read_layers(source, config, _layer(config)))
    source.end()
    return config, weights
