"""hctrain: trains GPTs with hyper-connections, and reads what training has written.

  run = hctrain.train("configs/tiny.conf", data_dir="data/mine", out_dir="out/mine", callback=print)
  run = hctrain.read_run("out/mine")                           # also of a run that goes on; run.follow() yields what it writes
  checkpoint = hctrain.read_checkpoint("out/mine/ckpt-best")   # tensors for numpy and PyTorch
  gpt = hctrain.model.load("out/mine/ckpt-best")               # after "import hctrain.model", which needs PyTorch

docs/python.md describes all of it.
"""
from .checkpoints import Checkpoint, Tensors, read_checkpoint
from .files import Error, printable
from .records import Record
from .runs import Run, Summary, read_run
from .training import call, evaluate, prepare, probe, sample, train

__all__ = ["Checkpoint", "Error", "Record", "Run", "Summary", "Tensors", "call", "evaluate", "prepare", "printable", "probe", "read_checkpoint", "read_run",
           "sample", "train"]
