/* Threads: pieces of work on all cores of this rank, and a thread that works for others. */
#pragma once

#include <stddef.h>

/* Does piece `index`; 0, or -1 with an error text. Pieces may run at the same time, on any thread. */
typedef int (*parallel_work)(void *context, size_t index);

/* Runs pieces 0 .. count - 1 and waits for them. Fails when one of them did, with its error text; pieces that have
 * not begun by then are left out. */
int parallel_run(size_t count, parallel_work work, void *context);

/* A thread that runs one function at a time for other threads. It is for libraries that keep a set of threads for
 * every thread that calls them. */
struct worker;

/* Returns -1 with an error text if no thread can be started; *started is NULL then. */
int worker_start(struct worker **started);

/* Runs work(argument) on the thread and waits until it returns. Any thread may call this; calls run one after the
 * other. */
void worker_do(struct worker *worker, void (*work)(void *argument), void *argument);

/* Ends the thread. No thread may be in worker_do. NULL is allowed. */
void worker_stop(struct worker *worker);
