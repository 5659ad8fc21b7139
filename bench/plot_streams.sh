#!/bin/sh
# Draws tokens/s (relative to rc in the same file) and auxiliary parameters against the number of streams as SVG, from what
# hc_bench --compare writes: bench/plot_streams.sh OUT.svg FIGURES.json... (needs gnuplot and jq)
# shellcheck disable=SC2034,SC2154  # plot_begin.sh uses $inputs, and sets $out and $work
set -eu
inputs='FIGURES.json...'
. "$(dirname "$0")/plot_begin.sh"
number=0 speed='' size=''
for variant in $(jq -r '.cases[] | select(.residual != "rc").residual' "$@" | sort -u); do
    # n, step relative to rc, auxiliary parameters
    jq -r --arg v "$variant" '.cases[] | select(.residual == $v and .ratio_to_rc != null)
        | "\(.n_streams) \(1 / .ratio_to_rc) \(.auxiliary)"' "$@" >"$work/rows"
    sort -n "$work/rows" >"$work/$variant"
    [ -s "$work/$variant" ] || continue
    number=$((number + 1))
    style="with linespoints pt 7 ps 0.7 lw 2 lc $number title '$(echo "$variant" | tr _ -)'"
    speed="$speed${speed:+, }'$work/$variant' using 1:2 $style"
    size="$size${size:+, }'$work/$variant' using 1:3 $style"
done
[ -n "$speed" ] || {
    echo "$0: no figures relative to rc in $*" >&2
    exit 1
}
gnuplot <<END
set terminal svg size 820,360 font 'Helvetica,13' background '#ffffff'
set output '$work/plot.svg'
set multiplot layout 1,2
set grid lc '#dddddd'
set border lc '#888888'
set xlabel 'streams n'
set xtics 1
set xrange [1.5:8.5]
set key left bottom
set ylabel 'tokens/s relative to rc'
set yrange [0:1.1]
plot $speed
set key left top
set ylabel 'auxiliary parameters'
set logscale y
set format y '10^{%T}'
set autoscale y
plot $size
END
mv "$work/plot.svg" "$out"
echo "wrote $out"
