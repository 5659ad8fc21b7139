/* What this process may use of its host: cores and memory, shared with the other ranks that the launcher of the job
 * put there. All from the environment and the system, so that it is known before MPI and OpenCL start. */
#pragma once

#include <stddef.h>

/* This rank's number among those of its host, and how many there are; 0 and 1 without a launcher. */
unsigned host_local_rank(void);
unsigned host_local_count(void);

/* Cores that this rank may keep busy: those that it is bound to, else its share of those that all ranks here have;
 * at least 1. */
unsigned host_cores(void);

/* Where Open MPI has bound the ranks by its default, to a single core each, takes this rank's share of all the
 * cores that the job has on this host. A binding that the user asked for stays. Before any thread is started. */
void host_claim_cores(void);

/* Bytes that this process may still map under its limits, of all its memory and of what it may write to alone: the least, and in
 * *command the shell's command that sets that limit. SIZE_MAX without limits. */
size_t host_address_space(const char **command);

/* Bytes of memory available now, or left in the control group, divided by the ranks here, and no more than there is
 * address space; 0 when unknown. */
size_t host_memory(void);
