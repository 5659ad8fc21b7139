/* Stopping on SIGINT, SIGTERM, SIGUSR1, SIGHUP and SIGXCPU: the first one asks, and a second one ends the process
 * at once, except SIGXCPU, which a system sends every second when CPU time is over. */
#pragma once

#include <stdbool.h>

/* Installs the handlers. May be called repeatedly; does nothing once a signal has come. Writing to a pipe without a
 * reader, or beyond the limit of a file's size, then fails instead of ending the process. */
void interrupt_install(void);

/* True once a signal has come. */
bool interrupt_requested(void);

/* A descriptor for poll, which becomes readable once a signal has come. Do not read or close it. -1 before
 * interrupt_install. */
int interrupt_descriptor(void);
