/* The second process of a first start compiles what a run needs. */
#include "src/settings/background_compile.h"
#include "src/training/train_settings.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <ftw.h>
#include <sys/wait.h>

static int kernels; /* that PoCL keeps: found so far */

static int count_kernel(const char *path, const struct stat *status, int kind, struct FTW *place) {
    const char *end = strrchr(path, '.');
    (void)status, (void)place;
    kernels += kind == FTW_F && end && strcmp(end, ".so") == 0;
    return 0;
}

/* Waits for the other process, which leaves this one without it. */
static int finish_background(struct background_compile *background) {
    int status = -1;
    assert_true(background->child > 0);
    assert_int_equal(waitpid(background->child, &status, 0), background->child);
    background->child = 0;
    return status;
}

UNIT_TEST(second_process_compiles_once_for_each_model) {
    static char program[] = HC_PROGRAMS "/hc_train", none[] = "/nowhere/hc_train";
    struct train_settings settings = {0};
    struct option_table table = {0};
    struct compute *compute;
    /* optimising would take most of the time */
    assert_int_equal(setenv("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable", 1), 0);
    assert_int_equal(setenv("POCL_CACHE_DIR", scratch_path("pocl"), 1), 0);
    assert_int_equal(setenv("XDG_CACHE_HOME", scratch_path(""), 1), 0);
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
    nftw(scratch_path("pocl"), count_kernel, 16, FTW_PHYS);
    assert_in_range(kernels, 20, 80);
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

/* The small model has sublayers that mix their streams, and others, if the model has both. */
UNIT_TEST(small_models_keep_both_kinds_of_sublayers) {
    static const struct {
        int64_t layers, until, small_until;
    } cases[] = {{4, 0, 0}, {4, 1, 1}, {4, 4, 3}, {4, 6, 3}, {4, 8, 4}, {2, 4, 4}, {2, 3, 3}, {1, 2, 2}, {1, 1, 1}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct model_config model = {.residual = residual_find("mhc"),
                                     .n_layer = cases[i].layers,
                                     .hc_until = cases[i].until};
        compile_only_reduce(&model);
        assert_int_equal(model.n_layer, cases[i].layers < 2 ? cases[i].layers : 2);
        assert_int_equal(model.hc_until, cases[i].small_until);
    }
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
