#include "src/training/batch_sampler.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "runtime/system/random.h"
#include "runtime/system/search.h"
#include <inttypes.h>
#include <stdlib.h>

int batch_sampler_create(struct batch_sampler *sampler, const struct token_file *file, uint64_t seed,
                         const char *purpose, struct token_shape shape, int64_t global_rows, uint32_t vocab_size) {
    const uint64_t count = token_file_count(file), tokens = (uint64_t)(shape.batch * shape.sequence);
    if (count < (uint64_t)shape.sequence + 1) {
        return error_set("the token file has %" PRIu64 " tokens, too few for block_size = %" PRId64
                         ": prepare more text or choose a block_size of at most %" PRIu64,
                         count, shape.sequence, count - 1);
    }
    *sampler = (struct batch_sampler){
        .file = file,
        .key = random_key(seed, purpose),
        .shape = shape,
        .global_rows = global_rows,
        .vocab_size = vocab_size,
        .x = memory_allocate(2 * tokens, sizeof *sampler->x),
    };
    sampler->y = sampler->x + tokens;
    return 0;
}

int batch_sampler_set_sequential(struct batch_sampler *sampler) {
    const size_t shards = token_file_shards(sampler->file);
    uint64_t tokens, largest = 0; /* of an iteration, and of a file */
    if (__builtin_mul_overflow((uint64_t)sampler->global_rows, (uint64_t)sampler->shape.sequence, &tokens)) {
        tokens = UINT64_MAX; /* also more than a file has */
    }
    sampler->before = memory_zeroed(shards, sizeof *sampler->before);
    sampler->pass = 0;
    for (size_t i = 0; i < shards; i++) {
        const uint64_t count = token_file_shard(sampler->file, i).count;
        largest = count > largest ? count : largest;
        sampler->before[i] = sampler->pass;
        sampler->pass += (count - 1) / tokens;
    }
    return sampler->pass > 0
               ? 0
               : error_set("no file has the %" PRIu64 " tokens of an iteration and one more, which train_batches = "
                           "sequential takes from one file (the largest has %" PRIu64
                           " tokens): choose a smaller batch_size or gradient_accumulation_steps, or "
                           "train_batches = random",
                           tokens, largest);
}

void batch_sampler_release(struct batch_sampler *sampler) {
    free(sampler->before);
    free(sampler->x);
    *sampler = (struct batch_sampler){0};
}

/* Copies a row: `sequence` tokens and those one later. */
static int read_row(const struct batch_sampler *sampler, uint64_t row, uint64_t start) {
    const uint64_t sequence = (uint64_t)sampler->shape.sequence, place = row * sequence;
    return token_file_read(sampler->file, start, sequence, sampler->vocab_size, sampler->x + place) ||
                   token_file_read(sampler->file, start + 1, sequence, sampler->vocab_size, sampler->y + place)
               ? -1
               : 0;
}

static int read_random(const struct batch_sampler *sampler, int64_t iteration, uint64_t first) {
    const uint64_t rows = (uint64_t)sampler->shape.batch;
    const uint64_t starts = token_file_count(sampler->file) - (uint64_t)sampler->shape.sequence;
    uint64_t begin, end; /* rows of the whole run */
    if (__builtin_mul_overflow((uint64_t)iteration, (uint64_t)sampler->global_rows, &begin) ||
        __builtin_add_overflow(begin, first, &begin) || __builtin_add_overflow(begin, rows, &end)) {
        return error_set("iteration %" PRId64 " of %" PRId64
                         " sequences each is beyond 2^64 sequences: choose a smaller batch or fewer iterations",
                         iteration, sampler->global_rows);
    }
    for (uint64_t row = 0; row < rows; row++) {
        if (read_row(sampler, row, random_below(sampler->key, begin + row, starts))) {
            return -1;
        }
    }
    return 0;
}

static int read_sequential(const struct batch_sampler *sampler, int64_t iteration, uint64_t first) {
    const uint64_t sequence = (uint64_t)sampler->shape.sequence, place = (uint64_t)iteration % sampler->pass;
    const size_t shard =
        search_range(sampler->before, sizeof *sampler->before, token_file_shards(sampler->file), place);
    const uint64_t start = token_file_shard(sampler->file, shard).first +
                           (place - sampler->before[shard]) * (uint64_t)sampler->global_rows * sequence;
    for (uint64_t row = 0; row < (uint64_t)sampler->shape.batch; row++) {
        if (read_row(sampler, row, start + (first + row) * sequence)) {
            return -1;
        }
    }
    return 0;
}

int batch_sampler_read(const struct batch_sampler *sampler, int64_t iteration, int64_t first) {
    return (sampler->before ? read_sequential : read_random)(sampler, iteration, (uint64_t)first);
}

/* ---- estimates */

static int batch_loss(struct gpt *gpt, const struct batch_sampler *sampler, int64_t index, double *loss) {
    float value = 0.0f;
    if (batch_sampler_read(sampler, index, 0) || gpt_set_batch(gpt, sampler->shape, sampler->x, sampler->y)) {
        return -1;
    }
    gpt_zero_loss(gpt);
    gpt_forward(gpt, (struct gpt_pass){.dropout = false});
    gpt_loss(gpt, 1.0f, false);
    const int status = gpt_read_results(gpt, &value, NULL);
    *loss = (double)value;
    return status;
}

/* This rank's share of the batches: losses [batches] stay 0 where they are another's. */
static int share_losses(struct gpt *gpt, const struct ranks *ranks, const struct batch_sampler *sampler,
                        int64_t batches, struct progress *progress, double *losses) {
    for (int64_t i = ranks->index; i < batches && !interrupt_requested(); i += ranks->count) {
        if (batch_loss(gpt, sampler, i, &losses[i])) {
            return -1;
        }
        if (progress) {
            progress_show(progress, "batches", i + 1, batches, "", false);
        }
    }
    return 0;
}

int estimate_loss(struct gpt *gpt, const struct ranks *ranks, const struct batch_sampler *sampler, int64_t batches,
                  struct progress *progress, double *loss) {
    double *losses = memory_zeroed((size_t)batches + 1, sizeof *losses);
    int status = share_losses(gpt, ranks, sampler, batches, progress, losses);
    if (status == 0) {
        losses[batches] = interrupt_requested();
        status = ranks_sum(ranks, losses, (size_t)batches + 1);
    }
    if (status == 0 && losses[batches] > 0.0) {
        status = error_set("interrupted");
    }
    *loss = 0.0;
    for (int64_t i = 0; status == 0 && i < batches; i++) {
        *loss += losses[i] / (double)batches;
    }
    free(losses);
    return status;
}
