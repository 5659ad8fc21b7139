#!/bin/bash
# Manual pages and completion of every program: they have each option of --help, shells read them, and bash completes words.
#
#   pages.sh PROGRAM...
set -u
failures=0

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
for program in "$@"; do
    name=$(basename "$program")
    for page in man bash; do
        "$program" --help=$page >"$folder/$page" || fail "$name --help=$page"
    done
    sed 's/\\-/-/g' "$folder/man" >"$folder/plain"
    bash -n "$folder/bash" || fail "$name: bash does not take its completion"
    head -n 1 "$folder/man" | grep -q "^.TH $name 1 " || fail "$name: its manual page does not begin with .TH"
    sed -n 4p "$folder/plain" | grep -q "^$name - [^(:]*[^.]$" || fail "$name: its manual page has no short name: $(sed -n 4p "$folder/plain")"
    grep -q "^.SH EXIT STATUS$" "$folder/man" || fail "$name: its manual page has no exit status"
    options=$("$program" --help | sed -n 's/^  --\(\[no-\]\)\{0,1\}\([a-z0-9-]*\).*/\2/p')
    [ -n "$options" ] || fail "$name: --help has no options"
    for option in $options; do
        grep -q "^.B --\(\[no-\]\)\{0,1\}$option\b" "$folder/plain" || fail "$name: the manual page lacks --$option"
        grep -q -e "--$option\b" "$folder/bash" || fail "$name: bash's completion lacks --$option"
    done
    if "$program" --help=pdf >/dev/null 2>"$folder/error" || ! grep -q "takes no value" "$folder/error"; then
        fail "$name --help=pdf is not refused"
    fi
done

# What it is for: hc_train --residual mhc<Tab>
train=$(dirname "$1")/hc_train
# shellcheck disable=SC2016  # bash is to expand that
completed=$("$train" --help=bash | cat - <(echo 'COMP_WORDS=(hc_train --residual mhc); COMP_CWORD=2; _hc_train; echo "${COMPREPLY[*]}"') | bash)
[ "$completed" = "mhc mhc_lite" ] || fail "bash completes 'mhc' to '$completed'"
exit $((failures > 0))
