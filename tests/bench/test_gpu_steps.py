"""ci/gpu.sh: each step runs within its time, and a fault that is planted in it is in the report. Programs are fakes that print what the real
ones do; kernels of test_operations are real, on an emulated GPU. With HC_WHOLE_TESTS all programs are real."""
import contextlib
import json
import os
import signal
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import gpu_steps
import programs

ROOT = Path(__file__).resolve().parents[2]
VENDORS = programs.BUILD / "tests/emulator/vendors"
STEPS = "devices compile self-tests golden profile torch gemm bits speed".split()
MODEL = "n_layer = 1\nn_head = 1\nn_embd = 64\nblock_size = 32\nvocab_size = 64\nn_streams = 4\nbatch_size = 1\nlearning_rate = 1e-3\n"

# Does what FAULTS says of its command line, [exit status, text, seconds to sleep] by a pattern of it; else what a program does without a fault.
FAKE = r"""#!%s -IS
import json, os, pathlib, re, sys, time
words = sys.argv[1:]
line = " ".join([os.path.basename(sys.argv[0]), *words])
value = lambda name: words[words.index(name) + 1]
differs = False
for pattern, (status, text, seconds) in json.loads(os.environ["FAULTS"]).items():
    if re.search(pattern, line):
        differs = text == "differs"
        if not differs:
            print(text, flush=True, file=sys.stderr if status else sys.stdout)
            while seconds > 0:
                time.sleep(min(seconds, 1))
                seconds -= 1
                if text.startswith("compiling"):
                    print(text, flush=True)
            sys.exit(status)
facts = {"device": "fake", "title": "fake", "cpu": False, "gemm": "mma", "attention": "mma", "dtype": "bf16", "residual": "rc", "n_streams": 4,
         "n_layer": 1, "n_embd": 64, "block_size": 32, "batch_size": 1, "vocab_size": 64, "vocab_source": "as given", "dtype_reason": "",
         "warning": "", "parameters": 100, "auxiliary": 1, "tokens": 32.0, "planned_bytes": 2 ** 30, "peak_bytes": 2 ** 30,
         "flops_per_token": 1e6, "gemm_rate": 1e9, "tokens_per_second": 100.0, "seconds": {"step": {"median": 0.25}}, "profiled_steps": 2}
if "--step-on-demand" in words:
    facts["residual"] = next(word.partition("=")[2] or value("--residual") for word in words if word.startswith("--residual"))
    print(json.dumps(facts), flush=True)
    for _ in sys.stdin:
        print('{"seconds": 0.01}', flush=True)
    print(json.dumps(facts), flush=True)
elif "--json" in words:
    name = "launches" if "--roofline" in words else "calls"
    kernels = [{"name": kernel, name: 2, "seconds": 0.004, "flops": 1.0, "limit": "issue"} for kernel in ("gemm_nt 8x16x32", "gemm_tn 16x8x32", "adamw")]
    pathlib.Path(value("--json")).write_text(json.dumps({**facts, "kernels": kernels}))
elif "--out-dir" in words:
    folder = pathlib.Path(value("--out-dir"))
    (folder / "ckpt-5").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(json.dumps({"iter": 1, "loss": 5.5 + differs, "time": time.time()}))
    header = b'{"wte": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
    (folder / "ckpt-5/model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes([differs, 0, 0, 0]))
print("did", line)
"""

# torch_peer.py imports torch first: there this is the peer. Elsewhere it has as much as bench/torch_gemm.py needs.
TORCH = r"""
import json, os, pathlib, sys
__version__ = "fake"
fault = os.environ.get("TORCH_FAULT", "")
float32 = bfloat16 = float16 = None
if os.path.basename(sys.argv[0]) == "torch_peer.py":
    residual = sys.argv[sys.argv.index("--residual") + 1]
    if fault == f"peer {residual}" and "--compile" in sys.argv:
        raise RuntimeError("the fake peer cannot be compiled")
    profile = pathlib.Path(os.environ["OUT"]) / f"profile-{residual}.json"
    facts = json.dumps({"parameters": json.loads(profile.read_text())["parameters"] if profile.exists() else 100, "peak_bytes": 2 ** 30, "torch": "fake"})
    print(facts, flush=True)
    for _ in sys.stdin:
        print('{"seconds": 0.02}', flush=True)
    print(facts, flush=True)
    sys.exit()
class Matrix:
    def __init__(self, *shape):
        self.shape = shape
    T = property(lambda self: Matrix(*self.shape[::-1]))
def empty(*shape, device):
    if device != "cpu":
        raise AssertionError(f"no {device} here")
def randn(shape, dtype, device):
    return Matrix(*shape)
def matmul(a, b):
    return Matrix(a.shape[0], b.shape[1] + (fault == "matmul" and a.shape[0] == 16))
"""
TRAIN = r"""#!/bin/sh
case $* in *%s*) set -- "$@" --seed 7 ;; esac
exec "%s" "$@"
"""


class GpuSteps(programs.Case):
    @classmethod
    def begin(cls):
        cls.put("model.conf", MODEL)
        cls.put("python/torch/__init__.py", TORCH)
        for name in "hc_devices hc_train hc_bench hc_prepare tests/test_operations tests/test_golden tests/test_mma tests/test_gemm tests/test_attention".split():
            cls.put(f"fake/{name}", FAKE % sys.executable).chmod(0o755)

    def environment(self, out, minutes, faults, more):
        python = os.pathsep.join([str(self.path("python")), os.environ.get("PYTHONPATH", "")])
        return {"OUT": f"@{out}", "BUILD": "@fake", "MODEL": "@model.conf", "DEVICE": "sm_80", "RESIDUALS": "rc shc", "STEPS": 2, "MINUTES": minutes,
                "PYTHON": sys.executable, "PYTHONPATH": python, "TORCH_DEVICE": "cpu", "FAULTS": json.dumps(faults), "OCL_ICD_VENDORS": f"{VENDORS}/", **more}

    def gpu(self, out, *, minutes=5, status=0, faults=(), **more):
        """The report, and the results of commands by "step: command"."""
        run = programs.Run(self, ["sh", str(ROOT / "ci/gpu.sh")], environment=self.environment(out, minutes, dict(faults), more)).finish(60 * minutes + 60)
        self.assertEqual(run.status, status, run.said + run.printed.decode())
        return self.text(f"{out}/report.md"), self.results(out)

    def results(self, out):
        return {f"{step['name']}: {result['name']}": result for step in self.json(f"{out}/results.json")["steps"] for result in step["commands"]}

    def assert_named(self, report, heading, *texts):
        """The fault with this heading has these texts."""
        self.assertIn(f"### {heading}", report)
        fault = report.partition(f"### {heading}")[2].partition("\n#")[0]
        for text in texts:
            self.assertIn(text, fault)

    def assert_passed(self, results, *names):
        for name in names:
            self.assertEqual(results[name]["result"], "passed", name)

    def assert_ended(self, program):
        """No process runs this program any more, or soon."""
        for _ in range(50):
            running = []
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    running += [process.parent.name] * (str(self.path(program)).encode() in process.read_bytes())
            if not running:
                return
            time.sleep(0.1)
        self.fail(f"{program} still runs: {running}")

    # ---- fakes

    def test_without_a_fault(self):
        report, results = self.gpu("clean")
        self.assertEqual({result["result"] for result in results.values()}, {"passed"})
        self.assertEqual({name.partition(":")[0] for name in results}, set(STEPS))
        for text in ("## What failed\n\nNothing.", "| rc | 0.", "| `adamw` | 1 | 2 | 2.000 | 4.000 | 0.50 | issue |", "| shc | bf16 compiled | 3200 | 1600 |",
                     "| `gemm_nt 8x16x32` | 2 | 2000.0 |", "all losses and all weights of the last checkpoint are the same", "| shc | 4 | 10.0 | 3200 |"):
            self.assertIn(text, report)
        report, results = self.gpu("clean", ONLY="torch", TORCH_DEVICE="cuda")
        self.assertIn("cannot use PyTorch on cuda: AssertionError: no cuda here.", report)
        self.assert_passed(results, "profile: profile-rc", "bits: bits-model-fp32")

    def test_a_fault_in_each_step(self):
        faults = {
            "^hc_devices": (1, "hc_devices: no OpenCL platform is installed", 0),
            "shc --dtype fp16 --compile-only": (1, "hc_train: cannot compile cross_entropy.cl: CL_BUILD_PROGRAM_FAILURE\n  | cross_entropy.cl:84:31: error: no", 0),
            "test_operations.*bf16": (1, "ok     add (a) x 1.0e-08\nFAILED mix (tiny mhc, n=4) y 3.0e-01(!)\n       kernels: mix_forward, mix_sum", 0),
            "test_golden.*fp16": (1, "ERROR: cannot run kernel attention_forward as 3 groups of 64: CL_OUT_OF_RESOURCES\n[  FAILED  ] shc_n4_pass_agrees_in_fp16", 0),
            "hc_bench.*shc.*--profile": (0, "step 1/2", 100),
            "runs/second": (0, "differs", 0),
            "hc_bench.*--residual=shc": (1, "hc_bench: not enough memory", 0),
        }
        report, results = self.gpu("faults", minutes=0.6, status=1, faults=faults, TORCH_FAULT="matmul", TINY="1")
        self.assert_named(report, "devices: hc_devices failed", "no OpenCL platform")
        self.assert_named(report, "compile: shc-fp16 failed", "cannot compile cross_entropy.cl", "kernel: `cross_entropy (cross_entropy.cl:84)`")
        self.assert_named(report, "self-tests: operations-bf16-tiny failed", "kernel: `mix_forward, mix_sum`", "fails: `mix (tiny mhc, n=4)`",
                          "--filter 'mix (tiny mhc, n=4)'")
        self.assert_named(report, "golden: golden-fp16 failed", "kernel: `attention_forward`", "fails: `shc_n4_pass_agrees_in_fp16`")
        self.assert_named(report, "profile: profile-shc timed out", "step 1/2", "does not end: `one narrow layer`")
        self.assert_named(report, "gemm: gemm-rc failed", "gemm_tn 16x8x32: error: the product is wrong: its shape is (16, 9)", "kernel: `gemm_tn 16x8x32`")
        self.assertIn("Left out: gemm-shc: there is no profile", report)
        self.assert_named(report, "bits: bits-one-layer-bf16 failed", "the losses differ first in", "1 tensors of ckpt-5/model.safetensors differ: wte")
        self.assert_named(report, "speed: speed-shc failed", "not enough memory", "`one narrow layer`")
        self.assert_passed(results, "devices: plan", "compile: shc-bf16", "self-tests: operations-fp32-tiny", "golden: golden-fp32", "profile: profile-rc",
                           "torch: torch-rc-bf16-eager")
        self.assert_ended("fake/hc_bench")
        steps = self.json("faults/results.json")["steps"]
        self.assertEqual([step["name"] for step in steps], STEPS)
        for step in steps:
            self.assertLess(step["seconds"], step["limit"] + 6, step["name"])
        report, results = self.gpu("clean_torch", status=1, TORCH_FAULT="peer shc", ONLY="profile torch")
        self.assert_named(report, "torch: torch-shc-bf16-compiled failed", "RuntimeError: the fake peer cannot be compiled", "`one layer`")
        self.assert_passed(results, "torch: torch-shc-bf16-eager", "torch: torch-rc-bf16-compiled")

    @unittest.skipUnless(programs.WHOLE, "sleeps for a minute")
    def test_what_is_and_what_is_no_fault(self):
        """Attention that falls back is one, a device without matrix cores and a compiler that is cut are none, and a case that never ends is named."""
        faults = {
            "shc --dtype fp16 --compile-only": (0, "compiling kernels, program 3 of 9", 100),
            "rc --dtype fp16 --compile-only": (0, "device\ncompiling kernels, program 9 of 9", 100),  # says so once, then hangs
            "--gemm mma --dtype bf16": (0, "attention on portable kernels (emulation: cannot compile)", 0),
            "--gemm mma --dtype fp16": (1, "hc_bench: hctrain knows no matrix cores of AMD's gfx1030", 0),
            "test_operations.*fp16": (0, "run    mix (a)\nok     mix (a)\nrun    mix (tiny mhc, n=4)", 100),
        }
        report, results = self.gpu("no_faults", minutes=1, status=1, faults=faults, TINY="1", ONLY="compile self-tests")
        self.assert_named(report, "self-tests: gemm-mma-bf16 failed", "attention on portable kernels (emulation: cannot compile)")
        self.assert_named(report, "self-tests: operations-fp16-tiny timed out", "does not end: `mix (tiny mhc, n=4)`")
        self.assertEqual([line for line in report.splitlines() if line.startswith("### ")],
                         ["### compile: rc-fp16 timed out", "### self-tests: operations-fp16-tiny timed out", "### self-tests: gemm-mma-bf16 failed"])
        for name, error in (("self-tests: gemm-mma-fp16", "knows no matrix cores"), ("compile: shc-fp16", "it still compiled")):
            self.assertEqual(results[name]["result"], "left out")
            self.assertIn(error, results[name]["error"])

    def test_what_never_ended(self):
        runs, operations = gpu_steps.failed_test(["t"]), gpu_steps.failed_operation(["t"])
        passed, skipped, hangs = "[ RUN      ] one\n[       OK ] one\n", "[ RUN      ] two\n[  SKIPPED ] two\n", "[ RUN      ] three\n"
        self.assertEqual(runs(passed + skipped + hangs), [("three", ["t", "three"])])
        self.assertEqual(runs(passed), [])
        self.assertEqual(runs(passed + hangs + "[  FAILED  ] three\n"), [("three", ["t", "three"])])
        self.assertEqual(operations("run    mix (a)\nok     mix (a) y 1e-8\nrun    mix (b, n=4)\n"), [("mix (b, n=4)", ["t", "--filter", "mix (b, n=4)"])])
        self.assertEqual(operations("run    mix (a)\nok     mix (a) y 1e-8\n"), [])

    def test_the_lease_ends(self):
        environment = self.environment("ended", 5, {"test_operations": (0, "under way", 100)}, {})
        run = programs.Run(self, ["sh", str(ROOT / "ci/gpu.sh")], environment=environment)
        log = self.path("ended/self-tests-operations-bf16-tiny.log")
        run.wait_for(lambda: log.exists() and "under way" in log.read_text())
        self.assertIn("| Every program compiles | 6 passed |", self.text("ended/report.md"))
        self.assertEqual(run.interrupt(signal.SIGTERM).status, 1)
        self.assert_ended("fake/tests/test_operations")  # neither the one under way nor the next
        report = self.text("ended/report.md")
        self.assertIn("| Every program compiles | 6 passed |", report)
        self.assertIn("| Self-tests |", report)

    # ---- kernels on an emulated GPU

    def kernel_fault(self, out, text, change):
        """The report of test_operations' first case of cross_entropy with a text of the kernels changed."""
        command = f'exec {programs.BUILD}/tests/test_operations --filter "cross_entropy (tiny mhc, V=33)" "$@"'
        self.put("kernels/tests/test_operations", f"#!/bin/sh\n{command}\n").chmod(0o755)
        for name in ("hc_bench", "tests/test_mma"):
            self.put(f"kernels/{name}", FAKE % sys.executable).chmod(0o755)
        change = self.put(f"{out}.change", f"{text}\n----\n{change}\n----\n")
        report, results = self.gpu(out, status=1, ONLY="self-tests", TINY="1", BUILD="@kernels", EMULATED_GPU_CHANGE=change)
        self.assertTrue(change.read_text().endswith("found\n"), "the text was not compiled")
        self.assert_passed(results, "self-tests: emulated-matrix-cores")
        return report

    @unittest.skipUnless(VENDORS.exists(), "there are no emulated GPUs")
    def test_kernels(self):
        heading, case = "self-tests: operations-bf16-tiny failed", "smallest case that fails: `cross_entropy (tiny mhc, V=33)`"
        wrong = "(CAPPED ? SOFTCAP * tanh((x) * (1.0f / SOFTCAP)) : (x))"
        report = self.kernel_fault("wrong", wrong, "((x) * 1.5f)")
        self.assert_named(report, heading, "losses", "(!)", "kernel: `cross_entropy`", case)
        if not programs.WHOLE:
            return
        report = self.kernel_fault("broken", "void cross_entropy(", "void cross_entropy(nonsense ")
        self.assert_named(report, heading, "cannot compile cross_entropy.cl", "kernel: `cross_entropy (cross_entropy.cl:", case)
        report = self.kernel_fault("race", "barrier(CLK_LOCAL_MEM_FENCE);", ";")
        self.assert_named(report, heading, "races: reads local memory", "kernel: `cross_entropy`", case)

    # ---- all programs, on an emulated GPU

    @unittest.skipUnless(programs.WHOLE and VENDORS.exists(), "takes minutes, on emulated GPUs")
    def test_whole(self):
        report, results = self.gpu("whole", minutes=60, BUILD=programs.BUILD, TINY="1", ROOFLINE_AS="a6000")
        self.assertEqual({result["result"] for result in results.values()}, {"passed"}, report)
        self.assertIn("| `frame_backward` |", report)
        self.assertRegex(report, r"\| `gemm_nt 32x\d+x64` \| \d+ \| \d+")
        self.put("real/hc_train", TRAIN % ("runs/second", programs.BUILD / "hc_train")).chmod(0o755)
        self.path("real/hc_prepare").symlink_to(programs.BUILD / "hc_prepare")
        report, results = self.gpu("whole", status=1, BUILD="@real", TINY="1", ONLY="bits")
        self.assert_named(report, "bits: bits-one-layer-bf16 failed", "the losses differ first in {'iter': 0", "differ: ")

    @unittest.skipUnless(programs.WHOLE and VENDORS.exists(), "takes minutes, on emulated GPUs")
    def test_whole_with_a_kernel_that_does_not_compile(self):
        broken = self.put("whole.change", "void cross_entropy(\n----\nvoid cross_entropy(nonsense \n----\n")
        report, results = self.gpu("whole_broken", minutes=30, status=1, BUILD=programs.BUILD, TINY="1", RESIDUALS="rc", EMULATED_GPU_CHANGE=broken, ROOFLINE_AS="a6000",
                                   ONLY="devices compile golden profile bits")
        self.assert_named(report, "compile: rc-bf16 failed", "cannot compile cross_entropy.cl", "kernel: `cross_entropy (cross_entropy.cl:",
                          *("compile: rc-fp32", "golden: golden-bf16", "profile: profile-rc", "bits: bits-one-layer-bf16"))
        self.assert_passed(results, "devices: plan", "profile: roofline-rc")


if __name__ == "__main__":
    programs.main()
