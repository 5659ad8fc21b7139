#!/bin/sh
# Makes token files from GCIDE, an English dictionary of 40 MB that Debian packages as dict-gcide.
#
#   data/gcide/prepare.sh [OUTPUT_DIR [HC_PREPARE]]
#
# OUTPUT_DIR  where train.bin, val.bin and meta.json go; default data/corpus/gcide
# HC_PREPARE  the hc_prepare program; default build/hc_prepare, or the one on the PATH
# GCIDE_DICT  (environment) the dictionary; default /usr/share/dictd/gcide.dict.dz
#
# Does nothing when the output is up to date. Headwords, definitions and quotations are kept as plain text, see
# data/gcide/strip_markup.py. Needs python3.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
output=${1:-$root/data/corpus/gcide}
dictionary=${GCIDE_DICT:-/usr/share/dictd/gcide.dict.dz}

fail() {
    echo "data/gcide/prepare.sh: $*" >&2
    exit 1
}

. "$root/data/find_prepare.sh"
find_prepare ${2+"$2"}
command -v python3 >/dev/null || fail "no python3"
[ -r "$dictionary" ] || fail "$dictionary does not exist; install Debian's package dict-gcide (ci/setup.sh does)"

meta=$output/meta.json
# shellcheck disable=SC3013  # dash, bash and busybox have -nt
if [ -f "$output/train.bin" ] && [ -f "$output/val.bin" ] && [ -f "$meta" ] &&
    [ "$meta" -nt "$dictionary" ] && [ "$meta" -nt "$prepare" ] && [ "$meta" -nt "$root/data/gcide/strip_markup.py" ] &&
    grep -q '"strip_markup": "gcide"' "$meta"; then
    echo "$output is up to date"
    exit 0
fi

# The text is written to a file first, so that a failure half-way shows before it is encoded.
text=$(mktemp)
trap 'rm -f "$text"' EXIT
trap 'exit 130' INT TERM HUP
python3 "$root/data/gcide/strip_markup.py" "$dictionary" >"$text" || fail "cannot strip the markup of $dictionary"
"$prepare" --out "$output" - <"$text"
python3 "$root/data/gcide/describe.py" "$meta" "$dictionary"
