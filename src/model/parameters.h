/* The parameter table and the arena: weights, gradients and both moments are one buffer each, with the same layout.
 */
#pragma once

#include "runtime/device/compute.h"
#include "src/model/model_config.h"

struct parameter {
    char name[96];                    /* as in checkpoints: "transformer.h.0.attn.c_attn.weight" */
    const struct residual_leaf *leaf; /* which it is of a hyper-connection; NULL: of something else */
    unsigned rank;                    /* 0: scalar */
    uint64_t shape[2];
    uint64_t elements;
    uint64_t offset;  /* in the arena, elements; a multiple of 64 but for small leaves behind a sublayer's first */
    bool decayed;     /* takes weight decay */
    double deviation; /* of its normal initialisation; 0: the leaf fills it, or what comes next */
    double spread;    /* initial values are evenly spread so far around `constant` */
    float constant;
    int64_t sublayer; /* it belongs to, 0 .. 2 n_layer - 1; -1: the embeddings, 2 n_layer: the final norm */
    uint64_t *home;   /* where parameters_create notes its offset, too; NULL: nowhere */
};

/* Offsets in the arena of what belongs together. Biases are only meaningful with config.bias. */
struct norm_offsets {
    uint64_t gain, bias;
};
struct linear {
    uint64_t weight_at, bias_at;
    size_t in, out;
};

/* Of a sublayer's parameters. */
struct sublayer_offsets {
    struct norm_offsets norm; /* before the branch */
    struct linear in, out;    /* attn.c_attn and attn.c_proj, or mlp.c_fc and mlp.c_proj */
    uint64_t rms_gain;        /* hyper-connection: norm.weight */
    uint64_t theta;           /* its small parameters, contiguous */
    uint64_t
        projections[RESIDUAL_MAX_PROJECTIONS]; /* its projection leaves, in the order of the table in residual.c */
};

struct parameters {
    struct parameter *table; /* in the order of checkpoint files */
    size_t count;
    uint64_t elements;                            /* of the arena, gaps included; a multiple of 64 */
    uint64_t decayed;                             /* elements before this take weight decay */
    uint64_t total;                               /* parameters, without gaps */
    uint64_t auxiliary;                           /* those of hyper-connections, gains of streams included */
    uint64_t token_embedding, position_embedding; /* offsets */
    uint64_t stream_scale;                        /* that of the gains [S, C], where streams are scaled */
    struct norm_offsets final;                    /* before the head */
    struct sublayer_offsets *sublayers;           /* 2 n_layer */
    /* [elements] float, the model's; what lies in gaps is zero in all four, since nobody writes there */
    const struct buffer *weights, *gradients, *first_moments, *second_moments;
    const struct buffer *operands; /* [elements] what matrix products read: a 16-bit copy of the weights, or they */
};

/* Builds the table; the model sets the buffers. */
int parameters_create(const struct model_config *config, struct parameters *parameters);
void parameters_release(struct parameters *parameters);

/* Fills one parameter's initial values: normal numbers depend on seed and name only. values [elements] */
void parameter_initialise(const struct parameter *parameter, const struct model_config *config, uint64_t seed,
                          float *values);

/* A launch, after weights were written: operands follow them. The optimiser keeps them up by itself. */
void parameters_round(struct compute *compute, const struct parameters *parameters);

/* Initialises all weights (and operands) on the device. */
int parameters_initialise(struct compute *compute, struct parameters *parameters, const struct model_config *config,
                          uint64_t seed);

/* NULL if there is none of this name. */
const struct parameter *parameters_find(const struct parameters *parameters, const char *name);
