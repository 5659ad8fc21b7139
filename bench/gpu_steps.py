#!/usr/bin/env python3
"""Runs the steps of ci/gpu.sh, which describes them and their settings, and writes report.md (bench/gpu_report.py) after each command.

  bench/gpu_steps.py BUILD OUT
"""
import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import gpu_report

ROOT = pathlib.Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"
TYPES = ("bf16", "fp32", "fp16")
ONE_LAYER = "--n-layer 1 --n-head 1 --n-embd 64 --block-size 64 --batch-size 1 --vocab-size 64 --gradient-accumulation-steps 1".split()
SHORT = ["--steps", "1", "--warmup", "1"]
NO_MATRIX_CORES = "knows no matrix cores|is no GPU|the device has (?:no matrix cores|compute capability|no sub-groups)"  # of runtime/gemm/matrix_cores.c
SKIPPED = 77  # exit status of a program that finds nothing to do
GRACE = 2.0  # seconds between a request to end and the end
LEAST_SECONDS = 2.0  # a command is not started with less
COMPILING_SECONDS = 15.0  # a program that compiles says so more often; one that does not has gone on since
SHORT_SECONDS = 5.0  # that any step has, and that a command may take of it

# `share`: of the time. `parallel`: commands are not timed, and may run beside each other. `needs`: words of a command without which the
# others are left out.
Step = collections.namedtuple("Step", "name title share commands parallel needs", defaults=(False, None))
# `smaller`: a function of the log that gives smaller cases [(name, words)], the smallest first. `optional`: its failure is left out. `wrong`: a
# pattern of what a command prints that passed but should not have. `lacking`: of what it prints where the device has not what it is for.
Command = collections.namedtuple("Command", "name words smaller environment optional wrong lacking", defaults=(None, {}, False, None, None))


class Settings:
    """The environment's, as ci/gpu.sh has them."""

    def __init__(self, build, out):
        get = os.environ.get
        self.build, self.out = pathlib.Path(build).resolve(), pathlib.Path(out).resolve()
        self.minutes = float(get("MINUTES", "60"))
        self.seconds = 60.0 * self.minutes - (time.time() - float(get("GPU_SH_BEGAN", time.time())))  # ci/gpu.sh may have built
        self.only = get("ONLY", "").split()
        self.device, self.model = get("DEVICE", "gpu"), get("MODEL", str(ROOT / "configs" / "M.conf"))
        self.steps, self.tiny = get("STEPS", "20"), bool(get("TINY"))
        self.torch_device, self.roofline_as = get("TORCH_DEVICE", "cuda"), get("ROOFLINE_AS", "")
        residuals = get("RESIDUALS", "").replace(",", " ").split() or self.listed()
        self.residuals = sorted(residuals, key=lambda name: name not in ("rc", "shc"))  # these two first

    def listed(self):
        """The names of all residual connections."""
        words = [self.program("hc_train"), "--list-residuals"]
        try:
            run = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        except OSError as error:
            sys.exit(f"ci/gpu.sh: cannot start {words[0]}: {error.strerror}")
        if run.returncode != 0:
            sys.exit(f"ci/gpu.sh: hc_train cannot run here: {run.stderr.strip()}")
        return [line.split(" ")[0] for line in run.stdout.splitlines()]

    def program(self, name):
        return str(self.build / name)

    def bench(self, residual, dtype, *more):
        return [self.program("hc_bench"), "--config", self.model, "--device", self.device, "--dtype", dtype, "--residual", residual,
                "--gradient-accumulation-steps", "1", *more]


# ---- smaller cases

def suspect(log, failed, begun, ended):
    """The name of the first case that failed, or of the last one, if it did not end: a list of one name, or of none."""
    return re.findall(failed, log, re.M)[:1] or re.findall(rf"{begun}$(?![\s\S]*{ended})", log, re.M)[-1:]


def failed_operation(words):
    """The suspect of test_operations, alone."""
    return lambda log: [(name, [*words, "--filter", name]) for name in
                        suspect(log, r"^FAILED (\w+ \(.*?\))(?: |$)", r"^run +(\w+ \(.*\))", "^ok ")]


def failed_test(words):
    """The suspect of a cmocka program, alone."""
    return lambda log: [(name, [*words, name]) for name in
                        suspect(log, r"^\[  FAILED  \] (\w+)", r"^\[ RUN      \] (\w+)", r"^\[       OK \]")]


def one_layer(words):
    """The same of the model with one layer. Words that are given later win."""
    return lambda log: [("one layer", [*words, "--n-layer", "1"])]


def narrow_layer(words):
    """The same of one narrow layer, then of the model with one layer."""
    return lambda log: [("one narrow layer", [*words, *ONE_LAYER]), *one_layer(words)(log)]


# ---- the steps

def devices(settings):
    tools = [["nvidia-smi"], ["rocm-smi"], ["xpu-smi", "discovery"]]
    return [Command("hc_devices", [settings.program("hc_devices")]),
            Command("plan", [settings.program("hc_train"), "--config", settings.model, "--device", settings.device, "--plan-only"])] + [
                Command(words[0], words, optional=True) for words in tools if shutil.which(words[0])]


def compile_programs(settings):
    pairs = [(residual, dtype) for residual in settings.residuals for dtype in TYPES]
    return [Command(f"{residual}-{dtype}", [settings.program("hc_train"), "--config", settings.model, "--device", settings.device,
                                            "--residual", residual, "--dtype", dtype, "--compile-only"]) for residual, dtype in pairs]


def self_tests(settings):
    tests, commands = settings.build / "tests", []
    for size in (["--tiny"],) if settings.tiny else (["--tiny"], []):
        for dtype in TYPES:
            words = [str(tests / "test_operations"), "--device", settings.device, "--cache", str(settings.out / "cache" / "tests"), "--dtype", dtype, *size]
            commands.append(Command(f"operations-{dtype}{'-tiny' if size else ''}", words, failed_operation(words)))
    small = [settings.program("hc_bench"), "--device", settings.device, *ONE_LAYER, *SHORT]
    for gemm, dtype in (("mma", "bf16"), ("mma", "fp16"), ("clblast", "fp32"), ("portable", "fp32")):
        wrong, lacking = (r"attention on portable kernels \(.*", NO_MATRIX_CORES) if gemm == "mma" else (None, None)
        commands.append(Command(f"gemm-{gemm}-{dtype}", [*small, "--gemm", gemm, "--dtype", dtype], wrong=wrong, lacking=lacking))
    commands.append(Command("emulated-matrix-cores", [str(tests / "test_mma"), settings.device]))
    if not settings.tiny:
        gemm = [str(tests / "test_gemm")]
        commands.append(Command("gemm", gemm, failed_test(gemm), {"HC_TEST_DEVICE": settings.device}))
        commands.append(Command("emulated-attention", [str(tests / "test_attention"), settings.device]))
    return commands


def golden(settings):
    words = [str(settings.build / "tests" / "test_golden"), settings.device]
    case = "rc_pass" if settings.tiny else ""
    return [Command(f"golden-{dtype}", [*words, f"{case}*_{end}"], failed_test(words))
            for dtype, end in (("fp32", "with_own"), ("bf16", "in_bf16"), ("fp16", "in_fp16"))]


def profile(settings):
    commands = []
    for residual in ("rc", "shc"):
        words = settings.bench(residual, "bf16", "--steps", settings.steps, "--profile")
        commands.append(Command(f"profile-{residual}", [*words, "--json", str(settings.out / f"profile-{residual}.json")], narrow_layer(words)))
        words = settings.bench(residual, "bf16", "--roofline", "--json", str(settings.out / f"roofline-{residual}.json"))
        commands.append(Command(f"roofline-{residual}", words + ["--as", settings.roofline_as] * bool(settings.roofline_as), optional=True))
    return commands


def model_options(settings):
    """Those of bench/vs_torch.py that the model's file has."""
    with open(settings.model, encoding="utf-8") as lines:
        text = lines.read()
    names = "n_streams n_layer n_head n_embd block_size vocab_size batch_size".split()
    found = {name: re.findall(rf"^{name} *= *(\d+)", text, re.M) for name in names}
    return [word for name in names if found[name] for word in ("--" + name.replace("_", "-"), found[name][-1])]


def torch(settings):
    commands = []
    for dtype, residual, form in [("bf16", residual, form) for form in ("eager", "compiled") for residual in ("rc", "shc")] + [
            ("fp32", residual, "eager") for residual in ("rc", "shc")]:
        name = f"torch-{residual}-{dtype}-{form}"
        words = [sys.executable, str(BENCH / "vs_torch.py"), "--hc-bench", settings.program("hc_bench"), "--device", settings.device,
                 "--torch-device", settings.torch_device, "--dtype", dtype, "--variants", residual, *model_options(settings)]
        words += ["--compile"] * (form == "compiled")
        commands.append(Command(name, [*words, "--json", str(settings.out / (name + ".json"))], one_layer(words)))
    return commands


def torch_gemm(settings):
    return [Command(f"gemm-{residual}", [sys.executable, str(BENCH / "torch_gemm.py"), str(settings.out / f"profile-{residual}.json"),
                                         str(settings.out / f"gemm-{residual}.json"), settings.torch_device]) for residual in ("rc", "shc")]


def same_bits(settings):
    data = str(settings.out / "bytes")
    commands = [Command("bytes", [settings.program("hc_prepare"), "--out", data, str(ROOT / "data" / "shakespeare" / "shakespeare.txt")])]
    for name, dtype, model in (("one-layer-bf16", "bf16", ONE_LAYER), ("model-bf16", "bf16", []), ("model-fp32", "fp32", [])):
        words = [sys.executable, str(BENCH / "same_bits.py"), settings.program("hc_train"), str(settings.out / "runs"), "--config", settings.model,
                 "--data-dir", data, "--device", settings.device, "--residual", "shc", "--dtype", dtype, *model, "--vocab-size", "256",
                 "--gradient-accumulation-steps", "2", "--max-iters", "3" if settings.tiny else "5", "--eval-iters", "0"]
        commands.append(Command(f"bits-{name}", words, None if model else one_layer(words)))
    return commands


def speed(settings):
    commands = []
    for residual in settings.residuals:
        if residual != "rc":
            words = [sys.executable, str(BENCH / "compare.py"), f"rc,{residual}", "--hc-bench", settings.program("hc_bench"), "--config",
                     settings.model, "--device", settings.device, "--dtype", "bf16", "--gradient-accumulation-steps", "1", "--steps", "5"]
            commands.append(Command(f"speed-{residual}", [*words, "--json", str(settings.out / f"speed-{residual}.json")], narrow_layer(words)))
    return commands


def all_steps(settings):
    has_torch = [sys.executable, "-c", "import sys, torch; torch.empty(1, device=sys.argv[1]); print('PyTorch', torch.__version__)",
                 settings.torch_device]
    return [
        Step("devices", "Devices and driver", 10, devices(settings)),
        Step("compile", "Every program compiles", 20, compile_programs(settings), True),
        Step("self-tests", "Self-tests", 15, self_tests(settings), True),
        Step("golden", "Golden cases in three types", 8, golden(settings), True),
        Step("profile", "Training steps beside the roofline", 16, profile(settings)),
        Step("torch", "Beside PyTorch", 18, torch(settings), needs=has_torch),
        Step("gemm", "GEMMs beside torch.matmul", 4, torch_gemm(settings), needs=has_torch),
        Step("bits", "Two runs have the same bits", 8, same_bits(settings)),
        Step("speed", "Every residual connection beside rc", 8, speed(settings)),
    ]


# ---- errors

ERRORS = (r"emulated GPU: .*", r".*\bFAILED [a-z]\w* \(.*", r".*(?:cannot |ERROR:|\berror:).*", r"^\w*(?:Error|Exception)\b.*", r".*(?:differ|refused|wrong|failed).*")


def first_error(log):
    """The first line that looks most like an error; else the last one that is not empty."""
    for pattern in ERRORS:
        found = re.search(pattern, log, re.M)
        if found:
            return found[0].strip()
    return next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "it printed nothing")


def function_at(file, number):
    """The function of a kernel file that has this line; functions begin at the left."""
    path = ROOT / "cl" / file
    name = ""
    for line in path.read_text(encoding="utf-8").splitlines()[:number] if path.exists() else ():
        found = re.match(r"[A-Za-z_].*?\b(\w+)\((?:__|const|[a-z])", line)
        name = found[1] if found else name
    return name


def kernel_of(log):
    """The kernel that a log blames: by its name; by the line of a kernel file; those that the failed case has launched; or a GEMM."""
    named = re.search(r"\bkernel (\w+)(?: as|:)", log)
    if named:
        return named[1]
    line = re.search(r"\b(\w+\.cl):(\d+)", log)
    if line:
        return f"{function_at(line[1], int(line[2]))} ({line[0]})"
    launched = re.search(r"^ +kernels: (.*)", log, re.M) or re.search(r"\b(gemm_\w\w \d+x\d+x\d+)", first_error(log))
    return launched[1] if launched else ""


# ---- running

class Runner:
    def __init__(self, settings):
        self.settings, self.begin, self.running = settings, time.monotonic(), set()
        self.starting = threading.RLock()
        cache = settings.out / "cache"
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "CUDA_CACHE_PATH": str(cache / "nvidia"), "CUDA_CACHE_MAXSIZE": str(4 << 30),
                            "PYTHONDONTWRITEBYTECODE": "1"}
        self.results = {"device": settings.device, "model": settings.model, "minutes": settings.minutes, "date": time.strftime("%Y-%m-%d"), "steps": []}
        if not settings.only:
            for path in (*settings.out.glob("*.log"), *settings.out.glob("*.json")):
                path.unlink()
        else:
            with contextlib.suppress(OSError, ValueError):
                self.results = json.loads((settings.out / "results.json").read_text())

    def left(self):
        return self.settings.seconds - (time.monotonic() - self.begin)

    def report(self):
        """Both files are whole at any time."""
        for name, text in (("results.json", json.dumps(self.results, indent=1)), ("report.md", gpu_report.report(self.settings.out, self.results))):
            path = self.settings.out / (name + ".new")
            path.write_text(text)
            path.replace(self.settings.out / name)

    def stop(self, *_):
        """The lease ends: what has been measured stays, and nothing else starts."""
        self.starting.acquire()
        for process in list(self.running):
            self.end(process, signal.SIGKILL)
        self.report()
        os._exit(1)

    @staticmethod
    def end(process, number):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    def call(self, words, log, seconds, environment):
        """The exit status; None: it was ended after these seconds."""
        with open(log, "wb") as file:
            try:
                with self.starting:
                    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                                               env={**self.environment, **environment}, cwd=ROOT)
                    self.running.add(process)
            except OSError as error:
                file.write(f"cannot start {words[0]}: {error.strerror}\n".encode())
                return 127
            status = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(seconds)
            if status is None:
                self.end(process, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
            self.end(process, signal.SIGKILL)  # and what it started
            process.wait()
            self.running.discard(process)
            return status

    def log_text(self, log):
        text = log.read_text(errors="replace").replace("\r", "\n")
        return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)

    def smallest(self, command, result, log, seconds):
        """Runs smaller cases until one fails, and keeps its log."""
        for number, (name, words) in enumerate(command.smaller(self.log_text(log)) if command.smaller else ()):
            small = self.settings.out / f"{result['log'][:-4]}-smaller{number}.log"
            limit = min(seconds, self.left())
            if limit < LEAST_SECONDS:
                return
            environment = {**command.environment, "HCTRAIN_FINISH_KERNELS": "1"}  # a fault names its kernel
            status = self.call(words, small, limit, environment)
            if status != 0:
                result.update(case=name, case_words=words, case_environment=environment, case_log=small.name, case_hangs=status is None)
                result["kernel"] = kernel_of(self.log_text(small)) or result["kernel"]
                return
            small.unlink()

    def run(self, step, command, limit):
        """What is known of a command's run."""
        log = self.settings.out / f"{step.name}-{command.name}.log"
        result = {"name": command.name, "words": command.words, "environment": command.environment, "log": log.name, "seconds": 0.0}
        if limit < LEAST_SECONDS:
            return {**result, "result": "left out", "error": "no time was left"}
        begin = time.monotonic()
        status = self.call(command.words, log, limit, command.environment)
        text = self.log_text(log)
        result["seconds"] = time.monotonic() - begin
        wrong, has_not = (pattern and re.search(pattern, text) for pattern in (command.wrong, command.lacking))
        if status == 0 and not wrong:
            return {**result, "result": "passed"}
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing")
        if command.optional or status == SKIPPED or has_not:
            return {**result, "result": "left out", "error": first_error(text)}
        if status is None and last.startswith("compiling kernels") and time.time() - log.stat().st_mtime < COMPILING_SECONDS:
            return {**result, "result": "left out", "error": f"it still compiled after {limit:.0f} seconds: {last}"}
        error = wrong[0] if status == 0 else first_error(text) if status else f"no end after {limit:.0f} seconds; the last line of its log: {last}"
        result.update(result="failed" if status is not None else "timed out", status=status, error=error, kernel=kernel_of(text), case="", case_words=[])
        if not self.is_known(result):
            self.smallest(command, result, log, max(LEAST_SECONDS, limit / 4))
        return result

    def is_known(self, result):
        return any(gpu_report.same_fault(other, result) for step in self.results["steps"] for other in step["commands"])

    def run_step(self, step, seconds):
        """Commands in turn, or some at a time. Each may take two thirds of what is left of the step's time, the last ones all, so that one which hangs
        leaves time for others."""
        jobs = max(1, min(4, (os.cpu_count() or 1) // 4)) if step.parallel else 1
        end, left = time.monotonic() + seconds, len(step.commands)
        entry = {"name": step.name, "title": step.title, "limit": seconds, "note": "", "commands": []}
        self.results["steps"] = [other for other in self.results["steps"] if other["name"] != step.name] + [entry]
        if step.needs and seconds >= LEAST_SECONDS:
            log = self.settings.out / f"{step.name}-needs.log"
            status = self.call(step.needs, log, min(60.0, seconds), {})
            entry["note"] = first_error(self.log_text(log)) if status != 0 else self.log_text(log).strip()
            if status != 0:
                entry["note"] = f"Left out: {' '.join(step.needs[:1])} cannot use PyTorch on {step.needs[-1]}: {entry['note']}."
                return

        def run_next(command):
            nonlocal left
            rest = end - time.monotonic()
            is_last, left = left <= jobs, left - 1
            return self.run(step, command, rest if is_last else min(rest, max(SHORT_SECONDS, rest * 2 / 3)))

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for result in pool.map(run_next, step.commands):
                entry["commands"].append(result)
                print(f"{step.name}: {result['name']} ... {result['result']}" + (f": {result['error']}" if "error" in result else ""), flush=True)
                self.report()

    def run_steps(self, steps):
        for number, step in enumerate(steps):
            begin = time.monotonic()
            left = max(0.0, self.left())
            self.run_step(step, min(left, max(SHORT_SECONDS, left * step.share / sum(later.share for later in steps[number:]))))
            self.results["steps"][-1]["seconds"] = time.monotonic() - begin
            self.report()


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    settings = Settings(*sys.argv[1:])
    if settings.seconds < LEAST_SECONDS:
        sys.exit("ci/gpu.sh: no time is left of MINUTES after the build; BUILD=build does without it now")
    steps = all_steps(settings)
    unknown = set(settings.only) - {step.name for step in steps}
    if unknown:
        sys.exit(f"ci/gpu.sh: there is no step {', '.join(sorted(unknown))}; there are {', '.join(step.name for step in steps)}")
    runner = Runner(settings)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, runner.stop)
    runner.run_steps([step for step in steps if not settings.only or step.name in settings.only])
    print(f"the report is {settings.out / 'report.md'}")
    return any(result["result"] in ("failed", "timed out") for step in runner.results["steps"] for result in step["commands"])


if __name__ == "__main__":
    sys.exit(main())
