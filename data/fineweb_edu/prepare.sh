#!/bin/sh
# FineWeb-Edu as the public code of mHC-lite prepares it: the sample of ten billion tokens (sample/10BT), 0.5 % of its documents held out
# with seed 42.
#
#   data/fineweb_edu/prepare.sh [OUTPUT [PARQUET_DIR]]
#
# OUTPUT       default data/corpus/fineweb_edu
# PARQUET_DIR  folder with the files of HuggingFaceFW/fineweb-edu, sample/10BT; without it they are downloaded (28 GB)
#
# docs/data.md says how long it takes and how much disk it needs; data/prepare_parquet.sh what it does.
set -eu
case ${1:-} in -*) sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0" && exit 0 ;; esac
here=$(cd "$(dirname "$0")" && pwd)
output=${1:-$here/../corpus/fineweb_edu}
[ $# -eq 0 ] || shift
exec sh "$here/../prepare_parquet.sh" --data HuggingFaceFW/fineweb-edu --files 'sample/10BT/*.parquet' --fraction 0.005 --seed 42 \
    "$output" "$@"
