#!/bin/sh
# Runs a test under oclgrind, which looks for races and for accesses out of bounds, and fails if it reported anything:
# oclgrind itself passes on the program's exit status only. 77: there is no oclgrind.
#
#   run_oclgrind.sh PROGRAM [ARGUMENT...]
#
# Not --uninitialized: in oclgrind 21.10 that check crashes on private arrays of vectors, and takes fused multiply-adds
# for uninitialised. The tests fill buffers with NaN instead.
if ! command -v oclgrind >/dev/null; then
    echo "SKIPPED: oclgrind is not installed"
    exit 77
fi
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
oclgrind --log "$log" --max-errors 20 --data-races "$@"
status=$?
if [ -s "$log" ]; then
    echo "oclgrind reports:"
    cat "$log"
    exit 1
fi
exit "$status"
