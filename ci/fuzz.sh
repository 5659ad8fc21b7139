#!/bin/sh
# Fuzzes all readers of files side by side for so many minutes in all; then minimizes the corpora, and reports how much of each reader is reached.
#   sh ci/fuzz.sh [MINUTES, or 0: only the report] [NAME of tests/fuzz/readers.txt...]
# In build-fuzz/: corpus/NAME grows from run to run, minimal/NAME is the smallest corpus that reaches as much, findings/ has inputs that
# failed. Exit status 1 after a finding.
set -eu
cd "$(dirname "$0")/.."
minutes=${1:-60}
[ $# -eq 0 ] || shift
names=${*:-$(sed -n 's/^\([a-z_]*\) *|.*/\1/p' tests/fuzz/readers.txt)}
# shellcheck disable=SC2086  # words are wanted
count=$(echo $names | wc -w)
jobs=$(nproc)
[ "$jobs" -le "$count" ] || jobs=$count
export seconds=$((minutes * 60 * jobs / count))

CC=clang cmake -G Ninja -B build-fuzz -DCMAKE_BUILD_TYPE=RelWithDebInfo -DHC_FUZZ=ON >/dev/null
cmake --build build-fuzz --target fuzzers
[ -x build-fuzz/tests/fuzz/fuzz_spirv ] || names=$(echo "$names" | sed 's/spirv//') # without Vulkan's headers
mkdir -p build-fuzz/findings
if [ "$seconds" -gt 0 ]; then
    echo "$count readers, $jobs at a time, $seconds s each"
fi

# One reader: fuzzed, then minimised.
cat >build-fuzz/one.sh <<'END'
fuzzer=build-fuzz/tests/fuzz/fuzz_$1
mkdir -p "build-fuzz/corpus/$1"
status=0
if [ "$seconds" -gt 0 ]; then
    "$fuzzer" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=4096 -max_len=16384 -print_final_stats=1 -close_fd_mask=1 \
        -artifact_prefix="build-fuzz/findings/$1-" "build-fuzz/corpus/$1" "tests/fuzz/corpus/$1" >"build-fuzz/$1.log" 2>&1 || status=1
    executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "build-fuzz/$1.log")
    echo "$1: ${executed:-?} inputs, $([ $status -eq 0 ] && echo no finding || echo "A FINDING: see build-fuzz/$1.log and build-fuzz/findings")"
fi
rm -rf "build-fuzz/minimal/$1"
mkdir -p "build-fuzz/minimal/$1"
"$fuzzer" -merge=1 -timeout=30 -rss_limit_mb=4096 -max_len=16384 -close_fd_mask=1 "build-fuzz/minimal/$1" "tests/fuzz/corpus/$1" "build-fuzz/corpus/$1" \
    >"build-fuzz/$1.merge.log" 2>&1 || status=1
exit $status
END
status=0
echo "$names" | tr ' ' '\n' | xargs -P "$jobs" -n 1 sh build-fuzz/one.sh || status=1

CC=clang cmake -G Ninja -B build-coverage -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS="-fprofile-instr-generate -fcoverage-mapping" >/dev/null
cmake --build build-coverage --target replays
for name in $names; do
    replay=build-coverage/tests/fuzz/replay_$name
    LLVM_PROFILE_FILE=build-coverage/$name.profraw "$replay" "build-fuzz/minimal/$name" >/dev/null 2>&1 || status=1
    llvm-profdata merge -o "build-coverage/$name.profdata" "build-coverage/$name.profraw"
    files=$(sed -n "s/^$name *| *//p" tests/fuzz/readers.txt)
    # columns of the report: ... lines, lines missed, share of lines
    # shellcheck disable=SC2086  # words are wanted
    llvm-cov report "$replay" -instr-profile="build-coverage/$name.profdata" $files |
        awk -v name="$name" '$1 == "TOTAL" { print name ": " $10 " of " $8 " lines" ($10 + 0 < 90 ? ", less than 90 %" : "") }'
done
exit $status
