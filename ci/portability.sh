#!/bin/sh
# Compiles the kernels for GPUs that are not there: see docs/portability.md and `ci/portability.sh --help`.
set -eu
cd "$(dirname "$0")/.."
program=build/tests/list_programs
case " $* " in
*" --programs "* | *" --help "* | *" -h "*) ;;
*)
    [ -x "$program" ] || {
        echo "ci/portability.sh: there is no $program yet; ci/build.sh makes it" >&2
        exit 2
    }
    ;;
esac
exec python3 ci/portability.py "$@"
