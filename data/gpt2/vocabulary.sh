#!/bin/sh
# Gets GPT-2's vocabulary, gpt2.tiktoken, from the package openai-whisper, and verifies its checksum.
#
#   data/gpt2/vocabulary.sh [OUTPUT]
#
# OUTPUT  default data/corpus/gpt2.tiktoken. Does nothing if it exists. Needs python3 with venv (Debian: python3-venv) and
# an index of Python packages, as pip is configured.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
output=${1:-$root/data/corpus/gpt2.tiktoken}
package=openai-whisper==20250625
checksum=306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930

fail() {
    echo "data/gpt2/vocabulary.sh: $*" >&2
    exit 1
}

is_right() {
    echo "$checksum  $1" | sha256sum --check --status 2>/dev/null
}

if [ -e "$output" ]; then
    is_right "$output" || fail "$output is there, but is not GPT-2's vocabulary (sha256 $checksum); move it away"
    echo "$output is there"
    exit 0
fi

mkdir -p "$(dirname "$output")"
work=$(mktemp -d "$(dirname "$output")/.tmp-vocabulary-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

python3 -m venv "$work/venv" || fail "python3 cannot make a virtual environment; Debian has that in python3-venv"
"$work/venv/bin/pip" download --quiet --no-deps --dest "$work" "$package" || fail "cannot get $package"
tar -xzf "$work"/openai_whisper-*.tar.gz -C "$work" || fail "cannot unpack $package"
mv "$work"/openai_whisper-*/whisper/assets/gpt2.tiktoken "$work/vocabulary" || fail "$package has no gpt2.tiktoken"
is_right "$work/vocabulary" || fail "the file in $package is not GPT-2's vocabulary (sha256 $checksum)"
mv "$work/vocabulary" "$output"
echo "$output"
