#!/usr/bin/env python3
"""ci/portability.py's test of its own check for an error of clspv's, with stand-ins for what clspv makes: a clspv that has the error, one
without, and a check that finds nothing."""
import shutil
import sys
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "ci"))
import portability
import spirv

NO_DEVICE = 77


def outcome(module):
    """Of vulkan_test with a clspv that makes this of the faulty kernel."""
    portability.vulkan_module = lambda tools, clspv, options, text: module if text == spirv.FAULTY else sound
    return portability.vulkan_test(None, [types.SimpleNamespace(clspv=None)])


if not shutil.which("spirv-as"):
    print("SKIPPED: no spirv-as")
    sys.exit(NO_DEVICE)
faulty, sound = (spirv.Module(portability.run(["spirv-as", "--target-env", "spv1.5", "-", "-o", "-"], text.encode())[0]) for text in
                 (spirv.FAULTY_MODULE, spirv.FAULTY_MODULE.replace("%uint_0 %uint_1\n", "%uint_1 %uint_0\n").replace("Array %float %uint_1", "Array %float %uint_4")))
assert outcome(faulty) == ([], []), outcome(faulty)
assert outcome(sound) == ([], [portability.MENDED]), outcome(sound)
spirv.outside = lambda *_: None
assert "the check is broken" in outcome(faulty)[0][0], outcome(faulty)
