"""What these tests share: a text, and short runs of small models. As wide as the model of tests/support/programs.py, whose kernels other tests compile."""
import atexit
import functools
import json
import os
import tempfile
import unittest
from pathlib import Path

import hctrain

SETTINGS = {"residual": "mhc", "n_streams": 2, "n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 48, "batch_size": 4, "gradient_accumulation_steps": 2,
            "max_iters": 12, "warmup_iters": 2, "learning_rate": 3e-2, "eval_interval": 5, "eval_iters": 2, "device": "pocl"}
TIMEOUT = 120  # seconds until something counts as hung, also on a busy machine
ODD_NAME = os.fsdecode(b'da"ta \\ \xff #')  # of the folder of token files
# for mpirun as root and with more ranks than cores
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
       "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}


@functools.lru_cache(None)
def scratch() -> Path:
    """A folder that is removed in the end."""
    folder = tempfile.TemporaryDirectory(prefix="hc-python-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


@functools.lru_cache(None)
def data() -> Path:
    """Token files of a little text."""
    text = scratch() / "text"
    text.write_text("".join(f"{i} green bottles, and {i * i} more; " + "xyz!\n\n"[i % 5:] for i in range(2000)))
    return hctrain.prepare(scratch() / ODD_NAME, text)


@functools.lru_cache(None)
def run() -> hctrain.Run:
    """A complete run with evaluations and statistics of H_res."""
    return hctrain.train(SETTINGS, data_dir=data(), out_dir=scratch() / "run", statistics_interval=4)


def make_run(folder: Path, lines, name="metrics.jsonl") -> Path:
    """A run's folder with these lines: objects, or bytes as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines))
    return folder


class InFolder(unittest.TestCase):
    """Tests with a folder of their own."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
