"""hc_analyze's command line."""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from .. import programs
from ..files import Error, on_stop, printable, write_file
from . import kinds
from .comparison import compare
from .inputs import Json, Measuring, check_content, read_bench, read_inputs
from .page import page
from .plots import pictures

DESCRIPTION = """Makes the paper's tables and plots of your own runs: reads the logs of run directories, measures the residual
matrices H_res of their checkpoints on samples of a token file, and writes OUT/report.html, one page with everything in
it, OUT/figures/ with each plot as SVG, PNG and CSV, and OUT/analysis.json with all numbers."""
EXAMPLES = """examples:
  hc_analyze --out report --data-dir data/corpus/gcide out/rc out/mhc out/shc
  hc_analyze --out report --data-dir data/mine --all-checkpoints out/shc
  hc_analyze --out report out
  hc_analyze --out report --watch 60 out/shc"""


def version() -> str:
    """Of the programs; "" where they are not: reports of logs alone need none."""
    try:
        done = subprocess.run([programs.path("hc_probe"), "--version"], env=programs.environment(), stdout=subprocess.PIPE, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.partition("\n")[0].rpartition(" ")[2]


class _Version(argparse.Action):
    def __call__(self, *_: Any) -> None:
        print("hc_analyze", version())
        sys.exit(0)


def _whole(least: int, most: int) -> Any:
    def whole_number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ValueError
        return value
    return whole_number


def _text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return text


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def parse(words: list[str]) -> argparse.Namespace:
    parser = _Parser(prog="hc_analyze", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("inputs", nargs="+", metavar="RUN", type=_text, help="directory of a run, a checkpoint, or a folder of runs")
    add("--out", required=True, type=_text, help="folder of the results, made if missing")
    add("--data-dir", type=_text, help="folder of token files to measure H_res on; without it only the logs of runs are read, which needs no device")
    add("--split", choices=("train", "val"), default="val", help="which of its files (default: val)")
    add("--samples", type=_whole(1, 10**9), default=1024, metavar="N", help="sequences of block_size tokens, spread evenly over the file (default: 1024)")
    add("--batch-size", type=_whole(1, 10**6), default=8, metavar="N", help="sequences at a time (default: 8)")
    add("--device", default="auto", help="what computes H_res: gpu, pocl, cpu, auto, a number or a part of a name, as hc_devices shows them (default: auto)")
    add("--all-checkpoints", action="store_true", help="measure every checkpoint of a run, not only the newest")
    add("--bench", metavar="FILE", help="file of bench/compare.py --json: adds plots of throughput and auxiliary parameters against streams")
    add("--baselines", default="rc,identity", metavar="NAMES", help="residual connections whose losses are subtracted from the others' at the same seed (default: rc,identity)")
    add("--watch", type=_whole(0, 10**6), default=0, metavar="SECONDS",
        help="repeat after so long, until Ctrl-C, and wait for runs that have not begun; an open page reloads itself (default: 0, once)")
    add("--version", action=_Version, nargs=0, help="print the version")
    return parser.parse_intermixed_args(words)


def analyze(options: argparse.Namespace, measuring: Measuring) -> Json:
    """Writes everything to options.out, and returns the content of analysis.json."""
    runs = read_inputs(options.inputs, measuring, options.watch > 0)
    bench = read_bench(options.bench) if options.bench else None
    if not bench and not options.watch:
        check_content(runs, bool(options.data_dir))
    baselines = [name for name in options.baselines.replace(",", " ").split() if name]
    analysis = {"samples": options.samples if options.data_dir else 0, "runs": runs, "comparison": compare(runs, baselines), **({"bench": bench} if bench else {})}
    out = Path(options.out)
    figures = out / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    write_file(out / "analysis.json", json.dumps(analysis, allow_nan=False, separators=(",", ":")))
    shown = pictures(analysis)
    for picture in shown:
        picture.save(figures)
    write_file(out / "report.html", page(analysis, shown, figures, version(), options.watch))
    return analysis


def main(words: list[str]) -> int:
    """The exit status; raises KeyboardInterrupt."""
    options = parse(words)
    measuring = Measuring(options.data_dir, options.split, options.samples, options.batch_size, options.device, options.all_checkpoints)
    told, written = bool(options.data_dir), False
    on_stop()  # hc_probe ends, too, and temporary files go
    try:
        while True:
            try:
                analysis = analyze(options, measuring)
            except Error as error:
                if not written:
                    raise
                print(f"hc_analyze: {error}; the next round tries again", file=sys.stderr)  # a run may just have replaced its files
                time.sleep(options.watch)
                continue
            written = options.watch > 0
            if not told and any(run["config"] and kinds.streams(run) > 1 for run in analysis["runs"]):
                print("H_res was not measured: give --data-dir DIR with the token files of these runs", file=sys.stderr)
                told = True
            print(f"wrote {printable(options.out)}/report.html", file=sys.stderr)
            if not options.watch:
                return 0
            time.sleep(options.watch)
    except KeyboardInterrupt:
        if not written:
            raise
        return 0
    except Error as error:
        print(f"hc_analyze: {error}", file=sys.stderr)
    except ImportError as error:
        print(f"hc_analyze: {error}; it needs numpy, and for plots matplotlib (Debian: python3-numpy, python3-matplotlib; PyPI: numpy, matplotlib)", file=sys.stderr)
    except OSError as error:
        print(f"hc_analyze: {printable(f'{error.filename}: {error.strerror}' if error.filename else error)}", file=sys.stderr)
    return 1
