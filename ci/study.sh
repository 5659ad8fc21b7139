#!/bin/sh
# Trains every variant on the dictionary GCIDE with several seeds, and writes hc_analyze's report:
#
#   ci/study.sh [OUTPUT]               default out/study; about an hour on two cores
#   ci/study.sh --budget fair          hc_sweep with configs/fair.sweep, and the losses of its runs in bench/fair.tsv; also nanogpt, modern, s2hc,
#                                      adapters, depth_6, depth_24, depth_48, and depth, these three in turn. Other options go to hc_sweep (--jobs,
#                                      --vary residual=rc,mudd, --seeds, --table); bench/tables.py fair --write puts the table into docs/study.md
#
# Settings in the environment, with their defaults: ITERATIONS (2000), SEEDS ("1 2 3"), VARIANTS (all of hc_train --list-residuals), DEVICE (pocl). With
# --budget only DEVICE is used. Complete runs are not repeated, interrupted ones are resumed. Run ci/demo.sh first, which builds the programs.
set -eu
cd "$(dirname "$0")/.."
out=${1:-out/study}
iterations=${ITERATIONS:-2000}
seeds=${SEEDS:-1 2 3}
device=${DEVICE:-pocl}

fail() {
    echo "ci/study.sh: $*" >&2
    exit 1
}

[ -x build/hc_train ] || fail "build first: sh ci/build.sh"
if [ "${1:-}" = --budget ]; then
    budget=${2:-}
    case $budget in
    nanogpt | modern | s2hc) corpus=shakespeare ;;
    adapters)
        corpus=shakespeare
        sh data/gcide/prepare.sh data/corpus/gcide build/hc_prepare
        [ -d out/adapters_base/ckpt-2000 ] || nice -n 19 build/hc_train --config configs/adapters.conf --data-dir data/corpus/gcide --device "$device" \
            --out-dir out/adapters_base --start-over
        ;;
    fair | depth_6 | depth_24 | depth_48) corpus=gcide ;;
    depth)
        shift 2
        status=0
        for layers in 24 6 48; do
            sh ci/study.sh --budget "depth_$layers" "$@" || status=$?
            [ "$status" -ne 130 ] || break # stopped
        done
        exit "$status"
        ;;
    *) fail "--budget needs nanogpt, modern, s2hc, adapters, fair, depth_6, depth_24, depth_48 or depth" ;;
    esac
    shift 2
    sh "data/$corpus/prepare.sh" "data/corpus/$corpus" build/hc_prepare
    exec nice -n 19 build/hc_sweep --sweep "configs/$budget.sweep" --data-dir "data/corpus/$corpus" --device "$device" --out "out/$budget" \
        --runs "bench/$budget.tsv" --note "$(git describe --always --exclude '*' --dirty=+ 2>/dev/null || echo unknown)" "$@"
fi
variants=${VARIANTS:-$(build/hc_train --list-residuals | cut -d " " -f 1)}
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
                --eval-interval 500 --statistics-interval 50 --device "$device" \
                --data-dir data/corpus/gcide --out-dir "$run"
        fi
        [ -d "$run/ckpt-$iterations" ] || fail "$run was interrupted; run this again to go on"
    done
done

# texts of another kind that every Debian has
licences=$(ls /usr/share/common-licenses/GPL-[123] /usr/share/common-licenses/MPL-2.0 /usr/share/common-licenses/Apache-2.0 2>/dev/null) || true
set --
for seed in $seeds; do
    for variant in $variants; do
        run=$out/$variant-$seed
        set -- "$@" "$run"
        if [ -n "$licences" ] && [ ! -f "$run/eval-licences.json" ]; then
            # shellcheck disable=SC2086  # words are wanted
            build/hc_eval --checkpoint "$run/ckpt-$iterations" --device "$device" --json "$run/eval-licences.json" $licences
        fi
    done
done
if [ ! -f "$out/bench.json" ]; then
    printf '\n== throughput against the number of streams\n'
    python3 bench/compare.py rc,mhc:2,mhc:4,mhc:6,mhc:8,mhc_lite:2,mhc_lite:4,mhc_lite:6,shc:2,shc:4,shc:6,shc:8 \
        --config configs/tiny.conf --data-dir data/corpus/gcide --device "$device" --steps 20 --json "$out/bench.json"
fi
build/hc_analyze --out "$out/report" --data-dir data/corpus/gcide --samples 256 --bench "$out/bench.json" --device "$device" "$@"
