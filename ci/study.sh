#!/bin/sh
# Trains every variant on the demo's corpus, with the same data and several seeds, and makes a report of what the paper shows:
#
#   ci/study.sh [OUTPUT]          default out/study; about an hour on two cores
#
# ITERATIONS (2000), SEEDS ("1 2 3"), VARIANTS ("rc identity hc mhc mhc_lite shc"), DEVICE (pocl) in the environment say otherwise.
# Runs that are complete are not run again, those that were interrupted go on. Needs what ci/demo.sh needs; run that first.
set -eu
cd "$(dirname "$0")/.."
out=${1:-out/study}
iterations=${ITERATIONS:-2000}
seeds=${SEEDS:-1 2 3}
variants=${VARIANTS:-rc identity hc mhc mhc_lite shc}
device=${DEVICE:-pocl}

fail() {
    echo "ci/study.sh: $*" >&2
    exit 1
}

[ -x build/hc_train ] || fail "build first: sh ci/build.sh"
sh data/gcide/prepare.sh data/corpus/gcide build/hc_prepare
mkdir -p "$out"
for seed in $seeds; do
    for variant in $variants; do
        run=$out/$variant-$seed
        [ ! -d "$run/ckpt-$iterations" ] || continue
        printf '\n== %s, seed %s\n' "$variant" "$seed"
        # a run that was interrupted has a checkpoint to go on from; one that has none begins again
        if ls -d "$run"/ckpt-[0-9]* >/dev/null 2>&1; then
            build/hc_train --init-from resume --out-dir "$run" --device "$device"
        else
            rm -rf "$run"
            build/hc_train --config configs/tiny.conf --residual "$variant" --seed "$seed" --max-iters "$iterations" \
                --lr-decay-iters "$iterations" --eval-interval 500 --statistics-interval 50 --device "$device" \
                --data-dir data/corpus/gcide --out-dir "$run" --no-tensorboard
        fi
        [ -d "$run/ckpt-$iterations" ] || fail "$run was interrupted; run this again to go on"
    done
done
set --
for seed in $seeds; do
    for variant in $variants; do
        set -- "$@" "$out/$variant-$seed"
    done
done
build/hc_analyze --out "$out/report" --data-dir data/corpus/gcide --samples 256 --device "$device" "$@"
