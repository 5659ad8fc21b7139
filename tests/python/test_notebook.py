"""examples/train_and_compare.ipynb: its cells run one after the other."""
import contextlib
import io
import json
import os
import unittest
from pathlib import Path
from unittest import mock

import hctrain
import small

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "train_and_compare.ipynb"


class Notebook(unittest.TestCase):
    def test_cells(self):
        cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
        folder = small.scratch() / "notebook"
        folder.mkdir()
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder)
        names, output = {}, io.StringIO()
        with contextlib.redirect_stdout(output), mock.patch.dict(os.environ):
            os.environ.pop("POCL_EXTRA_BUILD_FLAGS", None)  # kernels that are not optimized take longer here than their compilation
            for number, cell in enumerate(cells, 1):
                if cell["cell_type"] == "code":
                    self.assertEqual(cell["outputs"], [], "outputs are not kept in the repository")
                    exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}, cell {number}", "exec"), names)
        for residual in ("rc", "mhc"):
            run = hctrain.read_run(folder / "out" / "notebook" / residual)
            self.assertTrue(run.is_complete)
            self.assertIn(f"validation loss {run.summary.val_loss:.3f}", output.getvalue())
            self.assertLess(run.summary.val_loss, run.evaluations["val_loss"][0] - 2)
        self.assertEqual(names["statistics"]["stream_cosine"].shape, (16, 4))


if __name__ == "__main__":
    unittest.main()
