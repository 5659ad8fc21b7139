"""Repeats a command with each of its calls failed in turn, and looks at what becomes of the user's files.

For every fault: no signal, no hang, no finding of a sanitizer; exit status 0 and the same results, or 1 with one message; what
was there before is there or complete; and a run after it, without faults, ends with the results of a run that had none."""
import argparse
import collections
import concurrent.futures
import datetime
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from scenarios import OTHER_BITS, SCENARIOS, Tools, shape

HERE = Path(__file__).resolve().parent
PATIENCE = 300  # seconds until a run counts as hung, also on a busy machine
FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130  # usage: also where options cannot be read, for want of memory
OTHER_CODES = {"clEnqueue": (-4, -6, -9999), "clFinish": (-5, -14), "clCreateBuffer": (-5, -61), "clCreateKernel": (-46,), "clBuildProgram": (-6,),
               "clWaitForEvents": (-5,), "waitpid": (4,), "write": (5, 32), "fsync": (28,), "open": (2, 13), "rename": (28,)}
OTHER_ROUNDING = ("clGetDeviceInfo", "clGetPlatformInfo", "sysconf")  # a device that does not tell what it is gets other kernels
OTHER_PRODUCTS = re.compile(r"GEMMs by (?!cblas\b)|multiplies by (?!cblas\b)")  # a run without memory for OpenBLAS takes another backend, and says so
OF_DRIVER = 1 << 40  # places in the driver for Vulkan
BY_RANK = str(Path(__file__).resolve().parent.parent / "support" / "by_rank.sh")
PARTLY = ("read", "pread", "write")
INTERRUPTED_AT = ("open", "write", "fsync", "rename", "renameat2", "read", "fopen", "clEnqueueNDRangeKernel", "clFinish", "mkdir")


def table():
    """Functions to their groups, of functions.h."""
    return dict(re.findall(r"^FAULT\((\w+), (\w+),", (HERE / "functions.h").read_text(), re.MULTILINE))


def some_of(count, most):
    """At most so many of the calls 1 .. count: the first two, the last two, and others with equal distances."""
    return range(1, count + 1) if count <= most else sorted({1, 2, *(count * i // (most - 3) for i in range(1, most - 3)), count - 1, count})


def faults_of(function, group, place, count):
    """How the calls from one place are failed: each once where they are few, all from one on, with other errors, partly, interrupted.
    Places that ask for memory are few (runtime/system/memory.c), so more calls from each are failed."""
    where = f"{function}@{place}:"
    found = [f"{where}{call}" for call in some_of(count, 40 if group == "memory" else 5)] + [f"{where}1+"]
    for start, codes in OTHER_CODES.items():
        if function == start or (start == "clEnqueue" and function.startswith(start)):
            found += [f"{where}{(count + 1) // 2}={code}" for code in codes]
    if function in PARTLY:
        found += [f"{where}{call}/" for call in {1, count}] + [f"{where}1+/"]
    if function in INTERRUPTED_AT:
        found += [f"{where}{call}!" for call in {1, (count + 1) // 2}]
    return found


class Sweep:
    def __init__(self, options):
        self.options = options
        self.build = Path(options.build).resolve()
        self.faults = self.build / "tests/faults/libhc_faults.so"
        self.home = Path(tempfile.mkdtemp(prefix="hc-faults-"))
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG", "OCL_ICD_VENDORS", "POCL_EXTRA_BUILD_FLAGS", "VK_ICD_FILENAMES", "GALLIVM_PERF") if name in os.environ}
        # PoCL keeps its own cache where it always does, which saves its compiler's time: none of its calls fail.
        user = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        pocl = os.environ.get("POCL_CACHE_DIR", f"{user}/pocl/kcache")
        Path(pocl).mkdir(parents=True, exist_ok=True)
        self.environment = {**kept, "POCL_CACHE_DIR": pocl, "XDG_CACHE_HOME": str(self.home / "cache"), "OMPI_ALLOW_RUN_AS_ROOT": "1",
                            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
                            "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
                            "ASAN_OPTIONS": "exitcode=77:detect_leaks=0:verify_asan_link_order=0:allocator_may_return_null=1", "UBSAN_OPTIONS": "exitcode=77"}
        self.groups = table()
        self.programs = Tools(self.build, self.environment, self.faults, self.home)

    def tools(self, folder):
        """With a cache of its own: a fault may leave something there."""
        return Tools(self.build, {**self.environment, "XDG_CACHE_HOME": str(folder / "cache")}, self.faults, folder)

    def run_command(self, scenario, folder, settings, rank=0):
        """The command with the fault layer and its settings; (status, stdout, stderr), status None for a hang."""
        tools = self.tools(folder)
        faulty = ["env", *(f"{name}={value}" for name, value in {"LD_PRELOAD": self.faults, **settings}.items())]
        command = scenario.command(tools, folder)
        argv = [*faulty, *command]
        if scenario.ranks > 1:
            commands = [argv if index == rank else command for index in range(scenario.ranks)]
            argv = ["mpirun", "-np", str(scenario.ranks), BY_RANK, *commands[0], *(word for other in commands[1:] for word in [",", *other])]
        process = subprocess.Popen(argv, env=tools.environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                                   errors="replace", start_new_session=True)
        try:
            stdout, stderr = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            stdout, stderr = process.communicate()
            return None, stdout, stderr
        return process.returncode, stdout, stderr

    def template(self, scenario):
        """Inputs, and a warm cache."""
        folder = self.home / scenario.name
        folder.mkdir()
        if (self.home / "cache").is_dir():
            shutil.copytree(self.home / "cache", folder / "cache")
        scenario.make(self.tools(folder), folder)
        return folder

    def count(self, scenario, template):
        """The results before and of a complete run, and the calls that it makes: (rank, function, place, calls)."""
        before = scenario.result(template, "")
        folder = self.copy(template)
        self.run_command(scenario, folder, {})  # its kernels are in the cache then
        shutil.rmtree(template / "cache", ignore_errors=True)
        if (folder / "cache").is_dir():
            shutil.copytree(folder / "cache", template / "cache")
            shutil.copytree(folder / "cache", self.home / "cache", dirs_exist_ok=True)
        shutil.rmtree(folder)
        counted = []
        for rank in range(scenario.ranks):
            folder = self.copy(template)
            status, stdout, stderr = self.run_command(scenario, folder, {"HC_FAULT_LOG": str(folder / "calls")}, rank)
            if status != 0:
                sys.exit(f"{scenario.name}: without a fault, exit {status}: {stderr}")
            complete = scenario.result(folder, stdout)
            counted += [(rank, *line.split()) for line in (folder / "calls").read_text().splitlines()]
            shutil.rmtree(folder)
        return before, complete, sorted((rank, function, place, int(calls)) for rank, function, place, calls in counted)

    def copy(self, template):
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=self.home))
        shutil.copytree(template, folder, dirs_exist_ok=True)
        return folder

    def judge(self, scenario, folder, outcome, before, complete, fault):
        """(what happened, what is wrong with it)."""
        status, stdout, stderr = outcome
        name = Path(scenario.command(self.tools(folder), folder)[0]).name
        begins = str.startswith if scenario.ranks == 1 else str.__contains__  # mpirun may write it behind a line of another rank that has not ended
        messages = [line for line in stderr.splitlines() if begins(line, f"{name}: ")]
        if status is None:
            return "hang", "it hangs"
        interrupted = fault.endswith("!") and status in (INTERRUPTED, -signal.SIGINT)  # by itself, or by the signal where there is nothing to save
        if re.search(r"Sanitizer|runtime error:", stderr) or not interrupted and (status < 0 or status > 128 and status != INTERRUPTED):
            return "crash", f"exit {status}: {stderr[-1500:]}"
        function = re.match(r"\w+", fault).group()
        rounds = function in OTHER_ROUNDING or OTHER_PRODUCTS.search(stderr)
        fired = (folder / "fired").exists()
        if not fired and status != 0:
            return "not reached", f"without the fault, exit {status}: {stderr[-600:]}"
        if status == 0:
            result = scenario.result(folder, stdout)
            same = shape(result) == shape(complete) if rounds else result == complete
            return "passed over" if fired else "not reached", None if same else f"exit 0, but the results differ: {differences(complete, result)}"
        if status not in (FAILED, WRONG_USAGE) and not interrupted:
            return "failed", f"exit {status}: {stderr[-600:]}"
        silent = function == "fputs" and "+" in fault  # which prints messages
        if not (not silent) <= len(messages) <= 1 and not interrupted and function != "MPI_Finalize":  # of which mpirun tells
            return "failed", f"{len(messages)} messages: {stderr[-600:]}"
        broken = scenario.broken(folder, before, complete)
        if broken and not (rounds and broken.endswith(OTHER_BITS)):
            return "failed", broken
        try:
            result = scenario.result(folder, scenario.recover(self.tools(folder), folder))
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return "failed", f"no going on: {error}; the failure was {messages}"
        same = shape(result) == shape(complete) if rounds else scenario.equal(result, complete)
        return "interrupted" if interrupted else "failed", None if same else f"after it, the results differ: {differences(complete, result)}; {messages}"

    def try_fault(self, scenario, template, before, complete, numbered):
        number, (rank, fault) = numbered
        folder = self.copy(template)
        settings = {"HC_FAULT": fault, "HC_FAULT_FIRED": str(folder / "fired")}
        outcome = self.run_command(scenario, folder, settings, rank)
        happened, wrong = self.judge(scenario, folder, outcome, before, complete, fault)
        if wrong and self.options.keep:
            shutil.copytree(folder, Path(self.options.keep) / f"{scenario.name}-{number}", dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        messages = [line for line in outcome[2].splitlines() if re.match(r"hc_\w+: ", line)]
        return {"fault": fault, "rank": rank, "happened": happened, "wrong": wrong, "said": messages[:2]}

    def scenario(self, scenario):
        template = self.template(scenario)
        before, complete, counted = self.count(scenario, template)
        wanted = self.options.groups.split(",") if self.options.groups else set(self.groups.values())
        faults = [(rank, fault) for rank, function, place, calls in counted
                  if self.groups[function] in wanted and (int(place, 16) >= OF_DRIVER or not scenario.only_driver) for fault in faults_of(function, self.groups[function], place, calls)]
        random.Random(scenario.name).shuffle(faults)  # so that a part of them is a part of everything
        every = max(1, int(self.options.every * scenario.seconds))
        chosen = list(enumerate(faults))[self.options.first % every::every]
        if self.options.fault:
            chosen = list(enumerate((rank, fault) for rank in range(scenario.ranks) for fault in self.options.fault))
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            tried = list(pool.map(lambda numbered: self.try_fault(scenario, template, before, complete, numbered), chosen))
        outcomes = collections.Counter(one["happened"] for one in tried)
        wrong = [one for one in tried if one["wrong"]]
        print(f"{scenario.name}: {sum(calls for *_, calls in counted)} calls from {len(counted)} places, {len(tried)} of {len(faults)} faults: "
              + ", ".join(f"{count} {happened}" for happened, count in sorted(outcomes.items())) + f"; {len(wrong)} wrong", flush=True)
        for one in wrong:
            print(f"  {one['fault']} on rank {one['rank']} ({self.function_at(scenario, one['fault'])}): {one['wrong']}", flush=True)
        if self.options.fault or self.options.verbose:
            print(*(f"  {one['fault']}: {one['happened']} {one['said']}" for one in tried), sep="\n")
        shutil.rmtree(template)
        return {"scenario": scenario.name, "calls": sum(calls for *_, calls in counted), "places": len(counted), "faults": len(faults), "tried": len(tried),
                "outcomes": outcomes, "wrong": wrong}

    def function_at(self, scenario, fault):
        """The function of the program that made the call."""
        place = re.search("@([0-9a-f]+)", fault)
        program = scenario.command(self.programs, self.home)[0]
        if not place:
            return Path(program).name
        names = subprocess.run(["nm", program], capture_output=True, text=True).stdout
        known = sorted((int(address, 16), name) for address, name in re.findall(r"^([0-9a-f]+) [tT] (\S+)$", names, re.MULTILINE))
        return max((one for one in known if one[0] < int(place.group(1), 16)), default=(0, "?"))[1]


def first_fault(text):
    return datetime.date.today().toordinal() if text == "today" else int(text)


def differences(wanted, found):
    if isinstance(wanted, dict) and isinstance(found, dict):
        return "; ".join(f"{name}: {str(found.get(name))[:300]} and not {str(wanted.get(name))[:300]}"
                         for name in sorted({*wanted, *found}) if wanted.get(name) != found.get(name))[:1000]
    return f"{str(found)[:300]} and not {str(wanted)[:300]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder of the programs")
    parser.add_argument("--every", type=int, default=1, help="only every N-th fault, of quick commands more")
    parser.add_argument("--first", type=first_fault, default=0, help="the first of them; today: another one each day")
    parser.add_argument("--groups", help="of functions: memory,files,processes,libraries,opencl,mpi")
    parser.add_argument("--fault", action="append", help="this fault, as faults.c takes it, and no others")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--report", help="file for the figures")
    parser.add_argument("--keep", help="folder for the folders of faults that went wrong")
    parser.add_argument("--verbose", action="store_true", help="say what each fault led to")
    parser.add_argument("scenarios", nargs="*", help="; ".join(scenario.name for scenario in SCENARIOS))
    sweep = Sweep(parser.parse_args())
    names = sweep.options.scenarios or [scenario.name for scenario in SCENARIOS if not scenario.slow]
    chosen = [scenario for scenario in SCENARIOS if scenario.name in names]
    try:
        results = [sweep.scenario(scenario) for scenario in chosen]
    finally:
        shutil.rmtree(sweep.home, ignore_errors=True)
    if sweep.options.report:
        Path(sweep.options.report).write_text(json.dumps(results, indent=1))
    return 1 if any(result["wrong"] for result in results) or not results else 0


if __name__ == "__main__":
    sys.exit(main())
