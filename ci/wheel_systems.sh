#!/bin/sh
# ci/wheel_systems.sh [FOLDER]: the wheel that ci/wheel.sh has made in build/wheel, in a bare Debian 12 and a bare Debian 13 with Python,
# by a user without root: installs it with pip and an OpenCL driver for CPUs from PyPI, and runs what README.md says about one's own text,
# with fewer iterations. debootstrap or mmdebstrap makes the systems in FOLDER/bookworm and FOLDER/trixie; those of an earlier run are used again.
#
# Prints ok with the seconds, or FAILED with the end of the log, and what pip has installed. Exit status: 1 if something failed. Needs root, PyPI
# and ten minutes. Without FOLDER the systems are in a temporary folder, which is removed at the end.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
certificates=/etc/ssl/certs/ca-certificates.crt
log=$(mktemp)
systems=${1:-}
failed=0
if [ -n "$systems" ]; then
    trap 'rm -f "$log"' EXIT
else
    systems=$(mktemp -d)
    trap 'rm -rf --one-file-system "$systems" "$log"' EXIT
fi
trap 'exit 130' INT TERM HUP

fail() {
    echo "ci/wheel_systems.sh: $*" >&2
    exit 1
}

# inside USER LINE: runs a line of shell in the system, in the home of the user, with nothing of this environment. Its mounts end with it.
inside() {
    # shellcheck disable=SC2016  # the inner shell expands these
    unshare --mount --pid --fork --kill-child sh -c '
        mount -t proc proc "$0/proc" && mount --rbind /sys "$0/sys" && mount --rbind /dev "$0/dev" && mount -t tmpfs -o mode=1777 tmpfs "$0/dev/shm" &&
        exec chroot --userspec="$1" "$0" env -i PATH=/home/reader/venv/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/home/reader LANG=C.UTF-8 \
            sh -c "cd /home/reader; [ ! -f certificates.crt ] || export PIP_CERT=~/certificates.crt; $2"' "$system" "$1" "$2"
}

# try LINE: whether the line succeeds for the user.
try() {
    begin=$(date +%s)
    if inside reader:reader "$1" >"$log" 2>&1; then
        echo "ok        $release: $1, $(($(date +%s) - begin)) s"
    else
        tail -n 20 "$log"
        echo "FAILED    $release: $1"
        failed=1
    fi
}

make_system() {
    if [ ! -f "$system/etc/debian_version" ]; then
        maker=$(command -v debootstrap || command -v mmdebstrap) || fail "needs the package debootstrap or mmdebstrap"
        "$maker" --variant=minbase --include=python3,python3-venv "$release" "$system" >"$log" 2>&1 || fail "cannot make a system in $system: $(tail -n 5 "$log")"
    fi
    rm -rf "$system/home/reader"
    chroot "$system" id reader >"$log" 2>&1 || chroot "$system" useradd --shell /bin/sh reader
    mkdir -p "$system/home/reader"
    [ ! -f "$certificates" ] || cp "$certificates" "$system/home/reader/certificates.crt" # pip needs those of a proxy
    cp "$wheel" "$system/home/reader"
    for name in notes book chapter; do
        cat "$root"/docs/*.md >"$system/home/reader/$name.txt"
    done
    chroot "$system" chown -R reader:reader /home/reader
}

[ "$(id -u)" -eq 0 ] || fail "needs root, to make a system in which it has none"
wheel=$(echo "$root"/build/wheel/hctrain-*.whl)
[ -f "$wheel" ] || fail "there is no wheel in build/wheel; ci/wheel.sh makes one"
ls -l "$wheel"
short="--max-iters 40 --eval-interval 20 --eval-batches sampled --eval-iters 2"
shc=out/mine/residual=shc,seed=1/ckpt-best
for release in bookworm trixie; do
    system=$systems/$release
    mkdir -p "$system"
    make_system
    try "python3 -m venv venv"
    try "pip install --no-cache-dir './$(basename "$wheel")[cpu,plots]'"
    inside reader:reader "pip list 2>/dev/null; du -sh venv; hc_train --version; hc_devices"
    try "hc_prepare --out data/mine notes.txt book.txt"
    try "hc_train --config configs/tiny.conf --data-dir data/mine --out-dir out/one $short"
    try "mpirun -np 2 --oversubscribe hc_train --config configs/tiny.conf --data-dir data/mine --out-dir out/two --gradient-accumulation-steps 2 $short"
    try "hc_sweep --config configs/tiny.conf --data-dir data/mine --vary residual=rc,identity,shc --seeds 1,2,3 --out out/mine $short"
    try "hc_analyze --out report --data-dir data/mine out/mine"
    try "hc_sample --checkpoint $shc --prompt Once"
    try "hc_eval --checkpoint $shc chapter.txt"
    try "hc_export --checkpoint $shc --format torch --out exported"
    try "hc_bench --config configs/tiny.conf --steps 2"
    try "python3 -c 'import hctrain; print(hctrain.read_run(\"out/one\").summary)'"
done
exit $failed
