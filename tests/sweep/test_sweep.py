#!/usr/bin/env python3
"""hc_sweep with a mock of hc_train, whose loss is a function of residual connection, learning rate and seed."""
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 120  # seconds until something counts as hung, also on a busy machine

MOCK = """#!%s -IS
import atexit, glob, json, math, os, signal, sys, time
options = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
if options.get("residual") == "unknown":
    sys.exit("hc_train: there is no such residual connection")
here, device = os.path.dirname(sys.argv[0]) + "/", options["device"]
if device == "absent":
    sys.exit("hc_train: there is no such device")
if not 0 <= float(options.get("learning-rate", 0)) <= 0.1:
    print("hc_train: out of range", file=sys.stderr)
    sys.exit(2)
def write(path, text):
    with open(path, "a") as file:
        file.write(text)
def wait_until(condition):
    until = time.monotonic() + %d
    while not condition():
        if time.monotonic() > until:
            sys.exit("hc_train: nothing came")
        time.sleep(0.002)
if "--plan-only" in sys.argv:
    if options.get("residual") == "long_plan":
        write(here + "pid", "%%d\\n" %% os.getpid())
        time.sleep(1000)
    sys.exit()
run = options["out-dir"]
def stopped(*_):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(130))
    write(here + "calls", "asked\\n")
if os.path.exists(here + "stubborn") and "=rc" in run:
    signal.signal(signal.SIGTERM, stopped)
write(here + "calls", os.path.basename(run) + (" resumed" if options.get("init-from") else "") + "\\n")
if os.path.exists(here + "devices"):  # one run on each at a time, and at first one on all of them
    os.close(os.open(here + "busy-" + device, os.O_CREAT | os.O_EXCL))
    atexit.register(os.remove, here + "busy-" + device)
    wait_until(lambda: os.path.exists(here + "all") or len(glob.glob(here + "busy-*")) == int(open(here + "devices").read()))
    write(here + "all", device + "\\n")
values = dict(part.split("=", 1) for part in os.path.basename(run).split(","))
seconds = options.get("max-seconds", "0")
open(run + "/settings.conf", "w").write("max_iters = 20\\nmax_seconds = " + seconds + "\\n")
name, rate, seed = values["residual"], float(values.get("learning_rate", 0.008)), int(values["seed"])
if name == "rc" and os.path.exists(here + "stubborn"):
    os.makedirs(run + "/ckpt-10", exist_ok=True)
    write(here + "pid", "%%d\\n" %% os.getpid())
    wait_until(lambda: os.path.exists(here + "calls") and "asked" in open(here + "calls").read())
    if open(here + "stubborn").read() == "twice":
        time.sleep(1000)
if name == "hc":
    sys.exit("hc_train: the loss is not finite at iteration 3")
if name == "wide":
    sys.exit("hc_train: out of memory \\x1b[31m")
best, base = {"rc": (0.008, 2.0), "high": (0.09, 2.0), "shc": (0.002, 1.5), "mhc": (0.032, 1.7), "mhc+read_delay=true": (0.008, 1.6), "null": (0.008, 2.0)}[name]
loss = base + 0.01 * math.log2(rate / best) ** 2 + 1e-3 * (seed %% 3) + 1e-4 * (seed * len(name) %% 5)
last = 7 if float(seconds) else 20
os.makedirs(run + "/ckpt-%%d" %% last, exist_ok=True)
open(run + "/ckpt-%%d/state.json" %% last, "w").write(json.dumps({"seconds": 5.25 - seed}))
open(run + "/metrics.jsonl", "w").write(json.dumps({"iter": last, "val_loss": None if name == "null" else loss}) + "\\n")
""" % (sys.executable, TIMEOUT)


class Sweeps(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        (self.folder / "hc_train").write_text(MOCK)
        (self.folder / "hc_train").chmod(0o755)
        (self.folder / "hc_sweep").symlink_to(ROOT / "src" / "programs" / "python_program.py")
        self.out = self.folder / "out"

    def start(self, *words, residual="rc,shc,mhc", device=("mock", "--jobs=2"), before=None, **environment):
        """Popen of a sweep; before: a function that it calls first."""
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | environment
        return subprocess.Popen([self.folder / "hc_sweep", "--vary", f"residual={residual}", "--out", self.out, "--device", *device, *words],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=before)

    def end(self, process, status):
        """Its standard output and standard error."""
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, status, errors)
        return output, errors

    def sweep(self, *words, residual="rc,shc,mhc", status=0):
        """Standard output and standard error of a sweep with the exit status."""
        return self.end(self.start(*words, residual=residual), status)

    def wait_for(self, name, text="\n", times=1):
        """Until a file of the mock has the text so many times; returns all that it has."""
        path, until = self.folder / name, time.monotonic() + TIMEOUT
        while not (path.exists() and path.read_text().count(text) >= times):
            self.assertLess(time.monotonic(), until, f"no {name} with {text}")
            time.sleep(0.005)
        return path.read_text()

    def assert_ended(self, pid):
        with self.assertRaises(ProcessLookupError):
            os.kill(int(pid), 0)

    def calls(self):
        """Runs of the mock since this was asked before."""
        path = self.folder / "calls"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return sorted(found)

    def test_best_values(self):
        """Each setting gets its own, also beyond the first three that are tried; no run is made twice; all are kept."""
        table, _ = self.sweep("--best", "learning_rate=4e-3")
        rows = {line.split("`")[1]: line.split(" | ")[1] for line in table.splitlines() if line.startswith("| `")}
        self.assertEqual(rows, {"rc": "0.008", "shc": "0.002", "mhc": "0.032"})
        calls = self.calls()
        self.assertEqual(len(calls), len(set(calls)))
        self.assertEqual([call for call in calls if "=shc" in call], sorted([f"residual=shc,learning_rate={rate},seed=100" for rate in (0.008, 0.004, 0.002, 0.001)] +
                                                                           [f"residual=shc,learning_rate=0.002,seed={seed}" for seed in (1, 2, 3)]))
        self.assertEqual(self.sweep("--best", "learning_rate=4e-3")[0], table)
        self.assertEqual(self.calls(), [])
        self.assertIn("end of the list", self.sweep("--best", "learning_rate=8e-3,4e-3", residual="shc")[0])

    def test_numbers_are_not_rounded(self):
        """Whole numbers stay so, however large, and a search by factors of two comes back to the same values."""
        self.sweep("--best", "lr_decay_iters=1000000,20000000", "--seeds", "1", residual="rc")
        self.assertIn("residual=rc,lr_decay_iters=1000000,seed=100", self.calls())
        self.sweep("--best", "learning_rate=0.0123457", "--out", self.folder / "other", residual="shc")
        rates = [call.split("learning_rate=")[1].split(",")[0] for call in self.calls() if call.endswith("seed=100")]
        self.assertEqual(sorted(map(float, rates)), [0.0123457 * 2.0 ** k for k in range(-4, 2)])

    def test_runs_are_kept(self):
        """By the table or by their folders; more seeds are only those; an interrupted run is resumed."""
        table, _ = self.sweep()
        (self.out / "runs.tsv").unlink()
        self.calls()
        self.assertEqual(self.sweep()[0], table)
        self.assertEqual(self.calls(), [])
        self.sweep("--seeds", "1,2,3,4", residual="rc,shc")
        self.assertEqual(self.calls(), ["residual=rc,seed=4", "residual=shc,seed=4"])
        self.assertIn("Runs are missing of: rc", self.sweep("--seeds", "1,9", "--table", residual="rc", status=1)[0])
        (self.out / "residual=rc,seed=5" / "ckpt-10").mkdir(parents=True)
        self.assertIn("has a run of other settings", self.sweep("--seeds", "5", residual="rc", status=2)[1])
        record = (self.out / "residual=rc,seed=4" / "sweep.conf").read_text()
        (self.out / "residual=rc,seed=5" / "sweep.conf").write_text(record.replace("seed = 4", "seed = 5"))
        self.sweep("--seeds", "5", residual="rc")
        self.assertEqual(self.calls(), ["residual=rc,seed=5 resumed"])

    def test_time_budget(self):
        """Runs end at any iteration; one that has trained for less is not complete."""
        self.assertIn("| `rc` | 2 |", self.sweep("--max-seconds", "3", "--seeds", "1,2", residual="rc")[0])
        self.assertIn("it has no validation loss", self.sweep("--max-seconds", "3", "--seeds", "1,2,3", residual="rc", status=1)[1])

    def test_other_settings(self):
        """Folders of runs with other settings are not taken for these, even without the table; nor while others run."""
        self.sweep("--n-layer", "2", "--seeds", "1", residual="rc")
        (self.out / "runs.tsv").unlink()
        self.assertIn("seed=1 has a run of other settings", self.sweep("--n-layer", "3", "--seeds", "1", residual="rc", status=2)[1])
        (self.out / "residual=rc,seed=2").mkdir()
        (self.out / "residual=rc,seed=2" / "metrics.jsonl").write_text("mine\n")
        self.assertIn("seed=2 has a run of other settings", self.sweep("--seeds", "2", residual="rc", status=2)[1])

    def test_diverged_and_failed(self):
        table, errors = self.sweep(residual="rc,hc,wide,null,mhc+read_delay=true", status=1)
        self.assertIn("| `hc` | 3 | diverged |", table)
        self.assertIn("| `null` | 3 | diverged |", table)
        self.assertIn("`mhc + read_delay`", table)
        self.assertIn("out of memory \\x1b[31m", errors)
        self.assertNotIn("\x1b", errors)
        self.assertIn("Runs are missing of: wide", table)
        self.calls()
        self.sweep(residual="rc,hc,wide,null,mhc+read_delay=true", status=1)
        self.assertEqual(set(self.calls()), {f"residual=wide,seed={seed}" for seed in (1, 2, 3)})

    def test_devices(self):
        """Without --jobs there is one run on each device at a time; all are used, and all are checked first."""
        (self.folder / "devices").write_text("3")
        _, errors = self.end(self.start(device=["a,b,absent"]), 1)
        self.assertIn("on absent: hc_train: there is no such device", errors)
        self.assertEqual(self.calls(), [])
        self.end(self.start(device=["a,b,c"]), 0)
        self.assertEqual(len(self.calls()), 9)
        self.assertEqual(set((self.folder / "all").read_text().split()), {"a", "b", "c"})
        self.assertEqual({line.split("\t")[4] for line in (self.out / "runs.tsv").read_text().splitlines()[1:]}, {"a", "b", "c"})

    def test_second_interrupt(self):
        """The second one ends runs that do not stop at the first; the same command goes on, and repeats none that were complete."""
        (self.folder / "stubborn").write_text("twice")
        process = self.start("--seeds", "1", residual="shc,rc")
        pid = self.wait_for("pid")
        self.wait_for("out/runs.tsv", "shc\t1")
        process.send_signal(signal.SIGINT)
        self.wait_for("calls", "asked")
        process.send_signal(signal.SIGINT)
        self.assertIn("goes on", self.end(process, 130)[1])
        self.assert_ended(pid)
        self.calls()
        (self.folder / "stubborn").unlink()
        self.sweep("--seeds", "1", residual="shc,rc")
        self.assertEqual(self.calls(), ["residual=rc,seed=1 resumed"])

    def test_hangup(self):
        """Of a terminal that is gone, so nothing can be printed: runs are asked to stop, and one that completes then is not lost."""
        (self.folder / "stubborn").write_text("once")
        process = self.start("--seeds", "1,2", residual="rc,shc", before=os.setsid)
        pids = self.wait_for("pid", times=2).split()  # of both runs, whichever is the first
        process.stdout.close()
        process.stderr.close()
        os.killpg(process.pid, signal.SIGHUP)
        process.wait(TIMEOUT)
        for pid in pids:
            self.assert_ended(pid)
        self.assertIn("asked", self.calls())
        self.assertIn("rc\t1", (self.out / "runs.tsv").read_text())
        self.assertIn("| `rc` |", (self.out / "table.md").read_text())

    def test_nohup(self):
        """A hangup that is ignored when the sweep begins stops nothing."""
        (self.folder / "devices").write_text("2")  # runs wait for one another, so both are there
        process = self.start("--seeds", "1,2", "--device", "a,b", residual="rc,shc", before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for("calls")
        process.send_signal(signal.SIGHUP)
        self.end(process, 0)
        self.assertEqual(len(self.calls()), 4)

    def test_stopped_while_checking(self):
        """hc_train --plan-only does not outlive the sweep."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = self.start(residual="long_plan")
            pid = self.wait_for("pid")
            process.send_signal(number)
            self.assertIn("hc_sweep: interrupted", self.end(process, 130)[1])
            self.assert_ended(pid)
            (self.folder / "pid").unlink()

    def test_interrupted_at_the_start(self):
        """While Python still loads modules, too: a sentence, and no traceback."""
        (self.folder / "argparse.py").write_text(f"import time\nopen({str(self.folder / 'pid')!r}, 'w').write('here\\n')\ntime.sleep(1000)\n")
        process = self.start(PYTHONPATH=str(self.folder))
        self.wait_for("pid")
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.end(process, 130), ("", "hc_sweep: interrupted; the same command goes on\n"))
        self.assertFalse(self.out.exists())

    def test_names_of_columns(self):
        """Values of several --vary that look alike have their names with them."""
        table, _ = self.sweep("--vary", "n_layer=1,2", "--vary", "n_head=1,2", residual="rc")
        self.assertIn("| to residual=rc | to n_layer=1 | to n_head=1 | better than |", table)
        self.assertIn("to n_head=1\t", (self.out / "table.tsv").read_text())
        self.assertIn("n_layer=2, n_head=1", (self.out / "pairs.tsv").read_text())

    def test_out_of_range(self):
        """A search goes on without values that hc_train refuses; those that are listed or come first are refused at the start."""
        table, errors = self.sweep("--best", "learning_rate=0.04", residual="rc,high")
        self.assertIn("| `high` | 0.08 |", table)
        self.assertIn("learning_rate=0.16,seed=100: refused: hc_train: out of range", errors)
        self.assertIn("refused: hc_train", (self.out / "runs.tsv").read_text())
        self.calls()
        self.assertEqual(self.sweep("--best", "learning_rate=0.04", residual="rc,high")[0], table)
        for values in ("0.04,0.2", "0.2"):
            self.assertIn("out of range", self.sweep("--best", f"learning_rate={values}", "--out", self.folder / values, status=2)[1])
        self.assertEqual(self.calls(), [])

    def test_refused(self):
        self.sweep("--n-layer", "2", "--no-bias")
        _, errors = self.sweep("--n-layer=3", "--bias=false", status=2)
        self.assertIn("another n_layer: 2, and now 3", errors)
        for words, text in ((("--seed", "3"), "chooses --seed itself"), (("--residual", "rc"), "can be given once"), (("--base", "residual=no"), "not one of the values of"),
                            (("--best", "x=1", "--best-seed", "1"), "is one of --seeds"), (("--best", "x=-1"), "above 0"), (("word",), "no option before"),
                            (("--vary", "learning_rate=1e-3,0.001"), "different values"), (("--best", "learning_rate=1e-3,0.001"), "different values"),
                            (("--vary", "x=\x1b,2"), "different values"), (("--compile-only",), "trains nothing"), (("--fit", "1GiB"), "trains nothing"),
                            (("--eval-iters", "0"), "no validation losses"), (("--vary", "eval_iters=10,0"), "no validation losses"),
                            (("--seeds", "1,01"), "different whole numbers"),
                            (("--init-from=resume",), "resumes interrupted runs itself")):
            self.assertIn(text, self.sweep(*words, status=2)[1])
        self.calls()
        self.assertIn("no such residual", self.sweep("--n-layer", "2", "--no-bias", residual="rc,unknown", status=1)[1])
        self.assertEqual(self.calls(), [])

    def test_results(self):
        """Two bases, a sweep file, and files for other programs."""
        config, sweep = self.folder / "a.conf", self.folder / "a.sweep"
        config.write_text("n_layer = 2 # layers\n")
        sweep.write_text("config = a.conf\nseeds = 1,2,3,4\nbase = residual=rc\nbase = residual=mhc\ncorrect = false\n")
        table, _ = self.sweep("--sweep", str(sweep))
        losses = [1.5 + 0.04 + 1e-3 * (seed % 3) + 1e-4 * (seed * 3 % 5) for seed in (1, 2, 3, 4)]
        self.assertIn(f"| `shc` | 4 | {sum(losses) / 4:.4f} |", table)
        self.assertIn("Lower loss than rc: shc, mhc.", table)
        self.assertIn("# n_layer = 2\n", (self.out / "runs.tsv").read_text())
        self.assertEqual(len((self.out / "pairs.tsv").read_text().splitlines()), 4)
        picture = xml.etree.ElementTree.parse(self.out / "differences.svg")
        self.assertEqual(len(list(picture.iter("{http://www.w3.org/2000/svg}circle"))), 3)  # mhc to rc stands there once


    def test_too_many(self):
        """Neither settings nor jobs are listed before they are counted."""
        hundred = ",".join(map(str, range(100)))
        varied = [word for name in ("a", "b", "c") for word in ("--vary", f"{name}={hundred}")]
        self.assertIn("makes 1000000 settings", self.sweep(*varied, residual="rc", status=2)[1])
        limit = 1 << 30  # bytes
        process = self.start("--jobs", "1000000000", "--seeds", "1", residual="rc", before=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.end(process, 0)
        self.assertEqual(len(self.calls()), 1)

    def test_files_of_others(self):
        """Files that hc_sweep has not written are neither replaced nor taken for a table of runs; those that it has are."""
        self.out.mkdir()
        mine = self.out / "runs.new"
        mine.write_text("mine")
        for name in ("table.md", "table.tsv", "pairs.tsv", "differences.svg"):
            path = self.out / name
            path.write_text("mine")
            self.assertIn(f"{path} is not a file that hc_sweep has written", self.sweep(status=1)[1])
            self.assertEqual(path.read_text(), "mine")
            path.unlink()
        path = self.out / "table.md"
        path.symlink_to("absent")
        self.assertIn("is not a file that hc_sweep has written", self.sweep(status=1)[1])
        path.unlink()
        self.assertEqual(self.calls(), [])
        self.sweep("--seeds", "1")
        self.sweep("--seeds", "1,2")
        self.assertEqual(mine.read_text(), "mine")
        self.assertEqual([path.name for path in self.out.iterdir() if path.suffix == ".new"], ["runs.new"])
        table = self.folder / "notes.tsv"
        self.assertIn("there is no file absent.sweep", self.sweep("--sweep", "absent.sweep", status=1)[1])
        self.assertIn("is not a file", self.sweep("--runs", self.folder, status=1)[1])
        for text in ("", "# Notes = some\nof\tmine\n"):
            table.write_text(text)
            self.assertIn("notes.tsv is not a table of runs", self.sweep("--runs", table, status=2)[1])
        (self.out / "runs.tsv").write_text("residual\tseed\tval_loss\tnote\tdevice\nrc\t1\tnan\t\t\n")
        self.assertIn("runs.tsv:2: rc\\x091\\x09nan\\x09\\x09 does not have the columns residual, seed", self.sweep(status=1)[1])

    def test_no_table(self):
        """--table makes nothing where nothing is."""
        self.assertIn("there is no table of runs", self.sweep("--table", status=1)[1])
        self.assertFalse(self.out.exists())

    def test_text_of_settings(self):
        """Quotes in configs are those of hc_train, and nothing reaches files that a terminal would obey."""
        config = self.folder / "a.conf"
        config.write_text('data_dir = "a # \\"b\\" \\x1b" # not "c"\n')
        self.sweep("--config", config, "--note", "\x1b[31mred\tnote", "--seeds", "1", residual="rc")
        runs = (self.out / "runs.tsv").read_text()
        self.assertIn('# data_dir = a # "b" \\x1b\n', runs)
        self.assertIn("\t\\x1b[31mred note\t", runs)
        self.assertNotIn("\x1b", runs)
        self.assertIn('data_dir = a # "b" \\x1b\n', (self.out / "residual=rc,seed=1" / "sweep.conf").read_text())
        for line in ('data_dir = "open', 'data_dir = "a" b', 'data_dir = "\\q"'):
            config.write_text(line + "\n")
            self.assertIn("a.conf:1: ", self.sweep("--config", config, status=2)[1])
        config.write_text("compile_only = true\n")
        self.assertIn("take it out of the config", self.sweep("--config", config, status=2)[1])

    def test_equal_settings(self):
        """Runs are kept when a number is written in another way."""
        self.sweep("--weight-decay", "0.1", "--seeds", "1", residual="rc")
        self.calls()
        self.sweep("--weight-decay", "1e-1", "--seeds", "1", residual="rc")
        (self.out / "runs.tsv").unlink()
        self.sweep("--weight-decay", ".10", "--seeds", "1", residual="rc")
        self.assertEqual(self.calls(), [])


class Committed(unittest.TestCase):
    def test_studies(self):
        """The runs that are committed are complete and belong to the configs of today."""
        with tempfile.TemporaryDirectory() as out:
            program = Path(out, "hc_sweep")
            program.symlink_to(ROOT / "src/programs/python_program.py")
            for name, corpus in (("nanogpt", "shakespeare"), ("modern", "shakespeare"), ("fair", "gcide")):
                done = subprocess.run([program, "--sweep", f"configs/{name}.sweep", "--data-dir", f"data/corpus/{corpus}",
                                       "--out", out, "--runs", f"bench/{name}.tsv", "--table"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
                self.assertNotIn("missing", done.stdout)


if __name__ == "__main__":
    unittest.main()
