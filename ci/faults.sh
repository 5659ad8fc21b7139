#!/bin/sh
# Every call of the programs fails in turn: all of tests/faults/sweep.py, for hours; further arguments go to it.
#   sh ci/faults.sh [--groups opencl,mpi] [--every 8] [SCENARIO...]
# Calls for memory fail in programs under the sanitizers, too. Figures go to build/faults.json and build-sanitize/faults.json.
set -eu
cd "$(dirname "$0")/.."
sh ci/build.sh
cmake --preset sanitize >/dev/null
cmake --build --preset sanitize --target readers
status=0
python3 tests/faults/sweep.py --build build --report build/faults.json "$@" || status=1
python3 tests/faults/sweep.py --build build-sanitize --report build-sanitize/faults.json "$@" --groups memory || status=1
exit $status
