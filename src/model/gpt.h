/* The model on a device: GPT-2 with a residual connection of the table in src/variants/residual.c, forward and
 * backward.
 *
 * A function that "launches" puts kernels into the device's queue and returns at once; the first failure is kept in
 * the compute (runtime/device/compute.h). A function that "waits" returns when the device has done all that was
 * launched. */
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
    GPT_GENERATION, /* forward passes with a cache of keys and values, see the end of this file */
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
    size_t row_gradients; /* most rows of token gradients that are kept apart, see row_gradients_begin; 0: none */
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
    const struct buffer *arriving;     /* [N, S, C] where x0_lambdas begin a layer: the streams before */
    /* [N, C] inputs of the projections of keys and values; NULL: mix.normed, the input of that of queries */
    const struct buffer *key_input, *value_input;
    const struct buffer *in_proj_out;   /* [N, (H + 2 K) D] q, k, v; or [N, M], gated [N, 2 M], before f */
    const struct buffer *out_proj_in;   /* [N, H D] output of attention; or [N, M] after the activation f */
    const struct buffer *value_gates;   /* [N, K] where values have embeddings, else NULL */
    const struct buffer *lse;           /* [batch, H, sequence] log-sum-exp of attention's softmax */
    const struct buffer *keys, *values; /* cache of generation [options.batch, K, options.sequence, D] */
    const struct buffer *gram; /* [N, S, S] Gram matrices of streams, with recompute and observe; else NULL */
};

/* Buffers that one sublayer uses after the other. */
struct gpt_scratch {
    const struct buffer *d_packed; /* [sublayers, columns, row] gradients of the packed projections */
    struct attention_scratch attention;
    const struct buffer *angles;        /* [options.sequence, D] with RoPE: see head_rows_fill_table */
    const struct buffer *qkv;           /* [N, (H + 2 K) D] with qk_norm: what attention reads of in_proj_out */
    const struct buffer *head_scales;   /* [N, H + K] with qk_norm */
    const struct buffer *d_value_gates; /* [N, K] with value_embeds */
    const struct buffer *scores;        /* generation: [options.batch, H, padded] */
    const struct buffer *d_streams;     /* [N, S, C], with more behind it where the frame has planned it */
    const struct buffer *d_output;      /* [N, C] */
    const struct buffer *d_normed;      /* [N, C] */
    const struct buffer *d_key_input, *d_value_input; /* [N, C] where the frame has planned them */
    const struct buffer *d_out_proj_in;               /* [N, H D] or [N, M], the larger */
    const struct buffer *d_in_proj_out;    /* [N, (H + 2 K) D]; attention's alone: an MLP computes it in place */
    const struct buffer *d_h;              /* [N, h_row]; h_measurement.c uses it for Gram matrices */
    const struct buffer *d_z;              /* [N, z_row] */
    const struct buffer *d_z_lowp;         /* d_z in the type of activations, for GEMMs */
    const struct buffer *rms_scale;        /* [N, norm_groups] */
    const struct buffer *d_embedding;      /* [N, C] */
    const struct buffer *d_first;          /* [N, S, C] of first_streams; without x0_lambdas it is d_streams */
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
 * row_gradients_begin. */
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
    struct operations unmixed; /* the maps of sublayers from hc_until on; zero if there are none */
    const struct optimizer *optimizer;
    const struct frame *frame;
    void *frame_state;          /* the frame's own: see frame.h */
    struct sublayer *sublayers; /* [BRANCHES n_layer + 1]; the last is the top, without a branch */
    struct gpt_scratch scratch;
    const struct buffer *packed; /* projection matrices of all sublayers as GEMMs read them, packed in each pass */
    const struct buffer *projection_leaves; /* where these come from: see struct projection_table */
    const struct buffer *first_streams;     /* [N, S, C] of the embedding; without x0_lambdas those of sublayer 0 */
    const struct buffer *final;             /* [N, C] after ln_f, the normed of the top */
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

/* Tells whether H_res of a sublayer is the identity (hc_until). */
static inline bool gpt_is_unmixed(const struct gpt *gpt, int64_t sublayer) {
    return gpt->config.hc_until > 0 && sublayer >= gpt->config.hc_until &&
           sublayer < BRANCHES * gpt->config.n_layer;
}

/* Names what a frame launches next, for profiles. */
static inline void frame_set_module(struct gpt *gpt) {
    compute_set_module(gpt->compute, "hyper-connections");
}

/* Returns the elements of a token's streams: S C, or C of fractions. */
static inline int64_t gpt_stream_row(const struct gpt *gpt) {
    return gpt->config.n_streams * stream_channels(&gpt->operations.shape);
}

/* Returns the bytes of activations [N, columns] of the current batch. */
static inline size_t gpt_activation_bytes(const struct gpt *gpt, int64_t columns) {
    return gpt_tokens(gpt) * (size_t)columns * element_size(gpt->options.type);
}

/* Tells whether the current pass has dropout. */
static inline bool gpt_drops(const struct gpt *gpt) {
    return gpt->pass.dropout && gpt->config.dropout != 0.0;
}

/* Returns the dropout at a place of a sublayer (-1: of none), by its name; its rate is 0 if the pass has none. */
struct dropout gpt_dropout(const struct gpt *gpt, int64_t sublayer, const char *place);

/* The same of what adapters of a sublayer's projection read, "in" or "out". */
struct dropout gpt_adapter_dropout(const struct gpt *gpt, int64_t sublayer, const char *projection);

/* Returns the arena that has the weights of embeddings. */
static inline const struct buffer *gpt_tables(const struct gpt *gpt) {
    const bool are_fp32 = tables_type(&gpt->operations.shape) == ELEMENT_FP32;
    return are_fp32 ? gpt->parameters.weights : gpt->parameters.weights_lowp;
}

/* Returns the spans of a layer norm's parameters in the arena of weights, or of gradients. */
static inline struct layer_norm gpt_norm(const struct buffer *arena, struct norm_offsets at) {
    return (struct layer_norm){{arena, at.gain}, {arena, at.bias}};
}

/* ---- functions that users of the model call */

/* Plans the model: table of parameters, sizes, memory. Allocates nothing on the device. Copies the config. */
int gpt_plan(struct compute *compute, const struct model_config *config, const struct gpt_options *options,
             struct gpt *gpt);

/* Checks the plan against the device, allocates, and compiles kernels. The weights are zero: initialise or load
 * them. */
int gpt_create(struct gpt *gpt);
void gpt_release(struct gpt *gpt);

/* Returns how many sequences of this length (1 .. options.sequence) fit into the plan's memory: more short ones
 * than long ones. */
int64_t gpt_batch_capacity(const struct gpt *gpt, int64_t sequence);

/* Sets the batch: x [batch, sequence] of ids < vocab_size; targets y of the same shape, ids < V or -1, or NULL. The
 * shape may be smaller than planned, or have more and shorter sequences: see gpt_batch_capacity. Ids out of range
 * are errors. */
int gpt_set_batch(struct gpt *gpt, struct token_shape shape, const int32_t *x, const int32_t *y);

/* The forward pass, from tokens to the final norm. Launches. */
void gpt_forward(struct gpt *gpt, struct gpt_pass pass);

/* Logits and loss, in blocks of tokens: loss += scale * mean, over this micro-batch's targets that are not -1. In
 * training `scale` is 1 / micro-batches of the step on all ranks together, so that losses and gradients only need
 * to be summed. With `gradient` it also runs the backward pass of the output layer, whose gradients are those of
 * scale * mean * gpt->loss_scale (not 1 in fp16 only; the optimizer divides by it). Launches. */
void gpt_loss(struct gpt *gpt, float scale, bool gradient);

/* gpt_backward calls gradients_launched after the launches that complete the gradients of the final norm (sublayer
 * = 2 n_layer), of each sublayer (2 n_layer - 1 .. 0), and of the embeddings (-1). Where row_gradients_begin keeps
 * rows apart, the output layer's part of the token embedding's gradient is complete with the final norm's. */
struct gpt_listener {
    void (*gradients_launched)(void *context, int64_t sublayer);
    void *context;
};

/* The backward pass from the final norm to the embeddings, after a gpt_loss with `gradient`. In the first
 * micro-batch after gpt_zero, gpt_loss and gpt_backward together overwrite the gradients in the arena; in later
 * ones they add to them. So only the last micro-batch of a step completes gradients: several ranks pass a listener
 * there, elsewhere NULL. Launches. */
void gpt_backward(struct gpt *gpt, const struct gpt_listener *listener);

/* Starts a step: the loss becomes zero, and the next backward pass overwrites the gradients. (Clearing the arena
 * instead would cost a pass over it.) */
void gpt_zero(struct gpt *gpt);

/* Reads the sum of losses since gpt_zero, and the last optimizer step's gradient norm unless that is NULL. Waits.
 */
int gpt_read_results(struct gpt *gpt, float *loss, float *gradient_norm);

/* Computes the logits [rows, V] of tokens [first, first + rows) of the last forward pass, and reads them. Waits. */
int gpt_read_logits(struct gpt *gpt, size_t first, size_t rows, float *logits);

/* Returns the FLOPs of training on one token, forward and backward: 6 for each weight in a GEMM, or 4 if it has no
 * gradient (parameter.without_gradient), and 12 n_layer C T for attention. */
double gpt_flops_per_token(const struct gpt *gpt);

/* ---- rows of token gradients that are kept apart
 *
 * A backward pass can keep the embedding's part of the token embedding's gradient apart from the head's. With tied
 * weights the head's part is complete first and covers all rows; the embedding's part is complete last and covers
 * few. So ranks can sum the head's part while they still compute. */

/* Returns the number of 32-bit words that hold a bit for each token of the vocabulary. */
size_t row_gradients_words(const struct gpt *gpt);

/* Sets the bits of the tokens of the current batch. */
void row_gradients_mark(const struct gpt *gpt, uint32_t *words);

/* Call before gpt_backward, which then keeps the rows of these tokens apart if they fit. `words` includes all
 * tokens of the batch. Launches. */
void row_gradients_begin(struct gpt *gpt, const uint32_t *words);

/* Call after gpt_backward: adds the rows to the token embedding's gradient. Launches. */
void row_gradients_join(struct gpt *gpt);

/* ---- generation with a cache of keys and values on the device
 *
 * A new token costs one query of attention and one row of every GEMM. The model is planned with GPT_GENERATION;
 * options.batch is the number of sequences (rows of the cache), options.sequence their greatest length. A row's
 * results are those that it would have alone: to the bit in steps of at most FEW_ROWS rows, else up to rounding. */

/* Fills a row of the cache with tokens [count], 1 <= count <= options.sequence, in one forward pass. logits [V]
 * follow the last token. Waits. Returns -1 with an error for arguments out of range. */
int generation_prefill(struct gpt *gpt, int64_t row, const int32_t *tokens, size_t count, float *logits);

/* Appends tokens [rows], one to each of the first `rows` rows. All of these have `position` tokens, 1 <= position <
 * options.sequence. logits [rows, V] follow the new tokens. Waits. */
int generation_step(struct gpt *gpt, int64_t rows, int64_t position, const int32_t *tokens, float *logits);

/* Copies row `from` of the cache to row `to`. Launches. */
void generation_copy(struct gpt *gpt, int64_t from, int64_t to);
