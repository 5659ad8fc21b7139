/* What the kernels do differently on different devices: sizes of vectors, work-groups, tiles and chunks, and which
 * kernels are fused. policy_make decides all of it, once, from facts of the device and the model's shape;
 * `hc_devices --verbose` prints it. Which attention runs is the table in attention.c; tiles of matrix cores are in
 * attention_matrix_cores.c. */
#pragma once

#include "runtime/device/compute.h"
#include "src/variants/residual.h"

/* Norms, kinds of positions, MLPs and activations: words of options, in the order of the tables in kernels.c. GEMMs
 * can compute both GELUs in their epilogue. */
#define NORM_WORDS       "layernorm|rmsnorm"
#define POSITION_WORDS   "learned|rope|none"
#define MLP_WORDS        "gelu|swiglu|relu2"
#define ACTIVATION_WORDS "gelu|gelu_tanh"
enum norm { NORM_LAYER, NORM_RMS };
enum position { POSITION_LEARNED, POSITION_ROPE, POSITION_NONE };
enum mlp { MLP_GELU, MLP_SWIGLU, MLP_RELU2 }; /* of MLP_GELU the activation is one of those of models */
enum activation { ACTIVATION_GELU, ACTIVATION_GELU_TANH };
enum qk_norm { QK_NORM_NONE, QK_NORM_GAINED, QK_NORM_PLAIN };
enum softcap_kind { SOFTCAP_TANH, SOFTCAP_RSQRT };

enum { VALUE_EMBED_CHANNELS = 12 }; /* of the values' input, which the gates of value embeddings read */

bool norm_has_bias(int norm);            /* where the model has biases */
double norm_epsilon(int norm);           /* the usual one */
bool position_turns_heads(int position); /* it changes q and k before attention: RoPE */
bool mlp_is_gated(int mlp);              /* it has two input projections */

/* How frozen matrices of branches are stored, --frozen-weights. FROZEN_AS_OTHERS: like trained weights;
 * FROZEN_BF16: in 16 bits, with no fp32 copy; FROZEN_INT8 and FROZEN_NF4: in blocks of NARROW_BLOCK along a row,
 * each with one fp32 scale: in 8 bits, value = scale * code, or in 4 bits, value = scale * one of 16 numbers. */
#define FROZEN_WEIGHTS_WORDS "as_others|bf16|int8|nf4"
enum frozen_weights { FROZEN_AS_OTHERS, FROZEN_BF16, FROZEN_INT8, FROZEN_NF4 };
enum { NARROW_BLOCK = 64 };

/* Whether matrices kept so are expanded before a GEMM reads them; and the bytes of a block's codes. */
static inline bool frozen_weights_are_narrow(int kept) {
    return kept >= FROZEN_INT8;
}
static inline size_t narrow_block_bytes(int kept) {
    return kept == FROZEN_INT8 ? NARROW_BLOCK : NARROW_BLOCK / 2;
}

struct operation_shape {
    int64_t streams, channels, heads, vocabulary;
    int64_t kv_heads, head_size; /* 0: as many as heads, and channels / heads; see head_shape */
    int64_t sublayers;           /* of the model, for variants that use the depth */
    int64_t hidden;              /* channels inside an MLP, M */
    bool bias, norm_sum, scaled;
    bool embed_norm;                     /* an RMSNorm of the embedding */
    bool value_embeds;                   /* layers add embeddings of tokens to values of attention */
    bool head_bias;                      /* logits have a bias */
    int frozen_weights;                  /* enum frozen_weights */
    bool adapters;                       /* layers of branches have adapters */
    bool drops;                          /* attention may get dropout: kernels with it are built, too */
    int qk_norm;                         /* enum qk_norm: an RMSNorm over each head of q and k */
    bool collapsed;                      /* the streams are summed at the top with weights of their own */
    bool fixed_top;                      /* these do not depend on the streams */
    bool read_delay;                     /* the width mix takes H_pre of the sublayer before */
    bool x0_lambdas;                     /* layers begin with weighted sums of their and the first streams */
    bool gainless;                       /* the RMSNorm before the projections of hyper-connections has no gain */
    bool freeze_alpha_res;               /* alpha_res of hyper-connections gets no gradient */
    double hc_eps;                       /* added to H_pre, and in mhc's iterations */
    double hc_norm_eps;                  /* of the RMSNorm before the projections; 0: see cl/hc_token.cl */
    bool h_res_transposed;               /* streams are mixed by the transposes of the map's matrices */
    int norm, position, mlp, activation; /* of enum norm and so on */
    double norm_eps, softcap;            /* softcap of logits; 0: none */
    int softcap_kind;                    /* enum softcap_kind */
    double attn_scale;                   /* of attention scores; 0: 1 / sqrt(D) */
    enum element_type type;              /* of activations */
    enum element_type moments;           /* of the optimizer's states: ELEMENT_FP32 or ELEMENT_BF16 */
    enum element_type master;            /* of embeddings and weights of GEMMs: ELEMENT_FP32; or ELEMENT_BF16, if
                                            activations are */
    bool forward_only;                   /* there are no backward passes */
    bool muon;                           /* the optimizer is Muon */
    enum element_type muon_type;         /* of its iterations' matrices */
    const struct residual_variant *residual;
    struct residual_settings settings;
};

/* The type in which tables of embeddings are read: without a copy in fp32 that of activations. */
static inline enum element_type tables_type(const struct operation_shape *shape) {
    return shape->master != ELEMENT_FP32 || shape->frozen_weights != FROZEN_AS_OTHERS ? shape->type : ELEMENT_FP32;
}

/* The heads of attention: H query heads, of which H / K neighbours share one of K key and value heads, of D
 * channels each. Rows are elements of a token: in y H D, in keys and in values K D, in qkv (H + 2 K) D. */
struct head_shape {
    int64_t heads, kv_heads, size;
    int64_t y_row, kv_row, qkv_row;
};
struct head_shape head_shape(const struct operation_shape *shape);

/* Channels of a stream: C, or of fractions C / S. */
int64_t stream_channels(const struct operation_shape *shape);

/* Attention over depth: the number of heads, and whether dar multiplies what it reads by a learned gate. */
int64_t depth_heads(const struct operation_shape *shape);
bool depth_is_gated(const struct operation_shape *shape);

/* Of laurel: the rank of its product, 0 where there is none, and whether branch and stream have weights. */
int64_t laurel_rank(const struct operation_shape *shape);
bool laurel_has_weights(const struct operation_shape *shape);

/* mudd and dense: whether mudd_norm = prepost; and whether the weights are parameters that no token changes (dense,
 * which has one mixture and no w_1, w_2). */
bool ways_are_normed(const struct operation_shape *shape);
bool ways_are_fixed(const struct operation_shape *shape);

/* What scores are multiplied by. */
double attention_scale(const struct operation_shape *shape);

/* Of the residual connection `gated`: the inner size of its gates' matrices, which is the setting gated_rank, or if
 * that is 0 C / 8 rounded up; and elements of a token in `hidden` and in y, which has the same columns and then
 * those of s. They are multiples of any vector. See cl/channel_gates.cl. */
int64_t gates_rank(const struct operation_shape *shape);
struct gate_rows {
    size_t hidden, y;
};
struct gate_rows gate_rows(const struct operation_shape *shape);

/* The name of the activation of its MLP, which is in cl/activation_<name>.cl. */
const char *shape_activation(const struct operation_shape *shape);

/* Work-items of a tile of cl/attention_gpu.cl: `across` side by side, `down` above each other, each with 4 x 4
 * scores. */
struct attention_gpu_group {
    unsigned across, down;
};

struct policy {
    /* vectors: floats that a work-item moves at a time */
    unsigned vector;           /* of rows of channels */
    unsigned depth_vector;     /* of channels of a head of attention over depth */
    unsigned linear_vector;    /* of inputs and outputs of linear layers, which may have other widths */
    unsigned head_vector;      /* of channels of a head */
    unsigned half_head_vector; /* of half of them */
    unsigned arena_vector;     /* of the arenas, which are padded to whole vectors */
    unsigned any_vector;       /* of what lies at any place and has any length */

    /* work-items of a work-group */
    size_t item_group; /* of kernels whose work-items have much to do each */
    size_t map_lanes;  /* of the maps' kernels: few, so that the tokens of a batch are many groups */
    size_t loss_lanes; /* that share a row of logits, which is much longer than one of channels */

    /* chunks that partial sums have at most: enough to fill the device, and the same number on every run */
    size_t row_chunks;    /* of rows */
    size_t square_chunks; /* of vectors whose squares are summed */
    size_t map_chunks; /* of tokens in hc_map_backward, where each has a row of theta; whole groups of map_lanes */

    /* projections */
    size_t projection_rows;           /* rows of the streams in a work-group of projections_multiply */
    size_t projection_vectors;        /* vectors side by side in a work-item of projections_gradient */
    size_t projection_columns;        /* with no more of them these two kernels beat general GEMMs; 0: never */
    size_t projection_columns_16_bit; /* the same where matrix cores or bf16 instructions compute the GEMM */

    /* the fused frame of cl/frame.cl */
    size_t frame_rows;        /* tokens of a work-group; 0: not fused */
    size_t frame_groups;      /* work-groups of the backward pass at most */
    size_t frame_local_bytes; /* local memory of a token */

    /* attention */
    unsigned attention_keys;       /* keys of a tile of the CPU kernels; sequences are padded to multiples of it */
    unsigned attention_queries[2]; /* queries of a work-item of the CPU kernels: in fp32, with bf16 instructions */
    unsigned attention_keys_backward; /* keys of a work-item in the CPU kernel of dk and dv */
    unsigned attention_key_vector;    /* keys of a vector */
    size_t
        attention_head_cores; /* cores that may take whole heads in the backward pass; 0: work-items take blocks */
    struct attention_gpu_group attention_gpu[2]; /* of a tile with rows of queries, and with rows of keys */
};

struct policy policy_make(const struct compute *compute, const struct operation_shape *shape);

/* Prints one line per decision, with what it is about. */
void policy_print(FILE *file, const struct policy *policy);
