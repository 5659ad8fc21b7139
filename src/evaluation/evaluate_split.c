#include "src/evaluation/evaluate_split.h"
#include "runtime/system/error.h"
#include "src/evaluation/window_losses.h"
#include <stdlib.h>
#include <string.h>

/* Tokens that are scored between two looks at the other ranks, about; not to depend on their number. */
enum { ROUND_TOKENS = 1 << 21 };

struct split {
    struct gpt *gpt;
    const struct ranks *ranks;
    const struct token_file *file;
    struct progress *progress;
    uint64_t targets;            /* tokens that are predicted, of the file */
    uint64_t done;               /* of them, in earlier rounds */
    uint64_t round;              /* tokens in a round */
    int32_t *tokens;             /* [round + 1] */
    struct loss_window *windows; /* [round / sequence] */
};

static void show(void *context, size_t windows, size_t all) {
    const struct split *split = context;
    const uint64_t left = split->targets - split->done, round = left < split->round ? left : split->round;
    const double done = (double)split->done + (double)round * (double)windows / (double)all;
    char details[64];
    snprintf(details, sizeof details, "%.0f tokens/s", done / (progress_clock() - split->progress->start));
    progress_show(split->progress, "tokens", (int64_t)done, (int64_t)split->targets, details, false);
}

/* Predicts the next tokens of the file, and adds their losses. */
static int score_round(struct split *split, double *sum) {
    const uint64_t left = split->targets - split->done, count = left < split->round ? left : split->round;
    const size_t length = (size_t)split->gpt->options.sequence;
    const struct loss_listener listener = {show, split};
    if (token_file_read(split->file, split->done, count + 1, (uint32_t)split->gpt->config.vocab_size,
                        split->tokens)) {
        return -1;
    }
    size_t windows = 0;
    for (uint64_t at = 0; at < count; at += length) {
        const size_t tokens = count - at < length ? (size_t)(count - at) : length;
        split->windows[windows++] = (struct loss_window){split->tokens + at, tokens, tokens, 0.0};
    }
    if (window_losses(split->gpt, split->ranks, split->windows, windows, &listener)) {
        return -1;
    }
    for (size_t i = 0; i < windows; i++) {
        *sum += split->windows[i].loss;
    }
    split->done += count;
    return 0;
}

int evaluate_split(struct gpt *gpt, const struct ranks *ranks, const struct token_file *file,
                   struct progress *progress, uint64_t *tokens, double *loss) {
    const uint64_t length = (uint64_t)gpt->options.sequence;
    const uint64_t windows = ROUND_TOKENS / length > 0 ? ROUND_TOKENS / length : 1;
    struct split split = {
        .gpt = gpt,
        .ranks = ranks,
        .file = file,
        .progress = progress,
        .targets = token_file_count(file) - 1,
        .round = windows * length,
        .tokens = malloc((windows * length + 1) * sizeof *split.tokens),
        .windows = malloc(windows * sizeof *split.windows),
    };
    double sum = 0.0;
    int status = split.tokens && split.windows ? 0 : error_set("out of memory");
    if (status == 0 && split.targets == 0) {
        status = error_set("the token file has one token only: there is nothing to predict");
    }
    while (status == 0 && split.done < split.targets) {
        status = score_round(&split, &sum);
    }
    free(split.tokens);
    free(split.windows);
    *tokens = split.targets;
    *loss = sum / (double)split.targets;
    return status ? -1 : 0;
}
