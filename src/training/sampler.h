/* Which tokens a batch is made of. Row `row` of iteration `iteration`'s global batch depends on seed, iteration and
 * row only, so that any number of ranks and micro-steps trains on the same data in the same order. */
#ifndef HC_SRC_SAMPLER_H
#define HC_SRC_SAMPLER_H

#include "runtime/files/token_file.h"

struct sampler {
    const struct token_file *file;
    uint64_t key;        /* of seed and purpose */
    int64_t global_rows; /* rows in the batch of one iteration over all ranks and micro-steps */
    int64_t sequence;
    uint32_t vocab_size;
    int32_t *window; /* [sequence + 1] */
};

/* purpose: "train", "evaluate train", ... Fails if the file is shorter than sequence + 1 tokens. */
int sampler_create(struct sampler *sampler, const struct token_file *file, uint64_t seed, const char *purpose,
                   int64_t global_rows, int64_t sequence, uint32_t vocab_size);
void sampler_release(struct sampler *sampler);

/* Fills x and y [rows, sequence] with rows [first, first + rows) of the iteration's global batch; y is x one later.
 * Fails on tokens outside of the vocabulary, and where the rows of a run would be more than 2^64. */
int sampler_read(const struct sampler *sampler, int64_t iteration, int64_t first, int64_t rows, int32_t *x,
                 int32_t *y);

#endif
