#!/bin/sh
# ci/systems.sh [FOLDER]: hctrain in a bare Debian 13, whose drivers and compilers are newer than Debian 12's. debootstrap or mmdebstrap makes
# the system in FOLDER; ci/setup.sh and ci/build.sh run in it; then all operations and the training of a small model are tested on each of
# its drivers. Mesa's OpenCL driver for AMD GPUs runs on GPUs that execute nothing (mesa-drm-shim): results are wrong, but all kernels are
# compiled for them, and all that a step consists of is enqueued. Last, kernels are compiled by the compilers of ci/portability.py.
#
# Prints ok, FAILED with the end of the log, or "not there" with what is missing. Exit status: 1 if something failed. Needs root and a quarter
# of an hour. If FOLDER has a system from an earlier run, that one is used. Without FOLDER it is a temporary folder, which is removed at the end.
# RELEASE (environment) is another release of Debian than trixie.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
certificates=/etc/ssl/certs/ca-certificates.crt
release=${RELEASE:-trixie}
log=$(mktemp)
system=${1:-}
failed=0
if [ -n "$system" ]; then
    trap 'rm -f "$log"' EXIT
else
    system=$(mktemp -d)
    trap 'rm -rf --one-file-system "$system" "$log"' EXIT
fi

trap 'exit 130' INT TERM HUP

fail() {
    echo "ci/systems.sh: $*" >&2
    exit 1
}

# Runs a line of shell in the system, in its copy of the checkout, with nothing of this environment. Its mounts end with it.
inside() {
    # shellcheck disable=SC2016  # the inner shell expands these
    unshare --mount --pid --fork --kill-child sh -c '
        mount -t proc proc "$0/proc" && mount -t sysfs sysfs "$0/sys" && mount --rbind /dev "$0/dev" && mount -t tmpfs tmpfs "$0/dev/shm" &&
        exec chroot "$0" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
            sh -c "[ ! -f /root/certificates.crt ] || export PIP_CERT=/root/certificates.crt; cd /root/hctrain && $1"' "$system" "$1"
}

# try TITLE LINE [PATTERN]: whether a line of shell succeeds in the system, or fails and prints what the pattern matches.
try() {
    begin=$(date +%s)
    inside "$2" >"$log" 2>&1 && status=0 || status=$?
    if { [ $# -eq 2 ] && [ "$status" -eq 0 ]; } || { [ $# -eq 3 ] && [ "$status" -eq 1 ] && grep -q "$3" "$log"; }; then
        echo "ok        $1, $(($(date +%s) - begin)) s"
        return
    fi
    tail -n 20 "$log"
    echo "FAILED    $1, exit status $status"
    failed=1
}

# Whether the system has a file, whose name may be a pattern.
has() {
    # shellcheck disable=SC2086  # the pattern is to be expanded
    [ -n "$(find "$system"/$1 2>/dev/null)" ]
}

# try_driver NAME FILE DEVICE [VARIABLE=VALUE...]: a driver, which is there if the file is.
try_driver() {
    name=$1 file=$2 device=$3
    shift 3
    if ! has "$file"; then
        echo "not there $name: no $file"
        return
    fi
    try "$name: operations" "$* build/tests/test_operations --device $device --tiny"
    try "$name: passes and training of a model" "$* build/tests/test_golden $device 'shc_n4*_with_own'"
}

# The same by rusticl on a GPU that executes nothing. Both tests come to their end only if all launches have been enqueued. (Our driver
# on RADV cannot be tested so: the semaphores for which it waits never change there.)
try_nothing() {
    line="LD_PRELOAD=libamdgpu_noop_drm_shim.so AMDGPU_GPU_ID=$1 RUSTICL_ENABLE=radeonsi"
    try "rusticl on a $1 that executes nothing: operations in bf16 are compiled and enqueued" \
        "$line build/tests/test_operations --device rusticl --tiny --dtype bf16" '^\([1-9][0-9]*\) cases, \1 failed'
    try "rusticl on a $1 that executes nothing: steps of training are compiled and enqueued" \
        "$line build/tests/test_golden rusticl 'shc_n4_training_agrees_with_own'" 'ERROR: losses: error'
}

[ "$(id -u)" -eq 0 ] || fail "needs root"
if ! has etc/debian_version; then
    maker=$(command -v debootstrap || command -v mmdebstrap) || fail "needs the package debootstrap or mmdebstrap"
    "$maker" --variant=minbase "$release" "$system" >"$log" 2>&1 || {
        tail -n 20 "$log"
        fail "cannot make a system in $system"
    }
fi
[ ! -f "$certificates" ] || cp "$certificates" "$system/root/certificates.crt" # pip needs those of a proxy
mkdir -p "$system/root/hctrain"
git -C "$root" archive HEAD | tar -xm -C "$system/root/hctrain"

try "ci/setup.sh tests" "sh ci/setup.sh tests"
try "ci/build.sh" "sh ci/build.sh"
[ $failed -eq 0 ] || exit 1

try "the wheel is made, installed and used" "python3 tests/wheel/run_wheel.py build"
try_driver "PoCL" etc/OpenCL/vendors/pocl.icd pocl
try_driver "rusticl on llvmpipe" etc/OpenCL/vendors/rusticl.icd rusticl RUSTICL_ENABLE=llvmpipe
try_driver "our driver on lavapipe" 'usr/share/vulkan/icd.d/lvp_icd*.json' vulkan
inside "apt-get install -y -q --no-install-recommends mesa-drm-shim" >"$log" 2>&1 || true
if has 'usr/lib/*/libamdgpu_noop_drm_shim.so'; then
    for gpu in vega10 navi21 navi31 gfx1150; do
        try_nothing $gpu
    done
else
    echo "not there rusticl on AMD GPUs that execute nothing: no package mesa-drm-shim"
fi

for set in hot matrix_cores; do
    try "compilers, $set" "python3 ci/portability.py --set $set"
    sed -n 's/^\(.*\): SKIPPED: /not there \1: /p' "$log"
done
exit $failed
