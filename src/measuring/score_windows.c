#include "src/measuring/score_windows.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include <math.h>
#include <stdlib.h>

double loss_sums_bits(const struct loss_sums *sums) {
    return sums->bytes > 0.0 ? sums->text_loss / sums->bytes / log(2.0) : (double)NAN;
}

void loss_sums_add(struct loss_sums *sums, const struct loss_sums *others) {
    sums->targets += others->targets;
    sums->loss += others->loss;
    sums->text_loss += others->text_loss;
    sums->bytes += others->bytes;
}

void loss_sums_add_targets(struct loss_sums *sums, const float *losses, const int32_t *targets, size_t count,
                           const uint16_t *token_bytes) {
    for (size_t i = 0; i < count; i++) {
        const unsigned bytes = token_bytes && targets[i] >= 0 ? token_bytes[targets[i]] : 0;
        sums->targets += targets[i] >= 0;
        sums->loss += (double)losses[i];
        sums->text_loss += bytes > 0 ? (double)losses[i] : 0.0;
        sums->bytes += bytes;
    }
}

int loss_sums_share(const struct ranks *ranks, double *values, size_t count) {
    values[count - 1] = interrupt_requested();
    if (ranks_sum(ranks, values, count)) {
        return -1;
    }
    return values[count - 1] > 0.0 ? error_set("interrupted") : 0;
}

/* What a rank knows of a window: zeros where another one scores it. */
struct window_sums {
    struct loss_sums losses;
    double missed;
};

/* The memory in which batches are made. */
struct work {
    struct gpt *gpt;
    struct loss_window *windows;
    size_t *order;            /* [count] long windows first */
    int32_t *x, *y;           /* [batch, sequence] */
    float *losses;            /* [batch, sequence] */
    float *logits;            /* [V] */
    struct window_sums *sums; /* [count + 1]; the last is for loss_sums_share */
    const uint16_t *token_bytes;
};

/* Longer ones first, then earlier ones, so that the order is total. */
static int by_length(const void *a, const void *b, void *context) {
    const struct loss_window *windows = context;
    const size_t first = *(const size_t *)a, second = *(const size_t *)b;
    if (windows[first].length != windows[second].length) {
        return windows[first].length < windows[second].length ? 1 : -1;
    }
    return first < second ? -1 : first > second;
}

/* Sets *missed to 1 if there is a miss in the window, in a row of the batch that begins with token `first`. */
static int find_miss(struct work *work, const struct loss_window *window, size_t first, double *missed) {
    for (size_t i = window->length - window->scored; i < window->length && *missed == 0.0; i++) {
        if (gpt_read_logits(work->gpt, first + i, 1, work->logits)) {
            return -1;
        }
        size_t best = 0;
        for (size_t k = 1; k < work->gpt->vocabulary; k++) {
            best = work->logits[k] > work->logits[best] ? k : best;
        }
        *missed = (int32_t)best != window->tokens[i + 1];
    }
    return 0;
}

/* The windows order[0 .. rows), the longest first. Attention looks back only, so what is padded at the end of a row
 * changes nothing. */
static int run_batch(struct work *work, const size_t *order, size_t rows) {
    struct gpt *gpt = work->gpt;
    const size_t sequence = work->windows[order[0]].length;
    for (size_t i = 0; i < rows * sequence; i++) {
        const struct loss_window *window = &work->windows[order[i / sequence]];
        const int32_t *targets = window->targets ? window->targets : window->tokens;
        const size_t at = i % sequence;
        work->x[i] = at < window->length ? window->tokens[at] : 0;
        work->y[i] = at < window->length && at + window->scored >= window->length ? targets[at + 1] : -1;
    }
    if (gpt_set_batch(gpt, (struct token_shape){(int64_t)rows, (int64_t)sequence}, work->x, work->y)) {
        return -1;
    }
    gpt_forward(gpt, (struct gpt_pass){.dropout = false});
    gpt_loss(gpt, 1.0f, false);
    if (buffer_read(gpt->compute, gpt->losses, 0, work->losses, rows * sequence * sizeof *work->losses)) {
        return -1;
    }
    for (size_t row = 0; row < rows; row++) {
        struct window_sums *sums = &work->sums[order[row]];
        const size_t first = row * sequence;
        loss_sums_add_targets(&sums->losses, work->losses + first, work->y + first, sequence, work->token_bytes);
        const struct loss_window *window = &work->windows[order[row]];
        if (window->looks_for_miss && find_miss(work, window, first, &sums->missed)) {
            return -1;
        }
    }
    return 0;
}

/* This rank's share of the batches: as many windows of the first one's length as fit. */
static int run_share(struct work *work, size_t count, const struct score_round *round) {
    size_t rows, batch = 0;
    for (size_t first = 0; first < count && !interrupt_requested(); first += rows, batch++) {
        rows = (size_t)gpt_batch_capacity(work->gpt, (int64_t)work->windows[work->order[first]].length);
        rows = count - first < rows ? count - first : rows;
        if (batch % (size_t)round->ranks->count != (size_t)round->ranks->index) {
            continue;
        }
        if (run_batch(work, work->order + first, rows)) {
            return -1;
        }
        const double part = (double)(first + rows) / (double)count;
        const double scored = (double)round->scored + part * (double)round->tokens;
        char details[64];
        snprintf(details, sizeof details, "%.0f tokens/s", scored / (progress_clock() - round->progress->start));
        progress_show(round->progress, round->label,
                      (int64_t)((double)round->before + part * (double)(round->after - round->before)),
                      (int64_t)(round->total > round->after ? round->total : round->after), details);
    }
    return 0;
}

int score_windows(struct gpt *gpt, struct loss_window *windows, size_t count, const struct score_round *round) {
    const size_t tokens = (size_t)(gpt->options.batch * gpt->options.sequence);
    struct work work = {.gpt = gpt,
                        .windows = windows,
                        .order = memory_allocate(count, sizeof *work.order),
                        .x = memory_allocate(tokens, sizeof *work.x),
                        .y = memory_allocate(tokens, sizeof *work.y),
                        .losses = memory_allocate(tokens, sizeof *work.losses),
                        .logits = memory_allocate(gpt->vocabulary, sizeof *work.logits),
                        .sums = memory_zeroed(count + 1, sizeof *work.sums),
                        .token_bytes = round->token_bytes};
    for (size_t i = 0; i < count; i++) {
        work.order[i] = i;
    }
    qsort_r(work.order, count, sizeof *work.order, by_length, windows);
    const size_t values = (count + 1) * (sizeof *work.sums / sizeof(double));
    const int status =
        run_share(&work, count, round) || loss_sums_share(round->ranks, &work.sums->losses.targets, values);
    for (size_t i = 0; status == 0 && i < count; i++) {
        windows[i].sums = work.sums[i].losses;
        windows[i].missed = work.sums[i].missed > 0.0;
    }
    free(work.order);
    free(work.x);
    free(work.y);
    free(work.losses);
    free(work.logits);
    free(work.sums);
    return status ? -1 : 0;
}

/* ---- a whole token file */

/* Tokens that are scored between two looks at the other ranks, about; not to depend on their number. */
enum { ROUND_TOKENS = 1 << 21 };

int score_split(struct gpt *gpt, const struct ranks *ranks, const struct token_file *file,
                struct progress *progress, const uint16_t *token_bytes, struct loss_sums *sums) {
    const uint64_t length = (uint64_t)gpt->options.sequence, places = file->count - 1;
    const uint64_t most = ROUND_TOKENS > length ? ROUND_TOKENS / length : 1; /* windows in a round */
    const uint32_t vocabulary = (uint32_t)gpt->config.vocab_size;
    *sums = (struct loss_sums){0};
    if (places == 0 || token_file_count_targets(file, 1, places) == 0) {
        return error_set("%s has nothing to predict: %s", file->name,
                         places == 0 ? "it has one token only, and the first one is not predicted"
                                     : "all of its tokens but the first are prompts");
    }
    int32_t *read = memory_allocate(2 * (most * length + 1), sizeof *read), *targets = read + most * length + 1;
    struct loss_window *windows = memory_allocate(most, sizeof *windows);
    int status = 0;
    for (uint64_t done = 0; status == 0 && done < places; done += most * length) {
        const uint64_t count = places - done < most * length ? places - done : most * length;
        const struct score_round round = {ranks,  progress, "tokens", done,       done + count,
                                          places, done,     count,    token_bytes};
        size_t made = 0;
        for (uint64_t at = 0; at < count; at += length) {
            const uint64_t scored = count - at < length ? count - at : length;
            windows[made++] = (struct loss_window){.tokens = read + at,
                                                   .length = scored,
                                                   .scored = scored,
                                                   .targets = targets + at};
        }
        status = token_file_read(file, done, count + 1, vocabulary, read) ||
                 token_file_read_targets(file, done, count + 1, vocabulary, targets) ||
                 score_windows(gpt, windows, made, &round);
        for (size_t i = 0; status == 0 && i < made; i++) {
            loss_sums_add(sums, &windows[i].sums);
        }
    }
    free(read);
    free(windows);
    return status ? -1 : 0;
}
