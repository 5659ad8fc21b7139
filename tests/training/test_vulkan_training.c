/* hc_train on Vulkan: the losses of PoCL, resuming bit for bit, and two ranks, all under the eyes of Vulkan's
 * validation layer. */
#include "tests/support/runs.h"

#define VALIDATION "VK_LAYER_KHRONOS_validation"

enum { ITERATIONS = 6 };

static const char train_program[] = HC_PROGRAMS "/hc_train";

#define COMMON(run, device)                                                                                        \
    "--config", scratch_path("tiny.conf"), "--data-dir", scratch_path("data"), "--out-dir", scratch_path(run),     \
        "--n-layer", "1", "--max-iters", "6", "--eval-interval", "3", "--checkpoint-interval", "3",                \
        "--batch-size", "2", "--gradient-accumulation-steps", "2", "--log-interval", "1", "--lr-decay-iters",      \
        "20", "--warmup-iters", "2", "--device", device

/* Whether the file has the text in it. */
static bool says(const char *path, const char *text) {
    char *all = scratch_text(path, NULL);
    const bool found = strstr(all, text) != NULL;
    return found;
}

/* Runs it with the layer, which writes to stdout, and whose place in the chain the loader tells on stderr. */
static void run_validated(const char *const *arguments) {
    const char *output = scratch_path("stdout");
    const char *errors = scratch_path("stderr");
    static const char *const environment[] = {"VK_INSTANCE_LAYERS=" VALIDATION, "VK_LOADER_DEBUG=layer", NULL};
    const struct child_setup setup = {.output = output, .errors = errors, .environment = environment};
    const int status = child_finish(child_start_with(&setup, arguments));
    if (status || says(output, "Validation") || says(output, "VUID") || says(errors, "VUID")) {
        fail_msg("status %d; see %s and %s", status, output, errors);
    }
    assert_true(says(errors, VALIDATION)); /* it was there */
}

#define ON_VULKAN(run, ...)                                                                                        \
    run_validated((const char *const[]){train_program, COMMON(run, "vulkan"), ##__VA_ARGS__, NULL})
#define ON_TWO_RANKS(run, ...)                                                                                     \
    run_validated(                                                                                                 \
        (const char *const[]){HC_MPIRUN, "-np", "2", train_program, COMMON(run, "vulkan"), ##__VA_ARGS__, NULL})

UNIT_TEST(losses_are_those_of_pocl) {
    assert_done(CHILD_RUN(train_program, COMMON("pocl", "pocl")));
    ON_VULKAN("vulkan");
    assert_near_metrics("pocl", "vulkan", ITERATIONS, 1e-5);
}

UNIT_TEST(resuming_is_bit_identical) {
    /* the layer has seen all of this */
    assert_done(CHILD_RUN(train_program, COMMON("parted", "vulkan"), "--max-iters", "3"));
    assert_null(strstr(child_message(), "see the same GPUs")); /* a simulator is none */
    assert_done(CHILD_RUN(train_program, COMMON("parted", "vulkan"), "--init-from", "resume"));
    assert_same_metrics("vulkan", "parted");
    assert_same_checkpoint("vulkan", "parted", "ckpt-6");
}

UNIT_TEST(two_ranks_agree_with_one) {
    ON_TWO_RANKS("ranks");
    assert_near_metrics("vulkan", "ranks", ITERATIONS, 1e-5);
}

static int begin(void **state) {
    return corpus_begin(state) || setenv("XDG_CACHE_HOME", scratch_path("cache"), 1);
}

UNIT_TEST_MAIN(begin, scratch_end)
