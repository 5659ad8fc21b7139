#include "runtime/system/host.h"
#include "runtime/system/memory.h"
#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- text that the system shows in /proc and /sys */

/* The text of a file up to a NUL byte, which the caller frees; "" if the file cannot be read. */
static char *read_text(const char *path) {
    FILE *file = fopen(path, "re");
    char *text = NULL;
    size_t capacity = 0;
    const bool is_read = file && getdelim(&text, &capacity, '\0', file) >= 0;
    if (file) {
        fclose(file);
    }
    if (!is_read) {
        free(text);
        text = memory_string("");
    }
    return text;
}

char *host_boot(void) {
    return read_text("/proc/sys/kernel/random/boot_id");
}

/* Reads the numbers, two at most, behind `word` in the first line that begins with both. Returns how many. */
static int read_numbers(const char *path, const char *word, unsigned long long numbers[2]) {
    char *text = read_text(path), *rest = text;
    int found = 0;
    for (char *line = strsep(&rest, "\n"); line && found <= 0; line = strsep(&rest, "\n")) {
        if (strncmp(line, word, strlen(word)) == 0) {
            found = sscanf(line + strlen(word), "%llu %llu", &numbers[0], &numbers[1]);
        }
    }
    free(text);
    return found;
}

/* The first of them; `none` if there is none, for example if the word "max" stands there. */
static unsigned long long read_number(const char *path, const char *word, unsigned long long none) {
    unsigned long long numbers[2];
    return read_numbers(path, word, numbers) > 0 ? numbers[0] : none;
}

/* Whether a list such as "rw,cpu,cpuacct" has this word. */
static bool has_word(const char *list, const char *separators, const char *word) {
    const size_t length = strlen(word);
    while (*list) {
        const size_t bytes = strcspn(list, separators);
        if (bytes == length && memcmp(list, word, length) == 0) {
            return true;
        }
        list += bytes + (list[bytes] != '\0');
    }
    return false;
}

/* ---- the ranks on this host, from the launcher's environment */

/* The variables of Open MPI, MPICH and Intel MPI, MVAPICH2, PALS, Flux, Slurm. Slurm last: a job's script has it,
 * too. Slurm's number of ranks is a list such as 4(x2),3: near enough, and nothing else is known before MPI
 * starts. */
static const struct {
    const char *rank, *count;
} launchers[] = {
    {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"},
    {"PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"},
    {"FLUX_TASK_LOCAL_ID", ""},
    {"SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"},
};

/* The number that an environment variable begins with, before its end or one of the characters `ends`; -1 if there
 * is none. */
static int read_variable(const char *name, const char *ends) {
    const char *text = getenv(name);
    char *end;
    if (!text || !isdigit((unsigned char)*text)) {
        return -1;
    }
    const unsigned long value = strtoul(text, &end, 10);
    return strchr(ends, *end) && value <= INT32_MAX ? (int)value : -1; /* strchr finds the end of the text, too */
}

unsigned host_local_rank(void) {
    int rank = -1;
    for (size_t i = 0; i < COUNT(launchers) && rank < 0; i++) {
        rank = read_variable(launchers[i].rank, "");
    }
    return rank < 0 ? 0 : (unsigned)rank;
}

unsigned host_local_count(void) {
    int count = -1;
    for (size_t i = 0; i < COUNT(launchers) && count < 0; i++) {
        count = read_variable(launchers[i].count, "(,");
    }
    return count < 1 ? 1 : (unsigned)count;
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

/* ---- control groups */

#define NO_LIMIT (1ULL << 60) /* version 1 writes 2^63 less a page where there is no limit */

/* read_number of a file in a group's folder. */
static unsigned long long group_number(const char *group, const char *name, const char *word,
                                       unsigned long long none) {
    char *path = memory_format("%s/%s", group, name);
    const unsigned long long number = read_number(path, word, none);
    free(path);
    return number;
}

static void read_memory(const char *group, struct group_limits *limits) {
    static const struct {
        const char *name, *word;
    } files[] = {
        {"memory.max", ""},                            /* version 2 */
        {"memory.high", ""},                           /* beyond it the kernel throttles the process */
        {"memory.limit_in_bytes", ""},                 /* version 1 */
        {"memory.stat", "hierarchical_memory_limit "}, /* of groups above those that a container sees */
    };
    unsigned long long limit = NO_LIMIT;
    for (size_t i = 0; i < COUNT(files); i++) {
        const unsigned long long number = group_number(group, files[i].name, files[i].word, NO_LIMIT);
        limit = number < limit ? number : limit;
    }
    if (limit >= NO_LIMIT || limit >= SIZE_MAX) {
        return;
    }
    /* Bytes in use without the files that the kernel would drop for us, as /proc/meminfo's MemAvailable counts
     * them. */
    unsigned long long used = group_number(group, "memory.usage_in_bytes", "", NO_LIMIT); /* version 1 */
    const bool is_first = used < NO_LIMIT;
    used = is_first ? used : group_number(group, "memory.current", "", 0);
    static const char *const cached[2][2] = {{"inactive_file ", "active_file "},
                                             {"total_inactive_file ", "total_active_file "}};
    for (size_t i = 0; i < 2; i++) {
        const unsigned long long bytes = group_number(group, "memory.stat", cached[is_first][i], 0);
        used -= bytes < used ? bytes : used;
    }
    const size_t left = limit > used ? (size_t)(limit - used) : 0;
    limits->memory = limit < limits->memory ? (size_t)limit : limits->memory;
    limits->memory_left = left < limits->memory_left ? left : limits->memory_left;
}

static void read_quota(const char *group, struct group_limits *limits) {
    unsigned long long numbers[2]; /* quota and period in microseconds */
    char *path = memory_format("%s/cpu.max", group);
    if (read_numbers(path, "", numbers) < 2) {
        numbers[0] = group_number(group, "cpu.cfs_quota_us", "", NO_LIMIT); /* version 1; -1, a huge one, is none */
        numbers[1] = group_number(group, "cpu.cfs_period_us", "", 0);
    }
    free(path);
    if (numbers[0] > 0 && numbers[0] < NO_LIMIT && numbers[1] > 0) {
        limits->cores = fmin(limits->cores, (double)numbers[0] / (double)numbers[1]);
    }
}

/* This process's group in the hierarchy of a controller, "" for version 2, by lines such as "4:cpu,cpuacct:/group"
 * of /proc/self/cgroup. NULL: it has none. The result points into `lines`, which are changed. */
static const char *find_group(char *lines, const char *controller) {
    for (char *line = strsep(&lines, "\n"); line; line = strsep(&lines, "\n")) {
        const char *number = strsep(&line, ":"), *controllers = strsep(&line, ":");
        if (line &&
            (*controller ? has_word(controllers, ",", controller) : !strcmp(number, "0") && !*controllers)) {
            return line;
        }
    }
    return NULL;
}

/* The rest of a group's path below the group that is mounted; "" if the mounted group does not contain it. A
 * container may see other paths than those of its mounts: then the mounted group is the nearest that can be found.
 * */
static const char *path_below(const char *group, const char *mounted) {
    const size_t length = strcmp(mounted, "/") ? strlen(mounted) : 0;
    const char *end = strstr(group, "/..");
    while (end && end[3] && end[3] != '/') {
        end = strstr(end + 1, "/..");
    }
    return end || strncmp(group, mounted, length) || group[length] != '/' ? "" : group + length;
}

/* Replaces \040 and the like by the characters that they stand for. */
static void decode(char *text) {
    char *to = text;
    for (const char *at = text; *at; to++) {
        unsigned code;
        const bool is_code = at[0] == '\\' && strspn(at + 1, "01234567") >= 3 && sscanf(at + 1, "%3o", &code) == 1;
        *to = is_code ? (char)code : *at;
        at += is_code ? 4 : 1;
    }
    *to = '\0';
}

/* Lines of mountinfo are "ID PARENT DEVICE GROUP FOLDER OPTIONS [FIELD...] - TYPE SOURCE OPTIONS". */
void control_groups_read(const char *root, struct group_limits *limits) {
    char *mounts = memory_format("%s/proc/self/mountinfo", root), *text = read_text(mounts), *rest = text;
    char *list = memory_format("%s/proc/self/cgroup", root);
    *limits = (struct group_limits){SIZE_MAX, SIZE_MAX, INFINITY};
    while (rest) {
        char *line = strsep(&rest, "\n"), *mounted = NULL, *folder = NULL;
        const char *type = strstr(line, " - cgroup"), *options = strrchr(line, ' ');
        const bool is_first = type && !strncmp(type, " - cgroup ", 10);
        const bool is_second = type && !strncmp(type, " - cgroup2 ", 11);
        const bool has_memory = is_second || (is_first && has_word(options + 1, ",", "memory"));
        const bool has_cores = is_second || (is_first && has_word(options + 1, ",", "cpu"));
        const char *controller = has_memory ? "memory" : "cpu";
        for (int field = 0; field < 5; field++) {
            mounted = folder;
            folder = strsep(&line, " ");
        }
        char *lines = folder && (has_memory || has_cores) ? read_text(list) : NULL;
        const char *group = lines ? find_group(lines, is_second ? "" : controller) : NULL;
        if (group) {
            decode(mounted);
            decode(folder);
            /* this process's group, and all that are around it up to the one that is mounted */
            char *path = memory_format("%s%s%s", root, folder, path_below(group, mounted));
            const size_t least = strlen(root) + strlen(folder);
            for (size_t length = strlen(path);; length = (size_t)(strrchr(path, '/') - path)) {
                path[length] = '\0';
                if (has_memory) {
                    read_memory(path, limits);
                }
                if (has_cores) {
                    read_quota(path, limits);
                }
                if (length <= least) {
                    break;
                }
            }
            free(path);
        }
        free(lines);
    }
    free(list);
    free(text);
    free(mounts);
}

unsigned control_groups_threads(double quota, unsigned ranks) {
    const double threads = round(quota / ranks);
    return threads < 1.0 ? 1 : threads < UINT_MAX ? (unsigned)threads : UINT_MAX;
}

/* ---- cores */

enum { MOST_PROCESSORS = 1 << 16 };

/* The processors that a process may run on. */
struct processors {
    cpu_set_t parts[MOST_PROCESSORS / CPU_SETSIZE];
};

/* Finds the processors of a process (0: this one), and returns how many there are; 0 if that is unknown. The
 * launcher may run on all processors that the job has on this host. */
static unsigned find_processors(pid_t process, struct processors *found) {
    return sched_getaffinity(process, sizeof *found, found->parts) == 0
               ? (unsigned)CPU_COUNT_S(sizeof *found, found->parts)
               : 0;
}

/* Returns how many of `total` cores rank `index` of `count` gets; *first is the first of them. */
static unsigned share(unsigned total, unsigned index, unsigned count, unsigned *first) {
    *first = (unsigned)((uint64_t)total * index / count);
    return (unsigned)((uint64_t)total * (index + 1) / count) - *first;
}

/* Open MPI 4 sets this variable if it has bound a rank to cores of its own. */
static const char bound_at_launch[] = "OMPI_MCA_orte_bound_at_launch";

/* The limits of control groups are read once for host_cores, which is called in every step. */
static struct group_limits first_limits;

static void read_first_limits(void) {
    control_groups_read("", &first_limits);
}

unsigned host_cores(void) {
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    const unsigned online = processors > 0 ? (unsigned)processors : 1, ranks = host_local_count();
    struct processors found;
    const unsigned own = find_processors(0, &found), launcher = ranks > 1 ? find_processors(getppid(), &found) : 0;
    const unsigned all = launcher ? launcher : online;
    unsigned cores = own ? own : online, first;
    if (ranks > 1 && cores >= all && !getenv(bound_at_launch)) { /* all ranks have the same cores */
        cores = share(cores, host_local_rank() % ranks, ranks, &first);
    }
    static pthread_once_t is_read = PTHREAD_ONCE_INIT;
    pthread_once(&is_read, read_first_limits);
    const unsigned threads = control_groups_threads(first_limits.cores, ranks);
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

/* Whether this process's parent is Open MPI 5's mpirun, whose name is prterun, and has bound this process without
 * being asked. No variable says so. */
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

void host_claim_cores(void) {
    /* --bind-to, --map-by, --cpu-set, --rankfile */
    static const char *const choices[] = {"OMPI_MCA_hwloc_base_binding_policy",
                                          "OMPI_MCA_rmaps_base_mapping_policy",
                                          "OMPI_MCA_hwloc_base_cpu_set",
                                          "OMPI_MCA_orte_rankfile",
                                          "OMPI_MCA_rmaps_rank_file_path",
                                          "PRTE_MCA_hwloc_default_binding_policy",
                                          "PRTE_MCA_rmaps_default_mapping_policy"};
    for (size_t i = 0; i < COUNT(choices); i++) {
        if (getenv(choices[i])) {
            return;
        }
    }
    if (!getenv(bound_at_launch) && !(getenv("PRTE_LAUNCHED") && is_bound_by_prterun())) {
        return;
    }
    const unsigned ranks = host_local_count();
    struct processors set;
    unsigned first, number = 0;
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

unsigned host_running(void) {
    unsigned running = 0;
    char *text = read_text("/proc/loadavg"); /* such as "0.20 0.18 0.12 2/80 11206" */
    const bool is_known = sscanf(text, "%*f %*f %*f %u/", &running) == 1;
    free(text);
    return is_known ? running : 0;
}

/* The bytes that are left of a limit; SIZE_MAX if there is no limit. */
static size_t left_of(const struct rlimit *limit, unsigned long long used_kibibytes) {
    const size_t used = (size_t)used_kibibytes << 10;
    if (limit->rlim_cur == RLIM_INFINITY) {
        return SIZE_MAX;
    }
    return limit->rlim_cur > used ? (size_t)limit->rlim_cur - used : 0;
}

size_t host_address_space(const char **command) {
    struct rlimit all = {.rlim_cur = RLIM_INFINITY}, data = all;
    getrlimit(RLIMIT_AS, &all);
    getrlimit(RLIMIT_DATA, &data);
    const size_t all_left = left_of(&all, read_number("/proc/self/status", "VmSize:", 0)),
                 data_left = left_of(&data, read_number("/proc/self/status", "VmData:", 0));
    *command = data_left < all_left ? "ulimit -d" : "ulimit -v";
    return data_left < all_left ? data_left : all_left;
}

size_t host_memory(void) {
    /* Free memory and what the kernel would drop for us. */
    size_t available = (size_t)read_number("/proc/meminfo", "MemAvailable:", 0) << 10;
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

void cpu_instructions_read(const char *path, struct cpu_instructions *found) {
    /* The names that Linux and that makers of CPUs use, the widest instructions first. */
    static const struct {
        const char *feature, *name;
        enum element_type type;
    } rows[] = {
        {"amx_bf16", "AMX_BF16", ELEMENT_BF16}, {"avx512_bf16", "AVX512_BF16", ELEMENT_BF16},
        {"svebf16", "SVE BF16", ELEMENT_BF16},  {"bf16", "NEON BF16", ELEMENT_BF16},
        {"amx_fp16", "AMX_FP16", ELEMENT_FP16}, {"avx512_fp16", "AVX512_FP16", ELEMENT_FP16},
    };
    char *text = read_text(path), *rest = text;
    *found = (struct cpu_instructions){0};
    for (bool lists = false; rest && !lists;) {
        const char *line = strsep(&rest, "\n");
        lists = strchr(line, ':') &&
                (!strncmp(line, "flags", 5) || !strncmp(line, "Features", 8)); /* on x86, and on Arm */
        for (size_t i = 0; lists && i < COUNT(rows); i++) {
            if (has_word(line, " \t", rows[i].feature)) {
                char *name = found->names[rows[i].type];
                const size_t used = strlen(name);
                snprintf(name + used, CPU_INSTRUCTIONS_NAME - used, "%s%s", used ? ", " : "", rows[i].name);
            }
        }
    }
    free(text);
}
