#!/bin/sh
# ci/test.sh [all]: sets up, builds with warnings as errors, and runs the tests, those of readers of files also under sanitizers. `all`
# adds what takes long and hardly ever finds what the others miss (the label `long`), which must pass before a release.
set -eu
cd "$(dirname "$0")/.."
case $# in
0) left_out='--label-exclude long' ;;
*) [ "$*" = all ] || { echo "usage: ci/test.sh [all]" >&2; exit 2; }
   left_out= ;;
esac
sh ci/setup.sh tests
sh ci/build.sh -DCMAKE_COMPILE_WARNING_AS_ERROR=ON
cmake --preset sanitize >/dev/null
cmake --build --preset sanitize --target readers
# Tests find no idle core.
export HCTRAIN_BACKGROUND_COMPILE=0
# PoCL finds a faster `ld` there: tests/support/kernel_linker.c.
export COMPILER_PATH="$PWD/build/tests/linker"
# One test more than there are cores: ranks wait for one another, and compilers use one core.
parallel=$(($(nproc) + 1))
ctest --test-dir build-sanitize --output-on-failure --parallel "$parallel" --label-regex reader
# shellcheck disable=SC2086 # two words, or none
ctest --test-dir build --output-on-failure --parallel "$parallel" $left_out
