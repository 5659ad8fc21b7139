/* generation: logits of a prompt and of every token after it against those of whole forward passes, for all
 * variants; rows that are copied and rows beside others give the same bits. */
#include "src/model/gpt.h"
#include "tests/support/rounding.h"
#include "tests/support/scratch.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 3, LENGTH = 24, VOCABULARY = 33 };

static const double TOLERANCE = 5e-5; /* of the largest logit, at least of 1 */

static struct compute *compute;
static double worst;

struct generation_case {
    const char *residual;
    int64_t streams;
    bool bias, norm_sum;
    enum element_type type;
    const char *settings; /* after all others; NULL: none */
};

/* The same weights twice: planned for whole passes, and for generation. */
struct pair {
    struct small_model whole;
    struct gpt stepwise;
};

static void pair_create(struct pair *pair, const struct generation_case *shape) {
    struct model_config config = small_model_config(shape->residual, shape->streams);
    config.block_size = LENGTH;
    small_model_set(&config, shape->bias
                                 ? "bias=true mlp=swiglu mlp_width=36 embed_norm=true head_bias=true "
                                   "logit_softcap=2 n_kv_head=1 head_dim=6 position=rope qk_norm=plain "
                                   "attnres_block=3 mudd_round=0"
                                 : "mlp=relu2 mlp_width=36 n_kv_head=2 head_dim=8 attnres_block=1 mudd_round=64");
    small_model_set(&config, shape->norm_sum
                                 ? "stream_reduce=norm_sum"
                                 : "stream_reduce=sum_norm rope_fraction=0.666666666666666667 attn_scale=0.6");
    if (shape->bias && shape->norm_sum) {
        config.qk_norm = QK_NORM_GAINED;
    }
    small_model_set(&config, shape->settings ? shape->settings : "");
    small_model_create_typed(&pair->whole, compute, &config, ROWS, shape->type);
    small_model_randomise(&pair->whole, 3);
    const struct gpt_options options = {.batch = ROWS,
                                        .sequence = LENGTH,
                                        .mode = GPT_GENERATION,
                                        .type = shape->type};
    require(gpt_plan(compute, &pair->whole.gpt.config, &options, &pair->stepwise));
    require(gpt_create(&pair->stepwise));
    const struct parameters *from = &pair->whole.gpt.parameters, *to = &pair->stepwise.parameters;
    buffer_copy(compute, from->weights, 0, to->weights, 0, from->elements * sizeof(float));
    parameters_round(compute, to);
}

static void pair_release(struct pair *pair) {
    gpt_release(&pair->stepwise);
    small_model_release(&pair->whole);
}

/* x is [ROWS, LENGTH]. Logits of position `length` - 1 of a row, by a pass over all before it. */
static void whole_logits(struct pair *pair, int64_t row, size_t length, float *logits) {
    require(gpt_set_batch(&pair->whole.gpt, (struct token_shape){1, (int64_t)length}, pair->whole.x + row * LENGTH,
                          NULL));
    small_model_forward(&pair->whole, (struct gpt_pass){.dropout = false});
    require(gpt_read_logits(&pair->whole.gpt, length - 1, 1, logits));
}

/* Both ways round their activations: some 40 times, twice (see test_model.c). */
static double tolerance_of(const struct pair *pair) {
    return TOLERANCE + 2.0 * sqrt(2.0 * 40.0) * rounding_unit(pair->whole.gpt.options.type);
}

static void compare(struct pair *pair, int64_t row, size_t length, const float *actual) {
    float expected[VOCABULARY];
    double largest = 1.0, error = 0.0;
    whole_logits(pair, row, length, expected);
    for (size_t i = 0; i < VOCABULARY; i++) {
        assert_true(isfinite(actual[i]));
        largest = fmax(largest, fabs((double)expected[i]));
        error = fmax(error, fabs((double)actual[i] - (double)expected[i]));
    }
    const double tolerance = tolerance_of(pair);
    worst = fmax(worst, error / largest / tolerance);
    if (error > tolerance * largest) {
        fail_msg("row %d, %zu tokens: error %.3g of %.3g", (int)row, length, error, largest);
    }
}

/* Rows begin with `prompt` tokens of the batch and go on to the end. */
static void generate(struct pair *pair, size_t prompt) {
    float logits[ROWS * VOCABULARY];
    for (int64_t row = 0; row < ROWS; row++) {
        require(generation_prefill(&pair->stepwise, row, pair->whole.x + row * LENGTH, prompt, logits));
        compare(pair, row, prompt, logits);
    }
    for (int64_t position = (int64_t)prompt; position < LENGTH; position++) {
        int32_t tokens[ROWS];
        for (int64_t row = 0; row < ROWS; row++) {
            tokens[row] = pair->whole.x[row * LENGTH + position];
        }
        require(generation_step(&pair->stepwise, ROWS, position, tokens, logits));
        for (int64_t row = 0; row < ROWS; row++) {
            compare(pair, row, (size_t)position + 1, logits + row * VOCABULARY);
        }
    }
}

#define SHC_IN_BF16 {"shc", 4, .bias = true, .norm_sum = true, .type = ELEMENT_BF16}

UNIT_TEST(steps_agree_with_whole_passes) {
    static const struct generation_case cases[] = {
        {"rc", 1, .norm_sum = true},
        {"rc", 1, .bias = true},
        {"identity", 2, .bias = true, .norm_sum = true},
        {"hc", 3, .norm_sum = true},
        {"hc", 4, .bias = true},
        {"mhc", 4, .norm_sum = true},
        {"mhc", 4, .bias = true, .settings = "read_delay=true stream_reduce=last_pre"},
        {"mhc", 4, .settings = "hc_dynamic=false stream_reduce=head"},
        {"hc", 4, .bias = true, .settings = "hc_until=2 x0_lambdas=true"},
        {"rc", 1, .norm_sum = true, .settings = "x0_lambdas=true value_embeds=true"},
        {"mhc_lite", 4, .bias = true, .norm_sum = true},
        {"mhc_lite", 5, .bias = false},
        {"shc", 4, .norm_sum = true},
        {"shc", 8, .bias = true},
        SHC_IN_BF16,
        {"gated", 4, .norm_sum = true},
        {"gated", 3, .bias = true, .settings = "x0_lambdas=true value_embeds=true"},
        {"attnres", 1, .norm_sum = true, .settings = "attnres_heads=4"},
        {"attnres", 1, .bias = true},
        {"mudd", 1, .norm_sum = true},
        {"mudd", 1, .bias = true, .settings = "mudd_norm=prepost value_embeds=true"},
        {"dense", 1, .bias = true, .settings = "value_embeds=true"},
        {"laurel", 1, .norm_sum = true, .settings = "laurel_rank=5 x0_lambdas=true"},
        {"laurel", 1, .bias = true, .settings = "laurel_form=rw"},
        {"dar", 1, .norm_sum = true, .settings = "x0_lambdas=true"},
        {"dar", 1, .bias = true, .settings = "attnres_heads=2 dar_gate=none"},
        {"frac", 4, .norm_sum = true, .settings = "hc_until=3 x0_lambdas=true"},
        {"frac", 2, .bias = true},
    };
    static const size_t prompts[] = {1, 5, LENGTH - 1, LENGTH};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct pair pair;
        print_message("  %s of %d streams, row %zu\n", cases[i].residual, (int)cases[i].streams, i);
        pair_create(&pair, &cases[i]);
        for (size_t k = 0; k < COUNT(prompts); k++) {
            generate(&pair, prompts[k]); /* again and again, over what is in the cache from before */
        }
        pair_release(&pair);
    }
}

/* A copy goes on as the row that it is of, and a row alone as among others: to the bit. */
UNIT_TEST(rows_do_not_depend_on_each_other) {
    static const struct generation_case cases[] = {
        {"shc", 4, .bias = true, .norm_sum = true},
        SHC_IN_BF16,
        {"gated", 3, .bias = true, .type = ELEMENT_BF16},
        {"mudd", 1, .bias = true, .norm_sum = true, .type = ELEMENT_BF16},
        {"dar", 1, .bias = true, .type = ELEMENT_BF16, .settings = "x0_lambdas=true value_embeds=true"},
        {"frac", 4, .bias = true},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct pair pair;
        float together[ROWS * VOCABULARY], alone[VOCABULARY];
        pair_create(&pair, &cases[i]);
        require(generation_prefill(&pair.stepwise, 0, pair.whole.x, 9, together));
        require(generation_prefill(&pair.stepwise, 1, pair.whole.x + LENGTH, 9, together));
        generation_copy(&pair.stepwise, 0, 2);
        const int32_t tokens[ROWS] = {7, 7, 7}, others[ROWS] = {4, 5, 7};
        require(generation_step(&pair.stepwise, ROWS, 9, tokens, together));
        assert_memory_equal(together, together + 2 * VOCABULARY, sizeof alone);
        assert_memory_not_equal(together, together + VOCABULARY, sizeof alone);
        require(generation_step(&pair.stepwise, 1, 9, tokens, alone));
        assert_memory_equal(together, alone, sizeof alone);
        require(generation_step(&pair.stepwise, ROWS, 9, others, together));
        assert_memory_equal(together + 2 * VOCABULARY, alone, sizeof alone);
        pair_release(&pair);
    }
}

UNIT_TEST(what_does_not_fit_is_refused) {
    struct pair pair;
    float logits[ROWS * VOCABULARY];
    const int32_t tokens[LENGTH + 1] = {1}, wrong[] = {VOCABULARY};
    pair_create(&pair, &(struct generation_case){"shc", 4, .bias = true, .norm_sum = true});
    assert_error(generation_prefill(&pair.stepwise, ROWS, tokens, 1, logits), "1 tokens for row 3 do not fit");
    assert_error(generation_prefill(&pair.stepwise, -1, tokens, 1, logits), "do not fit");
    assert_error(generation_prefill(&pair.stepwise, 0, tokens, 0, logits), "0 tokens for row 0 do not fit");
    assert_error(generation_prefill(&pair.stepwise, 0, tokens, LENGTH + 1, logits), "25 tokens for row 0");
    assert_error(generation_prefill(&pair.stepwise, 0, wrong, 1, logits), "is not a token of this model");
    assert_error(generation_step(&pair.stepwise, 1, LENGTH, tokens, logits), "position 24 of 1 rows");
    assert_error(generation_step(&pair.stepwise, 1, 0, tokens, logits), "position 0 of 1 rows");
    assert_error(generation_step(&pair.stepwise, ROWS + 1, 1, tokens, logits), "position 1 of 4 rows");
    assert_error(gpt_set_batch(&pair.stepwise, (struct token_shape){ROWS, LENGTH}, pair.whole.x, NULL),
                 "does not fit");
    assert_error(generation_prefill(&pair.whole.gpt, 0, tokens, 1, logits), "not planned for generation");
    const int64_t shorter = LENGTH / 2, room = gpt_batch_capacity(&pair.whole.gpt, shorter);
    assert_error(gpt_set_batch(&pair.whole.gpt, (struct token_shape){room + 1, shorter}, pair.whole.x, NULL),
                 "does not fit");
    pair_release(&pair);
}

static int begin(void **state) {
    return small_model_begin(state, &compute);
}

static int end(void **state) {
    compute_close(compute);
    print_message("largest error, as part of the tolerance: %.2g\n", worst);
    return scratch_end(state);
}

DEVICE_TEST_MAIN(begin, end)
