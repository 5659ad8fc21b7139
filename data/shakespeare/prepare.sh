#!/bin/sh
# Makes token files from tiny Shakespeare as nanoGPT's data/shakespeare_char divides it: the first nine tenths are for training, the
# last tenth is held out. All of its 65 characters are ASCII, so tokens are bytes.
#
#   data/shakespeare/prepare.sh [OUTPUT_DIR [HC_PREPARE]]
#
# OUTPUT_DIR  where train.bin, val.bin and meta.json go; default data/corpus/shakespeare
# HC_PREPARE  the hc_prepare program; default build/hc_prepare, or the one on the PATH
#
# shakespeare.txt, 1.1 MB of plays that are in the public domain, is the text of Andrej Karpathy's char-rnn (2015), which nanoGPT has, too.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
text=$root/data/shakespeare/shakespeare.txt
output=${1:-$root/data/corpus/shakespeare}
bytes=1115394
digest=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed

fail() {
    echo "data/shakespeare/prepare.sh: $*" >&2
    exit 1
}

. "$root/data/find_prepare.sh"
find_prepare ${2+"$2"}
echo "$digest  $text" | sha256sum --check --quiet || fail "$text was changed"

parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
trap 'exit 130' INT TERM HUP
train=$((bytes * 9 / 10))
head -c "$train" "$text" >"$parts/train.txt"
tail -c "+$((train + 1))" "$text" >"$parts/val.txt"
"$prepare" --out "$output" --val "$parts/val.txt" "$parts/train.txt"
