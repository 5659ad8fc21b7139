#include "runtime/system/control_groups.h"
#include "runtime/system/array.h"
#include "runtime/system/memory.h"
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the limits of one group */

#define NO_LIMIT (1ULL << 60) /* version 1 writes 2^63 less a page where there is no limit */

/* Reads the numbers, two at most, of the first line of a group's file that begins with `word`. Returns how many. */
static int read_numbers(const char *group, const char *name, const char *word, unsigned long long numbers[2]) {
    char *path = memory_format("%s/%s", group, name), line[256];
    FILE *file = fopen(path, "re");
    int found = 0;
    while (file && found <= 0 && fgets(line, sizeof line, file)) {
        const bool is_named = strncmp(line, word, strlen(word)) == 0;
        found = is_named ? sscanf(line + strlen(word), "%llu %llu", &numbers[0], &numbers[1]) : 0;
    }
    free(path);
    if (file) {
        fclose(file);
    }
    return found;
}

/* The first of them; `none` where there is none, such as the word "max". */
static unsigned long long read_number(const char *group, const char *name, const char *word,
                                      unsigned long long none) {
    unsigned long long numbers[2];
    return read_numbers(group, name, word, numbers) > 0 ? numbers[0] : none;
}

/* Bytes in use without the files that the kernel would drop for us, as /proc/meminfo's MemAvailable counts them. */
static unsigned long long read_memory_used(const char *group) {
    const unsigned long long first = read_number(group, "memory.usage_in_bytes", "", NO_LIMIT); /* version 1 */
    const char *const total = first < NO_LIMIT ? "total_" : "";
    unsigned long long used = first < NO_LIMIT ? first : read_number(group, "memory.current", "", 0);
    static const char *const kinds[] = {"inactive_file ", "active_file "};
    for (size_t i = 0; i < COUNT(kinds); i++) {
        char *word = memory_format("%s%s", total, kinds[i]);
        const unsigned long long cached = read_number(group, "memory.stat", word, 0);
        used -= cached < used ? cached : used;
        free(word);
    }
    return used;
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
        const unsigned long long number = read_number(group, files[i].name, files[i].word, NO_LIMIT);
        limit = number < limit ? number : limit;
    }
    if (limit < NO_LIMIT && limit < SIZE_MAX) {
        const unsigned long long used = read_memory_used(group);
        const size_t left = limit > used ? (size_t)(limit - used) : 0;
        limits->memory = limit < limits->memory ? (size_t)limit : limits->memory;
        limits->memory_left = left < limits->memory_left ? left : limits->memory_left;
    }
}

static void read_quota(const char *group, struct group_limits *limits) {
    unsigned long long numbers[2]; /* quota and period in microseconds */
    if (read_numbers(group, "cpu.max", "", numbers) < 2) {
        numbers[0] = read_number(group, "cpu.cfs_quota_us", "", NO_LIMIT); /* version 1; -1, a huge one, is none */
        numbers[1] = read_number(group, "cpu.cfs_period_us", "", 0);
    }
    if (numbers[0] > 0 && numbers[0] < NO_LIMIT && numbers[1] > 0) {
        limits->cores = fmin(limits->cores, (double)numbers[0] / (double)numbers[1]);
    }
}

/* ---- where the groups are */

/* Whether a list such as "rw,cpu,cpuacct" has this word. */
static bool has_word(const char *list, const char *word) {
    const size_t length = strlen(word);
    for (; *list; list += *list == ',') {
        if (strcspn(list, ",") == length && !strncmp(list, word, length)) {
            return true;
        }
        list += strcspn(list, ",");
    }
    return false;
}

/* This process's group in the hierarchy of a controller, "" for version 2, by lines such as "4:cpu,cpuacct:/group".
 * The caller frees it; NULL: it has none. */
static char *find_group(const char *root, const char *controller) {
    char *path = memory_format("%s/proc/self/cgroup", root), *line = NULL, *group = NULL;
    FILE *file = fopen(path, "re");
    size_t capacity = 0;
    while (file && !group && getline(&line, &capacity, file) >= 0) {
        char *rest = line, *number = strsep(&rest, ":"), *controllers = strsep(&rest, ":");
        if (rest && (*controller ? has_word(controllers, controller) : !strcmp(number, "0") && !*controllers)) {
            group = memory_string_part(rest, strcspn(rest, "\n"));
        }
    }
    free(line);
    free(path);
    if (file) {
        fclose(file);
    }
    return group;
}

/* The end of a group's path below the group that is mounted. "" where that is not around it: a container may be
 * shown other paths than those of its mounts, and the mounted group then is the nearest that can be found. */
static const char *path_below(const char *group, const char *mounted) {
    const size_t length = strcmp(mounted, "/") ? strlen(mounted) : 0;
    const char *end = strstr(group, "/..");
    while (end && end[3] && end[3] != '/') {
        end = strstr(end + 1, "/..");
    }
    return end || strncmp(group, mounted, length) || group[length] != '/' ? "" : group + length;
}

/* A mount of a hierarchy of control groups: the fields of its line of mountinfo. */
struct mount {
    char *group, *folder, *type, *options;
};

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

/* Splits "ID PARENT DEVICE GROUP FOLDER OPTIONS [FIELD...] - TYPE SOURCE OPTIONS". */
static bool split_mount(char *line, struct mount *mount) {
    char *field = NULL;
    line[strcspn(line, "\n")] = '\0';
    for (int i = 0; i < 5; i++) {
        mount->group = field;
        field = strsep(&line, " ");
    }
    mount->folder = field;
    while (field && strcmp(field, "-")) {
        field = strsep(&line, " ");
    }
    mount->type = strsep(&line, " ");
    strsep(&line, " ");
    mount->options = line;
    if (!mount->options) {
        return false;
    }
    decode(mount->group);
    decode(mount->folder);
    return true;
}

/* Reads limits of this process's group in a mounted hierarchy and of all that are around it. */
static void read_groups(const char *root, const struct mount *mount, const char *controller,
                        void (*read)(const char *group, struct group_limits *limits), struct group_limits *limits) {
    char *group = find_group(root, controller);
    if (!group) {
        return;
    }
    char *path = memory_format("%s%s%s", root, mount->folder, path_below(group, mount->group));
    const size_t least = strlen(root) + strlen(mount->folder);
    for (size_t length = strlen(path); length > least; length = (size_t)(strrchr(path, '/') - path)) {
        path[length] = '\0';
        read(path, limits);
    }
    path[least] = '\0';
    read(path, limits);
    free(path);
    free(group);
}

void control_groups_read(const char *root, struct group_limits *limits) {
    char *path = memory_format("%s/proc/self/mountinfo", root), *line = NULL;
    FILE *file = fopen(path, "re");
    size_t capacity = 0;
    struct mount mount;
    *limits = (struct group_limits){SIZE_MAX, SIZE_MAX, INFINITY};
    while (file && getline(&line, &capacity, file) >= 0) {
        if (!strstr(line, " cgroup") || !split_mount(line, &mount)) {
            continue;
        }
        const bool is_second = !strcmp(mount.type, "cgroup2"), is_first = !strcmp(mount.type, "cgroup");
        if (is_second || (is_first && has_word(mount.options, "memory"))) {
            read_groups(root, &mount, is_second ? "" : "memory", read_memory, limits);
        }
        if (is_second || (is_first && has_word(mount.options, "cpu"))) {
            read_groups(root, &mount, is_second ? "" : "cpu", read_quota, limits);
        }
    }
    free(line);
    free(path);
    if (file) {
        fclose(file);
    }
}

unsigned control_groups_threads(double quota, unsigned ranks) {
    const double threads = round(quota / ranks);
    return threads < 1.0 ? 1 : threads < UINT_MAX ? (unsigned)threads : UINT_MAX;
}
