"""A run's metrics and statistics of H_res for TensorBoard, while it trains or afterwards.

  python3 -m hctrain.tensorboard out/mine            then: tensorboard --logdir out
  python3 -m hctrain.tensorboard out/mine --seconds 0

writes events to the folder tensorboard in the run's, anew each time: training's and validation's loss as two lines of one chart. Without --seconds it
follows the run until it is complete, or has written nothing for ten minutes; 0: what is there now. Needs the package tensorboard (pip install tensorboard).
"""
from __future__ import annotations

import argparse
import contextlib
import math
import sys
from pathlib import Path
from typing import Any, Mapping

from .files import Error, printable, reading
from .records import STATISTICS, Growing, parse_statistics
from .runs import read_run

VALIDATION = {"val_loss": "loss", "train_loss": "evaluation/train_loss"}  # names of evaluations: tags; others keep their names


def _add(writer: Any, values: Mapping[str, Any], step: int, prefix: str = "") -> None:
    """Adds numbers: of sums, which are least and greatest, both; of a list, which has one for each sublayer, the mean."""
    for name, value in values.items():
        if name.endswith("_sum") and isinstance(value, list) and len(value) == 2:
            _add(writer, {f"{name}/least": value[0], f"{name}/greatest": value[1]}, step, prefix)
            continue
        number = sum(value) / len(value) if isinstance(value, list) and value else value
        if isinstance(number, (int, float)) and math.isfinite(number):
            writer.add_scalar(prefix + name, number, step)


def write_events(folder: str, seconds: float = 600.0) -> Path:
    """Writes the run's events until it is complete, or quiet for so long, and returns their folder."""
    try:
        from tensorboard.summary import Writer  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise Error(f"{error}: pip install tensorboard") from None
    run = read_run(folder, skip_damaged=True)
    out, statistics = run.folder / "tensorboard", Growing(run.folder / STATISTICS)
    with reading(out):
        for old in out.glob("*/events.out.tfevents.*"):
            old.unlink()
    training, validation = (Writer(str(out / name)) for name in ("training", "validation"))
    with contextlib.closing(training), contextlib.closing(validation), contextlib.closing(statistics):
        for record in run.follow(timeout=seconds):
            if record.is_evaluation:
                _add(validation, {VALIDATION.get(name, name): value for name, value in record.metrics.items()}, record.iteration)
            else:
                _add(training, record.metrics, record.iteration)
            for _, line, place in statistics.read():
                iteration, values = parse_statistics(line, place)
                _add(training, values, iteration, "h_res/")
            training.flush()
            validation.flush()
    return out


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m hctrain.tensorboard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="folder of a run")
    parser.add_argument("--seconds", type=float, default=600.0, help="without a new line end it (600; 0: what is there now)")
    arguments = parser.parse_args()
    try:
        print(printable(write_events(arguments.run, arguments.seconds)))
        return 0
    except Error as error:
        print(f"hctrain.tensorboard: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
