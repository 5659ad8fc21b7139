/* A device that fails under hc_train, mocked by tests/support/faulty_opencl.c: what is reported, and that the run
 * can go on; and a device that computes nonsense, which no program takes. */
#include "runtime/system/library.h"
#include "tests/support/hostile.h"
#include "tests/support/runs.h"
#include <dirent.h>

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

UNIT_TEST(no_memory_is_reported_with_advice) {
    const int status = train_with("clCreateBuffer -4 20", "full");
    assert_failed(status, 1, "choose a smaller batch_size");
    assert_failed(status, 1, "CL_MEM_OBJECT_ALLOCATION_FAILURE");
    assert_failed(train_with("clEnqueueNDRangeKernel -5 9", "full"), 1, "cannot run kernel");
}

/* In the eighth of 20 iterations, when there is a checkpoint. */
UNIT_TEST(lost_device_leaves_a_checkpoint) {
    const int status = train_with("adamw -36 8", "lost");
    assert_failed(status, 1, "the device was lost");
    assert_failed(status, 1, "--init-from resume goes on from there");
    assert_int_equal(newest("lost", 0), 5);
    assert_done(TRAIN("lost", "--init-from", "resume"));
    assert_done(TRAIN("unharmed", "--checkpoint-interval", "5"));
    assert_same_checkpoint("lost", "unharmed", "ckpt-20");
}

UNIT_TEST(failure_while_waiting_is_reported) {
    assert_failed(train_with("clFinish -9999 3", "waiting"), 1, "the device was lost");
}

UNIT_TEST(texts_of_devices_and_compilers_are_shown) {
    setenv("XDG_CACHE_HOME", scratch_path("empty-cache"), 1); /* where no program is */
    train_where("HC_NAME", "a device" HOSTILE_TEXT, "named");
    assert_shown(child_message());
    assert_failed(train_where("HC_LOG", "line one" HOSTILE_TEXT "\nline two", "uncompiled"), 1, "cannot compile ");
    assert_shown(child_message());
    assert_non_null(strstr(child_message(), "\n  | line one\\x1b[31m\n  | forged"));
    assert_non_null(strstr(child_message(), "\n  | line two\n"));
    assert_failed(train_where("HC_LOG", "<kernel>:3:1: error: it is not to be", "uncompiled"), 1,
                  "  | <kernel>:3:1: error: it is not to be [gemm_panels.cl:2]");
    setenv("XDG_CACHE_HOME", scratch_path("cache"), 1);
}

/* ---- a device whose kernels, of one name, compute nothing */

/* Takes the verdicts out of the cache, which are the smallest entries, and leaves the programs. */
static void forget_verdicts(void) {
    struct stat status;
    DIR *folder = opendir(scratch_path("cache/hctrain"));
    assert_non_null(folder);
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        if (fstatat(dirfd(folder), entry->d_name, &status, 0) == 0 && S_ISREG(status.st_mode) &&
            status.st_size < 200) {
            assert_int_equal(unlinkat(dirfd(folder), entry->d_name, 0), 0);
        }
    }
    closedir(folder);
}

/* Runs a program on it when nothing is known of the device. */
static void check_refused(const char *kernel, const char *failed, const char *const *arguments) {
    const char *fault = scratch_format("HC_FAULT=%s 0 1", kernel);
    const char *const environment[] = {fault, scratch_format("LD_PRELOAD=%s", HC_PRELOADED), NULL};
    forget_verdicts();
    const int status = child_finish(child_start_with(&(struct child_setup){.environment = environment}, arguments));
    assert_failed(status, 1, failed);
    assert_failed(status, 1, " failed its self-test against sums on the host: ");
    assert_failed(status, 1, "--device cpu");
}

#define CHECK_REFUSED(kernel, failed, ...)                                                                         \
    check_refused((kernel), (failed), (const char *const[]){__VA_ARGS__, "--device", "pocl", NULL})
#define NEW_RUN                                                                                                    \
    TRAIN_PROGRAM, "--config", scratch_path("tiny.conf"), "--data-dir", scratch_path("data"), "--out-dir",         \
        scratch_path("nonsense"), "--start-over"

UNIT_TEST(nonsense_is_refused_in_every_class_of_kernels) {
    CHECK_REFUSED("gemm_panels", "matrix multiplication by cblas of device ", NEW_RUN, "--gemm", "cblas");
    CHECK_REFUSED("gemm_panels", "matrix multiplication by portable of device ", NEW_RUN, "--gemm", "portable");
    CHECK_REFUSED("XgemmDirectTN", "matrix multiplication by clblast of device ", NEW_RUN, "--gemm", "clblast");
    CHECK_REFUSED("Xgemm", "matrix multiplication by clblast of device ", NEW_RUN, "--gemm", "clblast");
    CHECK_REFUSED("attention_forward", "attention of device ", NEW_RUN);
    CHECK_REFUSED("attention_backward_keys", "attention of device ", NEW_RUN);
    CHECK_REFUSED("attention_backward_queries", "attention of device ", NEW_RUN);
    CHECK_REFUSED("loop_turns", "a long loop of device ", NEW_RUN, "--residual", "mhc_lite", "--n-streams", "6");
}

UNIT_TEST(every_program_refuses_nonsense) {
    const char *checkpoint = scratch_path("healthy/ckpt-20"), *failed = "matrix multiplication by ";
    CHECK_REFUSED("gemm_panels", failed, HC_PROGRAMS "/hc_bench", "--config", scratch_path("tiny.conf"));
    CHECK_REFUSED("gemm_panels", failed, HC_PROGRAMS "/hc_eval", "--checkpoint", checkpoint, "--data",
                  scratch_path("data"));
    CHECK_REFUSED("gemm_panels", failed, HC_PROGRAMS "/hc_sample", "--checkpoint", checkpoint);
    CHECK_REFUSED("gemm_panels", failed, HC_PROGRAMS "/hc_probe", "--checkpoint", HC_TEST_DATA "/golden/rc",
                  "--batch", HC_TEST_DATA "/golden/rc/batch.safetensors", "--out", scratch_path("probed"));
}

/* What passed is not tested again, until the driver changes; --plan-only computes nothing. */
UNIT_TEST(a_verdict_is_kept_for_a_driver) {
    static const char fault[] = "attention_forward 0 1";
    forget_verdicts();
    assert_done(TRAIN("healthy-again"));
    train_with(fault, "believed");
    assert_null(strstr(child_message(), "self-test"));
    setenv("HC_DRIVER", "2.718", 1);
    assert_failed(train_with(fault, "refused"), 1,
                  "driver 2.718) failed its self-test against sums on the host: row 0 of y ");
    setenv("LD_PRELOAD", HC_PRELOADED, 1);
    setenv("HC_FAULT", fault, 1);
    assert_done(TRAIN("planned", "--plan-only"));
    unsetenv("LD_PRELOAD");
    unsetenv("HC_FAULT");
    unsetenv("HC_DRIVER");
}

/* Nor is it where CLBlast is another file, as after an update. */
UNIT_TEST(a_verdict_is_kept_for_a_library) {
    const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    void *function, *loaded = dlopen("libclblast.so.1", RTLD_NOW);
    Dl_info place;
    size_t bytes;
    assert_true(loaded && library_find(loaded, "CLBlastSgemm", &function) && dladdr(function, &place));
    char *library = scratch_text(place.dli_fname, &bytes);
    scratch_write("libclblast.so.1", library, bytes);
    forget_verdicts();
    setenv("LD_LIBRARY_PATH", scratch_path(""), 1);
    assert_done(TRAIN("by-clblast", "--gemm", "clblast"));
    setenv("LD_PRELOAD", HC_PRELOADED, 1);
    setenv("HC_FAULT", "XgemmDirectTN 0 1", 1);
    TRAIN("believed", "--gemm", "clblast");
    assert_null(strstr(child_message(), "self-test"));
    assert_int_equal(utimensat(AT_FDCWD, scratch_path("libclblast.so.1"), times, 0), 0);
    assert_failed(TRAIN("updated", "--gemm", "clblast"), 1, "matrix multiplication by clblast of device ");
    unsetenv("LD_PRELOAD");
    unsetenv("HC_FAULT");
    unsetenv("LD_LIBRARY_PATH");
}

/* The device is known to compute right when it begins to fail. PoCL keeps kernels for all children. */
static int set_up(void **state) {
    return corpus_begin(state) || setenv("XDG_CACHE_HOME", scratch_path("cache"), 1) ||
           setenv("POCL_CACHE_DIR", scratch_path("kernels"), 1) || TRAIN("healthy");
}

UNIT_TEST_MAIN(set_up, scratch_end)
