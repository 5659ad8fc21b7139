"""Weights of other people's hyper-connections, to and from hctrain's checkpoints; docs/exchange.md says which tensors correspond.

  python -m hctrain.convert --from mhc_lite FOLDER --out FOLDER
      mHC-lite's nanoGPT layout (none, hc, mhc, mhc_lite): config.json and model.safetensors, such as Realmbird/mhc-781m-mhc-lite
  python -m hctrain.convert --to mhc_lite CHECKPOINT --out FOLDER
  python -m hctrain.convert --from s2hc FOLDER --out FOLDER
      s2HC's LitGPT layout (none, hc, mhc, mhc_lite, kromhc, shc): lit_model.pth, which PyTorch reads, or a safetensors file of the same tensors; and
      model_config.yaml, which needs PyYAML. Without it the settings are those with which s2HC trains Qwen3
  python -m hctrain.convert --from deepseek_v4 FILE_OR_FOLDER --into CHECKPOINT --out FOLDER
      DeepSeek-V4's hyper-connections, in place of those of a checkpoint of mhc
  python -m hctrain.convert --to deepseek_v4 CHECKPOINT --out FOLDER

--from writes a folder for hc_train --init-from, and for --checkpoint of the other programs. Needs numpy, and memory for all weights in float32, up to three times for
lit_model.pth.
"""
from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Callable

from ..checkpoints import read_checkpoint, write_tensors
from ..files import Error, Folder, path_text, printable, shown
from . import deepseek_v4, mhc_lite, s2hc
from .tensors import Arrays, Converted

FROM: dict[str, Callable[..., Converted]] = {"mhc_lite": mhc_lite.from_theirs, "s2hc": s2hc.from_theirs, "deepseek_v4": deepseek_v4.from_theirs}
TO: dict[str, Callable[..., Converted]] = {"mhc_lite": mhc_lite.to_theirs, "deepseek_v4": deepseek_v4.to_theirs}


def write_folder(out: Path, config: dict[str, Any], weights: Arrays, tokenizer: Path | None = None) -> None:
    """The folder with config.json, model.safetensors, and tokenizer.json if there is one; whole or not at all."""
    try:
        if os.path.lexists(out):
            raise Error(f"{printable(out)} exists: choose another --out, or remove it")
        with tempfile.TemporaryDirectory(prefix=".hctrain-", dir=out.parent) as scratch:
            staged = Path(scratch, "out")
            staged.mkdir()
            (staged / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
            write_tensors(staged / "model.safetensors", weights)
            if tokenizer is not None and tokenizer.is_file():
                shutil.copyfile(tokenizer, staged / tokenizer.name)
            os.rename(staged, out)
    except (OSError, ValueError) as error:
        raise Error(f"cannot write {printable(out)}: {getattr(error, 'strerror', None) or error}") from None


def _chosen(layout: str, layouts: dict[str, Callable[..., Converted]]) -> Callable[..., Converted]:
    if layout not in layouts:
        raise Error(f"there is no layout '{shown(layout)}' here, but {', '.join(layouts)}")
    return layouts[layout]


def convert_from(layout: str, source: Folder, out: Folder, into: Folder | None = None) -> dict[str, Any]:
    """Writes the folder `out` from the weights of others, and returns its config. `into` is the checkpoint whose hyper-connections are replaced,
    for deepseek_v4 alone. Raises Error, and then writes nothing."""
    read = _chosen(layout, FROM)
    if (into is None) == (layout == "deepseek_v4"):
        raise Error("a checkpoint to put them into goes with deepseek_v4, and only with it")
    checkpoint = None if into is None else read_checkpoint(into)
    path = Path(path_text(source))
    try:
        config, weights = read(path) if checkpoint is None else read(path, checkpoint)
    except (OSError, ValueError) as error:
        raise Error(f"cannot read {printable(path)}: {getattr(error, 'strerror', None) or error}") from None
    write_folder(Path(path_text(out)), config, weights, None if checkpoint is None else checkpoint.folder / "tokenizer.json")
    return config


def convert_to(layout: str, checkpoint: Folder, out: Folder) -> dict[str, Any]:
    """Writes the folder `out` in the layout of others from a checkpoint of hctrain's, and returns its config."""
    config, weights = _chosen(layout, TO)(read_checkpoint(checkpoint))
    write_folder(Path(path_text(out)), config, weights)
    return config
