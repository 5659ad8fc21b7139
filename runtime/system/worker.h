/* A thread that runs one function at a time for other threads. It is for libraries that keep a set of threads for
 * every thread that calls them. */
#pragma once

struct worker;

/* Returns -1 with an error text if no thread can be started; *started is NULL then. */
int worker_start(struct worker **started);

/* Runs work(argument) on the thread and waits until it returns. Any thread may call this; calls run one after the
 * other. */
void worker_do(struct worker *worker, void (*work)(void *argument), void *argument);

/* Ends the thread. No thread may be in worker_do. NULL is allowed. */
void worker_stop(struct worker *worker);
