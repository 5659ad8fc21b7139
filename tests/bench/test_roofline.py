"""hc_bench --roofline: the launches of a step that does not run are those of a step of that shape that runs. test_launches compares what is logged
with what is put into the queue."""
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "support"))
import programs
from programs import FAILED, WRONG_USAGE

# The shape of the model, from which bytes are worked out by hand below.
HEADS, CHANNELS, TOKENS, VOCABULARY, STREAMS, SUBLAYERS = 2, 64, 2 * 32, 96, 4, 2  # sublayers: in a layer
SHAPE = ("--n-layer", "1", "--n-head", "2", "--n-embd", "64", "--block-size", "32", "--batch-size", "2", "--vocab-size", "96", "--n-streams", "4",
         "--gradient-accumulation-steps", "2")
SHC = {"residual": "shc", "dtype": "bf16", "gemm": "auto", "optimizer": "adamw"}
RC = {"residual": "rc", "dtype": "fp32", "gemm": "portable", "optimizer": "muon"}

# What has been reached for 8 x 1024 tokens in bf16 does not become worse unseen: launches and waits of a micro-step, bytes of a hyper-connection,
# forward and backward, and seconds of a micro-step. Whoever makes a figure better lowers its limit to a little above it.
LIMITS = [
    ("a6000", "M", "shc", 382, 0, 388e6, 86.8e-3), ("a6000", "M", "mhc", 382, 0, 389e6, 87.2e-3),
    ("a6000", "M", "rc", 378, 0, 143e6, 77.5e-3), ("mi300x", "M", "shc", 346, 0, 408e6, 13.6e-3),
    ("a6000", "M", "gated", 657, 0, 1144e6, 115.0e-3), ("a6000", "llama_M", "shc", 417, 0, 388e6, 85.3e-3),
    ("a6000", "llama_M", "rc", 413, 0, 143e6, 76.0e-3), ("a6000", "M", "mudd", 718, 0, 476e6, 91.7e-3),
]


class Roofline(programs.Case):
    @classmethod
    def begin(cls):
        cls.keep_no_programs()

    def roofline(self, *words):
        self.call("hc_bench", "--roofline", *words, "--json", "@roofline.json", seconds=600)
        return self.json("roofline.json")

    def count(self, model, *more):
        return self.roofline(*SHAPE, "--as", "emulation", *(f"--{name}={value}" for name, value in model.items()), *more)

    def test_a_dry_step_launches_what_runs(self):
        """They are the same but for what tells the two apart."""
        for model in (SHC, RC) if programs.WHOLE else (SHC,):
            with self.subTest(model):
                dry, ran = self.count(model), self.count(model, "--roofline-run", "--device", "pocl")
                self.assertEqual((dry["ran"], ran["ran"]), (False, True))
                for name in ("device", "platform", "peak_bytes", "ran"):
                    del dry[name], ran[name]
                self.assertGreater(len(dry), 15)
                self.assertEqual(dry, ran)

    def test_bytes_by_hand(self):
        roofline = self.count(SHC)

        def check(name, launches, read, written, flops):
            """The sums over all launches of this name."""
            columns = {"launches": launches, "read": launches * read, "written": launches * written, "flops": launches * flops}
            for column, expected in columns.items():
                found = sum(kernel[column] for kernel in roofline["kernels"] if kernel["name"] == name)
                self.assertEqual(found, expected, f"{name}: {column}")

        values, size, h = TOKENS * CHANNELS, 2, STREAMS * (STREAMS + 2)
        # behind the topmost branch; the others' is in the fused frame
        check("depth_mix_forward", 1, (STREAMS + 1) * values * size + TOKENS * h * 4, STREAMS * values * size + TOKENS * STREAMS * 4, 0)
        check("frame_output_gradient", 1, STREAMS * values * size + TOKENS * h * 4, values * size, 0)
        check("gemm_nt 64x192x64", 1, (values + 3 * CHANNELS * CHANNELS) * size, 3 * values * size, 2 * 64 * 192 * 64)
        # the gradient of a weight is fp32 and added to what is there
        check("gemm_tn 192x64x64", 1, 4 * values * size + 3 * CHANNELS * CHANNELS * 4, 3 * CHANNELS * CHANNELS * 4, 2 * 64 * 192 * 64)
        check("cross_entropy", 1, TOKENS * (2 * VOCABULARY * 4 + 4), TOKENS * (VOCABULARY * size + 4), 0)
        # between steps nothing is cleared but the loss: the first micro-step writes its gradients
        check("buffer_zero", 1, 0, 4, 0)
        # queries, keys and values of all tokens, and per head half of a square of scores with its diagonal, in two products
        pairs = 2 * 32 * 33 / 2
        check("attention_matrix_cores_forward", 1, 3 * values * size, values * size + TOKENS * HEADS * 4, 2 * 2 * pairs * CHANNELS)
        # fp32 but for the operands, which are rounded from the weights; the arenas are of whole vectors
        elements = sum(kernel["read"] for kernel in roofline["kernels"] if kernel["name"] == "square_sums") / 4
        self.assertTrue(roofline["parameters"] <= elements <= roofline["parameters"] + 64 * 32, elements)
        check("adamw", 1, 4 * 4 * elements + 4, 3 * 4 * elements + 2 * elements, 0)

    def test_limits(self):
        for device, model, residual, launches, waits, sublayer_bytes, seconds in LIMITS:
            with self.subTest(f"{model} with {residual} on {device}"):
                roofline = self.roofline("--as", device, "--config", TESTS.parent / f"configs/{model}.conf", "--residual", residual,
                                         "--dtype", "bf16", "--batch-size", "8", "--gradient-accumulation-steps", "2")
                micro = roofline["micro_step"]
                self.assertLessEqual(micro["waits"], waits)
                found = sum(part["bytes"] for part in roofline["parts"] if part["part"] == "hyper-connections") / (SUBLAYERS * roofline["n_layer"])
                for what, figure, most in [("launches", micro["launches"], launches), ("bytes of a sublayer", found, sublayer_bytes),
                                           ("seconds", micro["seconds"], seconds)]:
                    self.assertTrue(0 < figure <= most, f"{what} are {figure:g}, and have been {most:g}")

    def test_errors(self):
        for status, says, *words in [(WRONG_USAGE, "'a7000' here, but of: a6000, h100, h200, mi300x", "--roofline", "--as", "a7000"),
                                     (WRONG_USAGE, "--roofline without --as", "--roofline", "--device", "pocl"),
                                     (WRONG_USAGE, "name a device that is like it, of: a6000", "--roofline", "--device", "pocl"),
                                     (WRONG_USAGE, "give --roofline, too", "--roofline-run"),
                                     (WRONG_USAGE, "give --roofline, too", "--as", "a6000"),
                                     (WRONG_USAGE, "one model on one rank", "--roofline", "--as", "a6000", "--step-on-demand"),
                                     (FAILED, "none/roofline.json", "--roofline", "--as", "a6000", "--json", "@none/roofline.json")]:
            with self.subTest(words):
                self.call("hc_bench", *SHAPE, *words, status=status, says=says)


if __name__ == "__main__":
    programs.main()
