/* The learning rate's schedule: which parts of it follow from others, which stay as they were given, and what is
 * said. */
#include "runtime/system/memory.h"
#include "src/settings/settings.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct fixture {
    struct optimizer_settings optimizer;
    struct model_config model;
    int64_t max_iters;
    struct option_table table;
};

/* Applies texts as config files, one after the other; a NULL ends them. */
static void begin(struct fixture *fixture, const char *const *texts) {
    const struct option_spec row = INT("max_iters", &fixture->max_iters, "1000", 0, 1e12, "iterations");
    memset(fixture, 0, sizeof *fixture);
    settings_optimizer_options(&fixture->optimizer, "max_iters", &fixture->table);
    struct model_setting settings[MODEL_MOST_SETTINGS];
    const size_t count = model_config_settings(&fixture->model, settings);
    fixture->model.residual = residual_find("dar");
    for (size_t i = 0; i < count; i++) {
        options_append(&fixture->table, &settings[i].option, 1);
    }
    options_append(&fixture->table, &row, 1);
    assert_int_equal(options_set_defaults(fixture->table.rows, fixture->table.count), 0);
    for (; *texts; texts++) {
        assert_int_equal(options_apply_text(fixture->table.rows, fixture->table.count, "text", *texts,
                                            strlen(*texts)),
                         0);
    }
}

/* Completes the schedule; what is said, as heap memory. */
static char *complete(struct fixture *fixture) {
    char *said = NULL;
    size_t bytes;
    FILE *console = memory_open_stream(&said, &bytes);
    unused_options_print(fixture->table.rows, fixture->table.count, &fixture->model, &fixture->optimizer, false,
                         console);
    schedule_complete(fixture->table.rows, fixture->table.count, fixture->max_iters, &fixture->optimizer, console);
    memory_close_stream(console);
    return said;
}

struct expected {
    double min_lr;
    int64_t lr_decay_iters, warmup_iters;
    const char *said;
};

static void check(struct expected expected, const char *const *texts) {
    struct fixture fixture;
    begin(&fixture, texts);
    FREED char *said = complete(&fixture);
    assert_string_equal(said, expected.said);
    assert_true(fixture.optimizer.min_lr == expected.min_lr); /* the very double */
    assert_int_equal(fixture.optimizer.lr_decay_iters, expected.lr_decay_iters);
    assert_int_equal(fixture.optimizer.warmup_iters, expected.warmup_iters);
}

#define CHECK(min_lr, lr_decay_iters, warmup_iters, said, ...)                                                     \
    check((struct expected){min_lr, lr_decay_iters, warmup_iters, said}, (const char *const[]){__VA_ARGS__, NULL})

#define WHOLE         RATES "max_iters = 2000\nlr_decay_iters = 2000\nwarmup_iters = 300\n"
#define RATES         "learning_rate = 2e-3\nmin_lr = 2e-4\n"
#define TENTH_OF_RATE "schedule min_lr = 3e-06, a tenth of learning_rate"
#define AS_ITERATIONS "schedule lr_decay_iters = 300, the number of iterations"
#define SHORT_WARMUP  "schedule warmup_iters = 30, a tenth of lr_decay_iters\n"

UNIT_TEST(test_what_is_open_follows) {
    CHECK(6e-5, 1000, 100,
          "schedule min_lr = 6e-05, a tenth of learning_rate\n"
          "schedule lr_decay_iters = 1000, the number of iterations\n"
          "schedule warmup_iters = 100, a tenth of lr_decay_iters\n",
          "");
    CHECK(3e-6, 300, 30, TENTH_OF_RATE "\n" AS_ITERATIONS "\n" SHORT_WARMUP,
          "learning_rate = 3e-5\nmax_iters = 300");
    CHECK(1e-4, 5000, 200, "schedule lr_decay_iters = 5000, the number of iterations\n",
          "min_lr = 1e-4\nmax_iters = 5000");
    CHECK(6e-5, 400, 40,
          "schedule min_lr = 6e-05, a tenth of learning_rate\nschedule warmup_iters = 40, a tenth of "
          "lr_decay_iters\n",
          "lr_decay_iters = 400");
}

UNIT_TEST(test_what_was_given_stays) {
    CHECK(2e-4, 2000, 300, "", WHOLE);
    CHECK(2e-4, 2000, 300, "", WHOLE, "weight_decay = 0.2");
    CHECK(1e-5, 2000, 300, "", WHOLE, "min_lr = 1e-5");
    CHECK(2e-4, 150, 75, "", WHOLE, "max_iters = 300\nlr_decay_iters = 150\nwarmup_iters = 75");
    CHECK(2e-4, 2000, 300, "", "max_iters = 300", WHOLE); /* the later one wins */
}

UNIT_TEST(test_what_was_given_earlier_follows) {
#define NO_DECAY_OF_2000 " (replaces lr_decay_iters = 2000, which was given before max_iters)\n"
#define NO_WARMUP_OF_300 " (replaces warmup_iters = 300, which was given before "
    CHECK(2e-4, 300, 30,
          AS_ITERATIONS NO_DECAY_OF_2000 "schedule warmup_iters = 30, a tenth of lr_decay_iters" NO_WARMUP_OF_300
                                         "max_iters)\n",
          WHOLE, "max_iters = 300");
    CHECK(2e-4, 300, 75, AS_ITERATIONS NO_DECAY_OF_2000, WHOLE, "max_iters = 300", "warmup_iters = 75");
    CHECK(2e-4, 400, 40,
          "schedule warmup_iters = 40, a tenth of lr_decay_iters" NO_WARMUP_OF_300 "lr_decay_iters)\n", WHOLE,
          "lr_decay_iters = 400");
    CHECK(3e-6, 2000, 300, TENTH_OF_RATE " (replaces min_lr = 0.0002, which was given before learning_rate)\n",
          WHOLE, "learning_rate = 3e-5");
    CHECK(2e-4, 2000, 200,
          "schedule lr_decay_iters = 2000, the number of iterations\n"
          "schedule warmup_iters = 200, a tenth of lr_decay_iters" NO_WARMUP_OF_300 "max_iters)\n",
          WHOLE, "max_iters = 2000");
#undef NO_DECAY_OF_2000
}

/* No iterations are nothing to fall over. */
UNIT_TEST(test_no_iterations) {
    CHECK(2e-4, 2000, 200, "schedule warmup_iters = 200, a tenth of lr_decay_iters" NO_WARMUP_OF_300 "max_iters)\n",
          WHOLE, "max_iters = 0");
#undef NO_WARMUP_OF_300
}

UNIT_TEST(test_resumed_runs_keep_theirs) {
    const struct optimizer_settings saved = {.min_lr = 5e-4, .lr_decay_iters = 77, .warmup_iters = 7};
    struct fixture fixture;
    begin(&fixture, (const char *const[]){WHOLE, "max_iters = 300\nlearning_rate = 1e-3", NULL});
    schedule_keep(fixture.table.rows, fixture.table.count, &saved, &fixture.optimizer);
    assert_true(fixture.optimizer.min_lr == 5e-4 && fixture.optimizer.learning_rate == 1e-3);
    assert_int_equal(fixture.optimizer.lr_decay_iters, 77);
    assert_int_equal(fixture.optimizer.warmup_iters, 7);
    begin(&fixture, (const char *const[]){WHOLE, "max_iters = 300\nlr_decay_iters = 250\nmin_lr = 0", NULL});
    schedule_keep(fixture.table.rows, fixture.table.count, &saved, &fixture.optimizer);
    assert_true(fixture.optimizer.min_lr == 0.0);
    assert_int_equal(fixture.optimizer.lr_decay_iters, 250);
    assert_int_equal(fixture.optimizer.warmup_iters, 7);
}

UNIT_TEST(test_rates_that_rise) {
    struct optimizer_settings optimizer = {.learning_rate = 1e-3, .min_lr = 1e-3};
    assert_int_equal(schedule_check(&optimizer), 0);
    optimizer.min_lr = 2e-3;
    assert_error(schedule_check(&optimizer), "from learning_rate = 0.001 to min_lr = 0.002");
}

static void expect_rates(int schedule, const double *expected, size_t count) {
    const struct optimizer_settings optimizer = {.learning_rate = 1.0,
                                                 .min_lr = 0.2,
                                                 .warmup_iters = 2,
                                                 .lr_decay_iters = 10,
                                                 .lr_schedule = schedule,
                                                 .cooldown_fraction = 0.4};
    for (size_t i = 0; i < count; i++) {
        const double rate = optimizer_rate(&optimizer, (int64_t)i);
        if (fabs(rate - expected[i]) > 1e-12) {
            fail_msg("schedule %d, iteration %zu: %.15g instead of %.15g", schedule, i, rate, expected[i]);
        }
    }
}

/* Warm-up over 2 iterations; the line goes from 1 at iteration 2, or 6, to 0.2 at 10. */
UNIT_TEST(test_schedules) {
    const double third = 1.0 / 3.0;
    expect_rates(LR_LINEAR, (double[]){third, 2 * third, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.2, 0.2},
                 13);
    expect_rates(LR_WSD, (double[]){third, 2 * third, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2}, 13);
    expect_rates(LR_CONSTANT, (double[]){third, 2 * third, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0},
                 13);
    expect_rates(LR_COSINE, (double[]){third, 2 * third, 1.0, 0.6 + 0.4 * cos(M_PI / 8), 0.6 + 0.4 * sqrt(0.5)}, 5);
    expect_rates(LR_COSINE,
                 (double[]){third, 2 * third, 1.0, 0.6 + 0.4 * cos(M_PI / 8), 0.6 + 0.4 * sqrt(0.5),
                            0.6 + 0.4 * cos(3 * M_PI / 8), 0.6, 0.6 - 0.4 * cos(3 * M_PI / 8),
                            0.6 - 0.4 * sqrt(0.5), 0.6 - 0.4 * cos(M_PI / 8), 0.2, 0.2},
                 12);
}

/* Between iterations, and past the end, as a clock has it. */
UNIT_TEST(test_schedule_of_a_clock) {
    struct optimizer_settings optimizer = {
        .learning_rate = 1.0, .min_lr = 0.2, .warmup_iters = 2, .lr_decay_iters = 10, .lr_schedule = LR_LINEAR};
    const double expected[][2] = {{0.5, 0.5}, {1.5, 2.5 / 3.0}, {2.0, 1.0}, {6.5, 0.55}, {10.0, 0.2}, {12.5, 0.2}};
    for (size_t i = 0; i < COUNT(expected); i++) {
        optimizer.schedule_now = expected[i][0];
        assert_true(fabs(optimizer_rate(&optimizer, 3) - expected[i][1]) < 1e-12);
        assert_true(fabs(optimizer_rate_of(&optimizer, 3, 0.5) - 0.5 * expected[i][1]) < 1e-12);
    }
}

/* Of no iterations, and of a cooldown over none or over all. */
UNIT_TEST(test_schedules_of_nothing) {
    for (int schedule = LR_COSINE; schedule <= LR_LINEAR; schedule++) {
        const struct optimizer_settings none = {.learning_rate = 1.0, .min_lr = 0.1, .lr_schedule = schedule};
        assert_true(optimizer_rate(&none, 0) == 0.1 && optimizer_rate(&none, 5) == 0.1);
    }
    struct optimizer_settings wsd = {
        .learning_rate = 1.0, .min_lr = 0.0, .lr_decay_iters = 4, .lr_schedule = LR_WSD, .cooldown_fraction = 0.0};
    assert_true(optimizer_rate(&wsd, 3) == 1.0 && optimizer_rate(&wsd, 4) == 0.0);
    wsd.cooldown_fraction = 1.0;
    assert_true(optimizer_rate(&wsd, 0) == 1.0 && optimizer_rate(&wsd, 1) == 0.75);
}

/* A rate of a group of parameters has the schedule's shape, also where learning_rate is 0. */
UNIT_TEST(test_rates_of_groups) {
    struct optimizer_settings settings = {
        .learning_rate = 0.5, .min_lr = 0.25, .warmup_iters = 1, .lr_decay_iters = 5, .lr_schedule = LR_LINEAR};
    assert_true(optimizer_rate_of(&settings, 3, -1.0) == optimizer_rate(&settings, 3));
    assert_true(optimizer_rate_of(&settings, 3, 2.0) == 1.5 && optimizer_rate_of(&settings, 0, 2.0) == 1.0);
    assert_true(optimizer_rate_of(&settings, 3, 0.0) == 0.0);
    settings.learning_rate = settings.min_lr = 0.0;
    assert_true(optimizer_rate_of(&settings, 3, -1.0) == 0.0);
    assert_true(optimizer_rate_of(&settings, 3, 2.0) == 1.0 && optimizer_rate_of(&settings, 0, 2.0) == 1.0);
}

UNIT_TEST(test_parts_without_effect) {
    CHECK(2e-4, 2000, 200,
          "schedule min_lr does nothing with lr_schedule = constant\n"
          "schedule lr_decay_iters does nothing with lr_schedule = constant\n"
          "schedule cooldown_fraction does nothing with lr_schedule = constant\n",
          "learning_rate = 2e-3\nmin_lr = 2e-4\nmax_iters = 2000\nlr_decay_iters = 2000",
          "lr_schedule = constant\ncooldown_fraction = 0.5");
    CHECK(2e-4, 2000, 200, "", "learning_rate = 2e-3\nmin_lr = 2e-4\nmax_iters = 2000\nlr_decay_iters = 2000",
          "lr_schedule = wsd\ncooldown_fraction = 0.5");
    CHECK(6e-5, 3000, 200, "", "max_iters = 3000\nlr_schedule = constant");
}

/* Defaults, which settings.conf lists, are not mentioned. */
UNIT_TEST(test_options_without_effect) {
#define SHORT "learning_rate = 6e-4\nmin_lr = 6e-5\nmax_iters = 2000\nlr_decay_iters = 2000\n"
    CHECK(6e-5, 2000, 200,
          "optimizer muon_steps does nothing with optimizer = adamw\n"
          "optimizer muon_coefficients does nothing with optimizer = adamw\n",
          SHORT,
          "muon_steps = 4\nmuon_momentum = 0.95\nmuon_coefficients = \"2, -1.5, 0.5\"\ncooldown_fraction = 0.7");
    CHECK(6e-5, 2000, 200,
          "optimizer head_learning_rate does nothing with tie_embeddings = true\n"
          "model    rope_fraction does nothing with position = learned\n"
          "model    softcap_kind does nothing with logit_softcap = 0\n",
          SHORT, "head_learning_rate = 0\nrope_theta = 10000\nrope_fraction = 0.5\nsoftcap_kind = rsqrt");
    CHECK(6e-5, 2000, 200, "", SHORT, "optimizer = muon\nmuon_steps = 4\nposition = rope\nrope_fraction = 0.5\n",
          "tie_embeddings = false\nhead_learning_rate = 0\nlogit_softcap = 15\nsoftcap_kind = rsqrt");
    CHECK(6e-5, 2000, 200,
          "optimizer value_embed_learning_rate does nothing with value_embeds = false\n"
          "optimizer resid_lambda_learning_rate does nothing with x0_lambdas = false\n"
          "optimizer x0_lambda_learning_rate does nothing with x0_lambdas = false\n"
          "model    sinkhorn_iters does nothing with residual = dar\n"
          "model    laurel_form does nothing with residual = dar\n",
          SHORT, "value_embed_learning_rate = 0.1\nresid_lambda_learning_rate = 0.1\n",
          "x0_lambda_learning_rate = 0.1\nsinkhorn_iters = 5\nattnres_heads = 2\nlaurel_form = lr\n",
          "laurel_rank = 16\ndar_gate = none");
    CHECK(6e-5, 2000, 200, "", SHORT, "value_embeds = true\nx0_lambdas = true\nvalue_embed_learning_rate = 0.1\n",
          "resid_lambda_learning_rate = 0.1\nx0_lambda_learning_rate = 0.1\n");
#undef SHORT
}

UNIT_TEST_MAIN(NULL, NULL)
