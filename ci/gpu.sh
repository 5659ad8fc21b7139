#!/bin/sh
# Everything there is to learn from a GPU that is borrowed for ten minutes or an hour, in steps (bench/gpu_steps.py):
#
#   devices, compile, self-tests, golden, profile, torch, gemm, bits, speed
#
#   ci/gpu.sh                                          at most an hour; writes report.md, logs and timings to out/gpu
#   MINUTES=10 ci/gpu.sh                               at most ten minutes
#   MINUTES=5 ONLY="torch gemm" ci/gpu.sh              these steps anew; the report keeps the others
#
# The time to build counts. Each step has a share of the time as its limit, and leaves what it does not need to the later ones. The report is
# written anew after each command, so that there is one if the lease ends early. If a command fails, the report has its first error, the
# kernel and the smallest case that fails, and the next one goes on. Exit status: 0 if no command failed, else 1.
#
# Settings in the environment, with their defaults: MINUTES (60), ONLY (all steps), DEVICE (gpu), OUT (out/gpu), STEPS (20; of a
# training run that is timed), MODEL (configs/M.conf), RESIDUALS (all of hc_train --list-residuals), PYTHON (python3, which may have torch)
# and TORCH_DEVICE (cuda). The roofline estimate is by the GPU's own data sheet if hctrain has it; ROOFLINE_AS (hc_bench --as) chooses
# another. TINY=1 is for simulators: the smallest cases alone. Kernels are compiled anew unless OUT has a folder `cache` of an earlier call.
#
# BUILD is a folder with programs that are already built, such as `build`, with its tests, which look for tests/golden where it was then;
# without BUILD ci/build.sh builds them, and needs what it needs. Where packages such as CLBlast cannot be installed, LD_LIBRARY_PATH names
# the folder of their libraries. The GPU's OpenCL driver must be installed.
set -eu
cd "$(dirname "$0")/.."
out=${OUT:-out/gpu}
mkdir -p "$out"
GPU_SH_BEGAN=$(date +%s)
export GPU_SH_BEGAN
# Containers have NVIDIA's OpenCL driver, but often not the file by which OpenCL finds it.
if [ -z "${OCL_ICD_VENDORS:-}" ] && ldconfig -p 2>/dev/null | grep -q 'libnvidia-opencl\.so\.1' &&
    ! grep -qs nvidia /etc/OpenCL/vendors/*.icd; then
    vendors=$(cd "$out" && pwd)/vendors/
    mkdir -p "$vendors"
    cp /etc/OpenCL/vendors/*.icd "$vendors" 2>/dev/null || true
    echo libnvidia-opencl.so.1 >"$vendors/nvidia.icd"
    export OCL_ICD_VENDORS="$vendors"
fi
if [ -z "${BUILD:-}" ]; then
    sh ci/build.sh >"$out/build.log" 2>&1 || {
        tail "$out/build.log" >&2
        echo "ci/gpu.sh: cannot build; the end of $out/build.log is above" >&2
        exit 1
    }
fi
exec "${PYTHON:-python3}" bench/gpu_steps.py "${BUILD:-build}" "$out"
