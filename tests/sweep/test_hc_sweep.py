"""hc_sweep with hc_train and a tiny model, two runs side by side."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import INTERRUPTED, WRONG_USAGE

SWEEP = ("hc_sweep", "--config", "@tiny.conf", "--data-dir", "@data", "--out", "@out", "--vary", "learning_rate=1e-2,10", "--weight-decay", "10",
         "--seeds", "1,2", "--jobs", "2", "--block-size", "48", "--max-iters", "400", "--lr-decay-iters", "400", "--eval-interval", "400",
         "--eval-iters", "1", "--eval-batches", "sampled", "--residual", "rc")


class Sweep(programs.Case):
    def test_interrupted_sweep_goes_on(self):
        """Some of its runs diverge."""
        first = "out/learning_rate=1e-2,seed=1"
        run = self.start(*SWEEP)
        run.wait_for(lambda: self.lines(f"{first}/metrics.jsonl") > 5)
        self.ended(run.interrupt(), INTERRUPTED)
        self.assertIsNotNone(self.newest(first))
        printed = self.call(*SWEEP, seconds=600).printed.decode()
        for text in ("| `10` | 2 | diverged |", "| `1e-2` | 2 | "):
            self.assertIn(text, printed)
        self.assertNotIn("missing", printed)
        again = self.call(*SWEEP)
        self.assertEqual((again.printed.decode(), again.said), (printed, ""))
        self.call(*SWEEP, "--n-layer", "2", status=WRONG_USAGE, says="another n_layer")


if __name__ == "__main__":
    programs.main()
