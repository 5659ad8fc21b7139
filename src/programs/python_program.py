#!/usr/bin/env python3
"""What the programs in Python, hc_analyze and hc_sweep, are links to or copies of: calls the module that does the work."""
import os
import sys

MODULES = {"hc_analyze": "hctrain.analysis", "hc_sweep": "hctrain.sweep"}
SYSTEM = "/usr/bin/python3"  # has Debian's packages, where another Python comes first on PATH and lacks them
WHEEL = "../.."
PLACES = "../python", "../share/hctrain/python", WHEEL  # of the package from here: in a checkout, as installed, and in a wheel

name = os.path.basename(sys.argv[0])
try:  # from here on Ctrl-C says a word
    from importlib import import_module
    from importlib.util import find_spec

    here = os.path.dirname(os.path.realpath(__file__))
    found = [place for place in PLACES if os.path.isfile(os.path.join(here, place, "hctrain/__init__.py"))]
    if name not in MODULES or not found:
        sys.exit(f"{name}: this file works by the names {' and '.join(MODULES)}, in hctrain's checkout or where it was installed")
    if name == "hc_analyze" and not find_spec("matplotlib") and found[0] != WHEEL and sys.prefix != "/usr" and os.access(SYSTEM, os.X_OK):
        os.execv(SYSTEM, [SYSTEM, *sys.argv])
    sys.path.insert(0, os.path.join(here, found[0]))
    for folder in (os.path.dirname(os.path.abspath(sys.argv[0])), here):
        if os.access(os.path.join(folder, "hc_train"), os.X_OK):
            os.environ.setdefault("HCTRAIN_PROGRAMS", folder)
    status = import_module(MODULES[name]).main(sys.argv[1:])
except KeyboardInterrupt:
    print(f"{name}: interrupted{'; the same command goes on' if name == 'hc_sweep' else ''}", file=sys.stderr)
    status = 130
sys.exit(status)
