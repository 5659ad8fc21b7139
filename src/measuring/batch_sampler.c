#include "src/measuring/batch_sampler.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "runtime/system/random.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void batch_sampler_create(struct batch_sampler *sampler, uint64_t seed, const char *purpose,
                          struct token_shape shape, int64_t global_rows, uint32_t vocab_size) {
    const uint64_t tokens = (uint64_t)(shape.batch * shape.sequence);
    char other[80];
    *sampler = (struct batch_sampler){.key = random_key(seed, purpose),
                                      .shape = shape,
                                      .global_rows = global_rows,
                                      .vocab_size = vocab_size,
                                      .counted_iteration = -1};
    snprintf(other, sizeof other, "%s: source", purpose);
    sampler->choice_key = random_key(seed, other);
    snprintf(other, sizeof other, "%s: order", purpose);
    sampler->order_key = random_key(seed, other);
    sampler->x = memory_allocate(2 * tokens, sizeof *sampler->x);
    sampler->y = sampler->x + tokens;
}

int batch_sampler_add(struct batch_sampler *sampler, const struct token_file *file, double share) {
    const uint64_t count = file->count;
    const double begin = sampler->source_count > 0 ? sampler->sources[sampler->source_count - 1].end : 0.0;
    if (count < (uint64_t)sampler->shape.sequence + 1) {
        error_set("%s has %s, too few for block_size = %" PRId64 ": prepare more text", file->name,
                  message_count((int64_t)count, "token").text, sampler->shape.sequence);
        return count > 1 ? error_set("%s or choose a block_size of at most %" PRIu64, error_text(), count - 1) : -1;
    }
    sampler->sources = memory_resize(sampler->sources, sampler->source_count + 1, sizeof *sampler->sources);
    sampler->sources[sampler->source_count++] = (struct batch_source){.file = file, .end = begin + share};
    sampler->masked |= token_file_has_prompts(file);
    return 0;
}

void batch_sampler_resume(struct batch_sampler *sampler, int64_t iteration, uint64_t rows) {
    sampler->resumed_at = iteration;
    sampler->rows_before = rows;
}

/* ---- documents */

/* Tokens [start, start + length) of a source, and the `scored` ones from start + 1 on, which are their targets. */
struct batch_row {
    const struct batch_source *source;
    uint64_t start, length, scored;
};

/* A row of documents. The last token of a document has no target. */
static struct batch_row make_window(const struct batch_source *source, uint64_t window) {
    const uint64_t start = source->windows[window], end = source->windows[window + 1];
    const struct token_documents *documents = source->file->documents;
    const bool goes_on = documents->begins[token_documents_find(documents, end)] != end;
    return (struct batch_row){source, start, end - start, end - start - (end == source->file->count || !goes_on)};
}

/* Ends windows so that each has as many whole documents as fit into `sequence` tokens. */
static void find_windows(const struct token_documents *documents, uint64_t sequence, struct batch_source *source) {
    size_t capacity = 0;
    uint64_t begin = 0; /* of the window that is being filled */
    for (size_t i = 0; i <= documents->count; i++) {
        const uint64_t place = documents->begins[i];
        const uint64_t end = i < documents->count ? documents->begins[i + 1] : place + sequence + 1;
        while (end - begin > sequence && (begin < place || i < documents->count)) {
            memory_reserve((void **)&source->windows, &capacity, source->window_count + 2, sizeof *source->windows);
            source->windows[source->window_count++] = begin;
            begin = begin < place ? place : begin + sequence;
        }
    }
    source->windows[source->window_count] = begin;
}

int batch_sampler_set_documents(struct batch_sampler *sampler) {
    for (struct batch_source *source = sampler->sources; source < sampler->sources + sampler->source_count;
         source++) {
        const struct token_documents *documents = source->file->documents;
        if (!documents) {
            return error_set("%s has no lengths of documents beside it: prepare JSON lines with hc_prepare "
                             "--document-lengths, or choose train_batches = random",
                             source->file->name);
        }
        find_windows(documents, (uint64_t)sampler->shape.sequence, source);
        for (int i = 0; i < 2; i++) {
            source->orders[i] = memory_allocate(source->window_count, sizeof *source->orders[i]);
            source->passes[i] = UINT64_MAX;
        }
    }
    sampler->masked = true;
    return 0;
}

uint64_t batch_sampler_count_empty(const struct batch_sampler *sampler, size_t index) {
    const struct batch_source *source = &sampler->sources[index];
    uint64_t count = 0;
    for (uint64_t i = 0; i < source->window_count; i++) {
        const struct batch_row row = make_window(source, i);
        count += token_file_count_targets(source->file, row.start + 1, row.scored) == 0;
    }
    return count;
}

/* Returns the order of the windows in a pass. The orders of two passes are kept, since the rows of an iteration may
 * be of both. */
static const uint64_t *order_of_pass(const struct batch_sampler *sampler, struct batch_source *source,
                                     uint64_t pass) {
    const uint64_t count = source->window_count;
    uint64_t *order = source->orders[pass % 2];
    for (uint64_t i = 0; i < count && source->passes[pass % 2] != pass; i++) {
        const uint64_t place = random_below(sampler->order_key, pass * count + i, i + 1);
        order[i] = order[place];
        order[place] = i;
    }
    source->passes[pass % 2] = pass;
    return order;
}

int batch_sampler_set_sequential(struct batch_sampler *sampler) {
    const struct token_file *file = sampler->sources->file;
    const size_t shards = file->shard_count;
    uint64_t tokens, largest = 0; /* of an iteration, and of a file */
    if (__builtin_mul_overflow((uint64_t)sampler->global_rows, (uint64_t)sampler->shape.sequence, &tokens)) {
        tokens = UINT64_MAX; /* also more than a file has */
    }
    sampler->before = memory_zeroed(shards, sizeof *sampler->before);
    sampler->pass = 0;
    for (size_t i = 0; i < shards; i++) {
        const uint64_t count = file->shards[i].count;
        largest = count > largest ? count : largest;
        sampler->before[i] = sampler->pass;
        sampler->pass += (count - 1) / tokens;
    }
    if (sampler->pass == 0) {
        return error_set("no file has the %" PRIu64 " tokens of an iteration and one more, which train_batches = "
                         "sequential takes from one file (the largest has %" PRIu64
                         " tokens): choose a smaller batch_size or gradient_accumulation_steps, or "
                         "train_batches = random",
                         tokens, largest);
    }
    return 0;
}

void batch_sampler_release(struct batch_sampler *sampler) {
    for (size_t i = 0; i < sampler->source_count; i++) {
        free(sampler->sources[i].windows);
        free(sampler->sources[i].orders[0]);
        free(sampler->sources[i].orders[1]);
    }
    free(sampler->sources);
    free(sampler->before);
    free(sampler->x);
    *sampler = (struct batch_sampler){0};
}

/* ---- rows */

/* Row `number` of the run. */
static struct batch_row find_random(struct batch_sampler *sampler, uint64_t number) {
    const uint64_t sequence = (uint64_t)sampler->shape.sequence;
    struct batch_source *source = sampler->sources, *last = source + sampler->source_count - 1;
    if (sampler->source_count > 1) {
        const double place = random_uniform(sampler->choice_key, number);
        while (source < last && place >= source->end) {
            source++;
        }
    }
    if (!source->windows) {
        const uint64_t starts = source->file->count - sequence;
        return (struct batch_row){source, random_below(sampler->key, number, starts), sequence, sequence};
    }
    const uint64_t count = source->window_count;
    if (sampler->source_count > 1) {
        return make_window(source, random_below(sampler->key, number, count));
    }
    return make_window(source, order_of_pass(sampler, source, number / count)[number % count]);
}

/* Row `row` of the global batch. */
static struct batch_row find_sequential(const struct batch_sampler *sampler, int64_t iteration, uint64_t row) {
    const struct batch_source *source = sampler->sources;
    const uint64_t sequence = (uint64_t)sampler->shape.sequence, place = (uint64_t)iteration % sampler->pass;
    const size_t shard = search_range(sampler->before, sizeof *sampler->before, source->file->shard_count, place);
    const uint64_t start = source->file->shards[shard].first +
                           (place - sampler->before[shard]) * (uint64_t)sampler->global_rows * sequence;
    return (struct batch_row){source, start + row * sequence, sequence, sequence};
}

/* Finds a row of the global batch. Random rows are counted over the run. */
static int find_row(struct batch_sampler *sampler, int64_t iteration, uint64_t row, struct batch_row *found) {
    const uint64_t iterations = (uint64_t)(iteration - sampler->resumed_at);
    uint64_t number, end;
    if (sampler->before) {
        *found = find_sequential(sampler, iteration, row);
        return 0;
    }
    if (__builtin_mul_overflow(iterations, (uint64_t)sampler->global_rows, &number) ||
        __builtin_add_overflow(number, sampler->rows_before, &number) ||
        __builtin_add_overflow(number, row, &number) || __builtin_add_overflow(number, 1, &end)) {
        return error_set("iteration %" PRId64 " of %" PRId64
                         " sequences each is beyond 2^64 sequences: choose a smaller batch or fewer iterations",
                         iteration, sampler->global_rows);
    }
    *found = find_random(sampler, number);
    return 0;
}

int batch_sampler_read(struct batch_sampler *sampler, int64_t iteration, int64_t first) {
    const uint64_t sequence = (uint64_t)sampler->shape.sequence;
    int32_t *x = sampler->x, *y = sampler->y;
    for (int64_t i = 0; i < sampler->shape.batch; i++, x += sequence, y += sequence) {
        struct batch_row row = {.source = NULL};
        if (find_row(sampler, iteration, (uint64_t)(first + i), &row) ||
            token_file_read(row.source->file, row.start, row.length, sampler->vocab_size, x) ||
            token_file_read_targets(row.source->file, row.start + 1, row.scored, sampler->vocab_size, y)) {
            return -1;
        }
        for (uint64_t k = row.length; k < sequence; k++) {
            x[k] = 0;
        }
        for (uint64_t k = row.scored; k < sequence; k++) {
            y[k] = -1;
        }
    }
    return 0;
}

/* The targets of the batch that was read last. */
static uint64_t count_targets(const struct batch_sampler *sampler) {
    const size_t tokens = (size_t)(sampler->shape.batch * sampler->shape.sequence);
    uint64_t count = 0;
    for (size_t i = 0; i < tokens; i++) {
        count += sampler->y[i] >= 0;
    }
    return count;
}

float batch_sampler_weight(struct batch_sampler *sampler, int64_t iteration) {
    if (!sampler->masked) {
        return 1.0f / (float)(sampler->global_rows / sampler->shape.batch);
    }
    if (sampler->counted_iteration != iteration) {
        sampler->counted = 0;
        sampler->counted_iteration = iteration;
        for (uint64_t i = 0; i < (uint64_t)sampler->global_rows; i++) {
            struct batch_row row = {.source = NULL};
            if (find_row(sampler, iteration, i, &row) == 0) { /* reading the batch has checked it */
                sampler->counted += token_file_count_targets(row.source->file, row.start + 1, row.scored);
            }
        }
    }
    return sampler->counted > 0 ? (float)((double)count_targets(sampler) / (double)sampler->counted) : 0.0f;
}

bool batch_sampler_has_targets(const struct batch_sampler *sampler) {
    return !sampler->masked || sampler->counted > 0;
}

/* ---- estimates */

/* Adds the batch of the sampler that the model has computed the losses of. */
static int add_batch(const struct gpt *gpt, const struct batch_sampler *sampler, const uint16_t *token_bytes,
                     struct loss_sums *sums) {
    const size_t count = (size_t)(sampler->shape.batch * sampler->shape.sequence);
    float *losses = memory_allocate(count, sizeof *losses);
    const int status = buffer_read(gpt->compute, gpt->losses, 0, losses, count * sizeof *losses);
    if (status == 0) {
        loss_sums_add_targets(sums, losses, sampler->y, count, token_bytes);
    }
    free(losses);
    return status;
}

int estimate_loss(struct gpt *gpt, const struct ranks *ranks, struct batch_sampler *sampler, int64_t batches,
                  struct progress *progress, const uint16_t *token_bytes, struct loss_sums *all) {
    /* of this rank's batches, else 0; the last is for loss_sums_share */
    struct loss_sums *sums = memory_zeroed((size_t)batches + 1, sizeof *sums);
    const size_t values = ((size_t)batches + 1) * (sizeof *sums / sizeof(double));
    int status = 0;
    for (int64_t i = ranks->index; status == 0 && i < batches && !interrupt_requested(); i += ranks->count) {
        status = batch_sampler_read(sampler, i, 0) || gpt_set_batch(gpt, sampler->shape, sampler->x, sampler->y);
        if (status == 0) {
            gpt_forward(gpt, (struct gpt_pass){.dropout = false});
            gpt_loss(gpt, 1.0f, false);
            status = add_batch(gpt, sampler, token_bytes, &sums[i]);
        }
        if (status == 0) {
            progress_show(progress, "batches", i + 1, batches, "");
        }
    }
    status = status || loss_sums_share(ranks, &sums->targets, values);
    *all = (struct loss_sums){0};
    for (int64_t i = 0; i < batches; i++) {
        loss_sums_add(all, &sums[i]);
    }
    if (status == 0 && !(all->targets > 0.0)) {
        status = error_set("%s: all tokens of the batches that estimate the loss (eval_iters = %" PRId64
                           ") are prompts, which are no targets: give more eval_iters, or a larger block_size",
                           sampler->sources[0].file->name, batches);
    }
    free(sums);
    return status ? -1 : 0;
}
