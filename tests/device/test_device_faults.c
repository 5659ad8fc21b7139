/* A device that fails under hc_train, played by tests/support/faulty_opencl.c: what is said, and that the run can
 * go on. */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/child.h"
#include "tests/support/corpus.h"
#include "tests/support/hostile.h"
#include "tests/support/runs.h"
#include "tests/support/scratch.h"
#include <stdlib.h>
#include <string.h>

static const char train_program[] = HC_PROGRAMS "/hc_train";

#define TRAIN(run, ...)                                                                                            \
    CHILD_RUN(train_program, "--config", scratch_path("tiny.conf"), "--data-dir", scratch_path("data"),            \
              "--out-dir", scratch_path(run), "--lr-decay-iters", "20", ##__VA_ARGS__)

/* Trains with a variable of faulty_opencl.c; the child's exit status. */
static int train_where(const char *variable, const char *value, const char *run) {
    setenv("LD_PRELOAD", HC_PRELOADED, 1);
    setenv(variable, value, 1);
    const int status = TRAIN(run, "--checkpoint-interval", "5");
    unsetenv("LD_PRELOAD");
    unsetenv(variable);
    return status;
}

static int train_with(const char *fault, const char *run) {
    return train_where("HC_FAULT", fault, run);
}

static void no_memory_is_said_with_what_to_do(void **state) {
    (void)state;
    assert_failed(train_with("clCreateBuffer -4 20", "full"), 1, "choose a smaller batch_size");
    assert_failed(train_with("clCreateBuffer -4 20", "full"), 1, "CL_MEM_OBJECT_ALLOCATION_FAILURE");
    assert_failed(train_with("clEnqueueNDRangeKernel -5 9", "full"), 1, "cannot run kernel");
}

/* In the eighth of 20 iterations, when there is a checkpoint. */
static void lost_device_leaves_a_checkpoint(void **state) {
    (void)state;
    assert_failed(train_with("adamw -36 8", "lost"), 1, "the device was lost");
    assert_int_equal(newest("lost", 0), 5);
    assert_failed(train_with("adamw -36 8", "lost-again"), 1, "--init-from resume goes on from there");
    assert_done(TRAIN("lost", "--init-from", "resume"));
    assert_done(TRAIN("unharmed", "--checkpoint-interval", "5"));
    assert_same_checkpoint("lost", "unharmed", "ckpt-20");
}

static void failure_while_waiting_is_said(void **state) {
    (void)state;
    assert_failed(train_with("clFinish -9999 3", "waiting"), 1, "the device was lost");
}

static void what_devices_and_compilers_say_is_shown(void **state) {
    (void)state;
    setenv("XDG_CACHE_HOME", scratch_path("cache"), 1); /* where no program is */
    train_where("HC_NAME", "a device" HOSTILE_TEXT, "named");
    assert_shown(child_message());
    assert_failed(train_where("HC_LOG", "line one" HOSTILE_TEXT "\nline two", "uncompiled"), 1, "cannot compile ");
    assert_shown(child_message());
    assert_non_null(strstr(child_message(), "\n  | line one\\x1b[31m\n  | forged"));
    assert_non_null(strstr(child_message(), "\n  | line two\n"));
    unsetenv("XDG_CACHE_HOME");
}

static int set_up(void **state) {
    return scratch_begin(state) || corpus_make(HC_PROGRAMS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_memory_is_said_with_what_to_do),
        cmocka_unit_test(lost_device_leaves_a_checkpoint),
        cmocka_unit_test(failure_while_waiting_is_said),
        cmocka_unit_test(what_devices_and_compilers_say_is_shown),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_end);
}
