/* The first backward pass of a step writes all gradients, whatever was there, and later ones add theirs: the sums
 * are those that begin with zeros, for all variants, with and without biases, whole or in blocks of logits, where
 * not all words are scored and a sequence is shorter than the context, and on all that products and kernels run on;
 * on what is long in compiling with every third variant, or sixth. */
#include "runtime/device/gpu_model.h"
#include "runtime/gemm/gemm.h"
#include "tests/support/lanes.h"
#include "tests/support/scratch.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdlib.h>

enum {
    WORDS = 37,
    SCORED = 29,
    CONTEXT = 8,
    SHORT = 5, /* tokens of a sequence of the first pass */
    BATCH = 3,
    BLOCK = 4, /* tokens whose logits are in memory at a time: the first pass has four blocks, the second six */
};

/* What models run on. */
struct setting {
    const char *gemm;
    enum element_type type;
    unsigned lanes; /* 0: PoCL's own, which is 1 */
    const char *as; /* shapes of this device; NULL: PoCL's own */
    size_t first;   /* variant with biases, and every so many after it */
    size_t step;
    bool only; /* those, or every second of them */
};

/* ---- a model and its gradients */

static void create(struct small_model *model, struct compute *compute, const struct residual_variant *variant,
                   const struct setting *setting, bool bias) {
    static const char *const some[] = {"hc_dynamic=false", "x0_lambdas=true", "mudd_norm=prepost",
                                       "hc_until=3",       "attnres_heads=2", "value_embeds=true"};
    int64_t streams = residual_is_single(variant) ? 1 : 3;
    while (!residual_takes(variant, streams) || (variant->has_fractions && 32 % streams)) {
        streams++;
    }
    struct model_config config = small_model_config(variant->name, streams);
    small_model_set(&config, "n_embd=32 dropout=0.1"); /* heads of 16, which matrix cores take */
    small_model_set(&config, bias ? "bias=true mlp=gelu hc_norm_gain=true stream_reduce=auto tie_embeddings=true "
                                    "position=learned attnres_block=3 mudd_round=0"
                                  : "bias=false mlp=swiglu hc_norm_gain=false stream_reduce=head "
                                    "tie_embeddings=false position=none attnres_block=1 mudd_round=64");
    config.vocab_size = WORDS;
    config.block_size = CONTEXT;
    config.read_delay =
        residual_has_matrices(variant) && !variant->has_fractions && residual_number(variant) % 4 >= 2;
    config.embed_norm = residual_number(variant) % 3 == 0;
    config.head_bias = residual_number(variant) % 2;
    config.stream_expand = bias && !residual_is_single(variant) && !variant->has_fractions;
    for (size_t i = 0; i < COUNT(some); i++) {
        if ((i + residual_number(variant)) % 4 > 0) {
            small_model_set_if_taken(&config, some[i]);
        }
    }
    small_model_create_planned(model, compute, &config,
                               &(struct gpt_options){.vocabulary = SCORED,
                                                     .type = setting->type,
                                                     .recompute = bias});
    model->gpt.logit_rows = BLOCK; /* there is room for more */
    small_model_randomise(model, 3);
}

/* Words that the loss does not score come in as input, but not all of them. */
static void check_words(const struct small_model *model) {
    int32_t found = 0;
    for (int32_t word = SCORED; word < WORDS; word++) {
        bool occurs = false;
        for (size_t i = 0; i < BATCH * SHORT; i++) {
            occurs |= model->x[i] == word;
        }
        found += occurs;
    }
    assert_in_range(found, 1, WORDS - SCORED - 1);
}

/* The gradient of every parameter becomes this number. What lies between them in the arena is nobody's, and zero.
 */
static void fill(struct small_model *model, float number) {
    const struct parameters *parameters = &model->gpt.parameters;
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        FREED float *values = malloc(parameter->elements * sizeof *values);
        for (size_t k = 0; k < parameter->elements; k++) {
            values[k] = number;
        }
        require(buffer_write(model->gpt.compute, parameters->gradients, parameter->offset * sizeof *values, values,
                             parameter->elements * sizeof *values));
    }
}

/* One more pass, over sequences of so many tokens; the sums of gradients so far. */
static float *pass(struct small_model *model, int64_t sequence) {
    const struct token_shape shape = {BATCH, sequence};
    require(gpt_set_batch(&model->gpt, shape, model->x, model->y));
    small_model_accumulate(model, (struct gpt_pass){.dropout = true, .iteration = sequence});
    return small_model_read(model, model->gpt.parameters.gradients);
}

/* -0 and 0 are the same: zeros that something is added to are never negative. */
static void compare(const struct small_model *model, const char *when, const float *found, const float *expected) {
    const struct parameters *parameters = &model->gpt.parameters;
    double whole = 0.0;
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        for (size_t k = parameter->offset; k < parameter->offset + parameter->elements; k++) {
            if (!(isfinite(found[k]) && found[k] == expected[k])) {
                fail_msg("%s: gradient %zu of %s (%s) is %g, from zeros on %g", when, k - parameter->offset,
                         parameter->name, model->gpt.config.residual->name, (double)found[k], (double)expected[k]);
            }
            whole += (double)found[k] * (double)found[k];
        }
    }
    assert_true(whole > 0.0);
}

static void check_model(struct small_model *model) {
    fill(model, 0.0f);
    FREED float *first = pass(model, SHORT), *both = pass(model, CONTEXT);
    const float nothing[] = {NAN, 1e30f};
    for (size_t i = 0; i < COUNT(nothing); i++) {
        fill(model, nothing[i]);
        gpt_zero(&model->gpt);
        FREED float *sums = pass(model, SHORT);
        compare(model, "after the first pass", sums, first);
        FREED float *second = pass(model, CONTEXT);
        compare(model, "after the second pass", second, both);
    }
}

static void check_variants(void **state) {
    const struct setting *setting = *state;
    struct compute *compute;
    const struct residual_variant *variant;
    const struct compute_options options = {.device = "pocl",
                                            .cache_dir = "",
                                            .gemm = setting->gemm,
                                            .operands = setting->type,
                                            .model = setting->as ? gpu_model_find(setting->as, NULL) : NULL};
    require(gemm_compute_open(&compute, &options));
    compute->lanes = setting->lanes ? setting->lanes : compute->lanes;
    if (compute->lanes > 1 && !lanes_can_be_tried(&compute->device)) {
        compute_close(compute);
        skip();
    }
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        const bool bias = i % setting->step == setting->first;
        if (setting->only && !(test_is_whole() ? bias : i == setting->first)) {
            continue;
        }
        SMALL_MODEL model;
        create(&model, compute, variant, setting, bias);
        check_words(&model);
        check_model(&model);
    }
    compute_close(compute);
}

int main(int argc, char **argv) {
#define CASE(name, ...)                                                                                            \
    {                                                                                                              \
        name, check_variants, NULL, NULL, &(struct setting) {                                                      \
            __VA_ARGS__                                                                                            \
        }                                                                                                          \
    }
    const struct CMUnitTest tests[] = {
        CASE("in fp32", "auto", ELEMENT_FP32, 0, NULL, 0, 2, false),
        CASE("in bf16", "auto", ELEMENT_BF16, 0, NULL, 0, 3, true),
        CASE("on eight lanes", "clblast", ELEMENT_FP32, 8, NULL, 1, 3, true),
        CASE("in a GPU's shape", "portable", ELEMENT_FP32, 0, "emulation", 0, 3, true),
        CASE("on matrix cores", "auto", ELEMENT_BF16, 0, "emulation", 2, 3, true),
    };
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    device_prepare_environment();
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
