"""Runs as read_run and follow() give them: of hc_train, in progress, resumed, damaged."""
import json
import math
import os
import re
import shutil
import tempfile
import threading
import time
import unittest
from pathlib import Path
from random import Random
from unittest import mock

import hctrain
import numpy as np
import small

STEPS = [{"iter": i, "loss": 5.0 - i} for i in range(6)]


class Folder(small.InFolder):
    def run_of(self, *lines, name="metrics.jsonl", settings=b"max_iters = 6\n"):
        small.make_run(self.folder, lines, name)
        (self.folder / "settings.conf").write_bytes(settings)
        return hctrain.read_run(self.folder)

    def refused(self, words, *lines, **options):
        with self.assertRaises(hctrain.Error) as caught:
            self.run_of(*lines, **options)
        self.assertRegex(str(caught.exception), words)
        self.assertTrue(str(caught.exception).isprintable(), repr(str(caught.exception)))


class Trained(unittest.TestCase):
    """A run that hc_train has made."""

    def test_tables(self):
        run = small.run()
        lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
        steps, evaluations = [line for line in lines if "loss" in line], [line for line in lines if "val_loss" in line]
        for table, rows in ((run.metrics, steps), (run.evaluations, evaluations)):
            self.assertEqual(set(table), set(rows[0]))
            for name, column in table.items():
                self.assertEqual(column.dtype, np.int64 if name == "iter" else np.float64)
                self.assertEqual(column.tolist(), [row[name] for row in rows])
        self.assertEqual(run.metrics["iter"].tolist(), list(range(12)))
        self.assertEqual(run.evaluations["iter"].tolist(), [0, 5, 10, 12])

    def test_statistics(self):
        run = small.run()
        lines = [json.loads(line) for line in (run.folder / "h_statistics.jsonl").read_text().splitlines()]
        self.assertEqual(run.statistics["iter"].tolist(), [0, 4, 8, 11])
        self.assertEqual(run.statistics["stream_cosine"].shape, (4, 4))
        for name, column in run.statistics.items():
            self.assertEqual(column.tolist(), [line[name] for line in lines])

    def test_settings(self):
        settings = small.run().settings
        for name, value in (*small.SETTINGS.items(), ("bias", False), ("data_dir", str(small.data())), ("out_dir", None), ("muon_coefficients", "3.4445, -4.7750, 2.0315")):
            self.assertEqual(settings.get(name), value)
            self.assertIs(type(settings.get(name)), type(value))

    def test_state(self):
        run = small.run()
        self.assertTrue(run.is_complete)
        self.assertTrue(run.device)
        self.assertEqual([path.name for path in run.checkpoints], ["ckpt-12"])
        self.assertEqual(run.best_checkpoint, run.folder / "ckpt-best")
        self.assertRegex(run.id, "^[0-9a-f]{12}$")
        summary = run.summary
        self.assertEqual((summary.iteration, summary.val_loss), (12, run.evaluations["val_loss"][-1]))
        self.assertAlmostEqual(summary.train_loss, sum(run.metrics["loss"]) / 12, 12)
        self.assertEqual(summary.best_val_loss, min(run.evaluations["val_loss"]))

    def test_followed_to_its_end(self):
        records = list(small.run().follow())
        self.assertEqual([(record.iteration, record.is_evaluation) for record in records],
                         [(0, True), *((i, False) for i in range(5)), (5, True), *((i, False) for i in range(5, 10)), (10, True), (10, False), (11, False), (12, True)])
        self.assertEqual([record.metrics["loss"] for record in records if not record.is_evaluation], small.run().metrics["loss"].tolist())
        self.assertEqual(len(list(small.run().follow(first=11))), 2)


class Written(Folder):
    """Files as they may be found."""

    def test_empty(self):
        run = self.run_of(settings=b"")
        self.assertEqual(run.metrics["loss"].tolist(), [])
        self.assertEqual((run.summary.iteration, run.checkpoints, run.best_checkpoint, run.is_complete, run.device), (0, [], None, False, ""))
        self.assertTrue(math.isnan(run.summary.val_loss))
        with self.assertRaisesRegex(hctrain.Error, "no metrics yet"):
            run.id
        os.remove(self.folder / "settings.conf")
        self.assertEqual(hctrain.read_run(self.folder).settings, {})
        os.remove(self.folder / "metrics.jsonl")
        for folder in (self.folder, self.folder / "absent", "a\0b\x1b"):
            with self.assertRaisesRegex(hctrain.Error, "there is no "):
                hctrain.read_run(folder)

    def test_half_a_line(self):
        self.assertEqual(self.run_of(*STEPS, b'{"iter":6,"lo').metrics["iter"].tolist(), list(range(6)))

    def test_repeated_iterations(self):
        """What a run computed again counts, of steps and of evaluations."""
        again = [{"iter": 3, "loss": 30.0}, {"iter": 4, "loss": 40.0, "lr": 1.0}]
        run = self.run_of(*STEPS, {"iter": 6, "val_loss": 1.0}, *again, {"iter": 4, "val_loss": 2.0})
        self.assertEqual(run.metrics["loss"].tolist(), [5.0, 4.0, 3.0, 30.0, 40.0])
        np.testing.assert_array_equal(run.metrics["lr"], [math.nan] * 4 + [1.0])
        self.assertEqual(run.evaluations["iter"].tolist(), [4])

    def test_not_finite(self):
        """They are nan, and no part of means."""
        run = self.run_of({"iter": 0, "loss": None}, {"iter": 1, "loss": 2})
        np.testing.assert_array_equal(run.metrics["loss"], [math.nan, 2.0])
        self.assertEqual(run.summary.train_loss, 2.0)

    def test_damaged_lines(self):
        good = STEPS[0]
        for line, words in ((b"\0\0\0\n", "not JSON"), (b"[1]\n", "not a JSON object"), (b"{}\n", "no iter"), (b'{"iter":-1}\n', "no iter"), (b'{"iter":true}\n', "no iter"),
                            (b'{"iter":1.5}\n', "no iter"), (b'{"iter":1e3}\n', "no iter"), (b'{"iter":99999999999999999999}\n', "no iter"),
                            (b'{"iter":1,"loss":"5"}\n', "loss is not a number"), (b'{"iter":1,"loss":true}\n', "not a number"), (b'{"iter":1,"loss":[1]}\n', "not a number"),
                            (b'{"iter":1,"loss":NaN}\n', "NaN"), (b'{"iter":1,"loss":1e999}\n', "not a number"), (b'{"iter":1,"loss":%s}\n' % (b"9" * 5000), "not JSON"),
                            (b'{"iter":1,"loss":%s}\n' % (b"9" * 400), "not a number"), (b'{"iter":1,"a":1,"a":2}\n', "twice"), (b"[" * 100000 + b"\n", "not JSON"),
                            (b'{"iter":1,"\\u001b[31m":{}}\n', r"\\x1b\[31m is not"), (b"\xff\n", "not JSON"), (b" " * (1 << 22) + b"\n", "longer than")):
            with self.subTest(line=line[:40]):
                self.refused(r"metrics.jsonl:[12]: .*" + words, good, line)

    def test_damaged_statistics(self):
        first = {"iter": 0, "row": [1, 2]}
        for line in ({"iter": 1, "row": [1, 2, 3]}, {"iter": 1, "row": 1}, {"iter": 1, "row": [[1], 2]}, {"iter": 1, "row": ["x", 2]}):
            self.refused("h_statistics.jsonl:2: ", first, line, name="h_statistics.jsonl")
        self.refused("h_statistics.jsonl: nearly all", {"iter": 0, "row": [1.0] * 10000}, *({"iter": i} for i in range(1, 1000)), name="h_statistics.jsonl")

    def test_damaged_lines_are_skipped(self):
        small.make_run(self.folder, [STEPS[0], b"\0\0\n", STEPS[1], b'{"iter":2,"loss":"x"}\n', STEPS[3]])
        self.assertEqual(hctrain.read_run(self.folder, skip_damaged=True).metrics["iter"].tolist(), [0, 1, 3])

    def test_no_files(self):
        """Named pipes and folders in place of files are refused, and not waited for."""
        for name in ("metrics.jsonl", "settings.conf"):
            for make in (os.mkfifo, os.mkdir):
                with tempfile.TemporaryDirectory() as folder:
                    make(Path(folder, name))
                    with self.assertRaisesRegex(hctrain.Error, f"{name} is not a file|cannot open .*{name}"):
                        hctrain.read_run(folder)

    def test_config_lines(self):
        run = self.run_of(settings=b'\xef\xbb\xbf# device: a \x1b GPU\n\n a-b=1 # one\nrate = -1e-3\nname = "a \\"b\\" = c\\n\\xff" # end\nword = mhc\nlist = 1,2\nflag = true\n'
                                   b'text = "true"\nempty =\nlarge = 1234567890123456789012\n')
        self.assertEqual(run.settings, {"a_b": 1, "rate": -1e-3, "name": 'a "b" = c\n\udcff', "word": "mhc", "list": "1,2", "flag": True, "text": "true", "empty": "",
                                        "large": 1234567890123456789012.0})
        self.assertEqual(run.device, "a \\x1b GPU")
        for line in (b"alone\n", b"a # = 1\n", b'a = "open\n', b'a = "x" y\n', b'a = "\\q"\n', b'a = "\\x1"\n', b'a = "\x1b\n'):
            self.refused("settings.conf:2: ", settings=b"b = 1\n" + line)
        self.assertFalse(self.run_of(settings=b"max_iters = " + b"x" * 5000).is_complete)
        self.refused("settings.conf has more than", settings=b"#" * ((1 << 20) + 1))

    def test_time_budget(self):
        """Complete is what has trained for so long, at any iteration."""
        (self.folder / "ckpt-6").mkdir()
        for state, is_complete in (("", False), ('{"seconds": 299.5}', False), ('{"seconds": 300.5}', True), ("{}", False)):
            (self.folder / "ckpt-6/state.json").write_text(state)
            self.assertEqual(self.run_of(*STEPS, settings=b"max_iters = 6\nmax_seconds = 300\n").is_complete, is_complete, state)


class Mutated(Folder):
    """Files of a run with bytes that are others, missing or added: they are read, or refused by an Error."""

    PIECES = (b"9" * 30, b"[", b"{", b'"', b"\n", b"\0", b"null", b"-1", b"1e400", b"\xff", b"\\x", b"true", b"[[1]]")

    def mutate(self, content, random):
        content = bytearray(content)
        for _ in range(random.randint(1, 4)):
            place = random.randrange(min(len(content), 4000))
            kind = random.randrange(4)
            if kind == 0:
                content[place] = random.randrange(256)
            elif kind == 1:
                del content[place:place + random.randint(1, 20)]
            elif kind == 2:
                content[place:place] = random.choice(self.PIECES)
            else:
                return content[:place + 1]
        return content

    def test_all_files(self):
        random, run, outcomes = Random(1), self.folder / "run", set()
        shutil.copytree(small.run().folder, run)
        names = ["metrics.jsonl", "h_statistics.jsonl", "settings.conf", *(f"ckpt-12/{name}" for name in ("model.safetensors", "config.json", "state.json"))]
        for name in names * 25:
            content = (run / name).read_bytes()
            (run / name).write_bytes(self.mutate(content, random))
            try:
                found = hctrain.read_run(run)
                found.summary, found.id, list(found.follow(timeout=0))
                list(hctrain.read_checkpoint(run / "ckpt-12").weights.values())
                outcomes.add("read")
            except hctrain.Error as error:
                self.assertTrue(str(error).isprintable())
                outcomes.add("refused")
            (run / name).write_bytes(content)
        self.assertEqual(outcomes, {"read", "refused"})


class Followed(Folder):
    """Runs that go on."""

    def follow_in_thread(self, timeout=float(small.TIMEOUT)):
        """A run that is followed, and the list that its records come to; the first one is there."""
        run, found = hctrain.read_run(self.folder), []
        thread = threading.Thread(target=lambda: [found.append(record) for record in run.follow(timeout=timeout)], daemon=True)
        thread.start()
        self.wait_until(lambda: found)
        return thread, found

    def wait_until(self, condition):
        until = time.monotonic() + small.TIMEOUT
        while not condition():
            self.assertLess(time.monotonic(), until)
            time.sleep(0.01)

    def write(self, text):
        with open(self.folder / "metrics.jsonl", "a") as file:
            file.write(text)

    def test_new_lines_and_a_resumed_run(self):
        """Each iteration comes once, though the file is written anew with some of its lines; the end is where the run is complete."""
        self.run_of(*STEPS[:2])
        thread, found = self.follow_in_thread()
        self.write('{"iter":2,"loss":')
        self.write("3.0}\n")
        self.wait_until(lambda: len(found) == 3)
        small.make_run(self.folder / "new", STEPS[:2])
        (self.folder / "new" / "metrics.jsonl").replace(self.folder / "metrics.jsonl")
        self.write("".join(json.dumps(line) + "\n" for line in STEPS[2:]))
        self.wait_until(lambda: len(found) == 6)
        self.write('{"iter":6,"val_loss":1.5}\n')
        (self.folder / "ckpt-6").mkdir()
        thread.join(small.TIMEOUT)
        self.assertFalse(thread.is_alive())
        self.assertEqual([record.iteration for record in found], list(range(7)))
        self.assertEqual(found[-1], hctrain.Record(6, {"val_loss": 1.5}))

    def test_timeout(self):
        with mock.patch("time.sleep", side_effect=AssertionError("nothing is waited for")):
            self.assertEqual(len(list(self.run_of(*STEPS).follow(timeout=0))), 6)
        self.assertEqual(len(list(self.run_of(*STEPS).follow(timeout=0.6))), 6)

    def test_another_run(self):
        records = self.run_of(*STEPS).follow()
        for _ in STEPS:
            next(records)
        small.make_run(self.folder / "new", STEPS[1:])
        (self.folder / "new" / "metrics.jsonl").replace(self.folder / "metrics.jsonl")
        with self.assertRaisesRegex(hctrain.Error, "of another run"):
            next(records)


class Printable(unittest.TestCase):
    def test_text(self):
        self.assertEqual(hctrain.printable("ä\x1b\n\udcff"), "ä\\x1b\\x0a\\xff")
        self.assertTrue(re.fullmatch(r"[ -~ä\\]*", hctrain.printable("ä\u202e")))


if __name__ == "__main__":
    unittest.main()
