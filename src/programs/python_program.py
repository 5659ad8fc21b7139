#!/usr/bin/env python3
"""What the programs in Python, hc_analyze and hc_sweep, are links to or copies of: calls the module that does the work."""
import os
import sys

MODULES = {"hc_analyze": "hctrain.analysis", "hc_sweep": "hctrain.sweep"}
SYSTEM = "/usr/bin/python3"  # has Debian's packages, where another Python comes first on PATH and lacks them
PLACES = "../python", "../share/hctrain/python", "../.."  # of the package from here: in a checkout, as installed, and in a wheel

name = os.path.basename(sys.argv[0])
try:  # from here on Ctrl-C says a word
    from importlib import import_module
    from importlib.util import find_spec

    if name == "hc_analyze" and not find_spec("matplotlib") and os.access(SYSTEM, os.X_OK) and not os.path.samefile(sys.executable, SYSTEM):
        os.execv(SYSTEM, [SYSTEM, *sys.argv])

    here = os.path.dirname(os.path.realpath(__file__))
    sys.path.insert(0, next(folder for folder in (os.path.join(here, place) for place in PLACES) if os.path.isfile(os.path.join(folder, "hctrain/__init__.py"))))
    beside = os.path.dirname(os.path.abspath(sys.argv[0]))
    if os.access(os.path.join(beside, "hc_probe"), os.X_OK):
        os.environ.setdefault("HCTRAIN_PROGRAMS", beside)
    status = import_module(MODULES[name]).main(sys.argv[1:])
except KeyboardInterrupt:
    print(f"{name}: interrupted{'; the same command goes on' if name == 'hc_sweep' else ''}", file=sys.stderr)
    status = 130
sys.exit(status)
