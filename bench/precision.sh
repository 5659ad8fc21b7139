#!/bin/sh
# Trains every variant in fp32, bf16 and fp16 on the demo's corpus and prints docs/precision.md's table of validation losses:
#
#   bench/precision.sh [OUTPUT]          default out/precision; about an hour on two cores
#
# ITERATIONS (500), SEEDS ("1 2"), VARIANTS ("rc identity hc mhc mhc_lite shc"), DEVICE (pocl), BUILD (build) in the environment say
# otherwise. Runs that are complete are not run again, those that were interrupted go on. Needs jq, and what ci/demo.sh makes.
set -eu
cd "$(dirname "$0")/.."
out=${1:-out/precision}
iterations=${ITERATIONS:-500}
seeds=${SEEDS:-1 2}
variants=${VARIANTS:-rc identity hc mhc mhc_lite shc}
device=${DEVICE:-pocl}
build=${BUILD:-build}

fail() {
    echo "bench/precision.sh: $*" >&2
    exit 1
}

[ -x "$build/hc_train" ] || fail "build first: sh ci/build.sh"
[ -f data/corpus/gcide/meta.json ] || fail "make the corpus first: sh ci/demo.sh"
mkdir -p "$out"

# train VARIANT DTYPE SEED
train() {
    run=$out/$1-$2-$3
    [ ! -d "$run/ckpt-$iterations" ] || return 0
    printf '\n== %s in %s, seed %s\n' "$1" "$2" "$3"
    # a run that was interrupted has a checkpoint to go on from; one that has none begins again
    if ls -d "$run"/ckpt-[0-9]* >/dev/null 2>&1; then
        "$build/hc_train" --init-from resume --out-dir "$run" --device "$device"
    else
        rm -rf "$run"
        "$build/hc_train" --config configs/tiny.conf --residual "$1" --dtype "$2" --seed "$3" --max-iters "$iterations" \
            --lr-decay-iters "$iterations" --eval-interval "$iterations" --checkpoint-interval 250 --device "$device" \
            --data-dir data/corpus/gcide --out-dir "$run" --no-tensorboard
    fi
    [ -d "$run/ckpt-$iterations" ] || fail "$run was interrupted; run this again to go on"
}

for seed in $seeds; do
    for variant in $variants; do
        for dtype in fp32 bf16 fp16; do
            train "$variant" "$dtype" "$seed"
        done
    done
done

# "variant dtype seed loss" for each run, then a row per variant
for variant in $variants; do
    for dtype in fp32 bf16 fp16; do
        for seed in $seeds; do
            echo "$variant $dtype $seed $(jq -s 'map(.val_loss // empty) | last' "$out/$variant-$dtype-$seed/metrics.jsonl")"
        done
    done
done | awk '
    { loss[$1, $2, $3] = $4; sum[$1, $2] += $4; if (!($1 in known)) { known[$1]; row[rows++] = $1 }; seed[$3] }
    $2 == "fp32" { count[$1]++; if (count[$1] == 1 || $4 < low[$1]) low[$1] = $4; if ($4 > high[$1]) high[$1] = $4 }
    function furthest(name, type,    s, distance, most) {
        for (s in seed) {
            distance = loss[name, type, s] - loss[name, "fp32", s]
            distance = distance < 0 ? -distance : distance
            most = distance > most ? distance : most
        }
        return most
    }
    END {
        print "| variant | fp32 | bf16 | fp16 | spread of seeds in fp32 | bf16 from fp32, at most | fp16 from fp32, at most |"
        print "| --- | --- | --- | --- | --- | --- | --- |"
        for (i = 0; i < rows; i++) {
            name = row[i]
            printf "| %s | %.4f | %.4f | %.4f | %.4f | %.4f | %.4f |\n", name, sum[name, "fp32"] / count[name],
                sum[name, "bf16"] / count[name], sum[name, "fp16"] / count[name], high[name] - low[name],
                furthest(name, "bf16"), furthest(name, "fp16")
        }
    }'
