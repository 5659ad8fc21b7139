#!/usr/bin/env python3
"""What examples/to_wandb.py and to_mlflow.py send: settings as numbers, booleans and texts, and the lines of metrics.jsonl. Stand-ins take
the place of wandb and mlflow, and print what they are given."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

SETTINGS = r"""# Settings of a run of hctrain 0.1.0

# Data and results
data_dir = "a \"b\" = c"
learning_rate = 0.0006
bias = false
tensorboard = true
n_layer = 12
# as is not set
out_dir = "na\xffme"
"""
VALUES = {"data_dir": 'a "b" = c', "learning_rate": 0.0006, "bias": False, "tensorboard": True, "n_layer": 12, "out_dir": "na\\xffme"}
LINES = [{"iter": 1, "loss": 5.5}, {"iter": 2, "loss": 5.25, "lr": 0.001}]

WANDB = """import json
class Run:
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def log(self, fields, step): print(json.dumps([step, fields]))
def init(project, name, config):
    print(json.dumps(config))
    return Run()
"""
MLFLOW = """import contextlib, json
def set_experiment(name): pass
def start_run(run_name): return contextlib.nullcontext()
def log_params(settings): print(json.dumps(settings))
def log_metrics(fields, step): print(json.dumps([step, fields]))
"""


def sent(script, folder):
    """The lines that the stand-in prints, from JSON."""
    output = subprocess.run([sys.executable, EXAMPLES / script, folder / "run", "0"], env={**os.environ, "PYTHONPATH": str(folder)}, check=True,
                            capture_output=True, text=True, timeout=60).stdout
    return [json.loads(line) for line in output.splitlines()]


def main():
    wanted = [VALUES] + [[line["iter"], {name: number for name, number in line.items() if name != "iter"}] for line in LINES]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run").mkdir()
        (folder / "run" / "settings.conf").write_text(SETTINGS)
        (folder / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
        (folder / "wandb.py").write_text(WANDB)
        (folder / "mlflow.py").write_text(MLFLOW)
        wrong = [f"{script}: {found}\nand not {wanted}" for script in ("to_wandb.py", "to_mlflow.py")
                 if json.dumps(found := sent(script, folder)) != json.dumps(wanted)]
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
