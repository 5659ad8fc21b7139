/* The gradients and the optimizer step of ranks that train together: every rank has its own micro-batches, all end
 * with the same weights. Alone it is the model's passes and optimizer_step. */
#pragma once

#include "runtime/ranks/collective.h"
#include "src/training/buckets.h"
#include "src/training/train_settings.h"

struct data_parallel {
    struct gpt *gpt;
    struct ranks *ranks;
    struct parameters parameters; /* the table of buckets and model, if the settings have none */
    struct buckets buckets;
    bool shards_states;            /* each rank keeps only the states of its shards of the buckets */
    bool bf16;                     /* gradients travel between ranks in bfloat16 */
    struct collective *collective; /* NULL: alone */
    struct collective_item *items; /* [buckets and pieces of rows] of a round */
    int64_t *complete_after;       /* [buckets and pieces of rows] as bucket.complete_after */
    size_t item_count;             /* of the round */
    uint32_t *tokens; /* [row_gradients_words] those of the last micro-batch on any rank, for row_gradients.h */
    struct collective_times times;          /* of all steps so far, weights included */
    struct collective_times gradient_times; /* of the last step, gradients alone */
    double gradients_at;                    /* clock when the last step's gradients were complete on all ranks */
    struct buffer squares;                  /* [buckets] sums of squares of own shards, if it shards states */
    float *host_squares;                    /* [buckets] */
};

/* Divides the micro-batches of a step over all ranks equally; an error if that cannot be. */
int data_parallel_divide(int64_t steps, const struct ranks *ranks, int64_t *micro_steps);

/* Plans the model for training with these ranks, exchange of gradients included. Talks to no other rank.
 * data_parallel_release and gpt_release free what a failure leaves. */
int data_parallel_plan(struct data_parallel *parallel, struct ranks *ranks, const struct train_settings *settings,
                       struct compute *compute, struct gpt *gpt);

/* Creates the planned model, and what steps need. Collective. */
int data_parallel_create(struct data_parallel *parallel);
void data_parallel_release(struct data_parallel *parallel);

/* The loss and backward pass of a micro-batch, after gpt_forward (and gpt_zero, if it is the first of a step);
 * `scale` as of gpt_loss. The last one of a step is collective: ranks exchange gradients while it runs. Launches;
 * then as compute_check. */
int data_parallel_backward(struct data_parallel *parallel, float scale, bool is_last);

/* Call after the last micro-step: waits for the sums of gradients and makes the step. Collective. */
int data_parallel_step(struct data_parallel *parallel, const struct optimizer_settings *settings,
                       int64_t iteration);

/* Adds up what is in the gradients, by itself, to be timed: there are other ranks. Collective. */
int data_parallel_exchange(struct data_parallel *parallel, struct collective_times *times);

/* gpt_create on all ranks, for models that do not train. Collective. */
int data_parallel_create_model(struct gpt *gpt, struct ranks *ranks);

/* Copies rank 0's weights to all ranks, so that libraries that round differently from host to host do not matter.
 * Collective. */
int data_parallel_share_weights(struct gpt *gpt, const struct ranks *ranks);

/* Measures FLOP/s of GEMMs of the model's shape, on all ranks at once, added up. Collective. */
int data_parallel_measure_rate(struct gpt *gpt, const struct ranks *ranks, double *rate);

/* Checks that all ranks have the same weights, bit for bit; else an error on all of them. Collective. */
int data_parallel_check_weights(const struct data_parallel *parallel);
