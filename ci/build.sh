#!/bin/sh
# Builds the release preset in build/; arguments go to CMake. ci/demo.sh calls it, and ci/test.sh with warnings as errors.
set -eu
cd "$(dirname "$0")/.."
cmake --preset release "$@" >build-configure.log 2>&1 || {
    cat build-configure.log >&2
    exit 1
}
rm -f build-configure.log
cmake --build --preset release
