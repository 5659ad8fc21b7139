#!/bin/sh
# The paper's model M with shc on two hosts of eight GPUs each, which reach one another by SSH without a password. Both need this
# folder, built alike, and the same token files, at the same paths; only the first one writes.
#
#   examples/two_hosts.sh node-a node-b [OUTPUT_DIR]
set -eu
[ $# -ge 2 ] || {
    echo "usage: examples/two_hosts.sh HOST HOST [OUTPUT_DIR]" >&2
    exit 2
}
hosts=$1:8,$2:8
out=${3:-out/M-shc}

set -- --device gpu --out-dir "$out"
if ls -d "$out"/ckpt-[0-9]* >/dev/null 2>&1; then
    set -- "$@" --init-from resume
else
    set -- "$@" --config configs/M.conf --config configs/openwebtext.conf --residual shc
fi
exec mpirun -np 16 --host "$hosts" --mca odls_base_sigkill_timeout 30 build/hc_train "$@"
