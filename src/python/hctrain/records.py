"""Lines of metrics.jsonl and h_statistics.jsonl, of runs that may still be writing them."""
from __future__ import annotations

import contextlib
import math
import os
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Dict, Iterator, List, NamedTuple, Union

from .files import Error, open_file, parse_object, printable, reading, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

METRICS, STATISTICS = "metrics.jsonl", "h_statistics.jsonl"
LONGEST_LINE = 1 << 22  # bytes
LARGEST_ITERATION = 1 << 53
EVALUATION = ("val_loss", "train_loss")  # a line with one of them is an evaluation, others are steps

Value = Union[float, List[float]]
Table = Dict[str, "NDArray[Any]"]


class Record(NamedTuple):
    """A line of metrics.jsonl: a training step, or an evaluation."""

    iteration: int
    metrics: dict[str, float]  # loss, lr, ... of a step; train_loss and val_loss of an evaluation; nan where a number was not finite

    @property
    def is_evaluation(self) -> bool:
        return any(name in self.metrics for name in EVALUATION)


def _number(value: object, place: str, name: str) -> float:
    """A number, or nan for JSON's null, which stands for numbers that are not finite."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e308:
        raise Error(f"{place}: {shown(name)} is not a number")
    return value


def _parse(line: bytes, place: str) -> tuple[int, dict[str, Any]]:
    values = parse_object(line, place)
    iteration = values.pop("iter", None)
    if isinstance(iteration, bool) or not isinstance(iteration, int) or not 0 <= iteration <= LARGEST_ITERATION:
        raise Error(f"{place}: there is no iter that is the number of an iteration")
    return iteration, values


def parse_record(line: bytes, place: str) -> Record:
    """The record of a line of metrics.jsonl."""
    iteration, values = _parse(line, place)
    return Record(iteration, {name: _number(value, place, name) for name, value in values.items()})


def parse_statistics(line: bytes, place: str) -> tuple[int, dict[str, Value]]:
    """The iteration of a line of h_statistics.jsonl, and its numbers and lists of numbers."""
    iteration, values = _parse(line, place)
    return iteration, {name: [_number(one, place, name) for one in value] if isinstance(value, list) else _number(value, place, name)
                       for name, value in values.items()}


class Lines:
    """The lines of a file that may grow. A last one without a newline, which is still being written, is kept for later."""

    def __init__(self, path: Path):
        self.path, self.number = path, 0
        self._name, self._rest = printable(path), b""
        self._file: BinaryIO = os.fdopen(open_file(path), "rb")
        self.stat = os.fstat(self._file.fileno())

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    close = __exit__

    @property
    def place(self) -> str:
        """The file and the number of the line that was read last."""
        return f"{self._name}:{self.number}"

    def read(self) -> Iterator[bytes]:
        """The lines that have come since the last call."""
        while True:
            with reading(self.path):
                self._rest += self._file.readline(LONGEST_LINE + 1 - len(self._rest))
            whole = self._rest.endswith(b"\n")
            self.number += whole
            if len(self._rest) > LONGEST_LINE:
                raise Error(f"{self.place}: the next line is longer than {LONGEST_LINE} bytes")
            if not whole:
                return
            line, self._rest = self._rest, b""
            yield line


class Growing:
    """A file that a run writes, and that has another file's place once the run was resumed."""

    def __init__(self, path: Path):
        self.path = path
        self._lines: Lines | None = None

    def lines(self) -> Lines | None:
        """The lines of the file that the path leads to now; None: there is no file. One that is removed, as when a run begins anew, is held."""
        with contextlib.suppress(OSError):
            if self._lines and not os.path.samestat(os.stat(self.path), self._lines.stat):
                self.close()
            if not self._lines and self.path.exists():
                self._lines = Lines(self.path)
        return self._lines

    def read(self) -> Iterator[tuple[int, bytes, str]]:
        """The lines that have come since the last call, with their numbers and places."""
        if lines := self.lines():
            yield from ((lines.number, line, lines.place) for line in lines.read())

    def close(self) -> None:
        if self._lines:
            self._lines.close()
        self._lines = None


class Rows:
    """Rows of numbers by name, and by iteration: of repeated iterations, which a run computed again, the last ones stay."""

    def __init__(self) -> None:
        self.iterations = array("q")
        self.columns: dict[str, tuple[tuple[int, ...], array[int], array[float]]] = {}  # shape of a value, the rows that have one, the numbers

    def add(self, iteration: int, values: dict[str, Any], place: str) -> None:
        for name, value in values.items():
            shape = (len(value),) if isinstance(value, list) else ()
            if shape == (0,):
                raise Error(f"{place}: {shown(name)} is an empty list")
            if self.columns.setdefault(name, (shape, array("q"), array("d")))[0] != shape:
                raise Error(f"{place}: {shown(name)} has another number of values than in earlier lines")
        self._cut(iteration)
        for name, value in values.items():
            _, rows, numbers = self.columns[name]
            rows.append(len(self.iterations))
            numbers.extend(value if isinstance(value, list) else (value,))
        self.iterations.append(iteration)

    def _cut(self, iteration: int) -> None:
        """Removes the rows from this iteration on."""
        while self.iterations and self.iterations[-1] >= iteration:
            self.iterations.pop()
            for shape, rows, numbers in self.columns.values():
                if rows and rows[-1] == len(self.iterations):
                    rows.pop()
                    del numbers[-math.prod(shape):]

    def table(self, place: str, names: tuple[str, ...] = ()) -> Table:
        """{name: array [rows] or [rows, width]}, nan where a row has no such number; "iter" is int64. The names are there also without rows."""
        import numpy as np  # here, so that programs that only look at files need no numpy

        count = len(self.iterations)
        held = sum(len(numbers) for _, _, numbers in self.columns.values())
        if count * sum(math.prod(shape) for shape, _, _ in self.columns.values()) > 64 * held + (1 << 20):
            raise Error(f"{place}: nearly all values are missing")
        found: Table = {"iter": np.array(self.iterations, dtype=np.int64), **{name: np.full(count, np.nan) for name in names}}
        for name, (shape, rows, numbers) in self.columns.items():
            found[name] = np.full((count, *shape), np.nan)
            found[name][np.array(rows, dtype=np.int64)] = np.array(numbers).reshape(-1, *shape)
        return found


class Follower(Growing):
    """New records of a run's metrics.jsonl, also across interruptions, after which the run has written the file anew."""

    def __init__(self, folder: Path, first_step: int = 0, first_evaluation: int = 0):
        super().__init__(folder / METRICS)
        self._next = [first_step, first_evaluation]  # iterations
        self._first: bytes | None = None  # line of the file, by which a run is known
        self._passed_over: Lines | None = None  # those of an earlier process

    def pass_over(self) -> None:
        """Has the file that is there now ignored, which the run that is about to begin will replace. It is held open, so that the next
        one cannot look the same."""
        self._passed_over = self.lines()

    def records(self) -> Iterator[Record]:
        """What has come since the last call. Iterations that a resumed run computes again come once."""
        if self.lines() is self._passed_over:
            return
        for number, line, place in self.read():
            if number == 1:
                if self._first not in (None, line):
                    raise Error(f"{printable(self.path)} is of another run now")
                self._first = line
            record = parse_record(line, place)
            if record.iteration >= self._next[record.is_evaluation]:
                self._next[record.is_evaluation] = record.iteration + 1
                yield record
