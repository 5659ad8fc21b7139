"""What hctrain.tensorboard hands to the package tensorboard, which is not needed here: a class stands for its writer."""
import sys
import types
import unittest
from pathlib import Path
from unittest import mock

import hctrain
import numpy  # before a patch of the modules takes it away again
import small
from hctrain import tensorboard


class Writer:
    added = {}  # by folder: (tag, step, value)

    def __init__(self, folder):
        self.rows = Writer.added[Path(folder).name] = []
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, "events.out.tfevents.1").touch()

    def add_scalar(self, tag, value, step):
        self.rows.append((tag, step, value))

    def flush(self):
        pass

    close = flush


def write(folder, **options):
    with mock.patch.dict(sys.modules, {"tensorboard": types.ModuleType("tensorboard"), "tensorboard.summary": types.SimpleNamespace(Writer=Writer)}):
        return tensorboard.write_events(folder, **options)


class Events(small.InFolder):
    def setUp(self):
        super().setUp()
        self.folder /= "run"

    def test_run(self):
        """Every step's loss, the evaluations' in another folder under the same tag, and statistics of H_res; written anew the second time."""
        run = small.run()
        stale = run.folder / "tensorboard/training/events.out.tfevents.0"
        stale.parent.mkdir(parents=True)
        stale.touch()
        for _ in range(2):
            out = write(run.folder)
            self.assertEqual({str(path.relative_to(run.folder)) for path in out.rglob("*") if path.is_file()},
                             {f"tensorboard/{name}/events.out.tfevents.1" for name in ("training", "validation")})
            losses = [(step, value) for tag, step, value in Writer.added["training"] if tag == "loss"]
            self.assertEqual(losses, list(zip(run.metrics["iter"], run.metrics["loss"])))
            losses = [(step, value) for tag, step, value in Writer.added["validation"] if tag == "loss"]
            self.assertEqual(losses, list(zip(run.evaluations["iter"], run.evaluations["val_loss"])))
            found = {tag: value for tag, step, value in Writer.added["training"] if step == run.statistics["iter"][-1] and tag.startswith("h_res/")}
            self.assertAlmostEqual(found["h_res/identity_distance"], run.statistics["identity_distance"][-1].mean())
            self.assertEqual(found["h_res/row_sum/greatest"], run.statistics["row_sum"][-1][1])

    def test_numbers_that_are_not_finite(self):
        small.make_run(self.folder, [{"iter": 0, "loss": None, "lr": 0.5}, {"iter": 0, "val_loss": None, "train_loss": 2.0}])
        write(self.folder, seconds=0)
        self.assertEqual(Writer.added, {"training": [("lr", 0, 0.5)], "validation": [("evaluation/train_loss", 0, 2.0)]})

    def test_refused(self):
        with self.assertRaisesRegex(hctrain.Error, "there is no folder"):
            write(self.folder)
        with mock.patch.dict(sys.modules, {"tensorboard": None}), self.assertRaisesRegex(hctrain.Error, "pip install tensorboard"):
            tensorboard.write_events(str(self.folder))


if __name__ == "__main__":
    unittest.main()
