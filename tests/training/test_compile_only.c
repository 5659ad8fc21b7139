/* --compile-only compiles what a run needs, and the second process of a first start does the same. */
#include "src/settings/background_compile.h"
#include "src/training/train_settings.h"
#include "tests/support/runs.h"
#include <ftw.h>
#include <sys/wait.h>

static int kernels; /* found so far */

static int count_kernel(const char *path, const struct stat *status, int kind, struct FTW *place) {
    const char *end = strrchr(path, '.');
    (void)status, (void)place;
    kernels += kind == FTW_F && end && strcmp(end, ".so") == 0;
    return 0;
}

/* That PoCL keeps. */
static int count_kernels(void) {
    kernels = 0;
    nftw(getenv("POCL_CACHE_DIR"), count_kernel, 16, FTW_PHYS);
    return kernels;
}

/* Without optimising, which would take most of the time. */
static void begin_empty(const char *folder) {
    assert_int_equal(setenv("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable", 1), 0);
    assert_int_equal(files_make_folder(scratch_path(folder)), 0);
    assert_int_equal(setenv("POCL_CACHE_DIR", scratch_path(folder), 1), 0);
    assert_int_equal(setenv("XDG_CACHE_HOME", scratch_path(folder), 1), 0);
}

RUN_TEST(nothing_is_left_to_compile) {
    static const char *const models[][6] = {
        {"--residual", "mhc", "--dropout", "0.1"},
        {"--residual", "mudd", "--optimizer", "muon", "--recompute", "layer"},
        {"--residual", "circulant", "--norm", "rmsnorm", "--position", "rope"},
    };
    for (size_t i = 0; i < (test_is_whole() ? COUNT(models) : 1); i++) {
        const char *run = scratch_format("compiled-%zu", i);
        const char *const *model = models[i];
        begin_empty(scratch_format("empty-%zu", i));
        assert_done(TRAIN(run, "--compile-only", model[0], model[1], model[2], model[3], model[4], model[5]));
        assert_says("compiled the kernels for ");
        assert_false(files_exist(scratch_path(run)));
        const int before = count_kernels();
        assert_in_range(before, 20, 80);
        assert_done(TRAIN(run, "--max-iters", "2", model[0], model[1], model[2], model[3], model[4], model[5]));
        assert_int_equal(count_kernels(), before);
    }
}

/* hc_train without a config file, so that all settings of the model are the folder's or these. */
#define TRAIN_FROM(folder, run, ...)                                                                               \
    CHILD_RUN(TRAIN_PROGRAM, "--data-dir", scratch_path("data"), "--init-from", scratch_path(folder), "--out-dir", \
              scratch_path(run), "--max-iters", "1", "--batch-size", "4", "--eval-iters", "1", ##__VA_ARGS__)

/* A run that begins with the checkpoint of another one has that one's model, also with another connection. */
RUN_TEST(model_is_that_of_the_folder) {
    assert_done(TRAIN("plain", "--residual", "rc", "--mlp", "swiglu", "--max-iters", "0"));
    begin_empty("empty-folder");
    assert_done(TRAIN_FROM("plain/ckpt-0", "upcycled", "--residual", "shc", "--compile-only"));
    assert_false(files_exist(scratch_path("upcycled")));
    const int before = count_kernels();
    assert_in_range(before, 20, 80);
    assert_done(TRAIN_FROM("plain/ckpt-0", "upcycled", "--residual", "shc", "--stream-reduce", "auto"));
    assert_int_equal(count_kernels(), before);
    assert_failed(TRAIN_FROM("plain/ckpt-0", "other", "--n-embd", "8", "--compile-only"), FAILED,
                  "was saved with another n_embd than the one given");
    assert_failed(TRAIN_FROM("nowhere", "other", "--compile-only"), FAILED, "nowhere/config.json");
}

/* Waits for the other process, which leaves this one without it. */
static int finish_background(struct background_compile *background) {
    int status = -1;
    assert_true(background->child > 0);
    assert_int_equal(waitpid(background->child, &status, 0), background->child);
    background->child = 0;
    return status;
}

RUN_TEST(second_process_compiles_once_for_each_model) {
    static char program[] = TRAIN_PROGRAM, none[] = "/nowhere/hc_train";
    struct train_settings settings = {0};
    struct option_table table = {0};
    struct compute *compute;
    begin_empty("ahead");
    assert_int_equal(setenv("HCTRAIN_BACKGROUND_COMPILE", "1", 1), 0);
    train_options(&settings, &table);
    require(options_set_defaults(table.rows, table.count));
    train_options_apply(&settings, &table);
    settings.model.n_embd = 32;
    settings.model.n_head = 2;
    settings.model.vocab_size = 50;
    require(compute_open(&compute, &(struct compute_options){.device = "pocl"}));
    struct background_compile background = {.specs = table.rows,
                                            .spec_count = table.count,
                                            .model = &settings.model,
                                            .program = none,
                                            .purpose = "a test"};
    background_compile_start(&background, compute); /* what cannot be started is done without */
    assert_int_equal(background.child, 0);
    background.program = program;
    background_compile_start(&background, compute);
    assert_int_equal(finish_background(&background), 0);
    assert_in_range(count_kernels(), 20, 80);
    background_compile_end(&background, compute, false); /* nobody has used them: not known yet */
    background_compile_start(&background, compute);
    assert_true(background.child > 0);
    background_compile_end(&background, compute, true); /* and ends it */
    assert_int_equal(background.child, 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    background_compile_start(&background, compute);
    assert_int_equal(background.child, 0);
    settings.model.vocab_size = 51;
    background_compile_start(&background, compute);
    assert_true(background.child > 0);
    background_compile_end(&background, compute, false);
    assert_int_equal(setenv("HCTRAIN_BACKGROUND_COMPILE", "0", 1), 0);
    background_compile_start(&background, compute);
    assert_int_equal(background.child, 0);
    compute_close(compute);
    options_free(table.rows, table.count);
}

UNIT_TEST_MAIN(run_control_begin, scratch_end)
