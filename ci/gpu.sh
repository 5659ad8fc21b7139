#!/bin/sh
# Runs everything that needs a GPU: the tests on it, the speed of each variant and type, and PyTorch's speed if torch is installed.
#
#   ci/gpu.sh                  about 20 minutes; writes logs, timings and report.md to out/gpu
#
# Settings in the environment, with their defaults: DEVICE (gpu), OUT (out/gpu), STEPS (10), MODEL (configs/M.conf), PYTHON (python3, which may have
# torch) and TORCH_DEVICE (cuda). The roofline estimate is by the GPU's own data sheet if hctrain has it, else by that of ROOFLINE_AS (hc_bench
# --as). Needs what ci/build.sh needs, and the GPU's OpenCL driver. If a check fails, the others still run, and the exit status is 1.
set -eu
cd "$(dirname "$0")/.."
device=${DEVICE:-gpu}
out=${OUT:-out/gpu}
steps=${STEPS:-10}
model=${MODEL:-configs/M.conf}
PYTHON=${PYTHON:-python3}
mkdir -p "$out"

sh ci/build.sh >"$out/build.log" 2>&1 || { tail "$out/build.log" >&2; echo "ci/gpu.sh: cannot build" >&2; exit 1; }
build/hc_devices >"$out/devices.txt"
variants=$(build/hc_train --list-residuals | cut -d " " -f 1 | paste -s -d , -)
: >"$out/checks.txt"

# check NAME COMMAND...: a line of checks.txt, and the command's output in a file of that name
check() {
    name=$1
    shift
    printf '%s ... ' "$name"
    start=$(date +%s)
    if "$@" >"$out/$name.log" 2>&1; then result=passed; else result="failed, exit status $?"; fi
    printf '%s\n' "$result"
    printf '%s\t%s\t%s\t%s\n' "$name" "$result" "$(($(date +%s) - start))" "$*" >>"$out/checks.txt"
}

for dtype in fp32 bf16 fp16; do
    check "operations-$dtype" build/tests/test_operations --device "$device" --dtype "$dtype"
done
check golden build/tests/test_golden "$device"
check gemm env HC_TEST_DEVICE="$device" build/tests/test_gemm
check attention build/tests/test_attention "$device"
check emulated-matrix-cores build/tests/test_mma "$device"
# opens them, and is refused with a reason where they do not compute what they should
check matrix-cores build/hc_bench --config "$model" --device "$device" --gemm mma --dtype bf16 --gradient-accumulation-steps 1 --steps 2
for dtype in fp32 bf16 fp16; do
    check "bench-$dtype" "$PYTHON" bench/compare.py "$variants" --config "$model" --device "$device" --dtype "$dtype" \
        --gradient-accumulation-steps 1 --steps "$steps" --json "$out/bench-$dtype.json"
done
# Each kernel by the clock, and by the roofline estimate of the device's own data sheet or that of ROOFLINE_AS. Without either the roofline estimate is left
# out, which is no failure.
roofline() {
    build/hc_bench --config "$model" --device "$device" --dtype bf16 --gradient-accumulation-steps 1 --roofline "$@" >"$out/roofline.log" 2>&1
}
rm -f "$out"/roofline-*.json
for residual in rc shc; do
    check "profile-$residual" build/hc_bench --config "$model" --device "$device" --dtype bf16 --gradient-accumulation-steps 1 \
        --residual "$residual" --steps "$steps" --profile --json "$out/profile-$residual.json"
    roofline --residual "$residual" --json "$out/roofline-$residual.json" ||
        roofline --residual "$residual" --json "$out/roofline-$residual.json" --as "${ROOFLINE_AS:-}" ||
        echo "roofline-$residual ... left out: $(cat "$out/roofline.log")"
done
if "$PYTHON" -c 'import torch' 2>/dev/null; then
    for dtype in fp32 bf16; do
        check "torch-$dtype" "$PYTHON" bench/vs_torch.py --device "$device" --torch-device "${TORCH_DEVICE:-cuda}" --dtype "$dtype" \
            --batch-size 8 --json "$out/torch-$dtype.json"
    done
fi
python3 bench/gpu_report.py "$out" "${DOCUMENT:-$out/report.md}"
! grep -q failed "$out/checks.txt"
