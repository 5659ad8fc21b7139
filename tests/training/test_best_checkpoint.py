"""ckpt-best has the weights with the lowest validation loss, whatever is resumed, lost or exchanged."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import FAILED


class BestCheckpoint(programs.Case):
    def saved(self, name, key, value):
        self.assertEqual(self.json(f"{name}/state.json")[key], value, name)

    def test_weights_that_training_made_worse_are_kept(self):
        self.train("worse", "--residual", "rc", "--learning-rate", "10", "--min-lr", "10", "--grad-clip", "0", "--warmup-iters", "0",
                   "--max-iters", "2", "--eval-interval", "1", "--eval-iters", "2")
        self.assertLess(self.metrics("worse")[0]["val_loss"], 6)
        self.assertTrue(self.has("worse/ckpt-best/model.safetensors"))
        self.saved("worse/ckpt-best", "iteration", 0)

    def test_failing_best_checkpoint_does_not_cost_the_run(self):
        more = ("--max-iters", "20", "--eval-interval", "4", "--eval-iters", "1")
        self.train("no-best", "--max-iters", "2")
        self.put("no-best/ckpt-best", "")
        self.resume("no-best", *more, "--checkpoint-interval", "1000", status=FAILED, says="something of this name that is not a folder")
        self.saved("no-best/ckpt-4", "evaluated_at", -1)
        self.remove("no-best/ckpt-best")
        self.resume("no-best", *more)
        self.assertTrue(self.has("no-best/ckpt-best/state.json"))

    def test_best_weights_of_a_later_iteration_stay(self):
        """When an earlier checkpoint is resumed, which may know of no evaluation; on other data they are the best no more."""
        evaluating = ("--init-from", "resume", "--eval-interval", "15", "--eval-iters", "2", "--max-iters")
        self.train("later-best", "--max-iters", "5")
        self.train("later-best", *evaluating, "15", "--checkpoint-interval", "1000")
        self.remove("later-best/ckpt-15")
        self.train("later-best", *evaluating, "6")
        self.saved("later-best/ckpt-best", "iteration", 15)
        self.saved("later-best/ckpt-6", "best_iteration", 15)
        self.change_json("later-best/ckpt-best/state.json", "data.val", "another")
        self.put_json("later-best/ckpt-6/state.json", {**self.json("later-best/ckpt-6/state.json"), "best_iteration": -1, "best_val_loss": None})
        self.train("later-best", *evaluating, "7")
        self.saved("later-best/ckpt-best", "iteration", 7)

    def test_best_loss_is_that_of_the_validation_data(self):
        """Losses on val.bin compare as long as it is the same file."""
        self.copy("data", "half-changing")
        self.train("half-changed", "--data-dir", "@half-changing", "--max-iters", "4", "--eval-interval", "100", "--eval-iters", "2")
        self.saved("half-changed/ckpt-4", "best_iteration", 4)
        for file, end, best, *more in [("train.bin", 5, 4, "--eval-iters", "0"),
                                       ("val.bin", 6, 6, "--learning-rate", "0", "--min-lr", "0", "--eval-iters", "2")]:
            tokens = self.path(f"half-changing/{file}").read_bytes()
            self.put(f"half-changing/{file}", b"".join(tokens[at:at + 2] for at in range(len(tokens) - 2, -1, -2)))  # turned round
            self.resume("half-changed", "--max-iters", end, "--accept-new-data", *more)
            self.saved(f"half-changed/ckpt-{end}", "best_iteration", best)

    def test_best_loss_on_the_whole_split_outlives_another_batch_size(self):
        """Both runs score all of val.bin, whatever their batches are."""
        self.train("other-batch", "--max-iters", "4", "--eval-interval", "100", "--eval-iters", "200")
        self.saved("other-batch/ckpt-4", "evaluation", "whole")
        self.change_json("other-batch/ckpt-4/state.json", "best_val_loss", 0.001)
        self.assertNotIn("other tokens", self.resume("other-batch", "--max-iters", "5", "--batch-size", "3").said)
        self.saved("other-batch/ckpt-5", "best_iteration", 4)
        self.resume("other-batch", "--max-iters", "6", "--eval-batches", "sampled", "--eval-iters", "1", says="other tokens than before")
        self.saved("other-batch/ckpt-6", "best_iteration", 6)

    def test_best_weights_that_are_gone_are_replaced(self):
        """As after a kill between two renames, where a file system cannot replace a folder in one step."""
        self.train("best-gone", "--max-iters", "4", "--eval-interval", "100", "--eval-iters", "2")
        self.change_json("best-gone/ckpt-4/state.json", "best_val_loss", 0.001)
        self.resume("best-gone", "--max-iters", "5")
        self.saved("best-gone/ckpt-best", "iteration", 4)
        self.remove("best-gone/ckpt-best")
        self.resume("best-gone", "--max-iters", "6")
        self.saved("best-gone/ckpt-best", "iteration", 6)

    def test_made_up_evaluation_leaves_the_checkpoint_alone(self):
        """It changes what the checkpoint says and nothing else in its folder."""
        self.train("noted", "--max-iters", "2")
        self.put("noted/ckpt-2/notes.txt", "mine")
        self.resume("noted", "--max-iters", "2", "--eval-interval", "2", "--eval-iters", "1")
        self.saved("noted/ckpt-2", "evaluated_at", 2)
        self.assertTrue(self.has("noted/ckpt-2/notes.txt"))
        self.train("noted", "--max-iters", "4", "--init-from", "resume")


if __name__ == "__main__":
    programs.main()
