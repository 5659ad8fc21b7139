"""examples/to_wandb.py and to_mlflow.py: what they send while a run goes on, and when they are started again. Modules that keep what they are given in a file
take the place of wandb and mlflow."""
import json
import os
import subprocess
import sys
import time
import unittest
from pathlib import Path

import small

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SETTINGS = b"# Settings of a run\ndata_dir = \"a \\\"b\\\" = c\\xff\"\nlearning_rate = 0.0006\nbias = false\nn_layer = 12\nmax_iters = 4\n"
VALUES = {"data_dir": 'a "b" = c\\xff', "learning_rate": 0.0006, "bias": False, "n_layer": 12, "max_iters": 4}
LINES = [{"iter": 0, "val_loss": 5.6}, {"iter": 0, "loss": 5.5}, {"iter": 1, "loss": 5.25, "lr": 0.001}, {"iter": 2, "loss": 5.0}, {"iter": 3, "loss": 4.5}, {"iter": 4, "val_loss": 4.6}]

STORE = """import json, os
def kept():
    return [json.loads(line) for line in open(os.environ["STORE"])] if os.path.exists(os.environ["STORE"]) else []
def keep(*what):
    with open(os.environ["STORE"], "a") as file:
        file.write(json.dumps(what) + "\\n")
"""
WANDB = """from store import keep, kept
class Run:
    def __init__(self, id):
        self.step = max((line[2] + 1 for line in kept() if line[:2] == ["log", id]), default=0)
        self.id = id
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def log(self, fields, step): keep("log", self.id, step, fields)
def init(project, name, id, resume, config):
    assert (project, name, resume) == ("hctrain", "run", "allow")
    keep("settings", id, config)
    return Run(id)
"""
MLFLOW = """import contextlib
from types import SimpleNamespace
from store import keep, kept
def run(id): return SimpleNamespace(info=SimpleNamespace(run_id=id))
def set_experiment(name): assert name == "hctrain"
def search_runs(filter_string, output_format):
    assert output_format == "list"
    return [run("7") for line in kept() if line[0] == "begun" and filter_string == "tags.hctrain_id = '%s'" % line[1]]
def start_run(run_id=None, run_name=None, tags=None):
    if run_id is None:
        assert run_name == "run"
        keep("begun", tags["hctrain_id"])
    else:
        assert run_id == "7"
    return contextlib.nullcontext(run("7"))
def log_params(settings): keep("settings", None, settings)
def log_metrics(fields, step): keep("log", None, step, fields)
class MlflowClient:
    def get_metric_history(self, run_id, name):
        assert run_id == "7"
        return [SimpleNamespace(step=line[2]) for line in kept() if line[0] == "log" and name in line[3]]
"""


class Examples(small.InFolder):
    def setUp(self):
        super().setUp()
        self.store = self.folder / "kept"
        for name, text in (("store", STORE), ("wandb", WANDB), ("mlflow", MLFLOW)):
            (self.folder / f"{name}.py").write_text(text)
        small.make_run(self.folder / "run", LINES[:3])
        (self.folder / "run" / "settings.conf").write_bytes(SETTINGS)

    def start(self, script, *words):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")]), "STORE": str(self.store)}
        return subprocess.Popen([sys.executable, EXAMPLES / script, self.folder / "run", *words], env=environment)

    def end(self, process):
        self.assertEqual(process.wait(small.TIMEOUT), 0)

    def kept(self, kind):
        return [line for line in map(json.loads, self.store.read_text().splitlines()) if line[0] == kind] if self.store.exists() else []

    def check(self, script):
        sent = [[line["iter"], {name: number for name, number in line.items() if name != "iter"}] for line in LINES]
        process = self.start(script)
        until = time.monotonic() + small.TIMEOUT
        while len(self.kept("log")) < 3:  # what is there is sent while the run goes on
            self.assertLess(time.monotonic(), until)
            time.sleep(0.01)
        self.assertEqual([line[2:] for line in self.kept("log")], sent[:3])
        process.terminate()
        process.wait()
        with open(self.folder / "run" / "metrics.jsonl", "a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in LINES[3:5]))
        self.end(self.start(script, "0"))
        self.assertEqual([line[2:] for line in self.kept("log")], sent[:5])
        process = self.start(script, str(small.TIMEOUT))
        with open(self.folder / "run" / "metrics.jsonl", "a") as file:
            file.write(json.dumps(LINES[5]) + "\n")
        (self.folder / "run" / "ckpt-4").mkdir()  # the run is complete
        self.end(process)
        self.end(self.start(script))
        self.assertEqual([line[2:] for line in self.kept("log")], sent)
        self.assertEqual(len({line[1] for line in self.kept("settings")}), 1)
        return self.kept("settings")[0][2]

    def test_sentences(self):
        """Without the package, without a run, and without an argument."""
        (self.folder / "hctrain").mkdir()
        (self.folder / "hctrain" / "__init__.py").write_text("import absent_module\n")
        for script in ("to_wandb.py", "to_mlflow.py"):
            for path, words, expected in ((self.folder, ["run"], f"{script}: No module named 'absent_module'; 'pip install"), (None, ["absent"], f"{script}: "), (None, [], "\nSends a run")):
                environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path or self.folder / "none"), os.environ.get("PYTHONPATH", "")])}
                if path is None:
                    (self.folder / "none").mkdir(exist_ok=True)
                    for name in ("store", "wandb", "mlflow"):
                        (self.folder / "none" / f"{name}.py").write_text((self.folder / f"{name}.py").read_text())
                done = subprocess.run([sys.executable, EXAMPLES / script, *words], env=environment, capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 1)
                self.assertIn(expected, "\n" + done.stderr)
                self.assertNotIn("Traceback", done.stderr)

    def test_wandb(self):
        settings = self.check("to_wandb.py")
        self.assertEqual(json.dumps(settings), json.dumps(VALUES))

    def test_mlflow(self):
        settings = self.check("to_mlflow.py")
        self.assertEqual(settings, {name: str(value) for name, value in VALUES.items()})
        self.assertEqual([len(self.kept(kind)) for kind in ("begun", "settings")], [1, 1])


if __name__ == "__main__":
    unittest.main()
