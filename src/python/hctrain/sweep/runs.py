"""Runs of a sweep: their folders, the table of those that are complete, and the processes that train them."""
import contextlib
import fcntl
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from ..files import on_stop, printable, write_file
from ..runs import last_iteration
from .plan import fail, meaning, number_text, read_lines, read_text

LOG = "train.log"  # what hc_train prints, in the folder of its run
RECORD = "sweep.conf"  # the settings that hc_sweep gave it
REFUSED = 2  # hc_train's exit status for a value outside its option's range
FREE = {"log_interval", "keep_checkpoints"}  # settings that may change between runs of a table


class Run(NamedTuple):
    choices: tuple  # a value for each --vary
    best: tuple  # a number for each --best
    seed: int


class Table:
    """Losses of complete runs, and the settings that all share: a text file with tabs."""

    def __init__(self, path, plan):
        """Reads it, if it exists; ends the program if its runs had other settings."""
        self.path, self.plan, self.rows = path, plan, {}
        self.shared = {name: printable(value) for name, value in sorted(plan.common().items()) if name not in FREE}
        self.columns = [*plan.vary, *plan.best, "seed", "val_loss", "note", "device"]
        if path.exists():
            self.read(read_text(path).splitlines())

    def read(self, lines):
        columns, *rows = [(number, line) for number, line in enumerate(lines, 1) if not line.startswith("# ")] or [(1, "")]
        found = columns[1].split("\t")
        if not {"seed", "val_loss", "note", "device"} <= set(found):
            fail(f"{self.path} is not a table of runs that hc_sweep has written: give another file as --runs, or another --out", 2)
        head = dict(line[2:].split(" = ", 1) for line in lines if line.startswith("# ") and " = " in line)
        for name in sorted(self.shared.keys() | head.keys()):
            before, now = head.get(name, "not given"), self.shared.get(name, "not given")
            if meaning(before) != meaning(now):
                fail(f"the runs of {self.path} have another {name}: {before}, and now {now}. Give other runs another --out (and --runs)", 2)
        if found != self.columns:
            fail(f"{self.path} has the columns {', '.join(found)}, and this command makes {', '.join(self.columns)}: give other runs another --out (and --runs)", 2)
        for number, row in rows:
            words, varied, chosen = row.split("\t"), len(self.plan.vary), len(self.plan.vary) + len(self.plan.best)
            try:
                run = Run(tuple(words[:varied]), tuple(map(float, words[varied:chosen])), int(words[chosen]))
                loss, note, device = words[chosen + 1:]
                if math.isnan(float(loss)):
                    raise ValueError
                self.rows[run] = (float(loss), note, device)
            except ValueError:
                fail(f"{self.path}:{number}: {row[:200]} does not have the columns {', '.join(self.columns)}")

    def write(self):
        lines = [f"# {name} = {value}" for name, value in self.shared.items()] + ["\t".join(self.columns)]
        for run, (loss, note, device) in sorted(self.rows.items()):
            lines.append("\t".join([*run.choices, *map(number_text, run.best), str(run.seed), f"{loss:.6f}", note, device]))
        write_file(self.path, "".join(line + "\n" for line in lines))

    def loss(self, run):
        """None: not there; infinite: it diverged, or hc_train refused a value of --best."""
        row = self.rows.get(run)
        return row and row[0]

    def add(self, run, loss, note, device):
        self.rows[run] = (round(loss, 6), *(printable(" ".join(text.split())) for text in (note, device)))
        self.write()


# ---- what must run


class Needs:
    """The runs that a plan needs, as far as losses that are there tell."""

    def __init__(self, plan, table):
        self.plan, self.table = plan, table

    def choose(self, choices):
        """(The best value of each --best, or None; the runs that choose them)"""
        values, runs = [candidates[0] for candidates in self.plan.best.values()], {}
        for place, candidates in enumerate(self.plan.best.values()):
            while True:
                first = values[place]
                tried = candidates if len(candidates) > 1 else [first, first / 2, first * 2]
                losses = {value: Run(choices, (*values[:place], value, *values[place + 1:]), self.plan.best_seed) for value in tried}
                runs |= dict.fromkeys(losses.values())
                losses = {value: self.table.loss(run) for value, run in losses.items()}
                if None in losses.values():
                    return None, list(runs)
                values[place] = min(losses, key=losses.get)
                if len(candidates) > 1 or values[place] == first:
                    break
        return tuple(values), list(runs)

    def compared(self, choices):
        """(The best values or None, the runs of all seeds)"""
        best, _ = self.choose(choices)
        return best, [] if best is None else [Run(choices, best, seed) for seed in self.plan.seeds]

    def missing(self):
        """(Runs that can begin, those that choose a value first; how many runs are done; how many there will be, as far as is known)"""
        choosing, comparing, total = [], [], 0
        for choices in self.plan.all_choices():
            choosing += self.choose(choices)[1]
            comparing += self.compared(choices)[1]
            total += len(self.plan.seeds)
        total += len(choosing)
        missing = [run for run in choosing + comparing if self.table.loss(run) is None]
        return missing, len(choosing) + len(comparing) - len(missing), total


# ---- folders of runs


def tail(path, most=1 << 16):
    """The last lines of a file that may grow; none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read(most).decode(errors="replace").splitlines()
    except OSError:
        return []


def last_message(folder):
    """The last line of its log that hc_train wrote as an error, or ""."""
    return next((line for line in reversed(tail(folder / LOG)) if line.startswith("hc_train: ")), "")


def records(folder):
    """The last lines of metrics.jsonl, the newest first."""
    for line in reversed(tail(folder / "metrics.jsonl")):
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and isinstance(record.get("iter"), int):
                yield record


def length(folder):
    """("iter", iterations of a run in all), or ("time", its seconds) with max_seconds; 0 if it has not begun."""
    path = folder / "settings.conf"
    texts = dict(read_lines(path)) if path.is_file() else {}
    seconds, text = meaning(texts.get("max_seconds", "0")), texts.get("max_iters", "")
    return ("time", seconds) if seconds != 0 else ("iter", int(text) if re.fullmatch("[0-9]{1,16}", text) else 0)


def meanings(text):
    """{name: meaning} of the lines of RECORD."""
    return {name: meaning(value) for name, _, value in (line.partition(" = ") for line in text.splitlines())}


def final_loss(folder):
    """The last validation loss of a complete run; infinite: it diverged; None: it is not complete."""
    if " is not finite at iteration " in last_message(folder):
        return math.inf
    unit, end = length(folder)
    last = last_iteration(folder, {"max_iters": end} if unit == "iter" else {"max_seconds": end})
    for record in records(folder):
        loss = record.get("val_loss", "")  # null: it was not finite
        if record.get("iter") == last and isinstance(loss, (int, float, type(None))):
            return math.inf if loss is None or not math.isfinite(loss) else float(loss)
    return None


# ---- training


class Progress:
    """A line on stderr: rewritten on a terminal, a new one every half minute elsewhere; none once nobody reads them."""

    def __init__(self):
        self.terminal, self.shown, self.open = sys.stderr.isatty(), time.monotonic(), False

    def is_due(self):
        return time.monotonic() - self.shown >= (0.5 if self.terminal else 30)

    def write(self, text):
        with contextlib.suppress(OSError):  # the terminal was closed: runs are still to be stopped and entered in the table
            sys.stderr.write(text)
            sys.stderr.flush()

    def show(self, text):
        self.shown, self.open = time.monotonic(), self.terminal
        if self.terminal:
            self.write("\r\033[K" + printable(text)[:shutil.get_terminal_size().columns - 1])
        else:
            self.say(text)

    def clear(self):
        self.write("\r\033[K" * self.open)
        self.open = False

    def say(self, text):
        self.clear()
        self.write(printable(text) + "\n")


def cores():
    return len(os.sched_getaffinity(0))


def uses_cpu(programs, device):
    """Whether this word of --device means a CPU."""
    if device != "auto":
        return device in ("cpu", "pocl")
    picks = dict(re.findall(r"--device (\w+) +(.*)", subprocess.run([programs / "hc_devices"], stdout=subprocess.PIPE, text=True, check=False).stdout))
    return "auto" in picks and picks["auto"] == picks.get("cpu")


class Process(NamedTuple):
    handle: subprocess.Popen
    slot: str  # the device's word
    began: float  # at which iteration, or second


class Sweep:
    def __init__(self, plan, table, out, programs, note=""):
        self.plan, self.table, self.out, self.programs, self.note = plan, table, out, programs, note
        self.needs, self.progress = Needs(plan, table), Progress()
        self.running, self.failed = {}, {}  # {Run: Process}, {Run: why}
        self.stopped = False

    def folder(self, run):
        values = [*zip(self.plan.vary, run.choices), *zip(self.plan.best, map(number_text, run.best)), ("seed", run.seed)]
        name = re.sub(r"[^\w.+=,-]", "_", ",".join(f"{name}={value}" for name, value in values))
        return self.out / "search" / name if self.plan.best and run.seed == self.plan.best_seed else self.out / name

    def chosen(self, run):
        """[(name, value)] of what differs between runs."""
        return [*self.plan.assignments(run.choices), *zip(self.plan.best, map(number_text, run.best)), ("seed", run.seed)]

    def settings(self, run):
        """hc_train's options for it."""
        values = [*self.plan.settings.items(), *self.chosen(run)]
        return [f"--config={path}" for path in self.plan.configs] + [f"--{name.replace('_', '-')}={value}" for name, value in values]

    def record(self, run):
        """The settings of a run as lines `name = value`."""
        return "".join(f"{name} = {value}\n" for name, value in sorted({**self.table.shared, **dict(self.chosen(run))}.items()))

    def conflict(self, run):
        """Why what is in its folder is not this run; None: it is, or there is nothing."""
        folder = self.folder(run)
        if not any((folder / name).exists() for name in ("settings.conf", "metrics.jsonl")) and not any(folder.glob("ckpt-[0-9]*")):
            return None
        if (folder / RECORD).is_file() and meanings(read_text(folder / RECORD)) == meanings(self.record(run)):
            return None
        return f"{folder} has a run of other settings ({RECORD} there has them, if this program made it): remove it, or give another --out"

    def to_check(self, devices):
        """(run, device) for all choices that lack runs, and for all listed values of --best and all devices with the first of them."""
        best = tuple(values[0] for values in self.plan.best.values())
        seed = self.plan.best_seed if best else self.plan.seeds[0]
        runs = list(dict.fromkeys(run._replace(best=best, seed=seed) for run in self.needs.missing()[0]))
        if len({self.folder(run) for run in runs}) < len(runs):
            fail("two settings would have the same folder, since other characters than letters, digits and .+=,-_ become _", 2)
        first, listed = runs[0], [(*best[:place], value, *best[place + 1:]) for place, values in enumerate(self.plan.best.values()) for value in values[1:]]
        return ([(run, devices[0]) for run in runs] + [(first._replace(best=values), devices[0]) for values in listed] +
                [(first, device) for device in dict.fromkeys(devices[1:])])

    def check(self, devices):
        """Ends the program if hc_train refuses settings or a device: before hours of training."""
        checks = self.to_check(devices)
        for number, (run, device) in enumerate(checks, 1):
            if self.progress.is_due():
                self.progress.show(f"checking settings {number}/{len(checks)}")
            done = subprocess.run([self.programs / "hc_train", *self.settings(run), f"--device={device}", "--plan-only"], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
            if done.returncode:
                last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
                self.progress.clear()
                fail(f"{self.folder(run).name} on {device}: {last[0]}", done.returncode if done.returncode > 0 else 1)
        self.progress.clear()

    def start(self, run, slot, environment):
        folder = self.folder(run)
        if why := self.conflict(run):
            self.failed[run] = why
            self.progress.say(why)
            return
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / RECORD, self.record(run))
        if any(folder.glob("ckpt-[0-9]*")):
            options, record = ["--init-from=resume"], next(records(folder), {})
        else:
            options, record = [*self.settings(run), "--start-over"], {}
        with open(folder / LOG, "ab") as log:  # a session of its own: Ctrl-C on a terminal reaches it once, by stop()
            handle = subprocess.Popen([self.programs / "hc_train", *options, f"--device={slot}", f"--out-dir={folder}"], env=environment,
                                      stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.running[run] = Process(handle, slot, record.get(length(folder)[0], 0))
        if self.stopped:  # stop() came before the run was among those running
            handle.terminate()

    def stop(self, *_):
        """Asks all runs to save and end; a second time: to end at once."""
        self.stopped = True
        for process in self.running.values():
            process.handle.terminate()

    def collect(self):
        """Takes the runs that have ended out of those that are running."""
        for run, process in list(self.running.items()):
            status = process.handle.poll()
            if status is None:
                continue
            del self.running[run]
            folder = self.folder(run)
            loss = final_loss(folder)
            if loss is not None:
                self.table.add(run, loss, self.note, process.slot)
                self.progress.say(f"{folder}: " + (f"validation loss {loss:.4f}" if math.isfinite(loss) else "diverged"))
            elif status == REFUSED and self.plan.best and run.seed == self.plan.best_seed:  # such as a search that has left an option's range
                why = "refused: " + last_message(folder)
                self.table.add(run, math.inf, why, process.slot)
                self.progress.say(f"{folder}: {why}; another value is chosen")
            elif not self.stopped:
                why = last_message(folder) or ("it has no validation loss" if status == 0 else f"exit status {status}")
                self.failed[run] = why
                self.progress.say(f"{folder}: failed: {why}; {folder / LOG} has more")

    def adopt(self):
        """Enters runs that are complete in their folders, such as those that ended after this program was killed."""
        found = True
        while found:
            missing = self.needs.missing()[0]
            for why in filter(None, map(self.conflict, missing)):
                fail(why, 2)
            losses = {run: final_loss(self.folder(run)) for run in missing}
            found = {run: loss for run, loss in losses.items() if loss is not None}
            for run, loss in found.items():
                self.table.add(run, loss, self.note, dict(read_lines(self.folder(run) / "settings.conf")).get("device", ""))

    def describe(self, done, total, began):
        """The line of progress."""
        texts, work, passed = [], float(total - done), 0.0
        for run, process in self.running.items():
            record, (unit, last) = next(records(self.folder(run)), {}), length(self.folder(run))
            at, last = record.get(unit, 0), last or 1
            passed += max(0, at - process.began) / last
            work -= at / last
            value = record.get("loss", record.get("val_loss"))
            loss = f" loss {value:.3f}" if isinstance(value, float) else ""
            texts.append(self.plan.label(dict(zip(self.plan.vary, run.choices))) + f" seed {run.seed} {at:.0f}/{last:.0f}{loss}")
        passed += done - began[1]
        left = (time.monotonic() - began[0]) / passed * work if passed > 0.02 else None
        return f"runs {done}/{total}" + (f", left {int(left) // 3600}:{int(left) // 60 % 60:02d}:{int(left) % 60:02d}" if left else "") + " | " + " | ".join(texts)

    def train(self, slots):
        """Runs what is missing, one run at a time on each slot (a word of --device). Returns when nothing can go on."""
        share = str(max(1, cores() // len(slots)))  # processors of a run, unless the user has set these
        environment = {"OMP_NUM_THREADS": share, "POCL_MAX_PTHREAD_COUNT": share} | os.environ if len(slots) > 1 else None
        began = time.monotonic(), self.needs.missing()[1]
        on_stop(self.stop, always=True)
        try:
            while True:
                self.collect()
                missing, done, total = self.needs.missing()
                free = list(slots)
                for process in self.running.values():
                    free.remove(process.slot)
                waiting = [run for run in missing if run not in self.running and run not in self.failed]
                for run, slot in zip(waiting, free):
                    if not self.stopped:
                        self.start(run, slot, environment)
                if not self.running and (self.stopped or not waiting):
                    return
                if self.progress.is_due():
                    self.progress.show(self.describe(done, total, began))
                time.sleep(0.05)
        finally:  # whatever ends this program: no run goes on without it
            for process in self.running.values():
                process.handle.terminate()
            for process in self.running.values():
                process.handle.wait()


def lock(folder):
    """Keeps other sweeps out of the folder while the returned descriptor is open; ends the program if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail(f"another hc_sweep is at work in {folder}")
    return descriptor
