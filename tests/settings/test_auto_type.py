"""--dtype auto in whole programs, on GPUs played by support/faulty_opencl.c: what is chosen, said and kept."""
import re
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "support"))
import programs
from programs import FAILED

GPU, FAILING_GPU, CPU = "matrix-cores", "no-matrix-cores", None
FAULTY = programs.BUILD / "tests/libfaulty_opencl.so"
MODEL = ("--checkpoint", "@model/ckpt-1")
BF16, FP32, ANY = "dtype    bf16: ", "dtype    fp32: ", "dtype "
IN_BF16, IN_16_BITS = "activations in bf16", "activations in"


class AutoType(programs.Case):
    @classmethod
    def begin(cls):
        """What is compiled for devices that are not there is not for the user's cache; the tests share PoCL's."""
        super().begin()
        cls.keep_no_programs()
        cls.made("hc_train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir", "@model", "--residual", "rc", "--max-iters", "1")

    def run_on(self, gpu, *words, says=(), not_says=(), **setup):
        """On a GPU that says it is one, or on PoCL as it is, where neither the run's words name a device."""
        device = ("--device", "gpu" if gpu else "pocl") if words[0] != "hc_devices" else ()
        environment = {"HC_GPU": gpu, "LD_PRELOAD": FAULTY} if gpu else {}
        ended = self.call(*words, *device, says=says, environment={**environment, **setup.pop("environment", {})}, seconds=600, **setup)
        self.says_nothing_of(ended, not_says)
        return ended

    def says_nothing_of(self, ended, texts):
        for text in [texts] if isinstance(texts, str) else texts:
            self.assertNotIn(text, ended.said, str(ended.words))

    def train_on(self, gpu, run, *more, says=(), not_says=(), **setup):
        return self.run_on(gpu, *self.training(run), *more, says=says, not_says=not_says, **setup)

    def says_what_the_cpu_lacks(self, ended):
        """Why a narrow model is in fp32 on a CPU: it has no bf16 instructions, or some that would not gain, or cannot be used."""
        self.assertRegex(ended.said, " channels is too narrow to gain from | would multiply bf16 in fp32")

    def has_type(self, run, word):
        self.assertIn(f'dtype = "{word}"\n', self.text(f"{run}/settings.conf"))

    # ---- hc_train

    def test_gpu_with_matrix_cores_takes_bf16_and_its_run_keeps_it(self):
        """The type that was chosen is the run's, wherever it goes on, unless another one is asked for."""
        self.train_on(GPU, "gpu", "--max-iters", "1", "--residual", "rc", says=["dtype    bf16: GEMMs on mma.sync passed their self-test\n", IN_BF16],
                      not_says="warning")
        self.has_type("gpu", "bf16")
        self.remove("gpu/settings.conf")  # the checkpoint knows it too
        self.run_on(CPU, "hc_train", "--out-dir", "@gpu", "--init-from", "resume", "--max-iters", "2", says=IN_BF16, not_says=ANY)
        self.has_type("gpu", "bf16")
        self.says_what_the_cpu_lacks(self.train_on(CPU, "gpu", "--init-from", "resume", "--max-iters", "3", "--dtype", "auto", says=FP32))
        self.has_type("gpu", "fp32")

    def test_cpu_takes_fp32_and_its_run_keeps_it(self):
        self.says_what_the_cpu_lacks(self.train_on(CPU, "cpu", "--max-iters", "1", says=FP32, not_says=IN_16_BITS))
        self.has_type("cpu", "fp32")
        self.assertIn('\\ndtype = \\"fp32\\"\\n', self.text("cpu/ckpt-1/state.json"))
        self.train_on(GPU, "cpu", "--init-from", "resume", "--plan-only", says="GEMMs by cblas", not_says=[IN_16_BITS, ANY])
        # the same bits as with the type given
        self.train_on(CPU, "given", "--max-iters", "1", "--dtype", "fp32", not_says=ANY)
        self.same_checkpoint("cpu", "given", "ckpt-1")

    def test_run_without_a_type_is_in_fp32(self):
        """A run that says nothing of its type is from before there was a choice."""
        self.train_on(CPU, "old", "--max-iters", "1")
        text = self.text("old/ckpt-1/state.json")
        self.assertIn("\\ndtype = ", text)
        self.put("old/ckpt-1/state.json", text.replace("\\ndtype = ", "\\n#type = ", 1))  # a comment
        self.remove("old/settings.conf")
        self.train_on(GPU, "old", "--init-from", "resume", "--plan-only", says="GEMMs by cblas", not_says=IN_16_BITS)

    def test_matrix_cores_that_fail_are_warned_of(self):
        self.train_on(FAILING_GPU, "failing", "--max-iters", "1",
                      says=[" would multiply bf16 in fp32\n", "warning  GEMMs on ", "WMMA: self-test with bf16"],
                      not_says=["MFMA", "(options"])  # MFMA no gfx1100 has: its compiler would end the process
        self.has_type("failing", "fp32")
        self.train_on(FAILING_GPU, "failing", "--plan-only", "--dtype", "bf16", says=[IN_BF16, "warning  GEMMs on "])
        self.train_on(FAILING_GPU, "failing", "--plan-only", "--dtype", "fp32", not_says="warning")
        self.train_on(GPU, "failing", "--plan-only", "--gemm", "cblas", says="dtype    fp32: --gemm cblas multiplies in fp32\n")

    def test_what_is_wrong_in_bf16_is_trained_in_fp32(self):
        """Where fp32 is chosen, nothing of bf16 has to work."""
        wrong = {"HC_FAULT": "convert_to_fp32 0 1"}
        self.train_on(FAILING_GPU, "wrong", "--max-iters", "1", environment=wrong, says=" would multiply bf16 in fp32\n")
        self.train_on(FAILING_GPU, "refused", "--dtype", "bf16", environment=wrong, status=FAILED,
                      says="try another --gemm, --dtype fp32, another version of the driver")

    # ---- the others

    def said_nothing(self, ended):
        """But that kernels are compiled, which a slow machine says."""
        self.assertEqual(re.sub(r"\A(compiling kernels.*\n)*", "", ended.said), "")

    def test_other_programs_say_it_beside_their_data(self):
        sample = ("hc_sample", *MODEL, "--max-new-tokens", "2")
        self.assertNotIn(b"dtype", self.run_on(GPU, *sample, says=BF16).printed)
        self.said_nothing(self.run_on(CPU, *sample))
        for gpu, says, printed in [(GPU, BF16, b'"dtype": "bf16"'), (CPU, FP32, b'"dtype": "fp32"')]:
            self.assertIn(printed, self.run_on(gpu, "hc_eval", *MODEL, "--data", "@data", "--json", "-", "--eval-iters", "1", says=says).printed)
        ended = self.call(*programs.COMPARE, "rc,shc", "--config", "@tiny.conf", "--steps", "1", "--warmup", "0", "--json", "@bench.json", seconds=600)
        self.assertIn(FP32.encode(), ended.printed)
        self.assertIn('"dtype": "fp32"', self.text("bench.json"))

    def test_hc_probe_asks_to_be_told(self):
        """What others compare with is in fp32 unless another type is given."""
        self.put_batch("batch", *[((1, 4), (1, 2, 3, 4))] * 2)
        probe = ("hc_probe", *MODEL, "--batch", "@batch", "--out", "@probe", "--no-grad")
        self.said_nothing(self.run_on(GPU, *probe))
        self.run_on(GPU, *probe, "--dtype", "auto", says=BF16)
        self.run_on(CPU, *probe, "--gemm", "portable", "--dtype", "auto", says=FP32)

    def test_hc_devices_says_which_gpu_is_whose(self):
        printed = self.run_on(GPU, "hc_devices").printed
        self.assertIn(b"PCI address   0000:41:00.0\n", printed)
        self.assertIn(b"--device gpu gives the ranks of a node, in turn: 0", printed)
        self.run_on(CPU, "hc_devices")

    def test_ranks_take_what_all_can_do(self):
        """Rank 0 is on PoCL as it is, rank 1 on a GPU, or the other way round."""
        planned = (programs.BUILD / "hc_train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir", "@ranks",
                   "--gradient-accumulation-steps", "2", "--plan-only")
        cpu, gpu = ("env", *planned, "--device", "pocl"), ("env", f"LD_PRELOAD={FAULTY}", f"HC_GPU={GPU}", *planned, "--device", "gpu")
        bf16 = ("--dtype", "bf16")
        for first, second, says, not_says in [
                (cpu, gpu, [FP32, "warning  all ranks work in fp32 because of rank 0 on "], []),
                # opened anew, without the matrix cores that are left idle
                (gpu, cpu, ["GEMMs by cblas\n", "dtype    fp32: rank 1 on "], [IN_16_BITS]),
                # by what the CPU has
                (gpu + bf16, cpu + bf16, ["GEMMs by mma on mma.sync", IN_BF16, " and rank 0 by mma: all wait for the slower one"], [ANY]),
                (gpu, gpu, ["dtype    bf16: GEMMs on mma.sync"], ["multiplies by"])]:
            with self.subTest(first=first, second=second):
                words = (programs.MPIRUN, "-np", "2", TESTS / "support/by_rank.sh", *first, ",", *second)
                self.says_nothing_of(self.call(*words, says=says, seconds=600), not_says)


if __name__ == "__main__":
    programs.main()
