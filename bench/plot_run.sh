#!/bin/sh
# Draws the loss of runs as SVG: bench/plot_run.sh OUT.svg RUN_DIRECTORY... (needs gnuplot and jq)
# shellcheck disable=SC2034,SC2154  # plot_begin.sh uses $inputs, and sets $out and $work
set -eu
inputs='RUN_DIRECTORY...'
. "$(dirname "$0")/plot_begin.sh"
plots=
number=0
for run in "$@"; do
    number=$((number + 1))
    jq -r 'select(.loss != null) | "\(.iter) \(.loss)"' "$run/metrics.jsonl" >"$work/train$number"
    jq -r 'select(.val_loss != null) | "\(.iter) \(.val_loss)"' "$run/metrics.jsonl" >"$work/val$number"
    name=$(basename "$run" | tr -cd 'A-Za-z0-9._-')
    plots="$plots${plots:+, }'$work/train$number' with lines lw 1 lc $number title '$name, training'"
    plots="$plots, '$work/val$number' with linespoints pt 7 ps 0.6 lw 2 lc $number title '$name, validation'"
done
gnuplot <<END
set terminal svg size 760,420 font 'Helvetica,13' background '#ffffff'
set output '$work/plot.svg'
set xlabel 'iteration'
set ylabel 'loss (nats per byte)'
set grid lc '#dddddd'
set border lc '#888888'
plot $plots
END
mv "$work/plot.svg" "$out"
echo "wrote $out"
