/* Independent pieces of work on all cores of this rank. */
#pragma once

#include <stddef.h>

/* Does piece `index`; 0, or -1 with an error text. Pieces may run at the same time, on any thread. */
typedef int (*parallel_work)(void *context, size_t index);

/* Runs pieces 0 .. count - 1 and waits for them. Fails when one of them did, with its error text; pieces that have
 * not begun by then are left out. */
int parallel_run(size_t count, parallel_work work, void *context);
