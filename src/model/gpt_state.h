/* The model as its parts see it: options, buffers, and what is known of the batch and the pass. What is done with
 * it is in gpt.h. */
#pragma once

#include "runtime/device/upload.h"
#include "src/model/branch.h"
#include "src/model/loss_scale.h"
#include "src/model/memory_plan.h"
#include "src/model/model_config.h"
#include "src/model/parameters.h"
#include "src/operations/operations.h"

enum gpt_mode {
    GPT_INFERENCE,  /* forward only: sublayers share their activations */
    GPT_GENERATION, /* the same for one sequence at a time, or one token of each sequence of the batch, with keys
                       and values of the batch kept: see generation.h */
    GPT_ANALYSIS,   /* forward only: streams and H of every sublayer are kept */
    GPT_TRAINING,   /* gradients, moments, and all that the backward pass needs */
};

/* What this process keeps of the optimiser's moments where several share them, and how elements [first, first +
 * count) of all of a moment are moved to and from host memory: reading is collective and only one process gets them
 * (the others' memory is undefined), writing takes what is the process's own. */
struct moment_share {
    uint64_t elements; /* of each moment, kept here */
    int (*read)(const struct moment_share *share, struct compute *compute, const struct buffer *moments,
                uint64_t first, uint64_t count, float *values);
    int (*write)(const struct moment_share *share, struct compute *compute, const struct buffer *moments,
                 uint64_t first, uint64_t count, const float *values);
};

struct gpt_options {
    int64_t batch;    /* sequences per pass, at most, of the full length */
    int64_t sequence; /* tokens per sequence, at most; <= block_size */
    enum gpt_mode mode;
    int64_t vocabulary;                 /* the softmax is over the first so many tokens; 0: over all */
    enum element_type type;             /* of activations and of the weights that products read */
    const struct moment_share *moments; /* NULL: all of them are kept here */
    size_t row_gradients; /* rows of token gradients that may be kept apart, see row_gradients.h; 0: none */
    bool
        shareable; /* on devices that work on host memory, other processes can map gradients, and weights if moments are shared */
    bool recompute; /* in training keep the streams between layers only; the backward pass runs each layer
                       forward again, to the same bits */
};

/* What one sublayer (an attention or MLP branch) keeps of its forward pass. Under recompute most of it is shared by
 * all layers and holds what the last one left. N = batch * sequence tokens. */
struct sublayer {
    int64_t index; /* in the order in which they run */
    const struct branch *branch;
    const struct sublayer_offsets *at;   /* its parameters */
    struct stream_mix mix;               /* the frame: streams [N, S, C] are its input */
    struct stream_map map;               /* the hyper-connection's */
    const struct buffer *wide;           /* [N, 3 C] qkv, or [N, 4 C] before GELU */
    const struct buffer *inner;          /* [N, C] attention before c_proj, or [N, 4 C] after GELU */
    const struct buffer *lse;            /* [batch, H, sequence] of attention's softmax */
    struct span packed;                  /* [columns, row] its projections */
    struct projection_table projections; /* its leaves */
    const struct buffer *keys, *values;  /* attention in generation: [options.batch, H, options.sequence, C/H] */
    const struct buffer *gram;           /* [N, S, S] of streams in observed passes under recompute; else NULL */
};

/* Used by one sublayer after the other. */
struct gpt_scratch {
    const struct buffer *d_packed; /* [columns, row] projections */
    struct attention_scratch attention;
    const struct buffer *scores;           /* generation: [options.batch, H, padded] */
    const struct buffer *d_streams;        /* [N, S, C] */
    const struct buffer *d_output;         /* [N, C] */
    const struct buffer *d_normed;         /* [N, C] */
    const struct buffer *d_inner, *d_wide; /* [N, 4 C] */
    const struct buffer *d_h;              /* [N, S (S + 2)]; also the Gram matrices of h_statistics */
    const struct buffer *d_z;              /* [N, norm_groups, columns] */
    const struct buffer *d_z_operand;      /* the same in the activations' type, for products */
    const struct buffer *rms_scale;        /* [N, norm_groups] */
    const struct buffer *d_embedding;      /* [N, C] */
};

/* What a pass does with the cache of keys and values, which there is in generation only. */
enum gpt_cache_use {
    CACHE_NONE,
    CACHE_FILL, /* the batch's keys and values go to the cache, from position 0 on */
    CACHE_STEP, /* the batch is one token a sequence: the cache has what is before it */
};

/* Dropout is on only in training passes. */
struct gpt_pass {
    bool dropout;
    bool observe; /* h_statistics_compute will follow */
    uint64_t seed;
    int64_t iteration;
    uint64_t first_row; /* number of the batch's first token in the global batch */
    enum gpt_cache_use cache;
    int64_t cache_row; /* CACHE_FILL: of the batch's first sequence */
    int64_t position;  /* CACHE_STEP: of the tokens; else 0 */
};

/* The embedding's part of the token embedding's gradient where it is kept apart: see row_gradients.h. */
struct row_gradients {
    size_t most;                  /* rows that there is room for; 0: the gradient is always in one piece */
    const struct buffer *rows;    /* [most, C] float */
    const struct buffer *ids;     /* [most] int, the token of each row */
    const struct buffer *places;  /* [N] int, the row of each of the batch's distinct tokens, as in token_groups */
    const struct buffer *numbers; /* [most + 1] int: 0, 1, 2 ... */
    struct upload upload;         /* of ids and places */
    size_t count;                 /* rows of the pass; 0: in one piece */
};

struct gpt {
    struct compute *compute;
    struct model_config config;
    struct gpt_options options;
    size_t vocabulary; /* V: logits per token */
    struct memory_plan plan;
    struct parameters parameters; /* its buffers are on the plan */
    struct operations operations;
    struct sublayer *sublayers; /* [BRANCHES n_layer + 1], the last one being the top, which has streams only */
    struct gpt_scratch scratch;
    const struct buffer *packed;         /* projections of all sublayers as products read them, made in each pass */
    struct projection_table projections; /* all leaves */
    const struct buffer *final, *final_statistics; /* [N, C] after ln_f */
    const struct buffer *d_final;
    const struct buffer *logits;   /* [logit_rows, V] */
    const struct buffer *d_logits; /* the same, in the activations' type: in fp32 they take the logits' place */
    size_t logit_rows;             /* tokens whose logits are in memory at a time */
    const struct buffer *losses;   /* [N] */
    const struct buffer *loss;     /* [1] sum since gpt_zero */
    const struct buffer *gradient_norm; /* [1] of the last optimiser step, unscaled */
    bool keeps_inner;                   /* every MLP has its own `inner`, which the way back need not fill again */
    struct loss_scale loss_scale;       /* of the gradients in the arena; the training loop updates it */
    const struct buffer *tokens, *targets; /* [N] int */
    struct token_groups groups;            /* of the batch, in training */
    struct row_gradients row_gradients;
    struct token_shape shape; /* of the batch that is set */
    struct gpt_pass pass;
    size_t valid_targets; /* targets of the batch that are not -1 */
    struct upload upload; /* of batches, [5, upload_tokens] int: tokens, targets, and groups */
    size_t upload_tokens;
    int32_t *token_counts; /* [vocab_size] on the host, for grouping */
};

/* Tokens of the current batch. */
size_t gpt_tokens(const struct gpt *gpt);

/* Whether the current pass has dropout, and dropout at a place in it, named as printf does; none: a rate of 0. */
bool gpt_drops(const struct gpt *gpt);
struct dropout gpt_dropout(const struct gpt *gpt, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A layer norm's parameters, or their gradients, in an arena. */
struct layer_norm gpt_norm(const struct buffer *arena, struct norm_offsets at);
