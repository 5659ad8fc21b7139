"""What the programs do while one of their calls fails, and what must be true afterwards."""
import base64
import gzip
import hashlib
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

MODEL = """device = pocl
residual = mhc
n_streams = 2
n_layer = 1
n_head = 2
n_embd = 16
block_size = 16
batch_size = 4
learning_rate = 1e-2
warmup_iters = 2
lr_decay_iters = 12
max_iters = 12
eval_interval = 4
eval_iters = 1
checkpoint_interval = 4
keep_checkpoints = 10
statistics_interval = 3
"""


def text(seed):
    """Lines that a seed chooses."""
    words = "the cat sat on a mat and ran".split()
    return "".join(f"{words[i * (seed + 3) % 8]} {i * i % 97} {words[i // 3 % 8]}{chr(10) if i % 9 == 8 else ' '}" for i in range(1500))


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if Path(path).is_file() else None


def digests(folder, *patterns):
    return {str(path.relative_to(folder)): digest(path) for pattern in patterns for path in sorted(Path(folder).glob(pattern)) if path.is_file()}


def shape(value):
    """What is there, without the numbers."""
    if isinstance(value, dict):
        return {name: shape(part) for name, part in value.items()}
    return [shape(part) for part in value] if isinstance(value, list) else type(value).__name__


@dataclass
class Tools:
    """Programs without faults, which must succeed."""
    build: Path
    environment: dict
    faults: Path  # the library that makes calls fail
    folder: Path  # in which they run, so that all paths are relative

    def program(self, name, *arguments):
        return [str(self.build / name), *map(str, arguments)]

    def run(self, name, *arguments, ranks=1, fault=None, status=(0,)):
        environment = {**self.environment, **({"LD_PRELOAD": str(self.faults), "HC_FAULT": fault} if fault else {})}
        command = [*(["mpirun", "-np", str(ranks)] if ranks > 1 else []), *self.program(name, *arguments)]
        done = subprocess.run(command, env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=300)
        if done.returncode not in status:
            raise RuntimeError(f"{name} {' '.join(map(str, arguments))}: exit {done.returncode}: {done.stderr[-400:]}")
        return done


@dataclass
class Scenario:
    """A command under a fault. All functions are given the folder in which the command works."""
    name: str
    make: Callable       # (tools, folder): inputs, and what is there before
    command: Callable    # (tools, folder): the argument vector
    result: Callable     # (folder, stdout): what a complete run leaves, as something that can be compared
    recover: Callable    # (tools, folder): after a failure, what a user does next; gives its stdout
    broken: Callable = lambda folder, before, complete: None  # (folder, results before and of a complete run): what is neither whole nor absent
    equal: Callable = lambda result, complete: result == complete  # whether results after a failure and going on are those of a complete run
    ranks: int = 1
    slow: bool = False  # only when it is asked for by its name
    only_driver: bool = False  # faults are those of the driver for Vulkan
    seconds: float = 1.0  # of a fault, about; where they are few, more of them are tried


# ---- hc_prepare

RESULTS = ("*.bin", "*.documents", "tokenizer.json", "meta.json")


def prepared(folder, _stdout=""):
    results = digests(folder / "out", *RESULTS)
    return {**results, "rest": sorted(path.name for path in (folder / "out").glob("*") if path.name not in results)}


def half_prepared(folder, before, complete):
    """Where meta.json is, all is of one making, and all of it is there."""
    now = digests(folder / "out", *RESULTS)
    whole = [{name: digest for name, digest in made.items() if name != "rest"} for made in (before, complete)]
    return None if "meta.json" not in now or now in whole else f"a folder with meta.json is not whole: {sorted(now)}"


def prepare_scenario(name, make, *options, sources=("text.txt",)):
    def command(tools, folder):
        return tools.program("hc_prepare", *options, "--val-fraction", "0.1", "--threads", "2", "--out", "out", *sources)

    def recover(tools, folder):
        return tools.run(*["hc_prepare", *command(tools, folder)[1:]]).stdout

    return Scenario(name, make, command, prepared, recover, half_prepared, seconds=0.1)


def make_text(_tools, folder):
    (folder / "text.txt").write_text(text(1))


LINES = ("first.jsonl", "text.jsonl.gz")


def make_lines(_tools, folder):
    for name, seed in zip(LINES, (1, 2)):
        with (gzip.open if name.endswith(".gz") else open)(folder / name, "wt") as file:
            for line in text(seed).splitlines():
                file.write(json.dumps({"text": line, "more": [1, {"a": None}]}) + "\n")


def make_ranks(_tools, folder):
    """A vocabulary of GPT-2's size and form: all bytes, then pairs of bytes in the order of their numbers."""
    tokens = [bytes([byte]) for byte in [*range(33, 127), *range(161, 173), *range(174, 256), *range(33), *range(127, 161), 173]]
    pairs = [bytes([97 + first, 97 + second]) for first in range(26) for second in range(26)]
    tokens += pairs + [pair + bytes([last]) for pair in pairs for last in range(32, 127)]
    (folder / "ranks.tiktoken").write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens[:50256])))
    make_text(_tools, folder)


TOKENIZER = str(Path(__file__).resolve().parents[1] / "text/tokenizers/qwen2.json")


def make_marks(_tools, folder):
    """Text that is normalized."""
    (folder / "text.txt").write_text(text(1).replace("e", "e\u0301"), encoding="utf-8")


def make_other_results(tools, folder):
    (folder / "other.txt").write_text(text(5))
    tools.run("hc_prepare", "--val-fraction", "0.2", "--out", "out", "other.txt")
    make_text(tools, folder)


def make_unfinished(tools, folder):
    """Work that Ctrl-C interrupted while text was read."""
    make_lines(tools, folder)
    tools.run("hc_prepare", "--documents", "jsonl", "--val-fraction", "0.1", "--threads", "2", "--out", "out", *LINES, fault="read:2!", status=(130,))
    assert (folder / "out/.hc_prepare/state.json").is_file()


# ---- hc_train

def lines_of(path, *names):
    """Of lines of JSON, the fields `names`; text where a line is none."""
    found = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            found.append([json.loads(line).get(name) for name in names])
        except ValueError:
            found.append(line)
    return found


def trained(folder, _stdout=""):
    """The checkpoints that are due bit for bit, and every iteration's line once."""
    run = folder / "run"
    states = {path.parent.name: json.loads(path.read_text()) for path in run.glob("ckpt-*/state.json") if path.parent.name in ("ckpt-4", "ckpt-8", "ckpt-12")}
    known = {name: [state[field] for field in ("iteration", "tokens", "seed", "best_iteration", "best_val_loss", "evaluated_at", "data")] for name, state in states.items()}
    settings = {name: "n_layer = 1\n" in state["settings"] for name, state in states.items()}
    return {"states": known, "settings": settings, **digests(run, *(f"ckpt-{name}/*.safetensors" for name in (4, 8, 12, "best"))), "steps": lines_of(run / "metrics.jsonl", "iter", "loss", "grad_norm", "train_loss", "val_loss"),
            "statistics": lines_of(run / "h_statistics.jsonl", "iter", "row_max_p10", "norm_mean", "column_sum")}


def trained_again(ranks):
    """As well as a run without the failure; but a line that could not be made, or written, may be missing: its step does not come again. Of
    several ranks the others hear of it one step later, which then lacks its line, too."""
    most = min(ranks, 2)

    def lacks_few(lines, all_lines):
        return len(lines) >= len(all_lines) - most and [line for line in all_lines if line in lines] == lines

    def equal(result, complete):
        return result.keys() == complete.keys() and all(
            lacks_few(result[name], complete[name]) if name in ("steps", "statistics") else result[name] == complete[name] for name in complete)

    return equal


OTHER_BITS = " is not what it should be"  # a checkpoint that is whole


def half_trained(folder, _before, complete):
    """A checkpoint in its place is the one of the run that nothing happened to, and whole."""
    for path in (folder / "run").glob("ckpt-*"):
        missing = [name for name in ("config.json", "state.json", "model.safetensors") if not (path / name).is_file()]
        if missing:
            return f"{path.name} lacks {missing}"
    for name, made in digests(folder / "run", "ckpt-[0-9]*/*.safetensors").items():
        if complete.get(name, made) != made:
            return name + OTHER_BITS
    return None


def make_data(tools, folder):
    make_text(tools, folder)
    tools.run("hc_prepare", "--val-fraction", "0.2", "--out", "data", "text.txt")
    (folder / "model.conf").write_text(MODEL)


def train_arguments(*more):
    return ["--config", "model.conf", "--data-dir", "data", "--out-dir", "run", *more]


def go_on_training(tools, folder, ranks, *more):
    start = ["--init-from", "resume"] if list((folder / "run").glob("ckpt-[0-9]*")) else ["--start-over"]
    return tools.run("hc_train", *start, *train_arguments(*more), ranks=ranks).stdout


def train_scenario(name, *options, make=make_data, ranks=1, **more):
    return Scenario(name, make, lambda tools, folder: tools.program("hc_train", *train_arguments(*options)), trained,
                    lambda tools, folder: go_on_training(tools, folder, ranks, *[option for option in options if option not in ("--init-from", "resume")]),
                    half_trained, trained_again(ranks), ranks, **more)


TWO = ("--gradient-accumulation-steps", "2", "--rank-timeout", "60")


def make_half_run(tools, folder):
    make_data(tools, folder)
    tools.run("hc_train", *train_arguments("--max-iters", "8", "--lr-decay-iters", "12"))


UPCYCLED = ("--init-from", "plain/ckpt-4", "--freeze", "wte", "--new-learning-rate", "2e-2")


def make_plain(tools, folder):
    make_data(tools, folder)
    tools.run("hc_train", "--config", "model.conf", "--residual", "rc", "--data-dir", "data", "--out-dir", "plain", "--max-iters", "4")


def go_on_upcycling(tools, folder):
    is_there = list((folder / "run").glob("ckpt-[0-9]*"))
    return tools.run("hc_train", *train_arguments(*(("--init-from", "resume") if is_there else ("--start-over", *UPCYCLED)))).stdout


# ---- programs that read a checkpoint

def make_model(tools, folder):
    make_data(tools, folder)
    tools.run("hc_train", *train_arguments())
    (folder / "lines.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in text(4).splitlines()[:6]))


BENCH = ("--config", "model.conf", "--data-dir", "data", "--residual", "mhc", "--n-streams", "2", "--steps", "1", "--warmup", "1", "--json", "bench.json")


def make_requests(tools, folder):
    make_model(tools, folder)
    (folder / "requests.jsonl").write_text(2 * '{"context": "the cat", "continuation": " sat"}\n')


def again(name, *arguments):
    """The recovery of what a user just starts once more."""
    return lambda tools, folder: tools.run(name, *arguments).stdout


def plain_scenario(name, make, result, program, *arguments, **more):
    def command(tools, folder):
        return tools.program(program, *arguments)
    return Scenario(name, make, command, result, again(program, *arguments), **more)


def evaluated(folder, _stdout=""):
    path = folder / "eval.json"
    figures = json.loads(path.read_text()) if path.is_file() else None
    for timed in ("seconds", "tokens_per_second"):
        (figures or {}).pop(timed, None)
    return {"figures": figures, "documents": lines_of(folder / "documents.jsonl", "loss", "tokens", "document")}


def half_written(*names):
    """Files that are there are JSON."""
    def check(folder, _before, _complete):
        for name in names:
            try:
                [json.loads(line) for line in ([(folder / name).read_text()] if name.endswith(".json") else (folder / name).read_text().splitlines())]
            except FileNotFoundError:
                pass
            except ValueError as error:
                return f"{name} is not whole: {error}"
        return None
    return check


def sampled(_folder, stdout):
    return stdout


def exported(folder, _stdout=""):
    return digests(folder / "export", "**/*")


def half_exported(folder, before, complete):
    now = exported(folder)
    return None if not now or now in (before, complete) else f"the export is neither old nor new: {sorted(now)}"


def make_export(tools, folder):
    make_model(tools, folder)
    tools.run("hc_export", "--format", "torch", "--checkpoint", "run/ckpt-4", "--out", "export")


def measured(folder, _stdout=""):
    path = folder / "measured.json"
    return json.loads(path.read_text()) if path.is_file() else None


def benched(folder, _stdout=""):
    path = folder / "bench.json"
    return shape(json.loads(path.read_text())) if path.is_file() else None


SCENARIOS = [
    prepare_scenario("prepare_bytes", make_text),
    prepare_scenario("prepare_gzip", make_lines, "--documents", "jsonl", "--document-lengths", sources=LINES),
    prepare_scenario("prepare_bpe", make_ranks, "--tokenizer", "gpt2", "--vocab-file", "ranks.tiktoken"),
    prepare_scenario("prepare_tokenizer_json", make_marks, "--tokenizer", TOKENIZER),
    prepare_scenario("prepare_resume", make_unfinished, "--documents", "jsonl", sources=LINES),
    prepare_scenario("prepare_over_other", make_other_results),
    prepare_scenario("prepare_shards", make_other_results, "--shards", "5000"),
    train_scenario("train"),
    train_scenario("train_profile", "--profile", "--keep-checkpoints", "1", "--residual", "rc", "--data-dir", "data:2,data:1"),
    train_scenario("resume", "--init-from", "resume", make=make_half_run),
    Scenario("upcycle", make_plain, lambda tools, folder: tools.program("hc_train", *train_arguments(*UPCYCLED)), trained, go_on_upcycling, half_trained,
             trained_again(1)),
    train_scenario("two_ranks", *TWO, ranks=2),
    train_scenario("two_ranks_sharded", *TWO, "--shard-optimizer", ranks=2),
    train_scenario("train_vulkan", "--device", "vulkan", slow=True, only_driver=True),  # with a Vulkan device, or VK_ICD_FILENAMES of Mesa's lavapipe
    plain_scenario("eval", make_model, evaluated, "hc_eval", "--checkpoint", "run/ckpt-12", "--data", "data", "--device", "pocl", "--json", "eval.json",
                   broken=half_written("eval.json")),
    plain_scenario("eval_documents", make_model, evaluated, "hc_eval", "--checkpoint", "run/ckpt-12", "--device", "pocl", "--json", "eval.json",
                   "--per-document", "documents.jsonl", "lines.jsonl", broken=half_written("eval.json", "documents.jsonl")),
    plain_scenario("eval_score", make_requests, evaluated, "hc_eval", "--checkpoint", "run/ckpt-12", "--device", "pocl", "--json", "eval.json", "--per-document",
                   "documents.jsonl", "--score", "requests.jsonl", broken=half_written("eval.json", "documents.jsonl")),
    plain_scenario("sample", make_model, sampled, "hc_sample", "--checkpoint", "run/ckpt-12", "--device", "pocl", "--max-new-tokens", "24", "--num-samples", "3",
                   "--prompt", "the cat"),
    plain_scenario("export", make_model, exported, "hc_export", "--format", "torch", "--checkpoint", "run/ckpt-12", "--out", "export", broken=half_exported, seconds=0.1),
    plain_scenario("export_over_other", make_export, exported, "hc_export", "--format", "torch", "--checkpoint", "run/ckpt-12", "--out", "export",
                   broken=half_exported, seconds=0.1),
    plain_scenario("measure", make_model, measured, "hc_probe", "--measure", "--checkpoint", "run/ckpt-12", "--device", "pocl", "--data-dir", "data",
                   "--samples", "2", "--out", "measured.json", broken=half_written("measured.json")),
    plain_scenario("bench", make_data, benched, "hc_bench", *BENCH, broken=half_written("bench.json")),
]
