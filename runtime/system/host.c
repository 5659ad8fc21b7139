#include "runtime/system/host.h"
#include <ctype.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- the ranks on this host, from the launcher's environment */

/* The number that the first of these variables begins with; `none` if there is no such variable. */
static unsigned read_first(const char *const *names, const char *ends, unsigned none) {
    for (; *names; names++) {
        const char *text = getenv(*names);
        char *end;
        if (!text || !isdigit((unsigned char)*text)) {
            continue;
        }
        const unsigned long value = strtoul(text, &end, 10);
        if ((!*end || strchr(ends, *end)) && value <= INT32_MAX) {
            return (unsigned)value;
        }
    }
    return none;
}

unsigned host_local_rank(void) {
    /* Open MPI, MPICH and Intel MPI, MVAPICH2, PALS, Flux, Slurm. Slurm last: a job's script has it, too. */
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK",
                                        "MPI_LOCALRANKID",
                                        "MV2_COMM_WORLD_LOCAL_RANK",
                                        "PMI_LOCAL_RANK",
                                        "PALS_LOCAL_RANKID",
                                        "FLUX_TASK_LOCAL_ID",
                                        "SLURM_LOCALID",
                                        NULL};
    return read_first(names, "", 0);
}

unsigned host_local_count(void) {
    /* Slurm's is a list such as 4(x2),3: near enough, and nothing else is known before MPI starts. */
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "MPI_LOCALNRANKS",
                                        "MV2_COMM_WORLD_LOCAL_SIZE",
                                        "PMI_LOCAL_SIZE",
                                        "PALS_LOCAL_SIZE",
                                        "SLURM_STEP_TASKS_PER_NODE",
                                        NULL};
    const unsigned count = read_first(names, "(,", 1);
    return count ? count : 1;
}

/* ---- cores */

/* The processors that a process may run on; 0 is this one. NULL when unknown; freed with CPU_FREE. */
static cpu_set_t *read_affinity(pid_t process, size_t *size) {
    for (int most = CPU_SETSIZE; most <= 1 << 20; most *= 2) {
        cpu_set_t *set = CPU_ALLOC(most);
        *size = CPU_ALLOC_SIZE(most);
        if (set && sched_getaffinity(process, *size, set) == 0) {
            return set;
        }
        CPU_FREE(set);
    }
    return NULL;
}

/* Processors of the launcher, which are those of the job on this host; 0 when unknown. */
static unsigned count_of(pid_t process) {
    size_t size;
    cpu_set_t *set = read_affinity(process, &size);
    const int count = set ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    return count > 0 ? (unsigned)count : 0;
}

/* How many of `total` cores rank `index` of `count` has, and where they begin. */
static unsigned share(unsigned total, unsigned index, unsigned count, unsigned *first) {
    *first = (unsigned)((uint64_t)total * index / count);
    return (unsigned)((uint64_t)total * (index + 1) / count) - *first;
}

/* Open MPI says so where it has bound a rank to cores of its own. */
static const char bound_at_launch[] = "OMPI_MCA_orte_bound_at_launch";

unsigned host_cores(void) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned cores = count_of(0), first;
    const unsigned ranks = host_local_count(), launcher = ranks > 1 ? count_of(getppid()) : 0;
    if (!cores) {
        cores = online > 0 ? (unsigned)online : 1;
    }
    const unsigned all = launcher ? launcher : online > 0 ? (unsigned)online : 1;
    if (ranks > 1 && cores >= all && !getenv(bound_at_launch)) { /* all ranks have the same cores */
        cores = share(cores, host_local_rank() % ranks, ranks, &first);
    }
    return cores ? cores : 1;
}

/* Open MPI binds two ranks or fewer to a core each unless told otherwise, which leaves the other cores idle. */
static bool is_bound_by_default(void) {
    static const char *const choices[] = {"OMPI_MCA_hwloc_base_binding_policy",
                                          "OMPI_MCA_rmaps_base_mapping_policy", "OMPI_MCA_hwloc_base_cpu_set",
                                          "OMPI_MCA_orte_rankfile", "OMPI_MCA_rmaps_rank_file_path"};
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        if (getenv(choices[i])) {
            return false; /* --bind-to, --map-by, --cpu-set, --rankfile */
        }
    }
    return getenv(bound_at_launch) != NULL;
}

void host_claim_cores(void) {
    const unsigned ranks = host_local_count();
    size_t size;
    if (!is_bound_by_default()) {
        return;
    }
    cpu_set_t *set = read_affinity(getppid(), &size);
    const unsigned total = set ? (unsigned)CPU_COUNT_S(size, set) : 0;
    unsigned first = 0, number = 0;
    const unsigned count = share(total, host_local_rank() % ranks, ranks, &first);
    for (size_t processor = 0; count && processor < 8 * size; processor++) {
        if (CPU_ISSET_S(processor, size, set)) {
            if (number < first || number >= first + count) {
                CPU_CLR_S(processor, size, set);
            }
            number++;
        }
    }
    if (count) {
        sched_setaffinity(0, size, set); /* a wish: without it the rank has fewer cores */
    }
    CPU_FREE(set);
}

/* ---- memory */

/* The value of "MemAvailable:" in bytes: free memory and what the kernel would drop for us. 0 when unknown. */
static size_t memory_available_by_kernel(void) {
    char line[256];
    unsigned long long kibibytes = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file) {
        return 0;
    }
    while (fgets(line, sizeof(line), file)) {
        if (sscanf(line, "MemAvailable: %llu kB", &kibibytes) == 1) {
            break;
        }
    }
    fclose(file);
    return (size_t)kibibytes << 10;
}

/* The limit of this process's control group (version 2), which containers and job schedulers set. SIZE_MAX: none.
 */
static size_t memory_limit_of_group(void) {
    char line[1024], path[1100];
    unsigned long long limit;
    size_t found = SIZE_MAX;
    strcpy(path, "/sys/fs/cgroup/memory.max");
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (file) {
        while (fgets(line, sizeof(line), file)) {
            line[strcspn(line, "\n")] = '\0';
            if (!strncmp(line, "0::/", 4)) {
                snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", line + 3);
            }
        }
        fclose(file);
    }
    file = fopen(path, "re");
    if (!file) {
        return found;
    }
    if (fscanf(file, "%llu", &limit) == 1 && limit < SIZE_MAX) { /* else the word "max" */
        found = (size_t)limit;
    }
    fclose(file);
    return found;
}

size_t host_address_space(void) {
    struct rlimit limit;
    unsigned long pages = 0;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY) {
        return SIZE_MAX;
    }
    FILE *file = fopen("/proc/self/statm", "re");
    if (file) {
        pages = fscanf(file, "%lu", &pages) == 1 ? pages : 0;
        fclose(file);
    }
    const size_t used = (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
    return limit.rlim_cur > used ? (size_t)limit.rlim_cur - used : 0;
}

size_t host_memory(void) {
    size_t available = memory_available_by_kernel();
    size_t limit = memory_limit_of_group();
    if (!available) {
        long pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
        available = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
    }
    const size_t share = (available < limit ? available : limit) / host_local_count();
    const size_t space = host_address_space();
    return share < space ? share : space;
}
