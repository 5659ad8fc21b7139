"""Settings of runs: the lines `name = value` of config files."""
from __future__ import annotations

import os
import re
from typing import Dict, Iterator, Mapping, Union

from .files import Error, Folder, printable, read_file, shown

Setting = Union[bool, int, float, str]
Settings = Dict[str, Setting]

LARGEST_FILE = 1 << 20  # bytes
NO_TRAINING = ("plan_only", "compile_only", "fit", "list_residuals", "help", "version")  # with them hc_train only prints something
BLANKS = " \t\r\v\f"
DEVICE = "# device: "  # how the comment begins that has the device's name
ESCAPES = {'"': b'"', "\\": b"\\", "n": b"\n", "r": b"\r", "t": b"\t"}
INTEGER = re.compile(r"[-+]?\d{1,18}", re.ASCII)
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


def _unquote(value: str, place: str) -> str:
    """The text between quotes: \\" \\\\ \\n \\r \\t \\xHH stand for what they do in C. Bytes that are not UTF-8 become what os.fsdecode makes of them."""
    found = re.fullmatch(r'"((?:[^"\\]|\\["\\nrt]|\\x[0-9a-fA-F]{2})*)"\s*(?:#.*)?', value, re.DOTALL)
    if not found:
        raise Error(f"{place}: {shown(value)} is not a text in quotes")
    parts = re.split(r"\\(x..|.)", found.group(1))
    content = b"".join((bytes([int(part[1:], 16)]) if part[0] == "x" else ESCAPES[part]) if place_in_list % 2 else os.fsencode(part)
                       for place_in_list, part in enumerate(parts))
    return os.fsdecode(content)


def _typed(value: str) -> Setting:
    """The value of a text that is not in quotes."""
    if value in ("true", "false"):
        return value == "true"
    if INTEGER.fullmatch(value):
        return int(value)
    return float(value) if NUMBER.fullmatch(value) else value


def lines_of(content: bytes, name: str) -> Iterator[tuple[str, str, bool]]:
    """Name and text of each line `name = value` of a config file's content, and whether the text was in quotes; `name` is the file's, for messages."""
    for number, line in enumerate(content.decode("utf-8-sig", "surrogateescape").split("\n"), 1):
        setting, equals, value = (part.strip(BLANKS) for part in line.partition("="))
        if not setting or setting.startswith("#"):
            continue
        if not equals or "#" in setting:
            raise Error(f"{name}:{number}: {shown(line)} is not of the form name = value")
        quoted = value.startswith('"')
        yield setting.replace("-", "_"), _unquote(value, f"{name}:{number}") if quoted else value.partition("#")[0].strip(BLANKS), quoted


def parse_settings(content: bytes, name: str) -> Settings:
    """The settings of a config file's content; `name` is the file's, for messages."""
    return {setting: text if quoted else _typed(text) for setting, text, quoted in lines_of(content, name)}


def read_settings(path: Folder) -> Settings:
    """The settings of a config file."""
    return parse_settings(read_file(path, LARGEST_FILE), printable(path))


def device_of(content: bytes) -> str:
    """The device's name, which a run's settings.conf has in a comment; or ""."""
    lines = (line for line in content.decode("utf-8-sig", "replace").split("\n") if line.startswith(DEVICE))
    return printable(next(lines, DEVICE)[len(DEVICE):])


def words(settings: Mapping[str, Setting | os.PathLike[str] | None]) -> Iterator[str]:
    """The settings as options of a command line: --name=value. None leaves a setting out."""
    for name, value in settings.items():
        if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise Error(f"'{shown(name)}' is not the name of an option")
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else os.fspath(value) if isinstance(value, os.PathLike) else str(value)
            if "\0" in text:
                raise Error(f"{name} has a NUL byte")
            yield f"--{name.replace('_', '-')}={text}"
