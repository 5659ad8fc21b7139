#include "src/training/sampler.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int sampler_create(struct sampler *sampler, const struct token_file *file, uint64_t seed, const char *purpose,
                   int64_t global_rows, int64_t sequence, uint32_t vocab_size) {
    const uint64_t count = token_file_count(file);
    if (count < (uint64_t)sequence + 1) {
        return error_set("the token file has %" PRIu64 " tokens, too few for block_size = %" PRId64
                         ": prepare more text or choose a block_size of at most %" PRIu64,
                         count, sequence, count - 1);
    }
    *sampler = (struct sampler){
        .file = file,
        .key = random_key(seed, purpose),
        .global_rows = global_rows,
        .sequence = sequence,
        .vocab_size = vocab_size,
        .window = malloc(((size_t)sequence + 1) * sizeof(int32_t)),
    };
    return sampler->window ? 0 : error_set("out of memory");
}

void sampler_release(struct sampler *sampler) {
    free(sampler->window);
    memset(sampler, 0, sizeof *sampler);
}

int sampler_read(const struct sampler *sampler, int64_t iteration, int64_t first, int64_t rows, int32_t *x,
                 int32_t *y) {
    const uint64_t sequence = (uint64_t)sampler->sequence;
    const uint64_t starts = token_file_count(sampler->file) - sequence;
    uint64_t begin, end; /* rows of the whole run */
    if (__builtin_mul_overflow((uint64_t)iteration, (uint64_t)sampler->global_rows, &begin) ||
        __builtin_add_overflow(begin, (uint64_t)first, &begin) ||
        __builtin_add_overflow(begin, (uint64_t)rows, &end)) {
        return error_set("iteration %" PRId64 " of %" PRId64
                         " sequences each is beyond 2^64 sequences: choose a smaller batch or fewer iterations",
                         iteration, sampler->global_rows);
    }
    for (int64_t row = 0; row < rows; row++) {
        const uint64_t start = random_below(sampler->key, begin + (uint64_t)row, starts);
        if (token_file_read(sampler->file, start, sequence + 1, sampler->vocab_size, sampler->window)) {
            return -1;
        }
        memcpy(x + (uint64_t)row * sequence, sampler->window, sequence * sizeof *x);
        memcpy(y + (uint64_t)row * sequence, sampler->window + 1, sequence * sizeof *y);
    }
    return 0;
}
