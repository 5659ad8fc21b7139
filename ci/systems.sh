#!/bin/sh
# The README's two commands, and the Debian package, in systems where nothing is installed yet: debootstrap makes each in a folder of its
# own, this checkout's HEAD is cloned into it, and both commands run there as root; then the package that is built there is installed in
# another bare system and trains.
#
#   sudo sh ci/systems.sh [RELEASE[/ARCHITECTURE]...]        default: bookworm trixie (Debian 12 and 13)
#
# With an architecture that is not this machine's, such as bookworm/arm64, every program is emulated (needs qemu-user-static and binfmt_misc),
# which is slow: set-up, build, and of the tests those of kernels, golden cases and files.
#
# SYSTEMS (environment) is where they go; default /var/tmp/hctrain-systems, 15 GB each. Logs are RELEASE-demo.log and so on in it. MIRROR is
# debootstrap's (its default: Debian's). Needs debootstrap and an hour a release. What is there from an earlier time is removed first.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
systems=${SYSTEMS:-/var/tmp/hctrain-systems}
certificates=/etc/ssl/certs/ca-certificates.crt
emulated_tests='^(operations_pocl|test_(golden|spectral_norm|files|input|safetensors|tokenizer|random)|replay_.*)$'

fail() {
    echo "ci/systems.sh: $*" >&2
    exit 1
}

# All that is mounted in a system.
leave() {
    for place in dev/shm dev sys proc; do
        ! mountpoint -q "$1/$place" || umount "$1/$place"
    done
}

# A bare system in a folder, of this machine's architecture if none is given.
make_system() {
    release=$1 folder=$2 architecture=${3:-}
    leave "$folder"
    rm -rf --one-file-system "$folder"
    debootstrap --variant=minbase ${architecture:+"--arch=$architecture"} "$release" "$folder" ${MIRROR:+"$MIRROR"} >"$folder.log" 2>&1 ||
        fail "cannot make $folder; see $folder.log"
    mount -t proc proc "$folder/proc"
    mount -t sysfs sysfs "$folder/sys" # where hwloc finds the processors
    mount --bind /dev "$folder/dev"
    mount -t tmpfs tmpfs "$folder/dev/shm"
    # behind a proxy with certificates of its own pip needs them
    [ ! -f "$certificates" ] || cp "$certificates" "$folder/root/certificates.crt"
}

# Runs a line of shell in a system, in the given folder of it, with nothing of this one's environment.
# shellcheck disable=SC2317,SC2329  # by way of step, below
inside() {
    chroot "$1" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
        DEBIAN_FRONTEND=noninteractive sh -c \
        "[ ! -f /root/certificates.crt ] || export PIP_CERT=/root/certificates.crt; cd '$2' && $3"
}

# A step with its log; says how it went.
step() {
    name=$1
    shift
    begin=$(date +%s)
    if "$@" >"$systems/$name.log" 2>&1; then
        echo "$name: ok after $(($(date +%s) - begin)) s"
    else
        echo "$name: FAILED, see $systems/$name.log"
        failures=$((failures + 1))
    fi
}

# The two commands in a fresh system, and the package in another.
try_release() {
    make_system "$1" "$full"
    git clone -q "$root" "$full/root/hctrain"
    step "$1-demo" inside "$full" /root/hctrain "sh ci/demo.sh"
    step "$1-test" inside "$full" /root/hctrain "sh ci/test.sh"
    grep -h "tests passed" "$systems/$1-test.log" || true
    step "$1-package" inside "$full" /root/hctrain/build "cpack"
    make_system "$1" "$bare"
    cp "$full"/root/hctrain/build/hctrain_*.deb "$bare/root/" || return 0 # that step has failed, as was said
    step "$1-install" inside "$bare" /root "apt-get update -q && apt-get install -y -q --no-install-recommends ./hctrain_*.deb"
    step "$1-train" inside "$bare" /root "/usr/share/hctrain/data/shakespeare/prepare.sh data &&
        hc_train --config /usr/share/hctrain/configs/shakespeare_char_cpu.conf --residual shc --data-dir data --out-dir run --max-iters 60 --eval-interval 30 --eval-iters 5 &&
        hc_sample --checkpoint run/ckpt-best --max-new-tokens 50"
}

# Set-up, build and the tests that are not too slow in a fresh system of another architecture.
try_architecture() {
    make_system "$1" "$full" "$2"
    git clone -q "$root" "$full/root/hctrain"
    step "$1-$2-setup" inside "$full" /root/hctrain "sh ci/setup.sh"
    step "$1-$2-build" inside "$full" /root/hctrain "sh ci/build.sh"
    step "$1-$2-test" inside "$full" /root/hctrain "ctest --test-dir build --output-on-failure --timeout 7200 --tests-regex '$emulated_tests'"
    grep -h "tests passed" "$systems/$1-$2-test.log" || true
}

[ "$(id -u)" -eq 0 ] || fail "needs root"
command -v debootstrap >/dev/null || fail "needs debootstrap (a package of that name)"
[ $# -gt 0 ] || set -- bookworm trixie
mkdir -p "$systems"
failures=0
for system in "$@"; do
    release=${system%%/*}
    full=$systems/$(echo "$system" | tr / -) bare=$systems/$release-bare
    trap 'leave "$full"; leave "$bare"' EXIT
    trap 'exit 130' INT TERM HUP
    case $system in
    */*) try_architecture "$release" "${system#*/}" ;;
    *) try_release "$release" ;;
    esac
    leave "$full"
    leave "$bare"
done
exit $((failures > 0))
