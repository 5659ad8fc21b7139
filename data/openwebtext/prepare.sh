#!/bin/sh
# OpenWebText as nanoGPT and the paper use it: 8,013,769 documents, 0.05 % held out with seed 2357; train.bin has 9,035,582,198 tokens,
# val.bin 4,434,897.
#
#   data/openwebtext/prepare.sh [OUTPUT [PARQUET_DIR]]
#
# OUTPUT       default data/corpus/openwebtext
# PARQUET_DIR  folder with the files of Skylion007/openwebtext; without it they are downloaded (24 GB)
#
# docs/data.md says how long it takes and how much disk it needs; data/prepare_parquet.sh what it does.
set -eu
case ${1:-} in -*) sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0" && exit 0 ;; esac
here=$(cd "$(dirname "$0")" && pwd)
output=${1:-$here/../corpus/openwebtext}
[ $# -eq 0 ] || shift
sh "$here/../prepare_parquet.sh" --data Skylion007/openwebtext --files '*.parquet' --fraction 0.0005 --seed 2357 "$output" "$@"
if grep -q '"train_tokens": 9035582198' "$output/meta.json" && grep -q '"val_tokens": 4434897' "$output/meta.json"; then
    echo "as many tokens as nanoGPT has: the same documents are held out"
else
    echo "data/openwebtext/prepare.sh: not as many tokens as nanoGPT has (9035582198 and 4434897): the documents or their order differ" >&2
    exit 1
fi
