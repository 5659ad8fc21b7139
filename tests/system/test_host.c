/* A rank's share of its host under environments that launchers make. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "runtime/system/host.h"
#include "tests/support/test.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK",
                                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                                    "OMPI_MCA_orte_bound_at_launch",
                                    "PRTE_LAUNCHED",
                                    "OMPI_MCA_hwloc_base_binding_policy",
                                    "OMPI_MCA_rmaps_base_mapping_policy",
                                    "MPI_LOCALRANKID",
                                    "MPI_LOCALNRANKS",
                                    "SLURM_LOCALID",
                                    "SLURM_STEP_TASKS_PER_NODE"};

static int without_launcher(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        unsetenv(names[i]);
    }
    return 0;
}

/* Tests that count cores are left out where a container has a quota of fewer. */
static unsigned cores_allowed(void) {
    cpu_set_t set;
    struct group_limits limits;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    control_groups_read("", &limits);
    if (limits.cores < CPU_COUNT(&set)) {
        skip();
    }
    return (unsigned)CPU_COUNT(&set);
}

UNIT_TEST_BETWEEN(without_launcher, test_alone, NULL) {
    assert_int_equal(host_local_rank(), 0);
    assert_int_equal(host_local_count(), 1);
    assert_int_equal(host_cores(), cores_allowed());
    assert_true(host_memory() > 0);
}

UNIT_TEST_BETWEEN(without_launcher, test_launchers, NULL) {
    setenv("SLURM_LOCALID", "5", 1); /* a job's script has it too, so a launcher inside it wins */
    setenv("SLURM_STEP_TASKS_PER_NODE", "8(x2),3", 1);
    assert_int_equal(host_local_rank(), 5);
    assert_int_equal(host_local_count(), 8);
    setenv("MPI_LOCALRANKID", "2", 1);
    setenv("MPI_LOCALNRANKS", "3", 1);
    assert_int_equal(host_local_rank(), 2);
    assert_int_equal(host_local_count(), 3);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
    assert_int_equal(host_local_rank(), 1);
    assert_int_equal(host_local_count(), 2);
}

UNIT_TEST_BETWEEN(without_launcher, test_nonsense_is_passed_over, NULL) {
    static const char *const nonsense[] = {"", "x", "-1", "99999999999", "3x"};
    for (size_t i = 0; i < COUNT(nonsense); i++) {
        setenv("OMPI_COMM_WORLD_LOCAL_RANK", nonsense[i], 1);
        setenv("OMPI_COMM_WORLD_LOCAL_SIZE", nonsense[i], 1);
        assert_int_equal(host_local_rank(), 0);
        assert_int_equal(host_local_count(), 1);
    }
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "0", 1);
    assert_int_equal(host_local_count(), 1);
}

/* Every core is somebody's and nobody's share is empty. Depends on the parent having the same cores, as under
 * CTest. */
UNIT_TEST_BETWEEN(without_launcher, test_cores_and_memory_are_divided, NULL) {
    const size_t all_memory = host_memory();
    for (unsigned ranks = 2; ranks <= 5; ranks++) {
        const unsigned all = cores_allowed();
        char text[16];
        unsigned sum = 0;
        snprintf(text, sizeof text, "%u", ranks);
        setenv("OMPI_COMM_WORLD_LOCAL_SIZE", text, 1);
        for (unsigned rank = 0; rank < ranks; rank++) {
            snprintf(text, sizeof text, "%u", rank);
            setenv("OMPI_COMM_WORLD_LOCAL_RANK", text, 1);
            assert_in_range(host_cores(), 1, (all + ranks - 1) / ranks);
            sum += host_cores();
        }
        assert_int_equal(sum, ranks > all ? ranks : all);
        const size_t part = host_memory();
        assert_true(part < all_memory / ranks * 5 / 4 && part > all_memory / ranks / 2); /* others take and free */
    }
}

/* What host_claim_cores leaves a child that is bound to its first core. */
static unsigned claimed_when_bound(void) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        cpu_set_t set, one;
        sched_getaffinity(0, sizeof set, &set);
        CPU_ZERO(&one);
        for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++) {
            if (CPU_ISSET(i, &set)) {
                CPU_SET(i, &one);
            }
        }
        sched_setaffinity(0, sizeof one, &one);
        host_claim_cores();
        _exit((int)host_cores());
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return (unsigned)WEXITSTATUS(status);
}

UNIT_TEST_BETWEEN(without_launcher, test_only_a_default_binding_is_widened, NULL) {
    if (cores_allowed() < 2 || cores_allowed() > 255) {
        skip();
    }
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1", 1);
    assert_int_equal(claimed_when_bound(), 1); /* by the user, with taskset */
    setenv("OMPI_MCA_orte_bound_at_launch", "1", 1);
    assert_int_equal(claimed_when_bound(), cores_allowed());
    setenv("OMPI_MCA_hwloc_base_binding_policy", "core", 1); /* --bind-to core */
    assert_int_equal(claimed_when_bound(), 1);
    unsetenv("OMPI_MCA_hwloc_base_binding_policy");
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
    assert_int_equal(claimed_when_bound(), cores_allowed() / 2);
    unsetenv("OMPI_MCA_orte_bound_at_launch");
    setenv("PRTE_LAUNCHED", "1", 1); /* Open MPI 5, but the parent of this process's child is no mpirun */
    assert_int_equal(claimed_when_bound(), 1);
}

UNIT_TEST(test_command_that_binds) {
    static const char plain[] = "prterun\0-np\0002\0hc_train\0--out-dir\0map-by-hand",
                      asked[] = "prterun\0--bind-to\0core",
                      policy[] = "prterun\0--prtemca\0hwloc_default_binding_policy\0core",
                      one[] = "prterun\0-map-by\0slot";
    assert_false(host_command_binds(plain, sizeof plain));
    assert_true(host_command_binds(asked, sizeof asked));
    assert_true(host_command_binds(policy, sizeof policy));
    assert_true(host_command_binds(one, sizeof one));
}

UNIT_TEST_MAIN(NULL, NULL)
