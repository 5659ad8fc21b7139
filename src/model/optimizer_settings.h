/* Settings of all optimizers, the learning rate's schedule, and the loss scale. */
#pragma once

#include "runtime/system/element.h"
#include <stdbool.h>
#include <stdint.h>

/* How the learning rate falls after its linear warm-up; see optimizer_rate. Another schedule is a word and a value
 * here, a case of `height` in optimizer.c, and in src/settings/settings.c a line of help, one of what it leaves
 * unused, and `decays` if it never falls. */
#define LR_SCHEDULE_WORDS "cosine|wsd|linear|constant"
enum lr_schedule { LR_COSINE, LR_WSD, LR_LINEAR, LR_CONSTANT };

struct optimizer_settings {
    int optimizer; /* number of its row, see optimizer_at */
    double learning_rate, min_lr;
    int64_t warmup_iters, lr_decay_iters;
    int lr_schedule;          /* enum lr_schedule */
    double cooldown_fraction; /* of lr_decay_iters, at whose end the rate falls; of LR_WSD */
    double schedule_now; /* no option: where the schedule stands, in iterations; 0: at the number of the step's */
    double weight_decay;
    double grad_clip; /* largest global norm; 0: no clipping */
    int moments;      /* enum element_type of the states: ELEMENT_FP32, or ELEMENT_BF16, rounded stochastically */
    /* The type in which embeddings and the weights of Linear layers (parameter.lowp_only) are kept. ELEMENT_BF16:
     * there is no fp32 of them, which needs activations in bf16 as well. */
    int master;
    /* AdamW */
    double beta1, beta2;
    double adam_eps;
    bool decay_all;    /* weight decay of biases, gains and other small parameters, too */
    int decay_hc_gain; /* enum decay_hc_gain */
    /* Highest rates of wte and wpe, of lm_head, and of parameters with fewer than two dimensions. Negative:
     * learning_rate */
    double embed_learning_rate, head_learning_rate, scalar_learning_rate;
    /* The same of tables of value_embeds and of x0_lambdas. Negative: learning_rate, and scalar_learning_rate */
    double value_embed_learning_rate, resid_lambda_learning_rate, x0_lambda_learning_rate;
    /* Muon */
    double muon_momentum;
    double muon_learning_rate; /* negative: learning_rate */
    double muon_weight_decay;  /* negative: weight_decay */
    int muon_scale;            /* enum muon_scale */
    int muon_dtype;            /* enum muon_dtype */
    int64_t muon_steps;
    char *muon_coefficients;  /* "a, b, c"; NULL: the usual ones */
    double new_learning_rate; /* of what a residual connection adds to a plain model; negative: as of the others */
    /* Patterns of the parameters that stay as they are, and of those that are trained beside an adapter: see
     * frozen_create in parameters.h. */
    char *freeze, *lora_train;
    int frozen_weights; /* enum frozen_weights: how frozen matrices of branches are kept; without training, all */
    /* Leaves alpha_res of hyper-connections keep their values. The backward pass gives them a gradient of 0
     * (gpt_options), so they are not in the norm; they have no weight decay, and what a checkpoint has of their
     * states is dropped when it is loaded. */
    bool freeze_alpha_res;
};

#define KEPT_TYPE_WORDS "fp32|bf16" /* of moments and master, in the order of enum element_type */

#define DECAY_HC_GAIN_WORDS "zero|one"
enum decay_hc_gain { DECAY_TO_ZERO, DECAY_TO_ONE };

#define MUON_SCALE_WORDS "match_rms_adamw|original"
enum muon_scale { MUON_MATCH_RMS_ADAMW, MUON_ORIGINAL };

/* Type of the matrices of Newton-Schulz iterations. auto: bf16 if activations are bf16 on a GPU's matrix cores. */
#define MUON_DTYPE_WORDS "auto|fp32|bf16"
enum muon_dtype { MUON_AUTO, MUON_FP32, MUON_BF16 };

/* Returns the learning rate of iteration 0, 1, ..., or at schedule_now: linear warm-up over warmup_iters to
 * learning_rate, then
 *   cosine    along a cosine to min_lr at lr_decay_iters;
 *   linear    in a line to min_lr at lr_decay_iters;
 *   wsd       constant, but over the last cooldown_fraction of lr_decay_iters in a line to min_lr;
 *   constant  learning_rate for ever.
 * After lr_decay_iters all but constant stay at min_lr. */
double optimizer_rate(const struct optimizer_settings *settings, int64_t iteration);

/* The learning rate of an iteration, of parameters whose highest rate is `highest` (negative: learning_rate):
 * optimizer_rate * highest / learning_rate. With a learning_rate of 0 the schedule falls from 1 to 0 instead. */
double optimizer_rate_of(const struct optimizer_settings *settings, int64_t iteration, double highest);

/* ---- dynamic loss scaling
 *
 * In fp16 small gradients would round to zero, so the loss is multiplied by a factor before
 * the backward pass, and the gradients by its inverse in the optimizer. The factor is a power of two and adapts:
 * halved when a gradient overflowed (then that step is left out), doubled after enough good steps. */
struct loss_scale {
    float scale;        /* 1 where nothing is scaled */
    bool dynamic;       /* fp16 */
    int64_t good_steps; /* since the scale changed */
    int64_t skipped;    /* steps without an update, since the run began */
};

/* Returns the scale that a run begins with: 65536 for fp16; else 1, which stays. */
struct loss_scale loss_scale_begin(enum element_type type);

/* Tells whether a scale read from a checkpoint is possible. */
bool loss_scale_is_valid(const struct loss_scale *scale);

/* Updates the scale after a step; `finite` tells whether the step's gradient norm was. Returns false if training
 * has diverged: the norm was not finite and there is no smaller scale, or nothing is scaled. */
bool loss_scale_update(struct loss_scale *scale, bool finite);
