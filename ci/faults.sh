#!/bin/sh
# Makes every call of the programs fail in turn (tests/faults/sweep.py), which takes hours; further arguments go to the sweep.
#   sh ci/faults.sh [--groups opencl,mpi] [--every 8] [SCENARIO...]
# Calls for memory also fail in programs under the sanitizers. Results go to build/faults.json and build-sanitize/faults.json.
set -eu
cd "$(dirname "$0")/.."
sh ci/build.sh
cmake --preset sanitize >/dev/null
cmake --build --preset sanitize --target readers
status=0
python3 tests/faults/sweep.py --build build --report build/faults.json "$@" || status=1
python3 tests/faults/sweep.py --build build-sanitize --report build-sanitize/faults.json "$@" --groups memory || status=1
exit $status
