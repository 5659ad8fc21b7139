#!/bin/sh
# The paper's model M with shc on eight GPUs of this host. Run it again to resume after an interruption.
#
#   data/openwebtext/prepare.sh          # once: the data, 18 GB
#   examples/one_host.sh [OUTPUT_DIR]
#
# `pkill -USR1 hc_train` saves a checkpoint and stops. Ctrl-C does, too, where a checkpoint takes less than the 30 seconds given here.
set -eu
out=${1:-out/M-shc}

set -- --device gpu --out-dir "$out"
if ls -d "$out"/ckpt-[0-9]* >/dev/null 2>&1; then
    set -- "$@" --init-from resume
else
    set -- "$@" --config configs/M.conf --config configs/openwebtext.conf --residual shc
fi
exec mpirun -np 8 --mca odls_base_sigkill_timeout 30 build/hc_train "$@"
