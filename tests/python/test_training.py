"""train(): records while a run goes on, stopping it, going on with it, several ranks, what goes wrong. And the other programs as functions."""
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import unittest
from pathlib import Path
from unittest import mock

import hctrain
import numpy as np
import small

LONG = {**small.SETTINGS, "max_iters": 5000, "eval_interval": 5000, "checkpoint_interval": 5000, "lr_decay_iters": 12}


class Training(small.InFolder):
    def setUp(self):
        super().setUp()
        self.out = self.folder / "run"

    def train(self, settings=small.SETTINGS, callback=None, **more):
        return hctrain.train(settings, callback, data_dir=small.data(), out_dir=self.out, **more)

    def test_records(self):
        records = []
        run = self.train(callback=records.append)
        self.assertTrue(run.is_complete)
        self.assertEqual(records, list(run.follow()))

    def test_records_come_while_it_runs(self):
        """The first of a long run, and the callback can end it: a checkpoint is saved. It goes on with the same bits as a run without a stop."""
        def stops(record):
            stops.last = record.iteration
            return record.iteration < 3

        run = self.train(LONG, stops)
        self.assertEqual(stops.last, 3)
        self.assertFalse(run.is_complete)
        count = len(run.metrics["iter"])
        self.assertEqual([path.name for path in run.checkpoints], [f"ckpt-{count}"])
        again = []
        resumed = self.train({}, again.append, init_from="resume", max_iters=count + 5)
        self.assertEqual([record.iteration for record in again if not record.is_evaluation], list(range(count, count + 5)))
        self.assertEqual(run.id, resumed.id)
        self.out = self.out.with_name("whole")
        whole = self.train(LONG, max_iters=count + 5)
        np.testing.assert_array_equal(resumed.metrics["loss"], whole.metrics["loss"])
        np.testing.assert_array_equal(resumed.evaluations["val_loss"], whole.evaluations["val_loss"])
        self.assertNotEqual(resumed.id, whole.id)

    def test_the_callback_raises(self):
        def fails(record):
            raise ValueError("from the callback")

        with self.assertRaisesRegex(ValueError, "from the callback"):
            self.train(LONG, fails)
        run = hctrain.read_run(self.out)
        self.assertEqual((len(run.checkpoints), run.is_complete), (1, False))

    def test_begun_anew(self):
        """Records of the run that was there are not taken for those of the new one."""
        self.train()
        records = []
        run = self.train(callback=records.append, start_over=True, max_iters=6)
        self.assertEqual(records, list(run.follow()))
        self.assertEqual(run.metrics["iter"].tolist(), list(range(6)))

    def test_config(self):
        """A file, with settings beside it that replace its own."""
        config = self.out.with_name("small.conf")
        config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in small.SETTINGS.items()) + f"out_dir = {json.dumps(str(self.out))}\n")
        run = hctrain.train(config, data_dir=small.data(), max_iters=2, min_lr=None)
        self.assertEqual((run.folder, run.settings["max_iters"], run.settings["learning_rate"]), (self.out, 2, 3e-2))

    def test_wrong_settings(self):
        for settings, words in (({"learning_rat": 1}, r"^hc_train: unknown option '--learning-rat' \(did you mean '--learning-rate'"), ({"n_layer": "x"}, "^hc_train: .*n_layer|n-layer"),
                                ({"A b": 1}, "not the name of an option"), ({"init_from": "a\0b"}, "NUL"), ({"init_from": self.out / "absent"}, "^hc_train: .*absent"),
                                ({"init_from": "resume"}, "^hc_train: .*run"), ({"init_from": "\ud800"}, "cannot start"), ({"init_from": "\x1b"}, r"^hc_train: .*\\x1b")):
            with self.subTest(settings), self.assertRaisesRegex(hctrain.Error, words):
                self.train(**settings)
        with self.assertRaisesRegex(hctrain.Error, "^hc_train: .*absent.conf"):
            self.train("absent.conf")

    def test_wrong_types(self):
        for words, call in (("3 is not a path", lambda: hctrain.train(3)), ("b'x' is not a path", lambda: hctrain.train(b"x")), ("3 is not a path", lambda: hctrain.evaluate(3)),
                            ("None is not a path", lambda: hctrain.prepare(self.out, None)), ("3 is not a path", lambda: hctrain.read_run(3)),
                            ("3 is not a path", lambda: hctrain.read_checkpoint(3)), ("3 is not a path", lambda: hctrain.Tensors(3)), ("'3' is not the name", lambda: self.train({3: 4})),
                            ("the prompt 3 is not a text", lambda: hctrain.sample("absent", 3)), ("the prompt b'x' is", lambda: hctrain.sample("absent", b"x")), ("the prompt '.ud800' is", lambda: hctrain.sample("absent", "\ud800")),
                            ("the callback 3 cannot", lambda: self.train(callback=3)),
                            *(("is not a number of processes", lambda ranks=ranks: self.train(ranks=ranks)) for ranks in (0, -1, "2", 1.5, True, None))):
            with self.subTest(words), self.assertRaisesRegex(hctrain.Error, words):
                call()
        self.assertFalse(self.out.exists())

    def test_nothing_is_trained(self):
        """Options with which hc_train makes no run are refused before it starts, also in a config; call() takes them."""
        config = self.out.with_name("plan.conf")
        config.write_text("plan_only = true\n")
        for settings, more in (({}, {"plan_only": True}), ({"compile_only": "true"}, {}), ({}, {"fit": "1GiB"}), (config, {}), (config, {"plan_only": None})):
            with self.subTest(more), self.assertRaisesRegex(hctrain.Error, "^with .* hc_train makes no run: "):
                self.train(settings, **more)
        self.assertIn(b"mhc", hctrain.call("hc_train", data_dir=small.data(), residual="mhc", plan_only=True, device="pocl"))
        self.assertTrue(self.train(config, **small.SETTINGS, plan_only=False).is_complete)

    def test_a_run_that_is_there(self):
        self.train(max_iters=1)
        with self.assertRaisesRegex(hctrain.Error, "^hc_train: .*already holds a run"):
            self.train()

    def test_diverged(self):
        with self.assertRaisesRegex(hctrain.Error, "^hc_train: .*not finite"):
            self.train(learning_rate=10, weight_decay=10, grad_clip=0, max_iters=2000, eval_interval=2000)
        self.assertGreater(len(hctrain.read_run(self.out).metrics["iter"]), 0)

    def test_no_message(self):
        """Of a program that a signal ended, and of mpirun that does not start it, whose messages stand between lines of dashes."""
        small.data()  # by the real programs
        dashes = "-" * 76
        for text, ranks, words in (("echo iteration 7; kill -9 $$", 1, "^hc_train ended with signal 9: iteration 7$"), ("exit 3", 1, "^hc_train ended with status 3$"),
                                   (f"printf '%s\\n' {dashes} 'Not enough slots' 'for 64.' '' 'Read more.' 'In vain.' {dashes}; exit 1", 64,
                                    "^hc_train ended with status 1: Not enough slots for 64. Read more.$")):
            for name in ("hc_train", "mpirun"):
                (self.out.parent / name).write_text(f"#!/bin/sh\n{text}\n")
                (self.out.parent / name).chmod(0o755)
            path = os.pathsep.join([str(self.out.parent), os.environ["PATH"]])
            with mock.patch.dict(os.environ, {"HCTRAIN_PROGRAMS": str(self.out.parent), "PATH": path}), self.assertRaisesRegex(hctrain.Error, words):
                self.train(ranks=ranks)

    def test_no_programs(self):
        with mock.patch.dict(os.environ, {"HCTRAIN_PROGRAMS": "/absent"}), self.assertRaisesRegex(hctrain.Error, "no program 'hc_train'"):
            self.train()

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_ranks(self):
        """The same losses up to rounding; stopped by the callback; and hc_train's words where it fails."""
        with mock.patch.dict(os.environ, small.MPI):
            run = self.train(ranks=2)
            np.testing.assert_allclose(run.metrics["loss"], small.run().metrics["loss"], rtol=1e-4)
            stopped = self.train(LONG, lambda record: record.iteration < 3, ranks=2, start_over=True)
            self.assertEqual([path.name for path in stopped.checkpoints], [f"ckpt-{len(stopped.metrics['iter'])}"])
            self.assertFalse(stopped.is_complete)
            with self.assertRaisesRegex(hctrain.Error, "^hc_train: .*gradient_accumulation_steps = 3"):
                self.train(ranks=2, start_over=True, gradient_accumulation_steps=3)


class Interrupted(small.InFolder):
    """Ctrl-C, as a terminal sends it, while train() waits."""

    def start(self, settings, environment=None):
        code = f"""
            import hctrain
            try:
                hctrain.train({settings!r}, data_dir={str(small.data())!r}, out_dir={str(self.folder / "run")!r})
            except KeyboardInterrupt:
                print("interrupted")
        """
        return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})

    def wait_for(self, path, text):
        until = time.monotonic() + small.TIMEOUT
        while not (path.exists() and text in path.read_text()):
            self.assertLess(time.monotonic(), until, f"no {text} in {path}")
            time.sleep(0.01)

    def test_saves(self):
        process = self.start(LONG)
        self.wait_for(self.folder / "run" / "metrics.jsonl", '"iter":2,')
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.communicate(timeout=small.TIMEOUT)[0], "interrupted\n")
        run = hctrain.read_run(self.folder / "run")
        self.assertFalse(run.is_complete)
        self.assertEqual([path.name for path in run.checkpoints], [f"ckpt-{len(run.metrics['iter'])}"])
        hctrain.train(out_dir=run.folder, init_from="resume", max_iters=len(run.metrics["iter"]) + 1)

    def test_between_start_and_watch(self):
        """As soon as there is a program, it is ended."""
        program = self.folder / "hc_train"
        program.write_text('#!/bin/sh\ntrap "exit 130" TERM\necho $$ >"$0.pid"\nwhile true; do sleep 0.1; done\n')
        program.chmod(0o755)
        code = """
            import os, signal, subprocess, time
            import hctrain
            start = subprocess.Popen.__init__
            def start_and_interrupt(self, *arguments, **named):
                start(self, *arguments, **named)
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.1)
            subprocess.Popen.__init__ = start_and_interrupt
            try:
                hctrain.train(data_dir="none", out_dir="none")
            except KeyboardInterrupt:
                print("interrupted")
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True, timeout=small.TIMEOUT,
                              env={**os.environ, "HCTRAIN_PROGRAMS": str(self.folder)})
        self.assertEqual(done.stdout, "interrupted\n")
        pid = self.folder / "hc_train.pid"
        if pid.exists() and pid.read_text():  # else it was ended before it could write that
            with self.assertRaises(ProcessLookupError):
                os.kill(int(pid.read_text()), 0)

    def test_twice(self):
        """Another one ends a program at once that does not come to save."""
        program = self.folder / "hc_train"
        program.write_text('#!/bin/sh\ntrap "test -e $0.asked && exit 130; touch $0.asked; echo asked >>$0.pid" TERM\necho $$ >"$0.pid"\nwhile true; do sleep 0.1; done\n')
        program.chmod(0o755)
        process = self.start({}, {"HCTRAIN_PROGRAMS": str(self.folder)})
        pid = self.folder / "hc_train.pid"
        self.wait_for(pid, "\n")
        process.send_signal(signal.SIGINT)
        self.wait_for(pid, "asked")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.communicate(timeout=small.TIMEOUT)[0], "interrupted\n")
        with self.assertRaises(ProcessLookupError):
            os.kill(int(pid.read_text().split()[0]), 0)


class Programs(unittest.TestCase):
    def test_sample(self):
        text = hctrain.sample(small.run().checkpoints[-1], "12 green", max_new_tokens=5, temperature=0, device="pocl")
        self.assertEqual((text[:8], len(text.encode())), ("12 green", 14))  # and a newline
        for prompt in ("--help", "12 green bottles\n" * 20000):  # which a command line does not take
            self.assertEqual(hctrain.sample(small.run().checkpoints[-1], prompt, max_new_tokens=0, device="pocl"), prompt + "\n")

    def test_evaluate(self):
        run = small.run()
        found = hctrain.evaluate(run.checkpoints[-1], data=small.data(), eval_iters=2, batch_size=4, device="pocl", dtype="fp32")
        self.assertAlmostEqual(found["loss"], run.summary.val_loss, 6)

    def test_names_that_look_like_options(self):
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(small.scratch())
        Path("--json=x").write_text("12 green bottles")
        found = hctrain.evaluate(small.run().checkpoints[-1], "--json=x", device="pocl")
        self.assertEqual((found["documents"], found["bytes"]), (1, 16))

    def test_probe(self):
        """Loss and targets: that of a token is the next, unless targets are given."""
        tokens = np.array([[65, 66, 67, 68]])
        checkpoint = small.run().checkpoints[-1]
        found = hctrain.probe(checkpoint, tokens, streams=True, logits=True, device="pocl")
        self.assertEqual((found["h_res.3"].shape, found["streams.0"].shape), ((1, 4, 2, 2), (1, 4, 2, 16)))
        logits = found["logits"][0, :3].astype(np.float64)
        loss = np.mean(np.log(np.exp(logits).sum(-1)) - logits[np.arange(3), [66, 67, 68]])
        self.assertAlmostEqual(found["loss"][0], loss, 5)
        same = hctrain.probe(checkpoint, tokens, [[66, 67, 68, -1]], grad=False, device="pocl")
        self.assertEqual(same["loss"], found["loss"])
        self.assertNotIn("grad.transformer.wte.weight", same)

    def test_probe_takes_whole_numbers(self):
        for tokens in ([[1.5, 2]], [[1 << 40]], [[1 << 80]], np.array([[1 << 32]]), [[True]], [1, 2], [[]], [[1], [2, 3]], "text", None):
            with self.subTest(tokens), self.assertRaisesRegex(hctrain.Error, "^tokens are not an array"):
                hctrain.probe("absent", tokens)
        with self.assertRaisesRegex(hctrain.Error, "^targets are not an array"):
            hctrain.probe("absent", [[1, 2]], [[2.5, -1]])

    def test_failures(self):
        with self.assertRaisesRegex(hctrain.Error, "^hc_sample: .*absent"):
            hctrain.sample("absent")
        with self.assertRaisesRegex(hctrain.Error, "no program 'ls'|there is no program"):
            hctrain.call("ls")
        with self.assertRaisesRegex(hctrain.Error, "there is no program"):
            hctrain.call("../hc_train")


if __name__ == "__main__":
    unittest.main()
