"""--compile-only compiles what a run needs."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import FAILED


class CompileOnly(programs.Case):
    def compiled_alone(self, run, words, *more):
        """Nothing is left to compile for the run of these words, with these more, after the same with --compile-only, which makes no run."""
        cache = self.path(f"empty-{run}")
        cache.mkdir()
        environment = {"POCL_CACHE_DIR": cache, "XDG_CACHE_HOME": cache}
        self.call(*words, "--compile-only", environment=environment, says="compiled the kernels for ")
        self.assertFalse(self.has(run))
        kernels = sorted(cache.rglob("*.so"))
        self.assertTrue(20 <= len(kernels) <= 80, len(kernels))
        self.call(*words, *more, environment=environment)
        self.assertEqual(sorted(cache.rglob("*.so")), kernels)

    def test_nothing_is_left_to_compile(self):
        models = [("--residual", "mhc", "--dropout", "0.1", "--n-layer", "4", "--hc-until", "6"),
                  ("--residual", "mudd", "--optimizer", "muon", "--recompute", "layer"),
                  ("--residual", "circulant", "--norm", "rmsnorm", "--position", "rope")]
        for i, model in enumerate(models if programs.WHOLE else models[:1]):
            with self.subTest(model):
                self.compiled_alone(f"compiled-{i}", self.training(f"compiled-{i}", *model), "--max-iters", "2")

    def test_model_is_that_of_the_folder(self):
        """A run that begins with the checkpoint of another one has that one's model, also with another connection and without a config file."""
        def words(folder, run, *more):
            return ("hc_train", "--data-dir", "@data", "--init-from", f"@{folder}", "--out-dir", f"@{run}", "--max-iters", "1", "--batch-size", "4",
                    "--eval-iters", "1", *more)

        self.train("plain", "--residual", "rc", "--mlp", "swiglu", "--max-iters", "0")
        self.compiled_alone("upcycled", words("plain/ckpt-0", "upcycled", "--residual", "shc"), "--stream-reduce", "auto")
        for folder, says, *more in [("plain/ckpt-0", "was saved with another n_embd than the one given", "--n-embd", "8"),
                                    ("nowhere", "nowhere/config.json")]:
            self.call(*words(folder, "other", *more, "--compile-only"), status=FAILED, says=says)


if __name__ == "__main__":
    programs.main()
