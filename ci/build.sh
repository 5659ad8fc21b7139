#!/bin/sh
# Builds the release preset in build/; arguments go to CMake. Called by ci/demo.sh and, with warnings as errors, by ci/test.sh:
# a compiler that is newer than those we tried may warn of more, which is no reason to stop a user.
set -eu
cd "$(dirname "$0")/.."
cmake --preset release "$@" >build-configure.log 2>&1 || {
    cat build-configure.log >&2
    exit 1
}
rm -f build-configure.log
cmake --build --preset release
