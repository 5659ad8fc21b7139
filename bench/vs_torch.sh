#!/bin/sh
# hctrain and the same model in PyTorch, side by side: a table of tokens/s and memory per residual variant.
#
#   bench/vs_torch.sh [OPTION]...      options of bench/vs_torch.py, see --help
#
# Takes the python3 in PYTHON, which must have torch; without it installs TORCH (default: torch) with pip into
# build/torch. On Linux plain `torch` is a download of gigabytes, for NVIDIA's GPUs; a build for CPUs does as well here
# and is smaller: TORCH=torch==2.13.0+cpu, where the package index has it.
set -eu
cd "$(dirname "$0")/.."
[ -x build/hc_bench ] || sh ci/build.sh
if [ -z "${PYTHON:-}" ]; then
    PYTHON=build/torch/bin/python3
    if ! "$PYTHON" -c 'import torch' 2>/dev/null; then
        python3 -m venv build/torch
        "$PYTHON" -m pip install --quiet "${TORCH:-torch}" numpy
    fi
fi
exec "$PYTHON" bench/vs_torch.py "$@"
