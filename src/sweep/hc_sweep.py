#!/usr/bin/env python3
"""hc_sweep: trains a model for each of several settings and seeds, and compares their losses. Needs nothing but Python 3.9."""
import sys

try:  # from here on Ctrl-C says a word
    import os

    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "../lib/hctrain/sweep")))  # in a wheel this file is no link
    from command import main

    status = main(sys.argv[1:])
except KeyboardInterrupt:
    print("hc_sweep: interrupted; the same command goes on", file=sys.stderr)
    status = 130
sys.exit(status)
