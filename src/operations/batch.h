/* A batch as all operations see it: its shape, and dropout in it. */
#pragma once

#include <stdint.h>

/* Dropout at one place of the model in one iteration; rate 0: none. Reproducible from (key, row, element). */
struct dropout {
    float rate;
    uint64_t key;       /* of seed, iteration and place: see dropout_key */
    uint64_t first_row; /* number of the first token in the global batch */
};

/* As kernels take it: float rate, ulong key, ulong first_row. */
#define ARG_DROPOUT(d) ARG_F32((d).rate), ARG_U64((d).key), ARG_U64((d).first_row)

/* The key of a place ("embedding", "6 attention", "6 output": of sublayer 6) in an iteration. See gpt_dropout. */
uint64_t dropout_key(uint64_t seed, int64_t iteration, const char *place);

/* Sequences in a batch: N = batch * sequence. */
struct token_shape {
    int64_t batch, sequence;
};
