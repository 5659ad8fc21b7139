/* --fit: how sizes are read, and that what it chooses fits, keeps the batch, and prefers what costs least. */
#include "runtime/gemm/gemm.h"
#include "src/training/trainer.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include <stdio.h>

UNIT_TEST(sizes_are_read) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"16GiB", (uint64_t)16 << 30},  {"7.5GiB", (uint64_t)15 << 29}, {"24GB", 24000000000u},
                 {"8192MiB", (uint64_t)8 << 30}, {"800MB", 800000000u},          {"8GiB:a6000", (uint64_t)8 << 30}};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        struct fit fit;
        assert_int_equal(fit_read(sizes[i].text, &fit), 0);
        assert_int_equal(fit.bytes, sizes[i].bytes);
        assert_int_equal(fit.model != NULL, strchr(sizes[i].text, ':') != NULL);
    }
}

UNIT_TEST(other_sizes_are_refused) {
    static const char *const wrong[] = {"",       "16",     "GiB",    "-1GiB",  "nanGiB",      "infGiB",
                                        "1e30GB", "16GiBs", "16 GiB", "16TiB",  "16GiB:",      "16GiB:gpu",
                                        ":a6000", "0GiB",   ":",      "16:GiB", "16GiB:a6000:"};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        struct fit fit;
        assert_int_equal(fit_read(wrong[i], &fit), -1);
        error_clear();
    }
}

/* ---- the search */

static struct train_settings settings_of_step(enum element_type type) {
    return (struct train_settings){.model = small_model_config("shc", 4),
                                   .batch_size = 4,
                                   .dtype = (int)type,
                                   .gradient_accumulation_steps = 6,
                                   .recompute = RECOMPUTE_OFF,
                                   .allreduce_bucket = 16.0};
}

/* Bytes of the plan that settings make. */
static uint64_t plan_bytes(struct compute *compute, const struct train_settings *settings) {
    struct ranks ranks = ranks_alone;
    struct data_parallel parallel;
    struct gpt gpt;
    assert_int_equal(data_parallel_plan(&parallel, &ranks, settings, compute, &gpt), 0);
    const uint64_t bytes = gpt.plan.total_bytes;
    data_parallel_release(&parallel);
    gpt_release(&gpt);
    return bytes;
}

/* What is chosen for so many bytes, in *settings. */
static int choose(struct compute *compute, uint64_t bytes, enum element_type type,
                  struct train_settings *settings) {
    struct ranks ranks = ranks_alone;
    const struct fit fit = {.bytes = bytes};
    FILE *nowhere = fopen("/dev/null", "we");
    assert_non_null(nowhere);
    *settings = settings_of_step(type);
    const int status = fit_choose(&fit, settings, &ranks, compute, nowhere);
    fclose(nowhere);
    return status;
}

/* 0: the results stay what they were, and the speed; 1: recomputing; 2, 3: the same with states in bf16; 4, 5: with
 * weights in bf16, too. */
static int cost_of(const struct train_settings *settings) {
    assert_true(settings->optimizer.moments >= settings->optimizer.master);
    return 2 * (settings->optimizer.moments == ELEMENT_BF16) + 2 * (settings->optimizer.master == ELEMENT_BF16) +
           (settings->recompute == RECOMPUTE_LAYER);
}

/* The memory falls from what the largest micro-batch needs to where nothing fits. */
static void check_choices(enum element_type type, int last_cost, const char *last) {
    struct compute *compute;
    const struct compute_options options = {.device = "pocl", .cache_dir = ""};
    assert_int_equal(gemm_compute_open(&compute, &options), 0);
    compute->device.max_buffer_bytes = compute->device.memory_bytes; /* else weights are too large first */
    struct train_settings chosen = settings_of_step(type);
    chosen.batch_size = 24;
    chosen.gradient_accumulation_steps = 1;
    uint64_t bytes = plan_bytes(compute, &chosen);
    int cost = 0, costs = 0, tried = 0;
    while (choose(compute, bytes, type, &chosen) == 0) {
        const uint64_t needed = plan_bytes(compute, &chosen);
        print_message("  %zu bytes: %zu, micro-batches of %d, cost %d\n", (size_t)bytes, (size_t)needed,
                      (int)chosen.batch_size, cost_of(&chosen));
        assert_true(needed <= bytes);
        assert_int_equal(chosen.batch_size * chosen.gradient_accumulation_steps, 24);
        assert_true(tried > 0 || chosen.batch_size == 24);
        assert_true(cost_of(&chosen) >= cost);
        costs |= 1 << cost_of(&chosen);
        cost = cost_of(&chosen);
        bytes = needed - 1; /* which leaves this one out */
        tried++;
    }
    assert_error_text("nothing fits into");
    assert_error_text(last);
    assert_int_equal(costs & 3, 3);
    assert_int_equal(cost, last_cost);
    error_clear();
    compute_close(compute);
}

UNIT_TEST(choice_fits_and_costs_least) {
#define LAST(type, types)                                                                                          \
    "--batch-size 1 --gradient-accumulation-steps 24 --dtype " type " --recompute layer --moments bf16" types
    check_choices(ELEMENT_FP32, 3, LAST("fp32", "; "));
    check_choices(ELEMENT_BF16, 5, LAST("bf16", " --master bf16; "));
#undef LAST
}

/* The sum would fit: what does not is one buffer, which the error names. */
UNIT_TEST(buffers_that_are_too_large_are_named) {
    struct compute *compute;
    const struct compute_options options = {.device = "pocl", .cache_dir = ""};
    struct train_settings chosen = settings_of_step(ELEMENT_FP32);
    assert_int_equal(gemm_compute_open(&compute, &options), 0);
    compute->device.max_buffer_bytes = compute->device.memory_bytes / 100;
    assert_error(choose(compute, 2 * plan_bytes(compute, &chosen), ELEMENT_FP32, &chosen), "nothing fits into");
    assert_error_text(": a buffer is too large: the ");
    error_clear();
    compute_close(compute);
}

UNIT_TEST_MAIN(NULL, NULL)
