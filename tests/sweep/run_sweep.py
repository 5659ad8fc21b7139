#!/usr/bin/env python3
"""hc_sweep with hc_train and a tiny model, two runs side by side: it is interrupted and goes on, and some runs diverge.

  run_sweep.py BUILD
"""
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import small_runs  # noqa: E402


def main():
    build = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        small_runs.make_text(folder, build)
        command = [build / "hc_sweep", "--data-dir", folder / "data", "--out", folder / "out", "--vary", "learning_rate=1e-2,10", "--weight-decay", "10", "--seeds", "1,2",
                   "--jobs", "2", "--device", "pocl", "--n-layer", "1", "--n-head", "2", "--n-embd", "16", "--block-size", "48", "--batch-size", "4",
                   "--gradient-accumulation-steps", "1", "--max-iters", "400", "--eval-interval", "400", "--eval-iters", "1", "--eval-batches", "sampled",
                   "--residual", "rc"]
        log = folder / "out" / "learning_rate=1e-2,seed=1" / "metrics.jsonl"
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 600
        while time.monotonic() < until and process.poll() is None and not (log.exists() and log.read_text().count("\n") > 5):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130, process.returncode
        assert list(log.parent.glob("ckpt-[0-9]*")), "an interrupted run has saved no checkpoint"
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        assert "| `10` | 2 | diverged |" in done.stdout, done.stdout
        assert "| `1e-2` | 2 | " in done.stdout and "missing" not in done.stdout, done.stdout
        again = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=True)
        assert again.stdout == done.stdout and not again.stderr, again.stderr
        other = subprocess.run([*command, "--n-layer", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        assert other.returncode == 2 and "another n_layer" in other.stderr, other.stderr


if __name__ == "__main__":
    main()
