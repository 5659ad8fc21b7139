"""hc_train on Vulkan: the losses of PoCL, resuming bit for bit, and two ranks, all under the eyes of Vulkan's validation layer."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs

LAYER = "VK_LAYER_KHRONOS_validation"
VALIDATED = {"VK_INSTANCE_LAYERS": LAYER, "VK_LOADER_DEBUG": "layer"}  # the layer writes to stdout, and the loader tells on stderr that it is there


class VulkanTraining(programs.Case):
    def train_on(self, device, run, *more, layer=None, **setup):
        more = ("--max-iters", "6", "--eval-interval", "3", "--checkpoint-interval", "3", "--batch-size", "2", "--gradient-accumulation-steps", "2",
                "--log-interval", "1", "--device", device, *more)
        return self.train(run, *more, environment={"XDG_CACHE_HOME": "@cache", **(layer or {})}, seconds=600, **setup)

    def validate(self, run, **setup):
        ended = self.train_on("vulkan", run, layer=VALIDATED, says=LAYER, **setup)
        for text in (b"Validation", b"VUID"):
            self.assertNotIn(text, ended.printed)
        self.assertNotIn("VUID", ended.said)

    def test_training(self):
        self.train_on("pocl", "pocl")
        self.validate("vulkan")
        self.near_metrics("pocl", "vulkan", 6, 1e-5)
        # the layer has seen all of this
        self.assertNotIn("see the same GPUs", self.train_on("vulkan", "parted", "--max-iters", "3").said)  # a simulator is none
        self.train_on("vulkan", "parted", "--init-from", "resume")
        self.same_run("vulkan", "parted", "ckpt-6")
        self.validate("ranks", ranks=2)
        self.near_metrics("vulkan", "ranks", 6, 1e-5)


if __name__ == "__main__":
    programs.main()
