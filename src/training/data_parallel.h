/* The gradients and the optimizer step of ranks that train together: every rank has its own micro-batches, all end
 * with the same weights. Alone it is the model's passes and optimizer_step. data_parallel.c begins with the order
 * of all calls of a step. */
#pragma once

#include "runtime/ranks/collective.h"
#include "src/model/gpt.h"
#include "src/model/optimizer_settings.h"
#include "src/training/train_settings.h"

/* ---- the arena cut into buckets, each of which is complete at one point of the backward pass: what ranks
 * exchange at a time, and what they share between them when each keeps a shard of the optimizer's states */

struct bucket {
    struct element_range range; /* of the arena */
    int64_t complete_after;     /* the sublayer whose backward pass completes its gradients; -1: the last of all */
    struct element_range shard; /* this rank's part of it */
    /* It has matrices that the optimizer updates whole, and nothing else: the owner keeps their states and updates
     * them, so `shard` is the whole range there and empty elsewhere. */
    bool is_matrices;
    int owner_rank;           /* of matrices, see ranks_index */
    bool is_embedding;        /* it has the token embedding and nothing else */
    uint64_t tensor;          /* where the tensor begins that the bucket is a piece of */
    double cost;              /* of the matrices in that tensor */
    uint64_t states_first[2]; /* where the shard's states begin in buffers that hold only own ones */
};

struct buckets {
    struct state_share share; /* of the states of own shards, for gpt_options; its context are these buckets */
    const struct ranks *ranks;
    struct bucket *table;        /* in the order of completion */
    const struct bucket **steps; /* in the order of the optimizer's steps: matrices last, since they take longest */
    size_t count;
    uint64_t largest; /* elements of the largest bucket */
};

/* Buckets of whole tensors with at most `elements` together (rounded up to a multiple of 64; 0: no limit but that
 * of collective_create), and of pieces of larger tensors. `sharing`: the settings of the optimizer whose states the
 * ranks share, or NULL. If it updates matrices whole, each tensor of matrices inside the model (parameter.matrices)
 * has buckets of its own (is_matrices), and the ranks own tensors of about the same cost. */
void buckets_create(const struct parameters *parameters, uint64_t elements,
                    const struct optimizer_settings *sharing, const struct ranks *ranks, struct buckets *buckets);
void buckets_release(struct buckets *buckets);

/* ---- training */

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
    uint32_t *tokens; /* [row_gradients_words] those of the last micro-batch on any rank, for row_gradients_begin */
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

/* ---- ranks that do not train the same model on the same data would silently train nonsense: these are
 * collective, and a difference is an error on all ranks, which names a rank and its host */

/* Checks that all ranks run the same program (the file's SHA-256). Comes before all other communication, since
 * another build may send other messages. */
int same_job_program(struct ranks *ranks);

/* Checks that all have the same digest of `what`. status: of making it; advice: what to do about a difference. */
int same_job_digest(struct ranks *ranks, int status, const char *digest, const char *what, const char *advice);
