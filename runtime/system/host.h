/* The cores and the memory of the host that this process may use, which the ranks of a job on one host divide; the
 * limits of control groups; and the processor's instructions. All of it comes from the environment and the system,
 * so that it is known before MPI and OpenCL start. */
#pragma once

#include "runtime/system/element.h"
#include <stdbool.h>
#include <stddef.h>

/* This rank's number among those of its host, and how many there are; 0 and 1 without a launcher. */
unsigned host_local_rank(void);
unsigned host_local_count(void);

/* What differs from one boot of this host to the next: the caller frees it. "" when unknown. */
char *host_boot(void);

/* Threads on this host that are running or wait for a core, this one included; 0 when unknown. */
unsigned host_running(void);

/* Cores that this rank may use: those that it is bound to, or else its share of the cores of all ranks on this
 * host; at most its share of the CPU time that control groups allow, in whole cores; at least 1. */
unsigned host_cores(void);

/* Open MPI by default binds each of two ranks or fewer to one core, which leaves the others idle. This binds the
 * rank to its share of all cores of the job on this host instead, unless the user chose a binding. Call it before
 * any thread is started. */
void host_claim_cores(void);

/* Whether the arguments of a command, each of which ends with a NUL byte, ask Open MPI's mpirun for a binding of
 * ranks to cores. */
bool host_command_binds(const char *arguments, size_t bytes);

/* Bytes that this process may still map under the limits of its address space and of its data, the smaller of the
 * two; SIZE_MAX without limits. *command is the shell command that sets this limit. */
size_t host_address_space(const char **command);

/* Bytes of memory available now, or left in the control groups, divided by the number of ranks on this host, and at
 * most the address space; 0 when unknown. */
size_t host_memory(void);

/* Call it with a descriptor that was just opened: where the system's limit leaves room for fewer than 256 more, it
 * raises the soft limit (ulimit -S -n) to the hard one (ulimit -H -n). */
void host_spare_descriptors(int descriptor);

/* The limits of Linux's control groups, by which containers, batch systems and systemd's slices limit the processes
 * in them. */
struct group_limits {
    size_t memory;      /* bytes, the smallest limit; SIZE_MAX: none */
    size_t memory_left; /* bytes that can still be used, in the group that has least left; SIZE_MAX: no limit */
    double cores;       /* the smallest quota of CPU time, in cores; INFINITY: none */
};

/* Reads the limits of this process's groups and of all groups around them that it can see, of versions 1 and 2 of
 * control groups. /proc/self/mountinfo and /proc/self/cgroup say where they are. `root` is put before all paths:
 * "", or a folder that has such files. What is missing or makes no sense there limits nothing. */
void control_groups_read(const char *root, struct group_limits *limits);

/* How many threads a rank should start for its share of a quota of CPU time that `ranks` ranks have together: the
 * nearest whole number, at least 1. UINT_MAX without a quota. */
unsigned control_groups_threads(double quota, unsigned ranks);

/* The processor's instructions for 16-bit matrix multiplication: human-readable names by enum element_type,
 * "AVX512_BF16" or "AMX_BF16, AVX512_BF16"; "" if there are none, and for fp32. */
enum { CPU_INSTRUCTIONS_NAME = 48 };
struct cpu_instructions {
    char names[ELEMENT_FP16 + 1][CPU_INSTRUCTIONS_NAME];
};

/* Reads a file like /proc/cpuinfo. Its first line of features counts, since all cores are taken to be alike. All
 * names are "" if it cannot be read. */
void cpu_instructions_read(const char *path, struct cpu_instructions *found);
