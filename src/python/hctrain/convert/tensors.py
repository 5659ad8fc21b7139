"""What the layouts share: tensors that are taken once each, of shapes that are known, and numbers of configs."""
from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Tuple

from ..checkpoints import LARGEST_JSON, Checkpoint, Tensors
from ..files import Error, open_file, printable, read_object, shown

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Array = NDArray[np.float32]
    Arrays = Dict[str, Array]
    Converted = Tuple[Dict[str, Any], Arrays]  # config.json and weights
else:
    Array = Arrays = Converted = Any

Sizes = Tuple[int, ...]
Names = Dict[str, Tuple[str, Sizes]]  # of a layer's tensors: {ours: (theirs, shape)}
WEIGHTS = "model.safetensors"
MOST_STREAMS = 8
READ_TYPES = ("float64", "float32", "float16")  # bfloat16 has become float32


class Source:
    """Tensors by their names."""

    def __init__(self, name: object, read: Mapping[str, Callable[[], NDArray[Any]]], shapes: Mapping[str, Sizes]):
        self.name = printable(name)
        self.shapes = shapes
        self.left = set(shapes)  # those that were not taken
        self._read = read

    def shape(self, name: str, rank: int | None = None) -> Sizes:
        """The shape of a tensor, which must be there and have so many dimensions."""
        if name not in self.shapes:
            raise Error(f"{self.name} has no tensor '{shown(name)}'")
        if rank is not None and len(self.shapes[name]) != rank:
            raise Error(f"{self.name}: tensor '{shown(name)}' has {len(self.shapes[name])} dimensions, not {rank}")
        return self.shapes[name]

    def take(self, name: str, *sizes: int, advice: str = "it belongs to another config") -> Array:
        """The tensor in float32. It must be there, have this shape and be of floating-point numbers that float32 has room for."""
        import numpy as np

        found = self.shape(name)
        if found != sizes:
            raise Error(f"{self.name}: tensor '{shown(name)}' has shape {list(found)}, not {list(sizes)}: {advice}")
        self.left.discard(name)
        stored = self._read[name]()
        if stored.dtype.name not in READ_TYPES:
            raise Error(f"{self.name}: tensor '{shown(name)}' has numbers of type {stored.dtype.name}: weights are floating-point numbers")
        with np.errstate(over="ignore"):
            taken: Array = stored.astype("<f4")
        if not np.isfinite(taken).all():
            raise Error(f"{self.name}: tensor '{shown(name)}' has numbers that are infinite or nan, or too large for float32")
        return taken

    def take_scalar(self, name: str) -> Array:
        """A number, of shape [] or [1]."""
        return self.take(name, *(self.shape(name) if self.shape(name) == (1,) else ())).reshape(())

    def merge(self, canonical: Callable[[str], str]) -> Source:
        """The same by canonical names. Tensors that get one name must have the same bits."""
        names: dict[str, str] = {}
        for name in sorted(self.shapes):
            first = names.setdefault(canonical(name), name)
            if self.shapes[first] != self.shapes[name] or (first != name and self._read[first]().tobytes() != self._read[name]().tobytes()):
                raise Error(f"{self.name}: tensors '{shown(first)}' and '{shown(name)}' differ, which are one in the model: the file is damaged")
        return Source(self.name, {new: self._read[old] for new, old in names.items()}, {new: self.shapes[old] for new, old in names.items()})

    def end(self) -> None:
        """Refuses tensors that were not taken."""
        if self.left:
            others = f", nor have {len(self.left) - 1} others" if len(self.left) > 1 else ""
            raise Error(f"{self.name}: tensor '{shown(min(self.left))}' has no place in the model{others}")


def _open_files(name: object, files: Mapping[str, Tensors]) -> Source:
    """Tensors by their names, from the file of each."""
    return Source(name, {tensor: functools.partial(file.__getitem__, tensor) for tensor, file in files.items()},
                  {tensor: file.entries[tensor].shape for tensor, file in files.items()})


def of_checkpoint(checkpoint: Checkpoint) -> Source:
    return _open_files(checkpoint.folder, dict.fromkeys(checkpoint.weights, checkpoint.weights))


def open_safetensors(path: Path) -> Source:
    """The tensors of a file, of a folder's model.safetensors, or of all files that its index names."""
    index = path / f"{WEIGHTS}.index.json"
    if not path.is_dir() or (path / WEIGHTS).exists() or not index.is_file():
        tensors = Tensors(path / WEIGHTS if path.is_dir() else path)
        return _open_files(path, dict.fromkeys(tensors, tensors))
    places = read_object(index, LARGEST_JSON).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) and file not in ("", "..") and file == Path(file).name for file in places.values()):
        raise Error(f"{printable(index)} has no weight_map of files in its folder")
    files = {file: Tensors(path / file) for file in sorted(set(places.values()))}
    for tensor, file in places.items():
        if tensor not in files[file]:
            raise Error(f"{printable(index)}: there is no tensor '{shown(tensor)}' in {shown(file)}")
    return _open_files(path, {tensor: files[file] for tensor, file in places.items()})


def _as_float32(tensor: torch.Tensor) -> Array:
    found: Array = tensor.detach().float().resolve_neg().numpy()
    return found


def _is_weight(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.layout == torch.strided and value.device.type == "cpu"


def open_pickle(path: Path) -> Source:
    """A state dict that torch.save has written, alone or as "model". PyTorch reads it, and nothing in it but tensors and plain containers."""
    try:
        import torch
    except ImportError:
        raise Error(f"{printable(path)} is a file of torch.save, which only PyTorch reads: pip install torch") from None
    os.close(open_file(path))  # in our own words, if it cannot be read
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # PyTorch's readers raise anything, and advise to read such files without a check
        raise Error(f"{printable(path)} is not a file of torch.save with tensors and plain containers alone; other objects are not read, since they may "
                    "run any program: save {'model': model.state_dict()} again") from None
    state = found.get("model", found) if isinstance(found, dict) else None
    if not isinstance(state, dict) or not all(isinstance(name, str) and _is_weight(value) for name, value in state.items()):
        raise Error(f"{printable(path)} holds no weights: dense tensors of floating-point numbers by their names, alone or as 'model'")
    return Source(path, {name: functools.partial(_as_float32, value) for name, value in state.items()}, {name: tuple(value.shape) for name, value in state.items()})


def number(settings: Mapping[str, Any], name: str, place: str, most: int = 1 << 31) -> int:
    """A whole number from 1 on of a config; `place` is its file, for messages."""
    value = settings.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise Error(f"{place}: {name} is {as_json(value)}, not a whole number from 1 to {most}")
    return value


def check_streams(count: int, residual: str, place: str) -> int:
    if not 2 <= count <= MOST_STREAMS:
        raise Error(f"{place}: {residual} of {count} streams; hctrain's has 2 to {MOST_STREAMS}")
    return count


def as_json(value: object) -> str:
    """A setting for a message."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    return shown(json.dumps(value, default=repr))
