/* The state of a model on a device: options, buffers, the current batch and the current pass. gpt.h has the
 * functions that users of the model call. */
#pragma once

#include "runtime/device/transfer.h"
#include "src/model/branch.h"
#include "src/model/frame.h"
#include "src/model/memory_plan.h"
#include "src/model/model_config.h"
#include "src/model/optimizer_settings.h"
#include "src/model/parameters.h"
#include "src/operations/operations.h"

enum gpt_mode {
    GPT_INFERENCE,  /* forward passes; sublayers share their activations */
    GPT_GENERATION, /* forward passes with a cache of keys and values, see the end of gpt.h */
    GPT_ANALYSIS,   /* forward passes that keep streams and H of every sublayer */
    GPT_TRAINING,   /* forward and backward passes, gradients, and the optimizer's states */
};

struct gpt;

/* This rank's share of the optimizer's states where the ranks divide them (--shard-optimizer). `copy` copies what
 * belongs to elements [first, first + count) of the arena from a whole state to host memory; it is collective, and
 * rank 0 alone receives them. Or, with to_device, the part of that range which this rank keeps from host memory. */
struct state_share {
    uint64_t elements[2]; /* of each state that this rank keeps */
    const void *context;
    int (*copy)(const void *context, const struct gpt *gpt, size_t state, uint64_t first, uint64_t count,
                float *values, bool to_device);
};

struct optimizer; /* optimizer.h */

struct gpt_options {
    int64_t batch;    /* most sequences of full length in a pass */
    int64_t sequence; /* most tokens in a sequence; <= block_size */
    enum gpt_mode mode;
    int64_t vocabulary;     /* the softmax is over the first so many tokens; 0: over all */
    enum element_type type; /* of activations and of weights_lowp */
    /* Which optimizer, with which states, and what it leaves as it is; without training only `master` counts.
     * gpt_plan alone reads `freeze`. */
    struct optimizer_settings optimizer;
    /* The table of the config's parameters, which must outlive the model, and has marked what is frozen already;
     * NULL: gpt_plan makes one. */
    const struct parameters *parameters;
    const struct state_share *state_share; /* NULL: this rank keeps all of them */
    size_t row_gradients; /* most rows of token gradients that are kept apart, see gpt.h; 0: none */
    /* On devices that compute in host memory other processes can map the gradients, and the weights as well if the
     * ranks divide the states. */
    bool shareable;
    /* Training keeps only the streams between layers, and the backward pass runs each layer forward again. */
    bool recompute;
};

/* The buffers of one sublayer (an attention or MLP branch with its hyper-connection) that a forward pass fills.
 * With options.recompute all layers share most of them, which then hold the values of the layer that ran last. N =
 * batch * sequence tokens. */
struct sublayer {
    int64_t index; /* 0 .. 2 n_layer - 1, in the order in which they run */
    const struct branch *branch;
    const struct sublayer_offsets *at; /* offsets of its parameters */
    struct stream_mix mix;             /* input streams [N, S, C], H, the branch's input and output */
    /* [N, C] inputs of the projections of keys and values; NULL: mix.normed, the input of that of queries */
    const struct buffer *key_input, *value_input;
    const struct buffer *in_proj_out;    /* [N, (H + 2 K) D] q, k, v; or [N, M], gated [N, 2 M], before f */
    const struct buffer *out_proj_in;    /* [N, H D] output of attention; or [N, M] after the activation f */
    const struct buffer *lse;            /* [batch, H, sequence] log-sum-exp of attention's softmax */
    struct projection_table projections; /* where its packed projection matrices come from */
    const struct buffer *keys, *values;  /* cache of generation [options.batch, K, options.sequence, D] */
    const struct buffer *gram; /* [N, S, S] Gram matrices of streams, with recompute and observe; else NULL */
};

/* Buffers that one sublayer uses after the other. */
struct gpt_scratch {
    const struct buffer *d_packed; /* [sublayers, columns, row] gradients of the packed projections */
    struct attention_scratch attention;
    const struct buffer *angles;      /* [options.sequence, D] with RoPE: see head_rows_fill_table */
    const struct buffer *qkv;         /* [N, (H + 2 K) D] with qk_norm: what attention reads of in_proj_out */
    const struct buffer *head_scales; /* [N, H + K] with qk_norm */
    const struct buffer *scores;      /* generation: [options.batch, H, padded] */
    const struct buffer *d_streams;   /* [N, S, C], with more behind it where the frame has planned it */
    const struct buffer *d_output;    /* [N, C] */
    const struct buffer *d_normed;    /* [N, C] */
    const struct buffer *d_key_input, *d_value_input; /* [N, C] where the frame has planned them */
    const struct buffer *d_out_proj_in;               /* [N, H D] or [N, M], the larger */
    const struct buffer *d_in_proj_out;    /* [N, (H + 2 K) D]; attention's alone: an MLP computes it in place */
    const struct buffer *d_h;              /* [N, S (S + 2)]; h_measurement.c uses it for Gram matrices */
    const struct buffer *d_z;              /* [N, norm_groups, columns] */
    const struct buffer *d_z_lowp;         /* d_z in the type of activations, for GEMMs */
    const struct buffer *rms_scale;        /* [N, norm_groups] */
    const struct buffer *d_embedding;      /* [N, C] */
    const struct buffer *embedding_scales; /* [N] with embed_norm, from the forward to the backward pass */
    void *of_optimizer;                    /* the optimizer's own */
};

/* What a pass does with the cache of keys and values, which exists in generation only. */
enum gpt_cache_use {
    CACHE_NONE,
    CACHE_FILL, /* the batch's keys and values go to the cache, from position 0 on */
    CACHE_STEP, /* the batch is one token of each sequence; earlier keys and values are in the cache */
};

/* The settings of one forward pass. */
struct gpt_pass {
    bool dropout;
    bool observe; /* h_measurement_of_pass follows: keep what it reads */
    uint64_t seed;
    int64_t iteration;
    uint64_t first_row; /* index of the batch's first token in the global batch */
    enum gpt_cache_use cache;
    int64_t cache_row; /* CACHE_FILL: row of the cache for the batch's first sequence */
    int64_t position;  /* CACHE_STEP: position of the tokens; else 0 */
};

/* The embedding's part of the token embedding's gradient, where it is kept apart from the head's: see
 * gpt.h. */
struct row_gradients {
    size_t most;                  /* capacity in rows; 0: the parts are never kept apart */
    const struct buffer *rows;    /* [most, C] float */
    const struct buffer *ids;     /* [most] int, the token of each row */
    const struct buffer *places;  /* [N] int, the row of each distinct token, in the order of token_groups */
    const struct buffer *numbers; /* [most + 1] int: 0, 1, 2 ... */
    struct upload upload;         /* of ids and places */
    size_t count;                 /* rows in this pass; 0: the parts are not kept apart */
};

struct gpt {
    struct compute *compute;
    struct model_config config;
    struct gpt_options options;
    size_t vocabulary; /* V: logits per token */
    struct memory_plan plan;
    struct parameters parameters; /* the plan owns its buffers */
    struct operations operations;
    const struct optimizer *optimizer;
    const struct frame *frame;
    void *frame_state;          /* the frame's own: see frame.h */
    struct sublayer *sublayers; /* [BRANCHES n_layer + 1]; the last has the output streams only, and no branch */
    struct gpt_scratch scratch;
    const struct buffer *packed; /* projection matrices of all sublayers as GEMMs read them, packed in each pass */
    struct projection_table projections; /* where these come from, of all sublayers */
    const struct buffer *final;          /* [N, C] after ln_f, the normed of the top */
    const struct buffer *d_final;
    const struct buffer *d_collapse_z; /* [N, S] with stream_reduce = head */
    const struct buffer *logits;       /* [logit_rows, V] */
    const struct buffer *d_logits; /* [logit_rows, V] in the activations' type; in fp32 the same buffer as logits */
    size_t logit_rows;             /* tokens whose logits are in memory at once */
    const struct buffer *losses;   /* [N] */
    const struct buffer *loss;     /* [1] sum since gpt_zero */
    const struct buffer *gradient_norm; /* [1] of the last optimizer step, unscaled */
    bool keeps_activation; /* every MLP keeps its activation's output, so the backward pass does not recompute it */
    struct loss_scale loss_scale;          /* factor in the gradients of the arena; the training loop updates it */
    int64_t resumed_steps;                 /* of the optimizer, in the run before this process */
    const struct buffer *tokens, *targets; /* [N] int */
    struct token_groups groups;            /* of the batch, in training */
    struct row_gradients row_gradients;
    struct token_shape shape; /* of the current batch */
    struct gpt_pass pass;
    bool recomputes;      /* a layer is running forward again, for the backward pass */
    size_t valid_targets; /* targets of the batch that are not -1 */
    struct upload upload; /* of batches, [5, upload_tokens] int: tokens, targets, and groups */
    size_t upload_tokens;
    int32_t *token_counts; /* [vocab_size] on the host, for grouping */
};

/* Returns the number of tokens of the current batch. */
static inline size_t gpt_tokens(const struct gpt *gpt) {
    return (size_t)(gpt->shape.batch * gpt->shape.sequence);
}

/* Tells whether layers share streams, since no later pass or measurement reads them. */
static inline bool gpt_shares_streams(const struct gpt *gpt) {
    return gpt->options.mode == GPT_INFERENCE || gpt->options.mode == GPT_GENERATION;
}

/* Tells whether the current pass has dropout. */
static inline bool gpt_drops(const struct gpt *gpt) {
    return gpt->pass.dropout && gpt->config.dropout != 0.0;
}

/* Returns the dropout at a place of a sublayer (-1: of none), by its name; its rate is 0 if the pass has none. */
struct dropout gpt_dropout(const struct gpt *gpt, int64_t sublayer, const char *place);

/* Returns the spans of a layer norm's parameters in the arena of weights, or of gradients. */
static inline struct layer_norm gpt_norm(const struct buffer *arena, struct norm_offsets at) {
    return (struct layer_norm){{arena, at.gain}, {arena, at.bias}};
}
