"""Small models, trained on emulated GPUs and on PoCL: their losses must be alike. Of each run all kernels of a step are executed as a GPU gets
them, fused frames, matrix cores and the optimizer included. One run, or all where HC_WHOLE_TESTS is set."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs

RESIDUALS = ("rc", "identity", "hc", "mhc", "mhc_lite", "shc", "krom", "circulant", "go_mhc", "ohc", "gated", "attnres", "mudd", "wide",
             "dense", "laurel --x0-lambdas", "dar --attnres-heads 4 --value-embeds", "frac", "mudd --mudd-norm prepost", "mhc --no-hc-dynamic",
             "shc --hc-until 2")
# largest difference of a loss, of some 5.5
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-3, "fp16": 5e-4}
MODEL = ("--n-layer 2 --n-head 1 --n-embd 64 --block-size 32 --batch-size 2 --max-iters 3 --learning-rate 6e-4 --warmup-iters 0 --eval-interval 3 "
         "--eval-iters 1 --log-interval 1 --seed 3").split()
VENDORS = programs.BUILD / "tests/emulator/vendors/"

# residual and options, type, device
FEW = [("shc", "bf16", "sm_80")]
CASES = ([(residual, "bf16", "sm_80") for residual in RESIDUALS]
         + [(residual, dtype, "sm_80") for residual in ("rc", "mhc", "shc") for dtype in ("fp32", "fp16")]
         + [("mhc", "bf16", device) for device in ("gfx90a", "gfx1100", "gfx1201", "Arc", "Max")]
         + [("shc --dropout 0.1 --recompute layer --gradient-accumulation-steps 2 --bias", "bf16", "sm_80")])


class TrainEmulated(programs.Case):
    def losses(self, run, device, vendors, *options):
        self.train(run, *MODEL, "--device", device, *options, environment={"XDG_CACHE_HOME": "@cache", "OCL_ICD_VENDORS": vendors}, seconds=3600)
        return [line.get("loss", line.get("val_loss")) for line in self.metrics(run)]

    def test_losses_are_alike(self):
        for number, (residual, dtype, device) in enumerate(CASES if programs.WHOLE else FEW):
            with self.subTest(f"{residual}, {dtype}, {device}"):
                options = ("--dtype", dtype, "--residual", *residual.split())
                expected = self.losses(f"pocl-{number}", "pocl", None, *options)
                found = self.losses(f"emulated-{number}", device, f"{VENDORS}/", *options)
                self.assertEqual(len(found), len(expected))
                for one, other in zip(found, expected):
                    self.assertLessEqual(abs(one - other), TOLERANCE[dtype], f"{found} and {expected}")


if __name__ == "__main__":
    programs.main()
