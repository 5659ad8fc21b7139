/* A thread that does one piece of work at a time for others: for libraries that keep threads for each thread that calls them. */
#pragma once

struct worker;

/* -1 where no thread can be started. *started is NULL then. */
int worker_start(struct worker **started);

/* Has the thread do work(argument), and waits until that is done. Any thread may ask, several in turn. */
void worker_do(struct worker *worker, void (*work)(void *argument), void *argument);

/* Ends the thread. Nobody may be waiting in worker_do. NULL is allowed. */
void worker_stop(struct worker *worker);
