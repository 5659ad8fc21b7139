#include "runtime/system/host.h"
#include "runtime/system/array.h"
#include "runtime/system/control_groups.h"
#include <ctype.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
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

/* ---- descriptors */

enum { SPARE_DESCRIPTORS = 256 };

void host_spare_descriptors(int descriptor) {
    struct rlimit limit; /* a new descriptor has the lowest number that is not in use */
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max &&
        limit.rlim_cur < (rlim_t)descriptor + SPARE_DESCRIPTORS) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit); /* if it fails, opening files will say so */
    }
}

/* ---- cores */

enum { MOST_PROCESSORS = 1 << 16 };

/* Those that a process may run on. */
struct processors {
    cpu_set_t parts[MOST_PROCESSORS / CPU_SETSIZE];
};

/* Of the process, 0 for this one; how many there are, 0 when unknown. The launcher's are those of the job on this
 * host. */
static unsigned find_processors(pid_t process, struct processors *found) {
    return sched_getaffinity(process, sizeof *found, found->parts) == 0
               ? (unsigned)CPU_COUNT_S(sizeof *found, found->parts)
               : 0;
}

/* How many of `total` cores rank `index` of `count` has, and where they begin. */
static unsigned share(unsigned total, unsigned index, unsigned count, unsigned *first) {
    *first = (unsigned)((uint64_t)total * index / count);
    return (unsigned)((uint64_t)total * (index + 1) / count) - *first;
}

/* Open MPI 4 says so where it has bound a rank to cores of its own. */
static const char bound_at_launch[] = "OMPI_MCA_orte_bound_at_launch";

/* The cores that control groups allow, read once, since cores are asked for in every step. */
static double quota;
static pthread_once_t quota_is_read = PTHREAD_ONCE_INIT;

static void read_quota(void) {
    struct group_limits limits;
    control_groups_read("", &limits);
    quota = limits.cores;
}

unsigned host_cores(void) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    struct processors found;
    unsigned cores = find_processors(0, &found), first;
    const unsigned ranks = host_local_count(), launcher = ranks > 1 ? find_processors(getppid(), &found) : 0;
    if (!cores) {
        cores = online > 0 ? (unsigned)online : 1;
    }
    const unsigned all = launcher ? launcher : online > 0 ? (unsigned)online : 1;
    if (ranks > 1 && cores >= all && !getenv(bound_at_launch)) { /* all ranks have the same cores */
        cores = share(cores, host_local_rank() % ranks, ranks, &first);
    }
    pthread_once(&quota_is_read, read_quota);
    const unsigned threads = control_groups_threads(quota, ranks);
    cores = cores < threads ? cores : threads;
    return cores ? cores : 1;
}

bool host_command_binds(const char *arguments, size_t bytes) {
    static const char *const choices[] = {"bind-to", "map-by", "cpu-set", "cpu-list", "pe-list", "rankfile"};
    bool binds = false;
    for (const char *argument = arguments; argument < arguments + bytes; argument += strlen(argument) + 1) {
        const char *word = argument + strspn(argument, "-");
        binds = binds || strstr(word, "_policy"); /* --prtemca hwloc_default_binding_policy core */
        for (size_t i = 0; i < COUNT(choices); i++) {
            binds = binds || !strcmp(word, choices[i]);
        }
    }
    return binds;
}

/* Whether this process's parent is Open MPI 5's mpirun and has bound it without being asked. That does not say so,
 * and is called prterun. */
static bool is_bound_by_prterun(void) {
    char path[64], arguments[1 << 16];
    struct processors found;
    snprintf(path, sizeof path, "/proc/%ld/cmdline", (long)getppid());
    FILE *file = fopen(path, "re");
    const size_t bytes = file ? fread(arguments, 1, sizeof arguments - 1, file) : 0;
    if (file) {
        fclose(file);
    }
    arguments[bytes] = '\0';
    const char *slash = strrchr(arguments, '/');
    return !strcmp(slash ? slash + 1 : arguments, "prterun") && bytes < sizeof arguments - 1 &&
           !host_command_binds(arguments, bytes) && find_processors(0, &found) < find_processors(getppid(), &found);
}

/* Open MPI binds two ranks or fewer to a core each unless told otherwise, which leaves the other cores idle. */
static bool is_bound_by_default(void) {
    static const char *const choices[] = {"OMPI_MCA_hwloc_base_binding_policy",
                                          "OMPI_MCA_rmaps_base_mapping_policy",
                                          "OMPI_MCA_hwloc_base_cpu_set",
                                          "OMPI_MCA_orte_rankfile",
                                          "OMPI_MCA_rmaps_rank_file_path",
                                          "PRTE_MCA_hwloc_default_binding_policy",
                                          "PRTE_MCA_rmaps_default_mapping_policy"};
    for (size_t i = 0; i < COUNT(choices); i++) {
        if (getenv(choices[i])) {
            return false; /* --bind-to, --map-by, --cpu-set, --rankfile */
        }
    }
    return getenv(bound_at_launch) || (getenv("PRTE_LAUNCHED") && is_bound_by_prterun());
}

void host_claim_cores(void) {
    const unsigned ranks = host_local_count();
    struct processors set;
    unsigned first, number = 0;
    if (!is_bound_by_default()) {
        return;
    }
    const unsigned count = share(find_processors(getppid(), &set), host_local_rank() % ranks, ranks, &first);
    for (size_t processor = 0; count && processor < MOST_PROCESSORS; processor++) {
        if (CPU_ISSET_S(processor, sizeof set, set.parts)) {
            if (number < first || number >= first + count) {
                CPU_CLR_S(processor, sizeof set, set.parts);
            }
            number++;
        }
    }
    if (count) {
        sched_setaffinity(0, sizeof set, set.parts); /* a wish: without it the rank has fewer cores */
    }
}

/* ---- memory */

/* Reads a value from the first line of a file that begins as `form` does, as for scanf; false where none does. */
__attribute__((format(scanf, 2, 3))) static bool scan_line(const char *path, const char *form, ...) {
    char line[1024];
    bool found = false;
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        va_list value;
        va_start(value, form);
        found = vsscanf(line, form, value) == 1;
        va_end(value);
    }
    if (file) {
        fclose(file);
    }
    return found;
}

unsigned host_running(void) {
    unsigned long long running = 0;
    scan_line("/proc/loadavg", "%*f %*f %*f %llu/", &running);
    return (unsigned)running;
}

/* What is left of a limit; SIZE_MAX: there is none. */
static size_t left_of(const struct rlimit *limit, unsigned long long used_kibibytes) {
    const size_t used = (size_t)used_kibibytes << 10;
    return limit->rlim_cur == RLIM_INFINITY ? SIZE_MAX
           : limit->rlim_cur > used         ? (size_t)limit->rlim_cur - used
                                            : 0;
}

size_t host_address_space(const char **command) {
    struct rlimit all = {.rlim_cur = RLIM_INFINITY}, data = all;
    unsigned long long all_used = 0, data_used = 0;
    getrlimit(RLIMIT_AS, &all);
    getrlimit(RLIMIT_DATA, &data);
    scan_line("/proc/self/status", "VmSize: %llu kB", &all_used);
    scan_line("/proc/self/status", "VmData: %llu kB", &data_used);
    const size_t all_left = left_of(&all, all_used), data_left = left_of(&data, data_used);
    *command = data_left < all_left ? "ulimit -d" : "ulimit -v";
    return data_left < all_left ? data_left : all_left;
}

size_t host_memory(void) {
    /* Free memory and what the kernel would drop for us. */
    unsigned long long kibibytes = 0;
    scan_line("/proc/meminfo", "MemAvailable: %llu kB", &kibibytes);
    size_t available = (size_t)kibibytes << 10;
    struct group_limits limits;
    control_groups_read("", &limits);
    if (!available) {
        const long pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
        available = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
    }
    const size_t left = available < limits.memory_left ? available : limits.memory_left;
    const size_t share = left / host_local_count();
    const char *command;
    const size_t space = host_address_space(&command), most = share < space ? share : space;
    return available && !most ? 1 : most; /* 0 would say that nothing is known */
}

/* ---- instructions */

static bool has_word(const char *line, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = line; *at; at += strcspn(at, " \t\n")) {
        at += strspn(at, " \t\n");
        if (strcspn(at, " \t\n") == length && !strncmp(at, word, length)) {
            return true;
        }
    }
    return false;
}

void cpu_instructions_read(const char *path, struct cpu_instructions *found) {
    /* As Linux names them, and as their makers do. The widest first. */
    static const struct {
        const char *feature, *name;
        enum element_type type;
    } rows[] = {
        {"amx_bf16", "AMX_BF16", ELEMENT_BF16}, {"avx512_bf16", "AVX512_BF16", ELEMENT_BF16},
        {"svebf16", "SVE BF16", ELEMENT_BF16},  {"bf16", "NEON BF16", ELEMENT_BF16},
        {"amx_fp16", "AMX_FP16", ELEMENT_FP16}, {"avx512_fp16", "AVX512_FP16", ELEMENT_FP16},
    };
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t capacity = 0;
    *found = (struct cpu_instructions){0};
    for (bool lists = false; file && !lists && getline(&line, &capacity, file) >= 0;) {
        lists = strchr(line, ':') &&
                (!strncmp(line, "flags", 5) || !strncmp(line, "Features", 8)); /* on x86, and on Arm */
        for (size_t i = 0; lists && i < COUNT(rows); i++) {
            if (has_word(line, rows[i].feature)) {
                char *name = found->names[rows[i].type];
                const size_t used = strlen(name);
                snprintf(name + used, CPU_INSTRUCTIONS_NAME - used, "%s%s", used ? ", " : "", rows[i].name);
            }
        }
    }
    free(line);
    if (file) {
        fclose(file);
    }
}
