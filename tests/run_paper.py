#!/usr/bin/env python3
"""examples/paper: everything at scale tiny, from an empty folder to its report; and with mock programs: that runs go
on after an interruption, that nothing is done twice, how ranks are started, and what is said of failures.

  tests/run_paper.py BUILD_FOLDER mock|tiny"""
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAPER = ROOT / "examples/paper/paper.py"
MOCK = r"""#!/usr/bin/env python3
import json, os, pathlib, signal, sys, time
name = pathlib.Path(sys.argv[0]).name
words = sys.argv[1:]
options = dict(zip(words, words[1:]))
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps([name, *words]) + "\n")
if name == "hc_prepare":
    out = pathlib.Path(options["--out"])
    out.mkdir(parents=True)
    for file in ("train.bin", "val.bin", "meta.json"):
        (out / file).touch()
elif name == "hc_train":
    run = pathlib.Path(options["--out-dir"])
    run.mkdir(parents=True, exist_ok=True)
    if options.get("--residual") == "hc":
        sys.exit("hc_train: the loss is not finite at iteration 7")
    if options.get("--residual") == "shc":  # waits for a signal, and saves first
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        (run / "ckpt-10").mkdir()
        signal.sigwait({signal.SIGUSR1})
        (run / "ckpt-20").mkdir()
        sys.exit(130)
    steps = "".join(json.dumps({"iter": i, "loss": 3 - i / 100}) + "\n" for i in range(30))
    (run / "metrics.jsonl").write_text(steps + json.dumps({"iter": 30, "val_loss": 9}) + "\n")
    (run / "ckpt-30").mkdir()
elif name == "hc_eval":
    pathlib.Path(options["--json"]).write_text(json.dumps({"loss": 2.5, "word_perplexity": 100.0}))
elif name == "hc_bench":
    if options["--residual"] == "mhc_lite":
        sys.exit("hc_bench: not enough memory: this run needs 9.00 GiB and this GPU has 8.00 GiB; choose a smaller model")
    facts = {"residual": options["--residual"], "n_streams": int(options["--n-streams"]), "tokens_per_second": 1234.0, "auxiliary": 1}
    pathlib.Path(options["--json"]).write_text(json.dumps(facts))
"""
LAUNCH = """#!/usr/bin/env python3
import os, sys
open(sys.argv[1], "a").write("launched\\n")
os.execv(sys.argv[2], sys.argv[2:])
"""


def expect(actual, expected):
    if actual != expected:
        sys.exit(f"{actual!r} instead of {expected!r}")


def expect_in(words, text):
    if words not in text:
        sys.exit(f"there is no {words!r} in\n{text[:6000]}")


def script(path, text):
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


class Mock:
    """paper.py with programs that only write down what they are called with."""

    def __init__(self, folder):
        self.folder, self.out = folder, folder / "out"
        for name in ("hc_prepare", "hc_train", "hc_eval", "hc_bench"):
            script(folder / name, MOCK)
        self.environment = {**os.environ, "CALLS": str(folder / "calls")}

    def words(self, *more):
        return [sys.executable, PAPER, "--scale", "tiny", "--programs", self.folder, "--out", self.out, "--models", "M", "--corpora", "openwebtext", *more]

    def run(self, *more, status=0):
        """(what it says, the calls)"""
        (self.folder / "calls").write_text("")
        done = subprocess.run(self.words(*more), env=self.environment, capture_output=True, text=True)
        if done.returncode != status:
            sys.exit(f"{more}: status {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout + done.stderr, self.calls()

    def calls(self):
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    def report(self):
        return (self.out / "report.md").read_text(encoding="utf-8")


def interruption(mock):
    """Ctrl-C saves; the same command goes on, and then has nothing to do."""
    words = ("--only", "table1", "--variants", "rc,shc")
    said, calls = mock.run(*words, "--dry-run")
    expect((calls, mock.out.exists()), ([], False))
    expect_in("--residual shc --seed 1337 --start-over", said)

    (mock.folder / "calls").write_text("")
    shc = mock.out / "runs/M-openwebtext/shc"
    with subprocess.Popen(mock.words(*words), env=mock.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as process:
        end = time.monotonic() + 120
        while not (shc / "ckpt-10").exists():
            if time.monotonic() > end or process.poll() is not None:
                process.kill()
                sys.exit("shc was not trained")
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        said = process.stderr.read()
        expect(process.wait(), 130)
    expect(said, "paper.py: interrupted; the same command goes on from here\n")
    expect([call[0] for call in mock.calls()], ["hc_prepare", "hc_train", "hc_eval", "hc_train"])
    expect_in("| sHC | 3.225 / not run yet (20 of 30) |", mock.report())
    expect_in("| RC | 3.347 / 2.855 (-0.492) | 3.328 / 2.500 (-0.828) |", mock.report())
    asked = shlex.join(["--models", "M", "--corpora", "openwebtext", "--variants", "rc,shc", "--programs", str(mock.folder)])
    expect_in(f"--scale tiny --out {shlex.quote(str(mock.out))} --only table1 {asked}\n", mock.report())

    _, calls = mock.run(*words)
    expect([call[0] for call in calls], ["hc_train", "hc_eval"])
    expect(calls[0][1:3], ["--init-from", "resume"])
    expect(mock.run(*words)[1], [])
    expect_in("| sHC | -0.122 / +0.000 (+0.122) |", mock.report())


def failures(mock):
    """A run that fails ends the work, or with --keep-going only itself. Models that do not fit are a result."""
    words = ("--only", "table1", "--variants", "hc,mhc")
    said, calls = mock.run(*words, status=1)
    expect([call[0] for call in calls], ["hc_train"])
    expect_in("hc_train: the loss is not finite at iteration 7\npaper.py: hc_train ended with status 1: ", said)
    said, calls = mock.run(*words, "--keep-going", status=1)
    expect([call[0] for call in calls], ["hc_train", "hc_train", "hc_eval"])
    expect_in("paper.py: these failed:\n  hc_train ended with status 1: ", said)
    expect_in(" --keep-going\n", mock.report())

    _, calls = mock.run("--only", "throughput")
    expect(len(calls), 9)
    expect_in("| 4 |  |  | 1,234 |  | refused: this run needs 9.00 GiB and this GPU has 8.00 GiB |  | 1,234 |  |", mock.report())
    expect(len(mock.run("--only", "throughput")[1]), 2)  # what was refused is tried again


def launchers(mock):
    """Words of --launcher stay words; options behind -- are hc_train's; another micro-batch keeps the iteration's sequences."""
    mark = mock.folder / "a mark"
    script(mock.folder / "launch", LAUNCH)
    rest = ("--only", "table1", "--variants", "mhc_lite", "--micro-batch", "2", "--", "--recompute", "layer")
    _, calls = mock.run("--launcher", f"'{mock.folder}/launch' '{mark}'", *rest)
    expect(mark.read_text(), "launched\n" * 2)
    expect(calls[0][-2:], ["--recompute", "layer"])
    train = calls[0]
    expect(train[train.index("--batch-size"):][:4], ["--batch-size", "2", "--gradient-accumulation-steps", "4"])
    said, _ = mock.run("--launcher", "no-such-launcher", "--only", "table1", "--variants", "hc", status=1)
    expect_in("paper.py: cannot start no-such-launcher: No such file", said)
    said, _ = mock.run("--micro-batch", "3", "--only", "throughput", status=1)
    expect_in("--micro-batch 3 does not divide the 8 sequences of an iteration of model M", said)
    said, _ = mock.run("--ranks", "4", "--only", "table1", "--variants", "hc", "--dry-run")
    expect_in(f"$ mpirun -np 4 {shlex.quote(str(mock.folder / 'hc_train'))} --config", said)


def report_command(mock):
    """The command in a report gives every option that differs from its default, so that it means the same when it is typed again."""
    options = {"--ranks": "2", "--launcher": "srun -n 2", "--device": "gpu:1", "--seed": "7", "--micro-batch": "2", "--variants": "hc", "--data": "fineweb_edu=a b",
               "--paloma": "c d"}
    mock.run("--report", "--keep-going", *(word for option in options.items() for word in option), "--", "--recompute", "layer")
    line = next(line for line in mock.report().splitlines() if " --only table1 " in line)
    words = shlex.split(line)
    for option, value in {**options, "--models": "M", "--corpora": "openwebtext", "--programs": str(mock.folder)}.items():
        expect(words.count(option), 1)
        expect(words[words.index(option) + 1], value)
    expect_in("--keep-going", words)
    expect(words[-3:], ["--", "--recompute", "layer"])
    expect_in("What has not been run yet (all of it without --models, --corpora, --variants):\n\n    python3 ", mock.report())
    subprocess.run([sys.executable, PAPER, "--scale", "tiny", "--programs", mock.folder, "--out", mock.out, "--report"], check=True)
    expect_in("What has not been run yet:\n\n    python3 ", mock.report())


def dry_run(mock):
    """Of the costs one line for each device, model and variant: the real thing stops at the first micro-batch that fits."""
    said, _ = mock.run("--only", "costs", "--dry-run")
    commands = [line.partition(" --batch-size ")[0] for line in said.splitlines() if line.startswith("$ ")]
    expect(len(commands), len(set(commands)))
    expect(said.count(" --roofline "), 3 * 11 + 3 * 7 - 3)  # mhc, mhc_lite and shc with four streams are among both


def refusals(mock):
    """What is not there is said before anything runs."""
    paper = [sys.executable, PAPER, "--scale", "paper", "--programs", mock.folder, "--out", mock.folder / "none", "--data", "openwebtext=no/such",
             "--data", "fineweb_edu=no/such", "--paloma", "no/such"]
    done = subprocess.run(paper, capture_output=True, text=True, env=mock.environment)
    expect((done.returncode, (mock.folder / "none").exists()), (2, False))
    for words in ("no/such has neither train.bin nor JSON lines: data/openwebtext/prepare.sh makes it", "data/fineweb_edu/prepare.sh",
                  "no/such/dolma-v1_5/test has no JSON lines: give --paloma DIR"):
        expect_in(words, done.stderr)
    for words, message in ((["--only", "table3"], "table3 is not among costs, throughput, table1, table2, h_res"), (["--data", "c4=x"], "give openwebtext=DIR"),
                           (["--ranks", "0"], "at least 1"), (["--launcher", "srun '"], "argument --launcher")):
        done = subprocess.run([*paper, *words], capture_output=True, text=True)
        expect(done.returncode, 2)
        expect_in(message, done.stderr)


def paper_numbers():
    """All numbers of both tables are there, and the page says of what is open what the report does."""
    sys.path.insert(0, str(PAPER.parent))
    sys.dont_write_bytecode = True
    import report
    theirs = report.paper()
    for name, columns in (("table1", 8), ("table2", 10)):
        expect([len(theirs[name][key]) for key in ("columns", "rc", "hc", "mhc", "mhc_lite", "shc")], [columns] * 6)
    open_points = report.open_points(theirs["open"]).splitlines()
    page = (ROOT / "docs/reproduce.md").read_text(encoding="utf-8").partition("|  | the paper | here |\n")[2].partition("\n\n")[0].splitlines()
    expect([line for line in page if line not in open_points], [])
    expect(len(page) > 5, True)


def run_twice(out, words):
    """The report of all that the command does, and the commands that it starts when it is given again."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode:
        sys.exit(f"status {done.returncode}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    report = (out / "report.md").read_text(encoding="utf-8")
    expect("not run yet" in report, False)
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    return report, [line for line in done.stdout.splitlines() if line.startswith("$ ")]


def tiny(build, folder):
    """The whole with the real programs."""
    out = folder / "tiny"
    report, again = run_twice(out, [sys.executable, PAPER, "--scale", "tiny", "--programs", build, "--out", out, "--device", "pocl"])
    expect_in("These losses cannot be compared with the paper's", report.splitlines()[0])
    expect_in("refused: this run needs", next(line for line in report.splitlines() if line.startswith("| 8 |")))
    loss = json.loads((out / "runs/L-fineweb_edu/shc/validation.json").read_text())["loss"]
    expect_in(f"3.003 / {loss:.3f} ({loss - 3.003:+.3f}) |", report)
    perplexity = json.loads((out / "runs/M-fineweb_edu/mhc/eval-dolma.json").read_text())["word_perplexity"]
    expect_in(f"351.8 / {perplexity:.1f} (", report)
    expect(len(re.findall(r"\(analysis/[ML]-\w+/report\.html\)", report)), 4)
    expect(len(list(out.glob("runs/*/*/ckpt-30"))), 21)
    if len(again) != 1 or "--residual mhc_lite --n-streams 8" not in again[0]:  # which does not fit
        sys.exit(f"run again: {again}")


def tiny_s2hc(build, folder):
    """What s2HC's public code trains."""
    out = folder / "s2hc"
    report, again = run_twice(out, [sys.executable, PAPER, "--paper", "s2hc", "--scale", "tiny", "--programs", build, "--out", out, "--device", "pocl"])
    expect(again, [])
    losses = {name: json.loads((out / f"runs/Qwen3-0.6B-fineweb_edu/{name}/validation.json").read_text())["loss"] for name in ("rc", "krom")}
    expect_in(f" {losses['krom']:.3f} | ", next(line for line in report.splitlines() if line.startswith("| KromHC |")))
    expect_in(f"{losses['krom'] - losses['rc']:+.3f} |\n", report)
    expect_in("| 6 runs |", report)
    expect("h_res_transposed = true" in (out / "runs/Qwen3-0.6B-fineweb_edu/shc/settings.conf").read_text(), True)
    expect(len(list(out.glob("runs/*/*/ckpt-30"))), 6)
    text = folder / "web"
    text.mkdir()
    for name in ("a.jsonl", "tokenizer.json"):
        (text / name).touch()
    words = [sys.executable, PAPER, "--paper", "s2hc", "--scale", "paper", "--dry-run", "--programs", build, "--data", f"fineweb_edu={text}"]
    done = subprocess.run([*words, "--only", "table1"], check=True, stdout=subprocess.PIPE, text=True)
    prepare = next(line for line in done.stdout.splitlines() if "/hc_prepare" in line)
    expect(prepare.endswith(f"--out {shlex.quote(str(Path('out/s2hc-paper').resolve() / 'data/fineweb_edu'))} {shlex.quote(str(text / 'a.jsonl'))}"), True)
    expect_in("--no-h-res-transposed --seed 42 ", done.stdout)
    (text / "tokenizer.json").unlink()
    expect_in("has no tokenizer.json: put Qwen3's beside the JSON lines", subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
    done = subprocess.run([*words, "--models", "M"], capture_output=True, text=True)
    expect((done.returncode, "M is not among Qwen3-0.6B" in done.stderr), (2, True))


def main():
    build, kind = Path(sys.argv[1]).resolve(), sys.argv[2]
    with tempfile.TemporaryDirectory(prefix="hc paper ") as name:
        if kind == "tiny":
            tiny(build, Path(name))
            tiny_s2hc(build, Path(name))
        else:
            paper_numbers()
            mock = Mock(Path(name))
            for check in (interruption, failures, launchers, report_command, dry_run, refusals):
                check(mock)


if __name__ == "__main__":
    main()
