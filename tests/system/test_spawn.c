/* Programs that are started, and calls on the way there that fail. */
#include "runtime/system/spawn.h"
#include "tests/support/test.h"
#include <errno.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Calls until one has no memory; 0: none does. The linker leads calls of these functions here. */
static int calls_left;

static bool fails_now(void) {
    return calls_left > 0 && --calls_left == 0;
}

int __real_posix_spawn_file_actions_init(posix_spawn_file_actions_t *actions);
int __wrap_posix_spawn_file_actions_init(posix_spawn_file_actions_t *actions);
int __wrap_posix_spawn_file_actions_init(posix_spawn_file_actions_t *actions) {
    return fails_now() ? ENOMEM : __real_posix_spawn_file_actions_init(actions);
}

int __real_posix_spawn_file_actions_addopen(posix_spawn_file_actions_t *actions, int fd, const char *path,
                                            int flags, mode_t mode);
int __wrap_posix_spawn_file_actions_addopen(posix_spawn_file_actions_t *actions, int fd, const char *path,
                                            int flags, mode_t mode);
int __wrap_posix_spawn_file_actions_addopen(posix_spawn_file_actions_t *actions, int fd, const char *path,
                                            int flags, mode_t mode) {
    return fails_now() ? ENOMEM : __real_posix_spawn_file_actions_addopen(actions, fd, path, flags, mode);
}

int __real_posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *actions, int from, int to);
int __wrap_posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *actions, int from, int to);
int __wrap_posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *actions, int from, int to) {
    return fails_now() ? ENOMEM : __real_posix_spawn_file_actions_adddup2(actions, from, to);
}

/* What a line of shell says, with errors among it and no input. The error number of spawn_program. */
static int say(const char *line, char said[256]) {
    const int words = memfd_create("words", MFD_CLOEXEC);
    char shell[] = "sh", option[] = "-c", command[128];
    char *const arguments[] = {shell, option, command, NULL};
    pid_t child = 0;
    assert_true(words >= 0);
    snprintf(command, sizeof command, "%s", line);
    const int code =
        spawn_program(&child, "sh", arguments, &(struct spawn_files){.in = -1, .out = words, .err = words});
    if (code == 0) {
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    const ssize_t bytes = pread(words, said, 255, 0);
    assert_true(bytes >= 0);
    said[bytes] = '\0';
    close(words);
    return code;
}

UNIT_TEST(test_files) {
    char said[256];
    assert_int_equal(say("echo right; echo wrong >&2; cat", said), 0);
    assert_string_equal(said, "right\nwrong\n");
}

/* MPI would take the program for the rank that we are. */
UNIT_TEST(test_what_is_started_is_no_rank) {
    char said[256];
    for (const char *const *name = spawn_rank_variables; *name; name++) {
        assert_int_equal(setenv(*name, "0", 1), 0);
    }
    assert_int_equal(setenv("SLURM_STEP_NUM_TASKS", "2", 1), 0);
    assert_int_equal(setenv("PMIX_RANKS", "kept", 1), 0);
    assert_int_equal(say("env | grep -E '^(OMPI_COMM_WORLD_SIZE|PMI|MV2_COMM_WORLD_SIZE|SLURM_STEP)'", said), 0);
    assert_string_equal(said, "PMIX_RANKS=kept\n");
    for (const char *const *name = spawn_rank_variables; *name; name++) {
        assert_int_equal(unsetenv(*name), 0);
    }
    assert_int_equal(unsetenv("SLURM_STEP_NUM_TASKS"), 0);
    assert_int_equal(unsetenv("PMIX_RANKS"), 0);
}

/* Nothing is started where one of its four arrangements fails, such as with our input. */
UNIT_TEST(test_failures) {
    char said[256];
    for (int call = 1; call <= 4; call++) {
        calls_left = call;
        assert_int_equal(say("echo started", said), ENOMEM);
        assert_string_equal(said, "");
        assert_int_equal(calls_left, 0);
    }
    calls_left = 5;
    assert_int_equal(say("echo started", said), 0);
    assert_int_equal(calls_left, 1);
    calls_left = 0;
}

UNIT_TEST(test_no_program) {
    char name[] = "/nonexistent/program";
    char *const arguments[] = {name, NULL};
    pid_t child;
    assert_int_equal(spawn_program(&child, name, arguments, &(struct spawn_files){.in = -1, .out = -1, .err = -1}),
                     ENOENT);
}

UNIT_TEST_MAIN(NULL, NULL)
