#!/bin/sh
# ci/emulated.sh [BUILD]: all tests on emulated GPUs (docs/notes/emulated_gpus.md), of which ci/test.sh runs a part: every operation in
# every type on GPUs of three vendors, with lanes in step and out of step; GEMM and attention on all matrix cores; whole models; training
# beside PoCL's; all faults that can be planted. Half an hour on two busy cores. BUILD: a folder that ci/build.sh has built, `build` if it
# is left out.
set -eu
build=$(cd "${1:-build}" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# run TITLE COMMAND...: one line if it succeeds, all that it prints if not.
run() {
  title=$1
  shift
  if OCL_ICD_VENDORS=$build/tests/emulator/vendors/ "$@" >"$log" 2>&1; then
    echo "ok      $title"
  else
    cat "$log"
    echo "FAILED  $title"
    failed=1
  fi
}

failed=0
for seed in 0 1 2; do
  export EMULATED_GPU_SEED=$seed
  for device in sm_80 gfx90a Arc; do
    for type in fp32 bf16 fp16; do
      run "operations, $device, $type, seed $seed" "$build/tests/test_operations" --device $device --tiny --dtype $type
    done
  done
  for device in sm_80 gfx908 gfx90a gfx1100 gfx1201 Arc Max; do
    run "matrix cores, $device, seed $seed" "$build/tests/test_emulated_gpu" $device
  done
done
unset EMULATED_GPU_SEED
for device in sm_80 gfx1100; do
  run "whole models, $device" "$build/tests/test_golden" $device '*_with_own'
done
HCTRAIN_PROGRAMS=$build HC_WHOLE_TESTS=1 python3 "$here/../tests/emulator/train_emulated.py" || failed=1
python3 "$here/../tests/emulator/planted_faults.py" "$build" --all || failed=1
exit $failed
