"""Which tokens hc_train's validation loss is of: the same ones for runs with different seeds, all of a split that is small, and those that hc_eval
takes; runs saved before the setting existed keep the places that depend on their seed."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs


class EvaluationBatches(programs.Case):
    @classmethod
    def begin(cls):
        super().begin()
        cls.made(*cls.training("source", "--max-iters", "2"))

    def evaluated(self, run, seed, iterations, batches, says=()):
        """Losses on val.bin and on train.bin before the first step of a run that begins with one checkpoint's weights."""
        self.train(run, "--init-from", "@source/ckpt-2", "--max-iters", "0", "--seed", seed, "--eval-iters", iterations, "--eval-batches", batches,
                   says=says)
        line = self.metrics(run)[0]
        self.assertGreater(min(line["val_loss"], line["train_loss"]), 0)
        return line["val_loss"], line["train_loss"]

    def scored(self, loss, iterations, seed):
        """hc_eval has this loss of the same weights on val.bin."""
        self.call("hc_eval", "--checkpoint", "@source/ckpt-2", "--device", "pocl", "--data", "@data", "--batch-size", "4", "--eval-iters", iterations,
                  "--seed", seed, "--json", "@score.json")
        found = self.json("score.json")["loss"]
        self.assertLessEqual(abs(loss - found), 1e-8 * abs(found), f"{loss} and {found}")

    def test_seeds_are_scored_on_the_same_tokens(self):
        one = self.evaluated("sampled-1", 1, 3, "sampled")
        self.assertEqual(one, self.evaluated("sampled-2", 2, 3, "sampled"))
        self.scored(one[0], 3, -1)
        whole = self.evaluated("whole-1", 1, 3, "whole")
        self.assertEqual(whole[0], self.evaluated("whole-2", 2, 3, "whole")[0])
        self.assertNotEqual(whole[0], one[0])
        self.assertEqual(whole[1], one[1])
        self.scored(whole[0], 0, -1)

    def test_places_may_depend_on_the_seed(self):
        losses = [self.evaluated(f"seed-{seed}", seed, 3, "by_seed") for seed in (1, 2)]
        for one, two in zip(*losses):
            self.assertNotEqual(one, two)
        for seed in (1, 2):
            self.scored(losses[seed - 1][0], 3, seed)

    def test_a_small_split_is_scored_whole(self):
        """val.bin has about 4000 tokens: 8 times 3 batches of 4 x 16 are fewer, 8 times 10 batches are more."""
        for iterations, batches, says in ((3, "sampled", ()), (10, "whole", "of val.bin")):
            found = self.evaluated(f"auto-{iterations}", 1, iterations, "auto")
            self.assertEqual(found[0], self.evaluated(f"fixed-{iterations}", 1, iterations, batches, says)[0])

    def test_older_runs_go_on_as_they_were(self):
        """Without the setting in the file of settings and in the text in state.json, where lines end in a backslash and an n."""
        older = ("--seed", "7", "--eval-iters", "3", "--eval-interval", "2", "--eval-batches", "by_seed", "--max-iters")
        self.train("at-once", *older, "4")
        self.train("in-parts", *older, "2")
        for name, end in (("in-parts/settings.conf", "\n"), ("in-parts/ckpt-2/state.json", "\\n")):
            before, found, after = self.text(name).partition("eval_batches = ")
            self.assertIn(end, found + after)
            self.put(name, before + after.partition(end)[2])
        self.train("in-parts", "--init-from", "resume", "--max-iters", "4", "--eval-iters", "3")
        self.same_metrics("at-once", "in-parts")

    def test_best_loss_is_of_the_same_tokens(self):
        """Losses on other tokens do not compare: the next evaluation makes a new best checkpoint, even with a higher loss."""
        self.train("best", "--max-iters", "2", "--eval-iters", "3", "--eval-batches", "sampled")
        self.change_json("best/ckpt-2/state.json", "best_val_loss", 0.001)
        self.train("best", "--init-from", "resume", "--max-iters", "4", "--eval-iters", "3")
        self.assertEqual(self.json("best/ckpt-4/state.json")["best_val_loss"], 0.001)
        self.train("best", "--init-from", "resume", "--max-iters", "6", "--eval-iters", "3", "--eval-batches", "whole",
                   says="other tokens than before")
        saved = self.json("best/ckpt-6/state.json")
        self.assertGreater(saved["best_val_loss"], 1)
        self.assertEqual(saved["best_iteration"], 6)


if __name__ == "__main__":
    programs.main()
