"""The programs as functions: they run as processes of their own, so that a run is the same as one from the command line."""
from __future__ import annotations

import contextlib
import operator
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Callable, Iterator, Mapping, Union

from . import programs
from .checkpoints import Tensors, write_tensors
from .files import Error, Folder, parse_object, path_text, printable, read_object, shown
from .records import Follower, Record
from .runs import LARGEST_STATE, Run, checkpoints_in, read_run
from .settings import NO_TRAINING, Setting, read_settings, words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

Option = Union[Setting, "os.PathLike[str]", None]
Callback = Callable[[Record], Any]  # False stops the run

MPIRUN = "mpirun"
MPI_ENVIRONMENT = {"HWLOC_COMPONENTS": "-opencl"}  # else mpirun loads OpenCL's drivers, whose LLVM takes SIGUSR1 that it should pass on to the ranks
INTERRUPTED = 130  # exit status of a run that was asked to stop and has saved
LONGEST_ARGUMENT = 1 << 16  # bytes of a prompt on the command line; the system takes 128 KiB
LAST_WORDS = 1 << 16  # bytes of output in which the message is looked for


def _command(name: str, options: Mapping[str, Option], files: tuple[Folder, ...] = ()) -> list[str]:
    try:
        program = str(programs.path(name))
    except OSError as error:
        raise Error(printable(error)) from None
    paths = [path_text(path) for path in files]
    return [program, *words(options), *(f"./{path}" if path.startswith("-") else path for path in paths)]


def _message(name: str, output: bytes, status: int) -> str:
    """The program's own words: its last message, or else how it ended, with the beginning of mpirun's last message or its last line."""
    text = output.decode(errors="replace")
    said = [line for line in text.splitlines() if line.startswith(f"{name}: ")]
    if said:
        return printable(said[-1])
    *messages, last = [part.split("\n") for part in re.split("^-{20,}$", text, flags=re.MULTILINE) if part.strip()] or [[]]
    lines = [line.strip() for line in last if line.strip()]
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return printable(": ".join([f"{name} ended with {how}", *([" ".join(lines[:3])] if messages or text.startswith("-" * 20) else lines[-1:])]))


def call(name: str, *files: Folder, **options: Option) -> bytes:
    """Runs a program such as "hc_export" to its end and returns what it has printed, or if that is nothing its log:
    hctrain.call("hc_export", checkpoint="out/x/ckpt-best", out="x")"""
    try:
        done = subprocess.run(_command(name, options, files), env=programs.environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except (OSError, ValueError) as error:
        raise Error(f"cannot start {name}: {printable(error)}") from None
    if done.returncode:
        raise Error(_message(name, done.stderr, done.returncode))
    return done.stdout or done.stderr


def prepare(out: Folder, *texts: Folder, **options: Option) -> Path:
    """Makes a folder of token files from texts, as hc_prepare does, and returns its path, for train(data_dir=...)."""
    call("hc_prepare", *texts, out=path_text(out), **options)
    return Path(out)


def sample(checkpoint: Folder, prompt: str = "", **options: Option) -> str:
    """Text that the model adds to the prompt, as hc_sample prints it."""
    options["checkpoint"] = path_text(checkpoint)
    try:
        content = prompt.encode(errors="surrogateescape")
    except (AttributeError, UnicodeEncodeError):
        raise Error(f"the prompt {shown(repr(prompt))} is not a text") from None
    with tempfile.NamedTemporaryFile() as file:
        if len(content) > LONGEST_ARGUMENT:
            file.write(content)
            file.flush()
            options["prompt_file"] = file.name
        else:
            options["prompt"] = prompt or None
        return call("hc_sample", **options).decode(errors="replace")


def evaluate(checkpoint: Folder, *documents: Folder, **options: Option) -> dict[str, Any]:
    """Losses and perplexities of documents, or with data=FOLDER of token files: the object that hc_eval --json writes."""
    return parse_object(call("hc_eval", *documents, checkpoint=path_text(checkpoint), json="-", **options), "the output of hc_eval")


def _int32(name: str, values: ArrayLike) -> NDArray[np.int32]:
    """The same numbers; raises Error where they would not be the same."""
    import numpy as np

    try:
        found = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise Error(f"{name} are not an array: {shown(error)}") from None
    if found.ndim != 2 or found.dtype.kind not in "iu" or found.size == 0 or found.min() < -(1 << 31) or found.max() >= 1 << 31:
        raise Error(f"{name} are not an array [B, T] of whole numbers below 2^31, but {found.dtype} of shape {list(found.shape)}")
    return found.astype(np.int32)


def probe(checkpoint: Folder, tokens: ArrayLike, targets: ArrayLike | None = None, **options: Option) -> Tensors:
    """One forward and backward pass over tokens [B, T], as hc_probe writes it: loss, grad.<parameter>, h_res.<sublayer>, ..., with logits=True also
    logits, with streams=True also streams.<sublayer>. Without targets, the next token of each is its target."""
    import numpy as np

    x = _int32("tokens", tokens)
    y = np.append(x[:, 1:], np.full_like(x[:, :1], -1), axis=1) if targets is None else _int32("targets", targets)
    with tempfile.TemporaryDirectory() as folder:
        batch, out = Path(folder, "batch"), Path(folder, "probe")
        write_tensors(batch, {"x": x, "y": y})
        call("hc_probe", checkpoint=path_text(checkpoint), batch=batch, out=out, **options)
        return Tensors(out)


# ---- training


def _resumed_at(folder: Path) -> tuple[int, int]:
    """The first step and the first evaluation that a resumed run computes itself."""
    newest = checkpoints_in(folder)[-1:]
    state = read_object(newest[0] / "state.json", LARGEST_STATE) if newest else {}
    steps, evaluated = state.get("iteration"), state.get("evaluated_at")
    return steps if isinstance(steps, int) else 0, evaluated + 1 if isinstance(evaluated, int) else 0


class _Process:
    """hc_train, or mpirun with it. It has a session of its own, so that Ctrl-C reaches it once, by stop(), in the way that ranks survive."""

    def __init__(self, command: list[str], output: IO[bytes]):
        self._asked, self._stop = False, signal.SIGUSR1 if command[0] == MPIRUN else signal.SIGTERM  # what mpirun passes on; what drivers leave alone
        environment = {**MPI_ENVIRONMENT, **programs.environment()}
        try:
            self.handle = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        except (OSError, ValueError) as error:
            raise Error(f"cannot start {printable(command[0])}: {printable(error)}") from None

    def stop(self) -> None:
        """Has it save a checkpoint and end."""
        if not self._asked:
            self._asked = True
            self.handle.send_signal(self._stop)


@contextlib.contextmanager
def _held_interrupt() -> Iterator[None]:
    """A Ctrl-C that comes in this block is raised at its end. Python raises it in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if held:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _started(command: list[str], output: IO[bytes]) -> Iterator[_Process]:
    process = None
    try:
        with _held_interrupt():
            process = _Process(command, output)
        yield process
    finally:  # whatever ends this block: no run goes on without it
        if process is not None:
            try:
                if process.handle.poll() is None:
                    process.stop()
                process.handle.wait()
            except BaseException:  # such as another Ctrl-C
                process.handle.terminate()
                process.handle.wait()
                raise


def _watch(process: _Process, follower: Follower, callback: Callback | None) -> int:
    """Hands records to the callback until the process has ended; returns its exit status."""
    while True:
        status = process.handle.poll()
        for record in follower.records():
            if callback and callback(record) is False:
                process.stop()
                callback = None
        if status is not None:
            return status
        time.sleep(0.02)


def train(config: Folder | Mapping[str, Option] | None = None, callback: Callback | None = None, ranks: int = 1, **settings: Option) -> Run:
    """Trains a model with hc_train and returns its run.

    config: a config file, or settings by name; settings that are given by name replace those of the config. The callback gets each Record while the run
    goes on. If it returns False, or raises an exception, or on Ctrl-C, the run saves a checkpoint and stops; train(out_dir=..., init_from="resume") goes
    on with it. With several ranks mpirun starts hc_train. Raises Error with hc_train's own words if that fails.
    """
    given = dict(config) if isinstance(config, Mapping) else {} if config is None else {"config": path_text(config)}
    in_file = {} if config is None or isinstance(config, Mapping) or not os.path.exists(config) else read_settings(config)
    options: dict[str, Option] = {**given, **settings}
    try:
        count = operator.index(ranks)
    except TypeError:
        count = 0
    if count < 1 or isinstance(ranks, bool):
        raise Error(f"ranks = {shown(repr(ranks))} is not a number of processes, which is 1 or more")
    if callback is not None and not callable(callback):
        raise Error(f"the callback {shown(repr(callback))} cannot be called")
    chosen = {**in_file, **{name: value for name, value in options.items() if value is not None}}
    if useless := [name for name in NO_TRAINING if chosen.get(name, False) not in (False, "false")]:
        raise Error(f"with {useless[0]} hc_train makes no run: hctrain.call('hc_train', {useless[0]}=..., ...) returns what it prints")
    folder = Path(str(chosen.get("out_dir") or "out"))
    resumes = chosen.get("init_from") == "resume"
    command = _command("hc_train", options)
    if count > 1:
        command = [MPIRUN, "-np", str(count), *command]
    with contextlib.closing(Follower(folder, *(_resumed_at(folder) if resumes and folder.is_dir() else (0, 0)))) as follower, tempfile.TemporaryFile() as output:
        follower.pass_over()
        with _started(command, output) as process:
            status = _watch(process, follower, callback)
        if status not in (0, INTERRUPTED):
            output.seek(max(0, output.seek(0, os.SEEK_END) - LAST_WORDS))
            raise Error(_message("hc_train", output.read(), status))
    return read_run(folder)
