/* Stopping on SIGINT, SIGTERM, SIGUSR1 and SIGHUP: the first one asks, a second one ends the process at once. */
#pragma once

#include <stdbool.h>

/* May be called again and again; does nothing once a signal has come. From then on writing to a pipe that nobody
 * reads, or more than the limit of a file's size, fails and does not end the process. */
void interrupt_install(void);

/* True once a signal has come. */
bool interrupt_requested(void);

/* Can be read from, for poll, once a signal has come; not to be read or closed. -1 before interrupt_install. */
int interrupt_descriptor(void);
