#!/bin/sh
# Runs every test: sets up, builds with warnings as errors, and runs all of CTest, and the readers of files also under sanitizers.
set -eu
cd "$(dirname "$0")/.."
sh ci/setup.sh tests
sh ci/build.sh -DCMAKE_COMPILE_WARNING_AS_ERROR=ON
cmake --preset sanitize >/dev/null
cmake --build --preset sanitize --target readers
# One test more than there are cores: ranks wait for one another, and compilers use one core.
parallel=$(($(nproc) + 1))
ctest --test-dir build-sanitize --output-on-failure --parallel "$parallel" --label-regex reader
ctest --test-dir build --output-on-failure --parallel "$parallel"
