"""hctrain's programs, run by tests as users run them: a scratch folder, in it a small corpus and runs, what programs say and what they leave.

A test is a unittest file with classes of Case, and `programs.main()` at its end. HCTRAIN_PROGRAMS is the folder of the programs, HCTRAIN_MPIRUN
mpirun. A word of a command that begins with "@", or has one behind "=", is a path in the scratch folder; functions take names in it.
"""
from __future__ import annotations

import contextlib
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

BUILD = Path(os.environ["HCTRAIN_PROGRAMS"])
MPIRUN = os.environ.get("HCTRAIN_MPIRUN", "mpirun")
WHOLE = bool(os.environ.get("HC_WHOLE_TESTS"))  # also what is slow and hardly ever finds anything
SANITIZED = bool(os.environ.get("HC_SANITIZE"))
COMPARE = (sys.executable, str(Path(__file__).resolve().parents[2] / "bench" / "compare.py"), "--hc-bench", str(BUILD / "hc_bench"))
FAILED, WRONG_USAGE, REFUSED, INTERRUPTED = 1, 2, (1, 2), 130
SECONDS = 180  # that a program may take, beside others

# The learning rate falls over 20 iterations however many a run has, so that a run in parts is like one in one piece.
TINY = """device = pocl
n_layer = 1
n_head = 2
n_embd = 16
block_size = 16
batch_size = 4
max_iters = 20
learning_rate = 1e-2
warmup_iters = 2
lr_decay_iters = 20
eval_iters = 0
checkpoint_interval = 10
"""

HOSTILE = "\x1b[31m\r\nforged: all is well\u009b2J\u202e"  # as a name or a text of somebody: what a terminal must not obey


class Run:
    """A program under way; when it has ended, status (minus the signal that ended it), what it `printed` (bytes), and what it `said` on stderr."""

    def __init__(self, case, words, *, environment=None, file_bytes=None, errors=None, output=None, **setup):
        self.case, self.words, self.status, self.printed, self.said = case, words, None, b"", ""
        self.kept = [tempfile.TemporaryFile(dir=case.folder) if file is None else None for file in (output, errors)]
        variables = {**os.environ, **{name: case.word(str(value)) for name, value in (environment or {}).items() if value is not None}}
        for name, value in (environment or {}).items():
            if value is None:
                variables.pop(name, None)

        def become():  # signals as a shell leaves them: what started the tests may ignore some
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            if file_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

        self.process = subprocess.Popen(words, env=variables, stdout=self.kept[0] or output, stderr=self.kept[1] or errors, preexec_fn=become,
                                        **{"stdin": subprocess.DEVNULL, **setup})

    def finish(self, seconds=SECONDS):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        if self.process.poll() is None:
            self.process.kill()
        self.status = self.process.wait()
        for file, name in zip(self.kept, ("printed", "said")):
            if file and not file.closed:
                with file:
                    file.seek(0)
                    setattr(self, name, file.read() if name == "printed" else file.read().decode(errors="surrogateescape"))
        return self

    def interrupt(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return self.finish()

    def wait_for(self, found):
        """Waits until found() is neither None nor false, and returns it; fails if the program ends before."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            is_running = self.process.poll() is None
            result = found()
            if result is not None and result is not False:
                return result
            if not is_running:
                self.finish()
                self.case.fail(f"{self.words} ended too early with status {self.status}: {self.said}")
            time.sleep(0.005)
        self.case.fail(f"nothing new of {self.words} after {SECONDS} s")


class Case(unittest.TestCase):
    """Tests that share a scratch folder: "text.txt", "data", which hc_prepare makes of it, and "tiny.conf" of a small model."""

    longMessage = True

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="hctrain-test-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        chosen = random.Random(1)
        words = [chosen.choice("the cat sat on a mat and ran".split()) + ("\n" if i % 9 == 8 else " ") for i in range(9500)]
        cls.put("text.txt", "".join(words)[:40000])
        cls.put("tiny.conf", TINY)
        cls.begin()

    @classmethod
    def begin(cls):
        """What the class's tests find beside the corpus."""
        cls.made("hc_prepare", "--out", "@data", "@text.txt")

    # ---- files of the scratch folder

    @classmethod
    def path(cls, name):
        return cls.folder / name

    @classmethod
    def word(cls, text):
        return re.sub(r"^((?:--?[\w-]+=|[A-Z_]+=)?)@", lambda found: f"{found[1]}{cls.folder}/", text)

    @classmethod
    def put(cls, name, content):
        path = cls.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode(errors="surrogateescape") if isinstance(content, str) else content)
        return path

    @classmethod
    def put_tensors(cls, name, tensors):
        """A safetensors file: by name the type, the shape, and the bytes of its numbers."""
        header, at = {}, 0
        for tensor, (kind, shape, numbers) in tensors.items():
            header[tensor] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + len(numbers)]}
            at += len(numbers)
        text = json.dumps(header).encode()
        return cls.put(name, len(text).to_bytes(8, "little") + text + b"".join(numbers for _, _, numbers in tensors.values()))

    @classmethod
    def put_batch(cls, name, x, y):
        """For hc_probe; x and y: the shape, and tokens, the rest of which are 0."""
        cls.put_tensors(name, {key: ("I32", shape, struct.pack(f"<{len(ids)}i", *ids).ljust(4 * math.prod(shape), b"\0")[:4 * math.prod(shape)])
                               for key, (shape, ids) in (("x", x), ("y", y))})

    @classmethod
    def tensors(cls, name):
        """The same of a file."""
        content = cls.path(name).read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        return {tensor: (entry["dtype"], entry["shape"], content[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]])
                for tensor, entry in header.items() if tensor != "__metadata__"}

    @classmethod
    def text(cls, name):
        return cls.path(name).read_text(errors="surrogateescape")

    def has(self, *names):
        return all(self.path(name).exists() for name in names)

    def entries(self, name):
        return len(os.listdir(self.path(name)))

    def copy(self, source, target):
        self.path(target).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if self.path(source).is_dir() else shutil.copyfile)(self.path(source), self.path(target))

    def rename(self, source, target):
        self.path(target).parent.mkdir(parents=True, exist_ok=True)
        self.path(source).rename(self.path(target))

    def remove(self, name):
        (shutil.rmtree if self.path(name).is_dir() else os.unlink)(self.path(name))

    def link(self, target, name):
        """target: relative to the link, as ln has it."""
        self.path(name).symlink_to(target)

    @classmethod
    def json(cls, name):
        return json.loads(cls.text(name))

    @classmethod
    def put_json(cls, name, document):
        return cls.put(name, json.dumps(document))

    def change_json(self, name, key, value=None):
        """key: "key" or "object.key"; without a value it is removed."""
        document = self.json(name)
        *outer, last = key.split(".")
        inner = document[outer[0]] if outer else document
        inner.pop(last, None) if value is None else inner.__setitem__(last, value)
        self.put_json(name, document)

    def same_file(self, first, second):
        self.assertEqual(self.path(first).read_bytes(), self.path(second).read_bytes(), f"{first} and {second} differ")

    # ---- programs

    @classmethod
    def command(cls, program, *words, ranks=None):
        start = [MPIRUN, "-np", str(ranks)] if ranks else []
        return start + [str(BUILD / program) if program.startswith("hc_") else program, *(cls.word(str(word)) for word in words)]

    @classmethod
    def made(cls, *words):
        """What cannot be done without, before the tests."""
        done = subprocess.run(cls.command(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise AssertionError(f"{words} ended with {done.returncode}: {done.stdout.decode(errors='backslashreplace')}")

    def start(self, *words, ranks=None, **setup):
        run = Run(self, self.command(*words, ranks=ranks), **setup)
        self.addCleanup(run.finish, 0)
        return run

    def call(self, *words, status=0, says=(), seconds=SECONDS, **setup):
        """Runs it to its end, which must be with this status (or one of these), and its messages must have these texts."""
        run = self.start(*words, **setup).finish(seconds)
        self.ended(run, status, says)
        return run

    def ended(self, run, status=0, says=()):
        self.assertIn(run.status, status if isinstance(status, tuple) else (status,), f"{run.words}: {run.said}")
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, run.said, str(run.words))

    def refused(self, says, *words, **setup):
        return self.call(*words, status=REFUSED, says=says, **setup)

    def shown(self, said):
        """What is printed has no character that a terminal would obey, forges no line, and shows something that was hostile."""
        self.assertIsNone(re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\udc80-\udcff]", said), repr(said))
        self.assertIsNone(re.search("^forged", said, re.MULTILINE), said)
        self.assertIn("\\x", said)

    @classmethod
    def keep_no_programs(cls):
        """From here on PoCL keeps its kernels in the scratch folder, and programs none of their own. To keep a program PoCL compiles every kernel of
        it once more than it runs them, which is worth it only where most runs want the same ones."""
        os.environ.update(POCL_CACHE_DIR=str(cls.path("pocl")), XDG_CACHE_HOME="", HOME="")

    # ---- runs of hc_train

    @classmethod
    def training(cls, run, *more):
        """A command of made, start and call."""
        return ["hc_train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir", f"@{run}", "--lr-decay-iters", "20", *more]

    def train(self, run, *more, **setup):
        return self.call(*self.training(run, *more), **setup)

    def resume(self, run, *more, **setup):
        """The folder alone says how the run goes on."""
        return self.call("hc_train", "--init-from", "resume", "--out-dir", f"@{run}", *more, **setup)

    def newest(self, run, least=0):
        """The iteration of the newest checkpoint, `least` or later; None: there is none."""
        names = os.listdir(self.path(run)) if self.has(run) else []
        found = [int(name[5:]) for name in names if re.fullmatch(r"ckpt-\d+", name) and int(name[5:]) >= least]
        return max(found, default=None)

    def lines(self, name):
        return self.text(name).count("\n") if self.has(name) else 0

    def records(self, name):
        return [json.loads(line) for line in self.text(name).splitlines()]

    def metrics(self, run):
        """metrics.jsonl without what the clock decides."""
        return [{name: value for name, value in record.items() if name not in ("time", "tokens_per_sec", "mfu")}
                for record in self.records(f"{run}/metrics.jsonl")]

    def same_metrics(self, first, second):
        self.assertTrue(self.metrics(first))
        self.assertEqual(self.metrics(first), self.metrics(second), f"metrics of {first} and {second}")

    def near_metrics(self, first, second, least, tolerance):
        """Losses and gradient norms, relative to the first run's, of `least` lines or more; norms may differ ten times as much."""
        lines, others = self.metrics(first), self.metrics(second)
        self.assertGreaterEqual(len(lines), least)
        self.assertEqual(len(lines), len(others))
        for line, other in zip(lines, others):
            for name, share in (("loss", 1), ("val_loss", 1), ("train_loss", 1), ("grad_norm", 10)):
                self.assertEqual(name in line, name in other, line)
                if name in line:
                    self.assertLessEqual(abs(line[name] - other[name]), share * tolerance * abs(line[name]), f"{name} of {line} and {other}")

    def same_checkpoint(self, first, second, name):
        """Weights and moments, bit for bit."""
        for file in ("model.safetensors", "optimizer.safetensors"):
            self.same_file(f"{first}/{name}/{file}", f"{second}/{name}/{file}")

    def same_run(self, first, second, name):
        self.same_metrics(first, second)
        self.same_checkpoint(first, second, name)

    def kept_alpha_res(self, run, before, after, kept):
        """Between two checkpoints all alpha_res kept their bits and have no first moments; or, without `kept`, none of them."""
        old, new = (self.tensors(f"{run}/ckpt-{at}/model.safetensors") for at in (before, after))
        moments = self.tensors(f"{run}/ckpt-{after}/optimizer.safetensors")
        names = [name for name in old if ".alpha_res" in name]
        self.assertTrue(names)
        for name in names:
            self.assertEqual((old[name] == new[name], not any(moments[f"exp_avg.{name}"][2][:4])), (kept, kept), name)


def main():
    unittest.main(verbosity=2)
