#!/bin/sh
# Trains every variant in fp32, bf16 and fp16 on a dictionary (GCIDE) and prints docs/precision.md's table of validation losses:
#
#   bench/precision.sh [OUTPUT]          default out/precision; about an hour on two cores
#
# ITERATIONS (500), SEEDS ("1 2"), VARIANTS (all that hc_train --list-residuals lists), DEVICE (pocl), BUILD (build) in the environment say
# otherwise. Runs that are complete are not run again, those that were interrupted go on. Needs jq, and what ci/demo.sh makes.
set -eu
cd "$(dirname "$0")/.."
out=${1:-out/precision}
iterations=${ITERATIONS:-500}
seeds=${SEEDS:-1 2}
device=${DEVICE:-pocl}
build=${BUILD:-build}

fail() {
    echo "bench/precision.sh: $*" >&2
    exit 1
}

[ -x "$build/hc_train" ] || fail "build first: sh ci/build.sh"
variants=${VARIANTS:-$("$build/hc_train" --list-residuals | cut -d " " -f 1)}
[ -f data/corpus/gcide/meta.json ] || fail "make the corpus first: data/gcide/prepare.sh"
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
            --eval-interval "$iterations" --checkpoint-interval 250 --device "$device" \
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
    for seed in $seeds; do
        for dtype in fp32 bf16 fp16; do
            echo "$variant $dtype $seed $(jq -s 'map(.val_loss // empty) | last' "$out/$variant-$dtype-$seed/metrics.jsonl")"
        done
    done
done | awk -v seeds="$seeds" '
    { loss[$1, $2, $3] = $4; if (!($1 in known)) { known[$1]; row[rows++] = $1 } }
    function furthest(name, type,    i, distance, most) {
        for (i = 1; i <= count; i++) {
            distance = loss[name, type, seed[i]] - loss[name, "fp32", seed[i]]
            distance = distance < 0 ? -distance : distance
            most = distance > most ? distance : most
        }
        return most
    }
    function spread(name,    i, value, low, high) {
        low = high = loss[name, "fp32", seed[1]]
        for (i = 2; i <= count; i++) {
            value = loss[name, "fp32", seed[i]]
            low = value < low ? value : low
            high = value > high ? value : high
        }
        return high - low
    }
    END {
        count = split(seeds, seed, " ")
        head = "| variant |"; rule = "| --- |"
        for (i = 1; i <= count; i++) {
            head = head " fp32, seed " seed[i] " | bf16 | fp16 |"
            rule = rule " --- | --- | --- |"
        }
        print head " seeds apart in fp32 | bf16 from fp32, at most | fp16 from fp32, at most |"
        print rule " --- | --- | --- |"
        for (k = 0; k < rows; k++) {
            name = row[k]
            printf "| %s |", name
            for (i = 1; i <= count; i++)
                printf " %.4f | %.4f | %.4f |", loss[name, "fp32", seed[i]], loss[name, "bf16", seed[i]],
                    loss[name, "fp16", seed[i]]
            printf " %.4f | %.4f | %.4f |\n", spread(name), furthest(name, "bf16"), furthest(name, "fp16")
        }
    }'
