#!/usr/bin/env python3
"""bench/budgets.py with a mock of training, whose loss is a function of connection, learning rate and seed."""
import contextlib
import io
import json
import math
import sys
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import budgets  # noqa: E402

PROGRAM = """#!/bin/sh
case $1 in
--list-residuals) printf '%-12s%-12swhat it is (a source)\\n' @NAMES@ ;;
--help) echo "  --residual NAME@HELP@" ;;
*) echo "hc_train: the loss is not finite" >&2 && exit 1 ;;
esac
"""


def learn(options, run, _environment):
    """Instead of budgets.train: a run whose loss is a function of connection, learning rate and seed."""
    calls = run.parent.parent / "calls"
    with calls.open("a") as file:
        file.write(" ".join([run.name, *map(str, options)]) + "\n")
    if (run.parent.parent / "interrupt").exists():
        return 1
    name, rate, seed = run.name.rsplit("-", 2)
    run.mkdir(parents=True, exist_ok=True)
    if name == "hc":
        (run / "metrics.jsonl").touch()
        (run / budgets.DIVERGED).touch()
        return 1
    best, base = {"rc": (0.008, 2.0), "shc": (0.002, 1.5), "mhc": (0.032, 1.7), "mhc+read_delay": (0.008, 1.6)}[name]
    loss = base + 0.01 * math.log2(float(rate) / best) ** 2 + 1e-3 * (int(seed) % 3) + 1e-4 * (int(seed) * len(name) % 5)
    (run / "metrics.jsonl").write_text(json.dumps({"iter": 2500, "val_loss": loss, "train_loss": 1.0}) + "\n")
    (run / "ckpt-2500").mkdir(exist_ok=True)
    return 0


class Studies(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        budgets.BUILD = self.folder
        mock = unittest.mock.patch.object(budgets, "train", learn)
        mock.start()
        self.addCleanup(mock.stop)
        self.make_trainer(["rc", "shc", "mhc"], False)

    def make_trainer(self, names, delay):
        program = self.folder / "hc_train"
        program.write_text(PROGRAM.replace("@NAMES@", " ".join(f"{name} 4" for name in names)).replace("@HELP@", " --[no-]read-delay" if delay else ""))
        program.chmod(0o755)

    def study(self, jobs=2, seeds=(1, 2, 3)):
        budget = budgets.BUDGETS["fair"]._replace(seeds=seeds)
        return budgets.Study(budget, budgets.Runs(self.folder / "fair.tsv", budget), self.folder / "out", "pocl", jobs)

    def report(self, **arguments):
        study = self.study(**arguments)
        return budgets.Report(study, study.all_losses())

    def calls(self):
        """Since they were asked for before: the names of runs."""
        path = self.folder / "calls"
        found = [line.split(" ", 1)[0] for line in path.read_text().splitlines()] if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def test_rates(self):
        """Each connection gets its own, also beyond the first three that are tried, and no run is made twice."""
        report = self.report()
        self.assertEqual({name: rate for name, (rate, _) in report.all_losses.items()}, {"rc": 0.008, "shc": 0.002, "mhc": 0.032})
        calls = self.calls()
        self.assertEqual(len(calls), len(set(calls)))
        self.assertEqual({call for call in calls if call.startswith("shc")},
                         {f"shc-{rate}-100" for rate in ("0.008", "0.004", "0.002", "0.001")} | {f"shc-0.002-{seed}" for seed in (1, 2, 3)})

    def test_runs_are_kept(self):
        """The table of runs alone is enough; one of its lines less is one run more; more seeds are only those."""
        before = self.report().section()
        self.calls()
        for path in sorted((self.folder / "out").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        self.assertEqual(self.report().section(), before)
        self.assertEqual(self.report(jobs=0).section(), before)
        self.assertEqual(self.calls(), [])
        table = self.folder / "fair.tsv"
        table.write_text("".join(line for line in table.read_text().splitlines(True) if not line.startswith("rc\t0.008\t2\t")))
        self.assertEqual(self.report(jobs=0).missing, ["rc"])
        self.assertEqual(self.report().section(), before)
        self.assertEqual(self.calls(), ["rc-0.008-2"])
        self.report(seeds=(1, 2, 3, 4))
        self.assertEqual(sorted(self.calls()), ["mhc-0.032-4", "rc-0.008-4", "shc-0.002-4"])

    def test_again(self):
        self.report()
        self.calls()
        self.make_trainer(["rc", "shc", "mhc"], True)
        self.study().forget("mhc")
        self.report(jobs=1)
        self.assertEqual(sorted({call.rsplit("-", 2)[0] for call in self.calls()}), ["mhc", "mhc+read_delay"])
        self.study().forget("mhc")  # and not what its name begins
        self.report(jobs=1)
        self.assertEqual(sorted({call.rsplit("-", 2)[0] for call in self.calls()}), ["mhc"])

    def test_interrupted(self):
        """A run that did not end stops the study; the next one resumes what has a checkpoint."""
        (self.folder / "interrupt").touch()
        with self.assertRaises(SystemExit):
            self.report(jobs=1)
        self.assertFalse((self.folder / "fair.tsv").exists())
        (self.folder / "interrupt").unlink()
        (self.folder / "out" / "rc-0.008-100" / "ckpt-500").mkdir(parents=True)
        (self.folder / "calls").unlink()
        self.report(jobs=1)
        calls = (self.folder / "calls").read_text().splitlines()
        self.assertEqual([call.split()[0] for call in calls if "--init-from resume" in call], ["rc-0.008-100"])

    def test_connections_join(self):
        """A connection that diverges everywhere stands in the table, and is compared with none; options make connections, too."""
        self.make_trainer(["rc", "shc", "hc", "mhc"], True)
        report = self.report()
        rows = {line.split("`")[1]: line for line in report.table().splitlines()[2:]}
        self.assertEqual(list(rows), ["rc", "shc", "hc", "mhc", "mhc + read_delay"])
        self.assertIn("| diverged |  |  |  |  |", rows["hc"])
        self.assertIn("inf", (self.folder / "fair.tsv").read_text())
        self.assertEqual(self.report(jobs=0).section(), report.section())
        calls = (self.folder / "calls").read_text().splitlines()
        delayed = [call for call in calls if call.startswith("mhc+read_delay-")]
        self.assertTrue(all("--residual mhc --read-delay --seed" in call for call in delayed) and delayed)
        self.assertFalse(any("--read-delay" in call for call in calls if not call.startswith("mhc+read_delay-")))

    def test_diverged(self):
        """What hc_train itself says of that is kept."""
        unittest.mock.patch.stopall()
        study = self.study(jobs=1)
        run = study.folder("mhc", 0.008, 1)
        run.mkdir(parents=True)
        (run / "metrics.jsonl").touch()
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(study.run("mhc", 0.008, 1), math.inf)

    def test_other_config(self):
        self.report()
        table = self.folder / "fair.tsv"
        table.write_text(table.read_text().replace("# configs/fair.conf ", "# configs/fair.conf 0"))
        with self.assertRaises(SystemExit):
            self.study()

    def test_report(self):
        """What the mock's losses are, as the table says it; the picture is well-formed and has a row for each connection."""
        report = self.report()
        rows = {line.split("`")[1]: line for line in report.table().splitlines()[2:]}
        losses = [1.5 + 1e-3 * (seed % 3) + 1e-4 * (seed * 3 % 5) for seed in (1, 2, 3)]
        self.assertIn(f"| 0.002 | 3 | {sum(losses) / 3:.4f} |", rows["shc"])
        self.assertIn("| what it is |", rows["shc"])
        self.assertTrue(rows["shc"].endswith("| `rc`, `mhc` |") or rows["shc"].endswith("| `mhc`, `rc` |"), rows["shc"])
        self.assertTrue(rows["rc"].endswith("|  |  |  |"), rows["rc"])
        self.assertEqual(report.comparisons, 2)
        self.assertEqual(report.section().count("](images/fair.svg)"), 1)
        self.assertEqual(len(report.pairs_text().splitlines()), 4)
        picture = xml.etree.ElementTree.fromstring(report.picture())
        texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
        self.assertEqual(texts[:3], ["shc", "mhc", "rc"])  # the best first
        self.assertEqual(len(list(picture.iter("{http://www.w3.org/2000/svg}circle"))), 2)


class Committed(unittest.TestCase):
    def test_tables_of_runs(self):
        """What is committed belongs to the configs of today, and its losses are numbers."""
        for name, budget in budgets.BUDGETS.items():
            path = budgets.ROOT / "bench" / f"{name}.tsv"
            for key, row in (budgets.Runs(path, budget).rows if path.exists() else {}).items():
                self.assertGreater(float(row[0]), 0, key)


if __name__ == "__main__":
    unittest.main()
