#!/bin/sh
# mpirun -np N tests/support/by_rank.sh COMMAND... , COMMAND... , ...
#
# Rank 0 runs the first command, rank 1 the second, and so on. mpirun itself takes commands like that, too, but that of Open MPI 5.0.7
# (Debian 13) crashes on them.
left=${OMPI_COMM_WORLD_RANK:?this needs mpirun of Open MPI}
for word; do
    shift
    if [ "$word" = , ]; then
        left=$((left - 1))
    elif [ "$left" -eq 0 ]; then
        set -- "$@" "$word"
    fi
done
[ $# -gt 0 ] || exit 2 # there are more ranks than commands
exec "$@"
