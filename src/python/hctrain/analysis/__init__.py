"""hc_analyze: a report of runs and checkpoints, with the paper's tables and plots."""
from .command import main

__all__ = ["main"]
