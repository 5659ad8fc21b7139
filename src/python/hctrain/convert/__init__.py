"""Weights of other people's hyper-connections, to and from hctrain's checkpoints; docs/exchange.md says which tensors correspond.

  python -m hctrain.convert --from mhc_lite FOLDER --out FOLDER
      mHC-lite's nanoGPT layout (none, hc, mhc, mhc_lite): config.json and model.safetensors, such as Realmbird/mhc-781m-mhc-lite
  python -m hctrain.convert --to mhc_lite CHECKPOINT --out FOLDER
  python -m hctrain.convert --from s2hc FOLDER --out FOLDER
      s2HC's LitGPT layout (none, hc, mhc, mhc_lite, kromhc, shc): lit_model.pth, which PyTorch reads, or a safetensors file of the same tensors
  python -m hctrain.convert --from deepseek_v4 FILE --into CHECKPOINT --out FOLDER
      DeepSeek-V4's hyper-connections, in place of those of a checkpoint of mhc
  python -m hctrain.convert --to deepseek_v4 CHECKPOINT --out FOLDER

--from writes a folder for hc_train --init-from, and for --checkpoint of the other programs. Needs numpy, and memory for all weights in float32.
"""
from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Callable

from ..checkpoints import read_checkpoint, write_tensors
from ..files import Error, Folder, as_path, path_text, printable
from . import deepseek_v4, mhc_lite, s2hc
from .tensors import Arrays, Converted

FROM: dict[str, Callable[..., Converted]] = {"mhc_lite": mhc_lite.from_theirs, "s2hc": s2hc.from_theirs, "deepseek_v4": deepseek_v4.from_theirs}
TO: dict[str, Callable[..., Converted]] = {"mhc_lite": mhc_lite.to_theirs, "deepseek_v4": deepseek_v4.to_theirs}


def write_folder(out: Path, config: dict[str, Any], weights: Arrays) -> None:
    """The folder with config.json and model.safetensors, whole or not at all."""
    if out.exists() or out.is_symlink():
        raise Error(f"{printable(out)} exists: choose another --out, or remove it")
    try:
        with tempfile.TemporaryDirectory(prefix=".hctrain-", dir=out.parent) as scratch:
            staged = Path(scratch, "out")
            staged.mkdir()
            (staged / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
            write_tensors(staged / "model.safetensors", weights)
            os.rename(staged, out)
    except OSError as error:
        raise Error(f"cannot write {printable(out)}: {error.strerror}") from None


def convert_from(layout: str, source: Folder, out: Folder, into: Folder | None = None) -> dict[str, Any]:
    """Writes the folder `out` from the weights of others, and returns its config. `into` is the checkpoint whose hyper-connections are replaced,
    for deepseek_v4 alone. Raises Error, and then writes nothing."""
    path = Path(path_text(source))
    if (into is None) == (layout == "deepseek_v4"):
        raise Error("--into CHECKPOINT goes with --from deepseek_v4, and only with it")
    config, weights = FROM[layout](path, *([] if into is None else [read_checkpoint(into)]))
    write_folder(Path(path_text(out)), config, weights)
    return config


def convert_to(layout: str, checkpoint: Folder, out: Folder) -> dict[str, Any]:
    """Writes the folder `out` in the layout of others from a checkpoint of hctrain's, and returns its config."""
    config, weights = TO[layout](read_checkpoint(as_path(checkpoint)))
    write_folder(Path(path_text(out)), config, weights)
    return config
