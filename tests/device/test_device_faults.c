/* A device that fails under hc_train, played by tests/support/faulty_opencl.c: what is said, and that the run can
 * go on. */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/child.h"
#include "tests/support/corpus.h"
#include "tests/support/runs.h"
#include "tests/support/scratch.h"
#include <stdlib.h>

static const char train_program[] = HC_PROGRAMS "/hc_train";

#define TRAIN(run, ...)                                                                                            \
    CHILD_RUN(train_program, "--config", scratch_path("tiny.conf"), "--data-dir", scratch_path("data"),            \
              "--out-dir", scratch_path(run), "--lr-decay-iters", "20", ##__VA_ARGS__)

/* Trains with a fault, see faulty_opencl.c; the child's exit status. */
static int train_with(const char *fault, const char *run) {
    setenv("LD_PRELOAD", HC_PRELOADED, 1);
    setenv("HC_FAULT", fault, 1);
    const int status = TRAIN(run, "--checkpoint-interval", "5");
    unsetenv("LD_PRELOAD");
    unsetenv("HC_FAULT");
    return status;
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

static int set_up(void **state) {
    return scratch_begin(state) || corpus_make(HC_PROGRAMS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_memory_is_said_with_what_to_do),
        cmocka_unit_test(lost_device_leaves_a_checkpoint),
        cmocka_unit_test(failure_while_waiting_is_said),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_end);
}
