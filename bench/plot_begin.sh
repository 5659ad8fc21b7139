# shellcheck shell=sh disable=SC2034,SC2154  # the script that reads this sets $inputs and uses $out
# Sourced by the scripts that draw: bench/plot_*.sh OUT.svg INPUT... Leaves $out, $work (removed at the end) and the inputs in "$@".
[ $# -ge 2 ] || {
    echo "usage: $0 OUT.svg $inputs" >&2
    exit 2
}
missing=
for tool in gnuplot jq; do # packages of these names hold them
    command -v "$tool" >/dev/null || missing="$missing $tool"
done
[ -z "$missing" ] || {
    echo "$0: not installed:$missing; on Debian: apt-get install$missing" >&2
    exit 1
}
out=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
