/* Small models for tests: made in one call, with the paper's initial weights or random ones everywhere, on a random
 * batch. What fails is a failure of the test. */
#pragma once

#include "src/model/gpt.h"
#include "src/model/optimizer.h"
#include "tests/support/scratch.h"

/* Fields of struct optimizer_settings whose default is not 0: no group of parameters has a rate of its own. */
#define USUAL_RATES                                                                                                \
    .adam_eps = 1e-8, .embed_learning_rate = -1.0, .head_learning_rate = -1.0, .scalar_learning_rate = -1.0,       \
    .new_learning_rate = -1.0, .muon_learning_rate = -1.0, .muon_weight_decay = -1.0,                              \
    .value_embed_learning_rate = -1.0, .resid_lambda_learning_rate = -1.0, .x0_lambda_learning_rate = -1.0

struct small_model {
    struct gpt gpt;
    int32_t *x, *y; /* [tokens]; some of y are -1 */
};

/* Two layers, two heads, 16 channels, vocabulary 33, context 8, a batch of 3. */
struct model_config small_model_config(const char *residual, int64_t streams);

/* Changes settings, by the names that options and config.json have: "norm=rmsnorm norm_eps=0.03". */
void small_model_set(struct model_config *config, const char *settings);

/* The same, if the model can have them. */
void small_model_set_if_taken(struct model_config *config, const char *settings);

/* Set-up of a group of tests: scratch_begin, and PoCL without a cache of programs, for which it would compile each
 * kernel a second time. Ends the program when that fails. */
int small_model_begin(void **state, struct compute **compute);

/* The program (tests/support/test.h) whose tests share a static struct compute *. small_model_begin opens it before
 * them. After them it is closed, and the scratch folder removed. */
#define SMALL_MODEL_TEST_MAIN(compute)                                                                             \
    static int small_model_tests_begin(void **state) {                                                             \
        return small_model_begin(state, &(compute));                                                               \
    }                                                                                                              \
    static int small_model_tests_end(void **state) {                                                               \
        compute_close(compute);                                                                                    \
        return scratch_end(state);                                                                                 \
    }                                                                                                              \
    DEVICE_TEST_MAIN(small_model_tests_begin, small_model_tests_end)

/* Initialised as the paper does; the batch is set. */
void small_model_create(struct small_model *model, struct compute *compute, const struct model_config *config,
                        int64_t batch);
/* The same with activations of this type. */
void small_model_create_typed(struct small_model *model, struct compute *compute, const struct model_config *config,
                              int64_t batch, enum element_type type);
/* The same with all options, for training. No batch stands for 3, and no sequence for the whole context. */
void small_model_create_planned(struct small_model *model, struct compute *compute,
                                const struct model_config *config, const struct gpt_options *options);
void small_model_release(struct small_model *model);

/* The type of a variable whose model is created at once, and released where its scope ends. */
#define SMALL_MODEL __attribute__((cleanup(small_model_release))) struct small_model

/* All parameters become random, the hyper-connections' ones so large that H differs from token to token. */
void small_model_randomise(struct small_model *model, uint64_t seed);

void small_model_forward(struct small_model *model, struct gpt_pass pass);

/* Forward and backward; the gradients are in the arena afterwards. Returns the loss. */
float small_model_backward(struct small_model *model, struct gpt_pass pass);

/* The same once more, for the sums of gradients and losses since small_model_backward. */
float small_model_accumulate(struct small_model *model, struct gpt_pass pass);

/* Forward, backward and a step of the optimizer; the gradients stay in the arena. Returns their norm. */
float small_model_step(struct small_model *model, const struct optimizer_settings *optimizer, int64_t iteration);

/* Optimizer steps on the batch; returns the last loss. */
float small_model_train(struct small_model *model, int64_t steps, double rate);

/* The arena of weights or gradients on the host, heap memory [elements]: 0 where it has none. */
float *small_model_read(struct small_model *model, const struct buffer *arena);

/* The arena of gradients, of the loss without its scale, heap memory. */
float *small_model_gradients(struct small_model *model);

/* H of a sublayer in the last forward pass, [tokens, S (S + 2)] (pre, post, res), heap memory. Of fractions pre has
 * S S elements. */
float *small_model_matrices(struct small_model *model, int64_t sublayer);
