"""What the other modules share: the error of this package, and reading of files that anyone may have written."""
from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
from pathlib import Path
from typing import Any, Iterator, Union

Folder = Union[str, "os.PathLike[str]"]


class Error(Exception):
    """What failed, with the file and line, or with the words of the program that failed."""


def _bytes(one: str) -> bytes:
    """Of a character; of what stands for a byte that is not UTF-8, that byte."""
    return one.encode(errors="surrogateescape" if "\udc80" <= one <= "\udcff" else "surrogatepass")


def printable(text: object) -> str:
    """The text with control characters as \\xHH, so that no name or file writes to the terminal as it likes."""
    return "".join(one if one.isprintable() else "".join(f"\\x{byte:02x}" for byte in _bytes(one)) for one in str(text))


def shown(text: object, most: int = 100) -> str:
    """The beginning of a text from a file, for an error message."""
    return printable(str(text)[:most])


def path_text(path: object) -> str:
    """The text of a path."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise Error(f"{shown(repr(path))} is not a path")
    return text


@contextlib.contextmanager
def reading(path: Folder) -> Iterator[None]:
    """Makes errors of the system an Error that names the path."""
    try:
        yield
    except OSError as error:
        raise Error(f"cannot read {printable(path)}: {error.strerror or error}") from None


def open_file(path: Folder, folder: int | None = None) -> int:
    """The descriptor of a regular file, in its folder if that is open. Named pipes and devices are refused."""
    try:
        descriptor = os.open(path if folder is None else Path(path).name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except (OSError, ValueError) as error:
        raise Error(f"cannot open {printable(path)}: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Error(f"{printable(path)} is not a file")
    return descriptor


def read_file(path: Folder, limit: int, folder: int | None = None) -> bytes:
    """The content of a file of at most `limit` bytes; `folder` is its folder, if that is open."""
    with reading(path), os.fdopen(open_file(path, folder), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise Error(f"{printable(path)} has more than {limit} bytes")
    return content


def write_file(path: Folder, text: str) -> None:
    """Replaces a file as a whole; a link stays one."""
    target = Path(os.path.realpath(path))
    new = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        new.unlink(missing_ok=True)  # of a process of the same number that was killed
        with open(new, "x", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        new.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise Error(f"cannot write {printable(path)}: {error.strerror}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _null(_: str) -> None:
    return None


def parse_object(text: bytes, place: str, lenient: bool = False) -> dict[str, Any]:
    """The JSON object of a text; `place` is its file, or file and line, for messages. lenient: NaN and Infinity become None; else they are refused."""
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_null if lenient else _no_constant)
    except (ValueError, RecursionError) as error:
        raise Error(f"{place}: this is not JSON: {shown(error)}") from None
    if not isinstance(found, dict):
        raise Error(f"{place}: this is not a JSON object")
    return found


def read_object(path: Folder, limit: int, folder: int | None = None, lenient: bool = False) -> dict[str, Any]:
    """The JSON object that a file holds; lenient as in parse_object."""
    return parse_object(read_file(path, limit, folder), printable(path), lenient)


def on_stop(handler: Any = signal.default_int_handler, always: bool = False) -> None:
    """Has the handler called by Ctrl-C and the other signals that ask a program to stop, but for those that are ignored, as a hangup is under nohup.
    always: by Ctrl-C and SIGTERM in any case."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN or (always and number != signal.SIGHUP):
            signal.signal(number, handler)


def as_path(folder: Folder) -> Path:
    """The path of a folder that exists."""
    path = Path(path_text(folder))
    try:
        if path.is_dir():
            return path
    except (OSError, ValueError):
        pass
    raise Error(f"there is no folder {printable(path)}")
