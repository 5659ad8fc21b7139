"""Checkpoints: folders with config.json, model.safetensors and, for resuming, optimizer.safetensors and state.json."""
from __future__ import annotations

import math
import os
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator, Mapping, NamedTuple

from .files import Error, Folder, as_path, open_file, parse_object, path_text, printable, read_object, reading, shown

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

LARGEST_JSON = 1 << 24  # bytes of config.json or state.json
LARGEST_HEADER = 100_000_000  # bytes, as in the reference implementation of safetensors
MOST_DIMENSIONS = 8
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U16": 2, "U8": 1, "BOOL": 1,
         "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "I8": 1, "U32": 4, "U64": 8}  # of a number of each type
NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U16": "<u2", "U8": "u1", "BOOL": "?"}


class Entry(NamedTuple):
    """Where a tensor lies in its file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int  # byte of the file
    end: int


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _parse_entry(value: Any, data: int, file_size: int) -> Entry | None:
    """The entry of a header with data from a byte on in a file of this size; None: it is not one."""
    dtype, shape, offsets = (value.get(key) if isinstance(value, dict) else None for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in BYTES or not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        return None
    if len(shape) > MOST_DIMENSIONS or not all(map(_is_count, shape + offsets)) or math.prod(max(size, 1) for size in shape) >= 1 << 60:
        return None
    begin, end = data + offsets[0], data + offsets[1]
    return Entry(dtype, tuple(shape), begin, end) if begin <= end <= file_size and end - begin == BYTES[dtype] * math.prod(shape) else None


class Tensors(Mapping[str, "NDArray[Any]"]):
    """The tensors of a safetensors file by their names. Each access reads one: as numpy array, bfloat16 as the float32 numbers that it stands for.
    The file stays open as long as this object exists: all tensors are of that file, even if another one gets its name meanwhile."""

    def __init__(self, path: Folder, folder: int | None = None):
        self.path = Path(path_text(path))
        self._file = open_file(path, folder)
        weakref.finalize(self, os.close, self._file)
        self.entries = self._read_header()

    def _read_header(self) -> dict[str, Entry]:
        name, size = printable(self.path), os.fstat(self._file).st_size
        length = int.from_bytes(self._read(0, 8), "little") if size >= 8 else 0
        if not 2 <= length <= min(size - 8, LARGEST_HEADER):
            raise Error(f"{name} is not a safetensors file, or is cut short")
        header, found = parse_object(bytes(self._read(8, 8 + length)), name), {}
        header.pop("__metadata__", None)
        for tensor, value in header.items():
            entry = _parse_entry(value, 8 + length, size)
            if entry is None:
                raise Error(f"{name}: the entry of '{shown(tensor)}' is not that of a tensor in this file")
            found[tensor] = entry
        at = 8 + length
        for tensor, entry in sorted(found.items(), key=lambda item: (item[1].begin, item[1].end)):
            if entry.begin != at:
                raise Error(f"{name}: tensors overlap, or leave bytes unused, at '{shown(tensor)}'")
            at = entry.end
        if at != size:
            raise Error(f"{name} has bytes behind the last tensor")
        return found

    def _read(self, begin: int, end: int) -> bytearray:
        content = bytearray(end - begin)
        view = memoryview(content)
        at = 0
        while at < len(content):
            with reading(self.path):
                count = os.preadv(self._file, [view[at:]], begin + at)
            if count == 0:
                raise Error(f"{printable(self.path)} has become shorter")
            at += count
        return content

    def _stored(self, name: str) -> NDArray[Any]:
        """As it is in the file; bfloat16 as its bits."""
        import numpy as np

        entry = self.entries[name]
        if entry.dtype not in NUMPY:
            raise Error(f"{printable(self.path)}: numbers of '{shown(name)}' are of type {entry.dtype}, which is not read here")
        return np.frombuffer(self._read(entry.begin, entry.end), dtype=NUMPY[entry.dtype]).reshape(entry.shape)

    def __getitem__(self, name: str) -> NDArray[Any]:
        stored = self._stored(name)
        return (stored.astype("<u4") << 16).view("<f4") if self.entries[name].dtype == "BF16" else stored

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def torch(self) -> dict[str, torch.Tensor]:
        """All tensors for PyTorch, such as for load_state_dict; bfloat16 stays so."""
        import torch

        found = {}
        for name, entry in self.entries.items():
            bits = entry.dtype == "BF16"
            tensor = torch.from_numpy(self._stored(name).view("<i2") if bits else self._stored(name))
            found[name] = tensor.view(torch.bfloat16) if bits else tensor
        return found


@dataclass(frozen=True)
class Checkpoint:
    """What read_checkpoint found."""

    folder: Path
    config: dict[str, Any]  # the model's settings; docs/files.md lists them
    weights: Tensors  # by nanoGPT's names
    optimizer: Tensors | None  # exp_avg.<name>, exp_avg_sq.<name>, momentum_buffer.<name>; None: there are only weights
    state: dict[str, Any]  # iteration, tokens, seed, best_val_loss, ...; empty if there are only weights

    def torch(self) -> dict[str, torch.Tensor]:
        """The weights as a state dict for hctrain.model.GPT(config)."""
        return self.weights.torch()


def read_checkpoint(folder: Folder) -> Checkpoint:
    """The checkpoint in a folder, such as out/x/ckpt-best. Raises Error if files are missing or damaged."""
    path = as_path(folder)
    with reading(path):
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # all files are of one checkpoint, whatever has its name now
    try:
        there = os.listdir(opened)
        return Checkpoint(path, read_object(path / "config.json", LARGEST_JSON, opened), Tensors(path / "model.safetensors", opened),
                          Tensors(path / "optimizer.safetensors", opened) if "optimizer.safetensors" in there else None,
                          read_object(path / "state.json", LARGEST_JSON, opened) if "state.json" in there else {})
    finally:
        os.close(opened)


def write_tensors(path: Folder, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Writes a new safetensors file of arrays of float32 or int32."""
    import json

    types = {"float32": "F32", "int32": "I32"}
    header, at = {}, 0
    for name, array in tensors.items():
        if array.dtype.name not in types:
            raise Error(f"'{shown(name)}' has numbers of type {array.dtype.name}, not float32 or int32")
        header[name] = {"dtype": types[array.dtype.name], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    with open(path, "xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(array.astype(array.dtype.newbyteorder("<")).tobytes())
