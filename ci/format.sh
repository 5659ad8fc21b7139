#!/bin/sh
# Checks that the sources are formatted by clang-format 19.1.7, and that shellcheck finds nothing in the shell scripts.
#   sh ci/format.sh          prints what is wrong; exit status 77: nothing is, but one of the two is not installed (ci/setup.sh tests installs them)
#   sh ci/format.sh --fix    formats the sources
set -eu
cd "$(dirname "$0")/.."
version=19.1.7

# Prints every file of the project; without git, all files but those that were built or prepared.
files() {
    if [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ]; then
        git ls-files --cached --others --exclude-standard
    else
        find . \( -name .git -o -path './build*' -o -path ./out -o -path ./data/corpus \) -prune -o -type f -print
    fi | while read -r file; do
        [ ! -f "$file" ] || printf '%s\n' "$file"
    done
}

# Prints the name of a clang-format of this version.
clang_format() {
    for program in clang-format-$version clang-format-19 clang-format /usr/local/bin/clang-format-$version "${HOME:-}/.local/bin/clang-format-$version"; do
        if "$program" --version 2>/dev/null | grep -q "version $version"; then
            echo "$program"
            return
        fi
    done
}

shell_scripts() {
    files | tr '\n' '\0' | xargs -0 awk 'FNR == 1 { if (FILENAME ~ /\.sh$/ || /^#!.*[\/ ](ba)?sh$/) print FILENAME; nextfile }'
}

case "${1:-}" in
"") how="--dry-run -Werror" ;;
--fix) how=-i ;;
*)
    echo "ci/format.sh: the argument is '$1'; there is none but '--fix'" >&2
    exit 2
    ;;
esac

status=0 missing=
program=$(clang_format)
if [ -n "$program" ]; then
    # shellcheck disable=SC2086  # words are wanted
    files | grep -E '\.(c|h|cl)$' | tr '\n' '\0' | xargs -0 "$program" $how || {
        echo "ci/format.sh: 'sh ci/format.sh --fix' lays these files out" >&2
        status=1
    }
else
    missing="clang-format $version"
fi
if command -v shellcheck >/dev/null; then
    shell_scripts | tr '\n' '\0' | xargs -0 shellcheck || status=1
else
    missing="$missing${missing:+ and }shellcheck"
fi
[ -z "$missing" ] || echo "ci/format.sh: SKIPPED: no $missing here; ci/setup.sh tests installs it"
[ -z "$missing" ] || [ "$status" -ne 0 ] || status=77
exit $status
