"""hc_sweep: trains a model for each of several settings and seeds, and compares their losses. Needs nothing but Python 3.9."""
from .command import main

__all__ = ["main"]
