/* The table of parameters and the arenas: weights, gradients and the states of the optimizer are one buffer each,
 * all with the same layout, in five parts: parameters without weight decay; matrices that a residual connection
 * adds; those without an fp32 copy (lowp_only); those without a gradient; and of these the ones that are kept in
 * blocks (narrow). Some arenas end before one of the last parts. */
#pragma once

#include "runtime/device/compute.h"
#include "src/model/model_config.h"
#include "src/model/optimizer_settings.h"
#include "src/operations/operations.h"

enum { PARAMETER_MOST_MATRICES = 3 };

struct parameter {
    char name[96];                    /* as in checkpoints: "transformer.h.0.attn.c_attn.weight" */
    const struct residual_leaf *leaf; /* its row, for parameters of a hyper-connection; else NULL */
    unsigned rank;                    /* 0: scalar */
    uint64_t shape[2];
    uint64_t elements;
    uint64_t offset; /* in the arena, in elements; a multiple of 64, not if joined, nor of later small leaves */
    bool joined;     /* follows the parameter before it without a gap */
    bool adapter;    /* A or B of an adapter */
    bool frozen;     /* training leaves it as it is: see frozen_mark */
    bool differs_from_base; /* trained beside an adapter in an earlier run, so checkpoints have it, frozen or not */
    bool without_gradient;  /* frozen, and backward passes compute no gradient of it: it has no states either */
    bool auxiliary;         /* of the residual connection: a plain model has none of this name */
    bool decayed;           /* takes weight decay */
    bool is_hc_gain;        /* of the norm that a hyper-connection reads the streams by: see decay_hc_gain */
    bool narrow;            /* kept in blocks: see parameters.narrow */
    bool lowp_only;         /* an embedding or a Linear layer's weight, of which --master bf16 keeps no fp32 */
    /* Weights of Linear layers inside the model: rows of the matrices that lie below each other in it, each of
     * which an optimizer may update as a whole; zeros behind the last. Others: 0 */
    uint64_t matrices[PARAMETER_MOST_MATRICES];
    double deviation; /* standard deviation of normal initial values; 0: `initial`, or constant and spread */
    double spread;    /* initial values are uniform in constant +- spread */
    float constant;
    residual_first_value *initial;  /* NULL: constant and spread */
    residual_first_value *upcycled; /* other first values if the weights around it are a plain model's; or NULL */
    int64_t sublayer; /* 0 .. 2 n_layer - 1; -1: the embeddings; 2 n_layer: the final norm, lm_head and hc_head */
    uint64_t *offset_copy; /* parameters_create stores the offset there as well; or NULL */
    int64_t steps;         /* of the optimizer on it, in the run before this process: see optimizer_steps */
};

/* Offsets in the arena, in elements. Offsets of biases are set only where there are biases. */
struct norm_offsets {
    uint64_t gain, bias;
};
enum { LINEAR_MOST_ADAPTERS = 3 };
struct linear_adapter {
    size_t first, count; /* the outputs that it covers, rows of the weight */
    uint64_t b_at;       /* B [count, rank] */
};
struct linear {
    uint64_t weight_at, bias_at;
    size_t in, out;
    bool has_bias;
    bool frozen, bias_frozen; /* backward passes compute no gradient of the weight, of the bias */
    bool narrow;              /* the weight is kept in blocks: see parameters.narrow */
    size_t adapter_count;
    struct linear_adapter adapters[LINEAR_MOST_ADAPTERS]; /* in the order of their outputs */
    uint64_t a_at;                                        /* A of all of them [adapter_count * rank, in] */
};

/* Offsets of a sublayer's parameters. */
struct sublayer_offsets {
    struct norm_offsets norm;                 /* ln_1 or ln_2; of the top, ln_f */
    struct norm_offsets key_norm, value_norm; /* mudd: ln_k and ln_v, where norm is ln_q */
    struct linear in;                         /* attn.c_attn; or mlp.c_fc, behind mlp.c_gate in gated MLPs */
    struct linear out;                        /* attn.c_proj or mlp.c_proj */
    uint64_t q_gain, k_gain;                  /* attn.q_norm and attn.k_norm, with qk_norm true */
    uint64_t lambdas;                         /* of an attention sublayer, with x0_lambdas: of both */
    uint64_t value_embed, value_gate;         /* of one that has embeddings of values */
    /* of the frame: hc_attn, hc_mlp, or of the top, hc_head */
    uint64_t rms_gain;                              /* norm.weight of a hyper-connection, with hc_norm_gain */
    uint64_t theta;                                 /* its small parameters, contiguous */
    uint64_t projections[RESIDUAL_MAX_PROJECTIONS]; /* its projection matrices, in the order of residual.c */
};

/* Where a parameter begins in the arena. */
struct arena_offset {
    uint64_t first;   /* offset; 0 for the very first parameter, even if a gap precedes it */
    uint64_t outside; /* elements before it that are of no matrix */
};

struct parameters {
    struct parameter *table; /* in the order of checkpoint files */
    size_t count;
    size_t *in_arena;             /* [count] indices in the table, by offset */
    struct arena_offset *offsets; /* [count] for each of in_arena */
    uint64_t elements;            /* of the arena, gaps included; a multiple of 64 */
    uint64_t decayed_from;        /* elements from this on take weight decay */
    uint64_t lowp_only_from;      /* elements from this on are of lowp_only parameters */
    uint64_t gradients_end;       /* gradients and states end here */
    uint64_t narrow_from; /* weights end here; what is behind is kept in blocks of NARROW_BLOCK elements alone, of
                           * which each row of a matrix has its own */
    uint64_t total;       /* parameters, without gaps */
    uint64_t auxiliary;   /* those of hyper-connections, scales of streams included */
    uint64_t token_embedding, position_embedding; /* offsets; the latter where positions are learned */
    uint64_t embed_gain;                          /* offset of the gain of ln_e [C], with embed_norm */
    uint64_t stream_scale;                        /* offset of the scales [S, C], with stream_expand = scaled */
    uint64_t head;                                /* offset of lm_head, or if tied that of the token embedding */
    bool head_is_embedding;
    uint64_t head_bias;                 /* offset of lm_head.bias [V], with head_bias */
    struct sublayer_offsets *sublayers; /* 2 n_layer + 1: the last is the top's */
    /* The arenas, which the memory plan owns (gpt->plan) and gpt_release frees. Gaps between parameters stay zero
     * in every arena. weights [fp32_elements] float; gradients [gradients_end] float; states: what the optimizer
     * keeps (as many as OPTIMIZER_MOST_STATES), NULL if it has fewer, see optimizer_state_offset. gpt_loss and
     * gpt_backward write gradients; ranks then replace them by sums over ranks (data_parallel.c). */
    const struct buffer *weights, *gradients, *states[2];
    bool accumulate; /* backward passes add to the gradients; else they replace them */
    const struct buffer
        *weights_lowp;   /* [narrow_from] what GEMMs read: low-precision weights, or `weights` in fp32 */
    size_t adapter_rank; /* 0: there are no adapters */
    float adapter_scale; /* s in lora.h */
    /* Scratch of adapters [N, as many numbers as A of a layer has rows]: x A^T and its gradient; and [N, in] of
     * their input with dropout. NULL where nothing needs it. */
    const struct buffer *adapter_low, *d_adapter_low, *adapter_input;
    int frozen_weights;            /* enum frozen_weights */
    struct narrow_weights narrow;  /* of elements from narrow_from on */
    const struct buffer *expanded; /* scratch: such a matrix as GEMMs read it */
    /* Elements that have fp32 weights: narrow_from; with --master bf16 lowp_only_from; or with frozen weights in
     * fewer bits than the others gradients_end. */
    uint64_t fp32_elements;
};

/* What rows are added to the table with: branches and frames add their own. */
struct parameter_builder {
    struct parameters *parameters;
    const struct model_config *config;
    int64_t sublayer; /* of the next rows */
    char prefix[64];  /* of their names */
};

/* Adds a parameter called builder->prefix and `name`, zero at first and without weight decay, for the caller to
 * change that; *offset_copy (or NULL) gets its offset. The pointer holds until the next one is added. */
struct parameter *parameters_add(struct parameter_builder *builder, const char *name, unsigned rank,
                                 const uint64_t *shape, uint64_t *offset_copy);

/* Adds the gain [C] of one of the model's norms, and its bias if it has one. */
void parameters_add_norm(struct parameter_builder *builder, const char *name, struct norm_offsets *norm);

/* Weights that write to the streams begin smaller, by 1 / sqrt(2 n_layer), or with init track3 as zero. */
enum linear_role { LINEAR_INNER, LINEAR_OUTPUT, LINEAR_EMBEDDING, LINEAR_HEAD };

/* The standard deviation of LitGPT's first values. */
double parameters_litgpt_deviation(const struct model_config *config);

/* Adds the weight [out, in] and, with has_bias, the bias [out] of a linear layer. matrices
 * [PARAMETER_MOST_MATRICES]: the rows of the matrices in it, such as those of q, k and v; NULL: it is one. *linear
 * gets sizes and offsets; it must stay where it is. */
void parameters_add_linear(struct parameter_builder *builder, const char *name, size_t in, size_t out,
                           const uint64_t *matrices, bool has_bias, enum linear_role role, struct linear *linear);

/* Adds another such weight and bias, of LINEAR_INNER and the same sizes and input, right behind those of `linear`,
 * which become one linear layer with twice the outputs. Nothing may have been added in between. */
void parameters_join_linear(struct parameter_builder *builder, const char *name, struct linear *linear);

/* Adds adapters of the modules in a layer that lora.targets name, of those that follow one another in its outputs:
 * rows[i] outputs of modules[i]. Of a new adapter A is uniform in +-1 / sqrt(in), and B zero. */
void parameters_add_adapters(struct parameter_builder *builder, struct linear *linear, size_t count,
                             const enum lora_module *modules, const uint64_t *rows);

/* Adds gains [elements], which begin as 1: <name>.weight. They may move when more is added. */
struct parameter *parameters_add_gain(struct parameter_builder *builder, const char *name, size_t elements,
                                      uint64_t *offset_copy);

/* Builds the table; the model sets the buffers. */
void parameters_create(const struct model_config *config, struct parameters *parameters);
void parameters_release(struct parameters *parameters);

/* Gives all parameters their offsets, as parameters_create does; those without a gradient come last. */
void parameters_lay_out(struct parameters *parameters);

/* Whether the parameter at this offset has a gradient and states. */
bool parameters_train(const struct parameters *parameters, uint64_t offset);

/* Writes elements [first, first + count) of a parameter; of one that is narrow whole rows. parameters_round must
 * follow. Waits. */
int parameter_write(struct compute *compute, const struct parameters *parameters, const struct parameter *parameter,
                    uint64_t first, uint64_t count, const float *values);

/* Read or write weights [first, first + count) of the arena, before narrow_from, as floats, which are rounded to
 * nearest where there is no fp32. parameters_round must follow what was written. Wait. */
int parameters_read(struct compute *compute, const struct parameters *parameters, uint64_t first, uint64_t count,
                    float *values);
int parameters_write(struct compute *compute, const struct parameters *parameters, uint64_t first, uint64_t count,
                     const float *values);

/* Rounds the weights to weights_lowp, after they were written from the host; the optimizer's step does it by
 * itself. Launches. */
void parameters_round(struct compute *compute, const struct parameters *parameters);

/* Initialises all weights, and weights_lowp, on the device. */
int parameters_initialise(struct compute *compute, struct parameters *parameters, const struct model_config *config,
                          uint64_t seed);

/* Computes elements [first, first + count) of a parameter's first values: in a new model, of this seed. */
void parameter_first_values(const struct parameter *parameter, const struct model_config *config, uint64_t seed,
                            uint64_t first, uint64_t count, float *values);

/* Elements of the arena before this place, without those of matrices (parameter.matrices). */
uint64_t parameters_outside_matrices(const struct parameters *parameters, uint64_t offset);

/* Whether a plain model has no such parameter, or another one in its place: the residual connection brings it. */
bool parameter_is_new(const struct parameter *parameter);

/* Whether it is a leaf alpha_res of a hyper-connection. */
bool parameter_is_alpha_res(const struct parameter *parameter);

/* Returns the parameter of this name, or NULL. */
const struct parameter *parameters_find(const struct parameters *parameters, const char *name);

/* ---- frozen parameters
 *
 * Training leaves those as they are whose names match a pattern (--freeze). They are not in the gradient's norm,
 * and optimizers skip them. Embeddings and weights of whole Linear layers have no gradient
 * (parameter.without_gradient); gradients of the others are set to 0. */

/* Marks the parameters whose names a regular expression (PCRE2) matches somewhere ("wte|ln_"); NULL or
 * "": none. -1 with an error if the pattern is none, or matches no parameter or all of them. */
int frozen_mark(struct parameters *parameters, const char *pattern);

/* Builds a model's table and marks what is left as it is: what settings->freeze names; with adapters all but these,
 * what the residual connection brings, and what settings->lora_train names. Without training everything is frozen,
 * and only settings->frozen_weights is read. After an error there is no table. The config has been checked. */
int frozen_create(const struct model_config *config, const struct optimizer_settings *settings, bool training,
                  struct parameters *parameters);

/* How many elements the frozen parameters have. */
uint64_t frozen_elements(const struct parameters *parameters);

enum { FROZEN_ALL = -2 };

/* Sets gradients of frozen parameters of this sublayer (see parameter.sublayer) to zero, or of FROZEN_ALL.
 * Launches. */
void frozen_clear(struct compute *compute, const struct parameters *parameters, int64_t sublayer);
