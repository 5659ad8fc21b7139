/* Starting another program. */
#pragma once

#include <sys/types.h>

struct spawn_files {
    int in, out, err; /* file descriptors; -1: `in` is empty, `out` and `err` are ours; SPAWN_SILENT: lost */
};
enum { SPAWN_SILENT = -2 };

/* Environment variables that launchers of MPI set for every rank, with NULL behind the last: those of Open MPI,
 * MPICH and Intel MPI, MVAPICH2 and those that speak PMIx. */
extern const char *const spawn_rank_variables[];

/* Variables with the number of processes that the launcher has started together, with NULL behind the last. The
 * first that is set counts: an mpirun in a job of Slurm starts others. */
extern const char *const spawn_size_variables[];

/* Starts a program, looked for on PATH unless its name has a slash; `arguments` ends with NULL. *child is the
 * caller's to wait for. Its environment is ours without either kind of variables: otherwise it would join the job
 * as the rank that we are, and the launcher would wait for both. 0, or an error number: then nothing was
 * started. */
int spawn_program(pid_t *child, const char *program, char *const arguments[], const struct spawn_files *files);
