/* Starting another program. */
#pragma once

#include <sys/types.h>

struct spawn_place {
    const char *folder; /* that it runs in; NULL: ours */
    int in, out, err;   /* file descriptors; -1: `in` is empty, `out` and `err` are ours; SPAWN_SILENT: lost */
};
enum { SPAWN_SILENT = -2 };

/* Starts a program, looked for on PATH unless its name has a slash; `arguments` ends with NULL. *child is the
 * caller's to wait for. 0, or an error number: then nothing was started. */
int spawn_program(pid_t *child, const char *program, char *const arguments[], const struct spawn_place *place);
