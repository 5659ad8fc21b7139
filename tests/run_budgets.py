#!/usr/bin/env python3
"""bench/budgets.py with a mock of hc_train: it chooses the rates, runs nothing twice, goes on after an interruption, trains variants side
by side, and its intervals are those of hc_analyze, the program in the folder BUILD (build).

  tests/run_budgets.py"""
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ANALYZE = Path(os.environ.get("BUILD", ROOT / "build")).resolve() / "hc_analyze"
MODEL = {"n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 256, "block_size": 8, "n_streams": 2, "bias": False, "dropout": 0}
MOCK = r"""#!/usr/bin/env python3
import json, math, os, pathlib, sys, time
if "--list-residuals" in sys.argv:
    print("rc          1           plain")
    print("identity    2 to 8      streams")
    print("mhc_lite    2 to 8      mixed")
    sys.exit()
arguments = [word for word in sys.argv[1:] if word not in ("--no-tensorboard", "--start-over")]
options = dict(zip(arguments[::2], arguments[1::2]))
run = pathlib.Path(options["--out-dir"])
with open(run.parent / "started", "a") as started:
    started.write(run.name + "\n")
if options.get("--init-from") != "resume":
    run.mkdir(exist_ok=True)
    (run / "options").write_text(json.dumps(options))
    (run / "threads").write_text(" ".join(os.environ.get(name, "-") for name in ("OMP_NUM_THREADS", "POCL_MAX_PTHREAD_COUNT")))
    if run.parent.name == "meeting" and run.name.endswith("-0.008-100"):  # the first of its variant, which waits for another's
        end = time.monotonic() + 60
        while len(list(run.parent.glob("*-0.008-100"))) < 2:
            if time.monotonic() > end:
                sys.exit("alone")
            time.sleep(0.01)
    if run.name == "identity-0.016-3":  # is stopped after its first checkpoint
        (run / "ckpt-500").mkdir()
        sys.exit(130)
options = json.loads((run / "options").read_text())
assert options["--min-lr"] == f"{float(options['--learning-rate']) / 10:g}"
if run.name == "identity-0.032-100":
    (run / "metrics.jsonl").touch()
    (run / "ckpt-500").mkdir(exist_ok=True)
    sys.exit("hc_train: the loss is not finite at iteration 507")
best = {"rc": 4e-3, "identity": 16e-3, "mhc_lite": 8e-3}[options["--residual"]]
loss = 2 + abs(math.log2(float(options["--learning-rate"]) / best)) + int(options["--seed"]) * (0.01 if options["--residual"] == "rc" else 0.02)
(run / "metrics.jsonl").write_text(json.dumps({"iter": 2500, "val_loss": 9}) + "\n" + json.dumps({"iter": 2500, "val_loss": loss}) + "\n")
(run / "settings.conf").write_text(f'residual = "{options["--residual"]}"\nseed = {options["--seed"]}\nlearning_rate = {options["--learning-rate"]}\n')
(run / "ckpt-2500").mkdir()
config = json.loads((run.parents[1] / "config.json").read_text()) | {"residual": options["--residual"]}
if options["--residual"] == "rc":
    config["n_streams"] = 1
(run / "ckpt-2500/config.json").write_text(json.dumps(config))
"""


def expect(actual, expected):
    if actual != expected:
        sys.exit(f"{actual!r} instead of {expected!r}")


def last_words(function, *arguments):
    """What the program would end with; "nothing" where it goes on."""
    try:
        function(*arguments)
    except SystemExit as stopped:
        return stopped.code
    return "nothing"


def side_by_side(budgets, out, text):
    """With two jobs all comes out as with one, and each of them has a half of the processors."""
    for name in ("OMP_NUM_THREADS", "POCL_MAX_PTHREAD_COUNT"):
        os.environ.pop(name, None)
    out.mkdir()
    said = last_words(budgets.table, budgets.Study("fair", out, "pocl", 2))
    expect(said, f"{out}/identity-0.016-3 did not end (status 130); run this again to go on")
    expect(budgets.table(budgets.Study("fair", out, "pocl", 2)), (text, []))
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    stopped = budgets.Study("fair", out, "pocl", 2)
    stopped.stop("interrupted")
    expect(last_words(stopped.run, "rc", 6, 0.004), "interrupted")  # no run begins after that
    expect({(run / "threads").read_text() for run in out.iterdir() if run.is_dir()}, {f"{share} {share}"})
    expect((budgets.default_jobs("pocl"), budgets.default_jobs("gpu")), (min(len(os.sched_getaffinity(0)), 3), 1))
    os.environ["OMP_NUM_THREADS"] = "3"
    expect(budgets.threads(2)["OMP_NUM_THREADS"], "3")


def main():
    with tempfile.TemporaryDirectory(prefix="hc-budgets-") as name:
        folder = Path(name)
        (folder / "hc_train").write_text(MOCK)
        (folder / "hc_train").chmod(0o755)
        (folder / "hc_analyze").symlink_to(ANALYZE)
        (folder / "config.json").write_text(json.dumps(MODEL))
        os.environ["BUILD"] = name
        sys.path.insert(0, str(ROOT / "bench"))
        import budgets
        out = folder / "runs"
        out.mkdir()
        text, missing = budgets.table(budgets.Study("fair", out, "pocl", 0))
        expect((text.count("\n"), missing), (2, ["rc", "identity", "mhc_lite"]))  # no runs: no rows
        said = last_words(budgets.table, budgets.Study("fair", out, "pocl", 1))
        expect(said, f"{out}/identity-0.016-3 did not end (status 130); run this again to go on")
        text, missing = budgets.table(budgets.Study("fair", out, "pocl", 1))
        rows = text.splitlines()
        expect(missing, [])
        expect([row.split(" | ")[:3] for row in rows[2:]], [["| `rc`", "plain", "0.004"], ["| `identity`", "streams", "0.016"], ["| `mhc_lite`", "mixed", "0.008"]])
        # differences of 0.01 to 0.05, of which the deviation is 0.0158, at t = 2.776
        expect(rows[3].split(" | ")[-3:], ["+0.0300 ± 0.0196", "", "+0.0000 ± 0.0000 |"])
        started = (out / "started").read_text().split()
        expect(len(started), len(set(started)) + 1)  # the one that was stopped, twice
        expect(sorted(run for run in started if run.startswith("identity-") and run.endswith("-100")),
               [f"identity-{rate}-100" for rate in ("0.004", "0.008", "0.016", "0.032")])
        expect(budgets.table(budgets.Study("fair", out, "pocl", 0)), (text, []))
        expect((out / "started").read_text().split(), started)
        print(text)
        side_by_side(budgets, folder / "meeting", text)

        plain = folder / "plain"  # a budget whose config has the rate
        for seed in budgets.BUDGETS["nanogpt"].seeds:
            for variant in ("rc", "identity"):
                (plain / f"{variant}-{seed}/ckpt-2000").mkdir(parents=True)
                (plain / f"{variant}-{seed}/ckpt-2000/config.json").write_text(json.dumps(MODEL | {"residual": variant, "n_streams": 1 if variant == "rc" else 2}))
                (plain / f"{variant}-{seed}/settings.conf").write_text(f'residual = "{variant}"\nseed = {seed}\n')
                (plain / f"{variant}-{seed}/metrics.jsonl").write_text(json.dumps({"iter": 2000, "val_loss": 1.5 if variant == "rc" else 1.25}) + "\n")
        text, missing = budgets.table(budgets.Study("nanogpt", plain, "pocl", 0))
        expect(text.splitlines()[3], "| `identity` | streams | 1.2500 | 1.2500 | 1.2500 | 1.2500 | -0.2500 ± 0.0000 |  |")

        document = folder / "page.md"  # where tables go
        document.write_text("before\n<!-- a writes from here -->\nold\n<!-- to here -->\nafter\n")
        budgets.write_between(document, "a", "new\n")
        expect(document.read_text(), "before\n<!-- a writes from here -->\nnew\n<!-- to here -->\nafter\n")
        said = last_words(budgets.split, document, "b")
        expect(said, f'{document}: no lines between "<!-- b writes from here -->" and "<!-- to here -->"')
        for name, budget in budgets.BUDGETS.items():
            budgets.split(ROOT / budget.document, f"bench/budgets.py {name}")


if __name__ == "__main__":
    main()
