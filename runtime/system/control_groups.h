/* The limits of Linux's control groups, by which containers, batch systems and systemd's slices limit the processes
 * in them. */
#pragma once

#include <stddef.h>

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
