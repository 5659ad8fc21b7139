#!/bin/sh
# Token files from a corpus of Parquet files as nanoGPT's recipe makes them: GPT-2's tokens, <|endoftext|> after each
# document, shuffled and split as Hugging Face's datasets does. Called by data/openwebtext/prepare.sh and
# data/fineweb_edu/prepare.sh; for corpora of your own:
#
#   data/prepare_parquet.sh --data SET --files PATTERN --fraction F --seed S OUTPUT [PARQUET_DIR]
#
# SET, PATTERN  data set and files to download from Hugging Face, e.g. HuggingFaceFW/fineweb-edu and 'sample/10BT/*.parquet'
# F, S          share of documents to hold out, and seed of the shuffle
# OUTPUT        where train.bin, val.bin and meta.json go
# PARQUET_DIR   folder of Parquet files that are there already (read in the order of their paths); without it they are downloaded
#               to OUTPUT/parquet
#
# Needs python3 with venv (it makes OUTPUT/.venv with pyarrow, numpy, huggingface_hub), zstd, and hc_prepare: build/hc_prepare or the one on
# the PATH. Running it again resumes the work. OUTPUT/parquet and OUTPUT/lines can be removed afterwards.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)

fail() {
    echo "data/prepare_parquet.sh: $*" >&2
    exit 1
}

set_name='' pattern='' fraction='' seed=''
while [ $# -ge 2 ]; do
    case $1 in
    --data) set_name=$2 ;;
    --files) pattern=$2 ;;
    --fraction) fraction=$2 ;;
    --seed) seed=$2 ;;
    *) break ;;
    esac
    shift 2
done
# shellcheck disable=SC2015  # whichever of these is false
[ $# -ge 1 ] && [ $# -le 2 ] && [ -n "$fraction" ] && [ -n "$seed" ] || fail "see the top of this file for how to call it"
output=$1
parquet=${2:-$output/parquet}
case $output in -*) fail "'$output' is not a folder; see the top of this file for how to call it" ;; esac

. "$root/data/find_prepare.sh"
# shellcheck disable=SC2119  # this script's arguments are others
find_prepare
command -v zstd >/dev/null || fail "no zstd; Debian has it in the package of that name"

mkdir -p "$output"
python=${HCTRAIN_PYTHON:-$output/.venv/bin/python}
if ! "$python" -c 'import pyarrow, numpy' 2>/dev/null; then
    python3 -m venv "$output/.venv" || fail "python3 cannot make a virtual environment; Debian has that in python3-venv"
    python=$output/.venv/bin/python
    "$python" -m pip install --quiet pyarrow numpy huggingface_hub || fail "cannot install pyarrow, numpy and huggingface_hub"
fi

if [ $# -eq 1 ]; then
    # shellcheck disable=SC2015  # whichever of these is false
    [ -n "$set_name" ] && [ -n "$pattern" ] || fail "name the data set (--data, --files) or the folder of Parquet files"
    "$python" -c 'import sys; from huggingface_hub import snapshot_download as get
get(sys.argv[1], repo_type="dataset", allow_patterns=sys.argv[2], local_dir=sys.argv[3])' "$set_name" "$pattern" "$parquet" ||
        fail "cannot download $set_name; run this again to resume"
fi

# GPT-2's vocabulary: HCTRAIN_VOCAB_FILE of the environment, or downloaded
vocabulary=${HCTRAIN_VOCAB_FILE:-$root/data/corpus/gpt2.tiktoken}
[ -r "$vocabulary" ] || sh "$root/data/gpt2/vocabulary.sh" "$vocabulary" || fail "cannot get GPT-2's vocabulary"

mkdir -p "$output/lines"
exec 9>"$output/lines/lock"
flock -n 9 || fail "another process prepares $output"
find -H "$parquet" -name '*.parquet' -not -path "$parquet/.cache/*" | LC_ALL=C sort >"$output/lines/files"
[ -s "$output/lines/files" ] || fail "no Parquet files in $parquet"

# Lines of files with other names, sizes or times are discarded.
tr '\n' '\0' <"$output/lines/files" | xargs -0 stat -L -c '%n %s %Y' >"$output/lines/stamps.new"
if ! cmp -s "$output/lines/stamps.new" "$output/lines/stamps"; then
    rm -f "$output"/lines/*.jsonl.zst
    mv "$output/lines/stamps.new" "$output/lines/stamps"
fi
# shellcheck disable=SC2016 # the inner shell's variables
counts=$(tr '\n' '\0' <"$output/lines/files" | xargs -0 "$python" "$root/data/parquet_lines.py" --rows) || fail "cannot count documents"
documents=$(echo "$counts" | awk '{sum += $1} END {print sum}')
echo "$documents documents in $(wc -l <"$output/lines/files") files"

set --
number=0
while IFS= read -r file; do
    name=$output/lines/$(printf '%05d' "$number").jsonl.zst
    if [ ! -e "$name" ]; then
        echo "$name from $file"
        { "$python" "$root/data/parquet_lines.py" "$file" || touch "$name.failed"; } | zstd -q -f -T0 -o "$name.part"
        [ ! -e "$name.failed" ] || { rm -f "$name.failed" "$name.part"; fail "cannot read $file"; }
        mv "$name.part" "$name"
    fi
    set -- "$@" "$name"
    number=$((number + 1))
done <"$output/lines/files"

"$python" "$root/data/document_order.py" "$documents" "$seed" "$output/lines/order"
"$prepare" --tokenizer gpt2 --vocab-file "$vocabulary" --seed "$seed" --val-fraction "$fraction" --order "$output/lines/order" --out "$output" "$@"
