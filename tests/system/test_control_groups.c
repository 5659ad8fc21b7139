/* Limits of control groups, read from folders that look like the systems of hosts, containers and jobs. */
#include "runtime/system/host.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

#define MEBIBYTE ((size_t)1 << 20)

/* Writes a file of a fake system, and the folders that lead to it. */
static void write_file(const char *system, const char *path, const char *text) {
    char *name = scratch_format("%s%s", system, path);
    for (char *slash = name; (slash = strchr(slash, '/')) != NULL; *slash++ = '/') {
        *slash = '\0';
        mkdir(scratch_path(name), 0700);
    }
    scratch_write(name, text, strlen(text));
}

/* Beginnings of lines of mountinfo up to the mounted group. */
#define FIRST                  "36 31 0:32 "
#define OTHERS                 "22 1 8:1 / / rw - ext4 sda1 rw\n23 22 0:5 / /proc rw shared:2 - proc proc rw\n"
#define UNIFIED(group, folder) OTHERS FIRST group " " folder " rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
#define MEMORY(group, folder)  FIRST group " " folder " rw,nosuid - cgroup cgroup rw,memory\n"
#define CPU(group, folder)     FIRST group " " folder " rw shared:7 master:1 - cgroup cgroup rw,cpu,cpuacct\n"

#define NO_LIMIT_1 "9223372036854771712\n"

struct fake {
    const char *name, *mounts, *groups;
    struct {
        const char *path, *text;
    } files[10];
    size_t memory, left; /* MiB; 0: no limit */
    double cores;        /* 0: no quota */
};

/* The last one's group is deeper than its line is allowed to be long. */
static const struct fake fakes[] = {
    {"nothing", OTHERS, "0::/user.slice\n", {{0}}, 0, 0, 0},
    {"leaf",
     UNIFIED("/", "/sys/fs/cgroup"),
     "0::/job\n",
     {{"/sys/fs/cgroup/job/memory.max", "419430400\n"}, {"/sys/fs/cgroup/job/cpu.max", "150000 100000\n"}},
     400,
     400,
     1.5},
    {"ancestors",
     UNIFIED("/", "/sys/fs/cgroup"),
     "0::/user.slice/user-1.slice/run\n",
     {{"/sys/fs/cgroup/user.slice/user-1.slice/run/memory.max", "max\n"},
      {"/sys/fs/cgroup/user.slice/user-1.slice/run/cpu.max", "max 100000\n"},
      {"/sys/fs/cgroup/user.slice/user-1.slice/memory.max", "524288000\n"},
      {"/sys/fs/cgroup/user.slice/user-1.slice/memory.high", "314572800\n"},
      {"/sys/fs/cgroup/user.slice/cpu.max", "300000 100000\n"}},
     300,
     300,
     3},
    {"used",
     UNIFIED("/", "/sys/fs/cgroup"),
     "0::/pod/a\n",
     {{"/sys/fs/cgroup/pod/a/memory.max", "419430400\n"},
      {"/sys/fs/cgroup/pod/a/memory.current", "104857600\n"},
      {"/sys/fs/cgroup/pod/a/memory.stat", "anon 1\nfile 2\ninactive_file 20971520\nactive_file 10485760\n"},
      {"/sys/fs/cgroup/pod/memory.max", "524288000\n"}, /* more, but less of it is left */
      {"/sys/fs/cgroup/pod/memory.current", "471859200\n"}},
     400,
     50,
     0},
    {"first",
     OTHERS MEMORY("/", "/sys/fs/cgroup/memory") CPU("/", "/sys/fs/cgroup/cpu,cpuacct"),
     "11:memory:/slurm/uid_7/job_9\n4:cpu,cpuacct:/slurm/uid_7\n1:name=systemd:/other\n",
     {{"/sys/fs/cgroup/memory/slurm/uid_7/job_9/memory.limit_in_bytes", NO_LIMIT_1},
      {"/sys/fs/cgroup/memory/slurm/uid_7/memory.limit_in_bytes", "419430400\n"},
      {"/sys/fs/cgroup/memory/slurm/uid_7/memory.usage_in_bytes", "125829120\n"},
      {"/sys/fs/cgroup/memory/slurm/uid_7/memory.stat", "inactive_file 0\ntotal_inactive_file 20971520\n"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", NO_LIMIT_1},
      {"/sys/fs/cgroup/cpu,cpuacct/slurm/uid_7/cpu.cfs_quota_us", "-1\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/slurm/uid_7/cpu.cfs_period_us", "100000\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_quota_us", "50000\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_period_us", "20000\n"}},
     400,
     300,
     2.5},
    {"docker",
     OTHERS MEMORY("/docker/f00", "/sys/fs/cgroup/memory"),
     "3:memory:/docker/f00/inner\n",
     {{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "419430400\n"},
      {"/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", NO_LIMIT_1},
      {"/sys/fs/cgroup/memory/docker/f00/memory.limit_in_bytes", "1048576\n"}},
     400,
     400,
     0},
    {"namespace",
     UNIFIED("/", "/sys/fs/cgroup"),
     "0::/\n",
     {{"/sys/fs/cgroup/memory.max", "419430400\n"}},
     400,
     400,
     0},
    {"other-paths",
     UNIFIED("/../../pod", "/sys/fs/cgroup"),
     "0::/../x\n",
     {{"/sys/fs/cgroup/memory.max", "419430400\n"}, {"/sys/fs/x/memory.max", "1048576\n"}},
     400,
     400,
     0},
    {"above",
     OTHERS MEMORY("/", "/sys/fs/cgroup/memory"),
     "3:memory:/\n", /* whose group is not to be seen */
     {{"/sys/fs/cgroup/memory/memory.limit_in_bytes", NO_LIMIT_1},
      {"/sys/fs/cgroup/memory/memory.stat", "cache 0\nhierarchical_memory_limit 419430400\n"}},
     400,
     400,
     0},
    {"hybrid",
     OTHERS MEMORY("/", "/sys/fs/cgroup/memory") UNIFIED("/", "/sys/fs/cgroup/unified"),
     "4:memory:/job\n1:cpu:/\n0::/job\n",
     {{"/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "419430400\n"},
      {"/sys/fs/cgroup/unified/job/cpu.max", "50000 100000\n"},
      {"/sys/fs/cgroup/unified/job/memory.max", "max\n"}},
     400,
     400,
     0.5},
    {"spaces",
     UNIFIED("/a\\040b", "/sys/my\\040groups"),
     "0::/a b/c:d\\e\n",
     {{"/sys/my groups/c:d\\e/memory.max", "419430400\n"}},
     400,
     400,
     0},
    {"removed",
     UNIFIED("/", "/sys/fs/cgroup"),
     "0::/job/step (deleted)\n",
     {{"/sys/fs/cgroup/job/memory.max", "419430400\n"}},
     400,
     400,
     0},
    {"nonsense",
     "\n-\ncgroup cgroup2\n1 2 3 4 5 6 cgroup2\n1 2 3 / /sys - cgroup2\n1 2 3 - - - - cgroup - - -\n"
     "1 2 3 / /sys/fs/cgroup rw - cgroup2 x rw\\777\\04\n1 2 3 \\0401 \\ a - cgroup cgroup ,,memory,,cpu\n",
     "\n:\n::\n0:\n0::\nx:memory\n0::/job\n",
     {{"/sys/fs/cgroup/job/memory.max", ""},
      {"/sys/fs/cgroup/memory.max", "-1\n"},
      {"/sys/fs/cgroup/memory.high", "99999999999999999999999\n"},
      {"/sys/fs/cgroup/cpu.max", "100000 0\n"}},
     0,
     0,
     0},
};

UNIT_TEST(test_limits_are_found) {
    for (size_t i = 0; i < COUNT(fakes); i++) {
        const struct fake *fake = &fakes[i];
        struct group_limits limits;
        write_file(fake->name, "/proc/self/mountinfo", fake->mounts);
        write_file(fake->name, "/proc/self/cgroup", fake->groups);
        for (size_t j = 0; j < COUNT(fake->files) && fake->files[j].path; j++) {
            write_file(fake->name, fake->files[j].path, fake->files[j].text);
        }
        control_groups_read(scratch_path(fake->name), &limits);
        const double cores = fake->cores > 0.0 ? fake->cores : (double)INFINITY;
        if (limits.memory != (fake->memory ? fake->memory * MEBIBYTE : SIZE_MAX) ||
            limits.memory_left != (fake->left ? fake->left * MEBIBYTE : SIZE_MAX) || limits.cores < cores ||
            limits.cores > cores) {
            fail_msg("%s: memory %zu, left %zu, cores %g", fake->name, limits.memory, limits.memory_left,
                     limits.cores);
        }
    }
}

/* As a kernel would not write them, but what is in /proc is shown by anything. */
UNIT_TEST(test_long_lines) {
    struct group_limits limits;
    char *deep = scratch_format("0::/%020000d\n", 0),
         *mounts = scratch_format("%020000d cgroup2\n%s", 0, UNIFIED("/", "/sys/fs/cgroup"));
    for (size_t at = 5; at < 20000; at += 2) {
        deep[at] = '/';
    }
    write_file("deep", "/proc/self/mountinfo", mounts);
    write_file("deep", "/proc/self/cgroup", deep);
    write_file("deep", "/sys/fs/cgroup/0/memory.max", "419430400\n");
    control_groups_read(scratch_path("deep"), &limits);
    assert_int_equal(limits.memory, 400 * MEBIBYTE);
}

UNIT_TEST(test_nothing_is_there) {
    struct group_limits limits;
    control_groups_read(scratch_path("absent"), &limits);
    assert_true(limits.memory == SIZE_MAX && limits.memory_left == SIZE_MAX && isinf(limits.cores));
}

UNIT_TEST(test_threads) {
    assert_int_equal(control_groups_threads(0.01, 1), 1);
    assert_int_equal(control_groups_threads(1.4, 1), 1);
    assert_int_equal(control_groups_threads(1.5, 1), 2);
    assert_int_equal(control_groups_threads(3.0, 2), 2);
    assert_int_equal(control_groups_threads(3.0, 4), 1);
    assert_int_equal(control_groups_threads((double)INFINITY, 2), UINT32_MAX);
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
