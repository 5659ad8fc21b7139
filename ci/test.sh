#!/bin/sh
# Every test: set-up, build with warnings as errors, all of CTest, and the readers of files under sanitizers.
set -eu
cd "$(dirname "$0")/.."
sh ci/setup.sh tests
sh ci/build.sh -DCMAKE_COMPILE_WARNING_AS_ERROR=ON
cmake --preset sanitize >/dev/null
cmake --build --preset sanitize --target readers
# Much of the tests' time is a compiler's, which uses one core; one more than there are, since ranks wait for one another.
parallel=$(($(nproc) + 1))
# what reads files and parses input, with AddressSanitizer and UndefinedBehaviorSanitizer
ctest --test-dir build-sanitize --output-on-failure --parallel "$parallel" --label-regex reader
ctest --test-dir build --output-on-failure --parallel "$parallel"
