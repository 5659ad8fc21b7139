#include "src/evaluation/score_split.h"
#include "runtime/system/error.h"
#include "src/evaluation/score_windows.h"
#include <stdlib.h>

/* Tokens that are scored between two looks at the other ranks, about; not to depend on their number. */
enum { ROUND_TOKENS = 1 << 21 };

/* Predicts `count` tokens of the file from the one at round->before on, and adds their losses. */
static int score_round(struct gpt *gpt, const struct token_file *file, const struct score_round *round,
                       int32_t *tokens, struct loss_window *windows, double *sum) {
    const uint64_t length = (uint64_t)gpt->options.sequence;
    size_t count = 0;
    if (token_file_read(file, round->before, round->tokens + 1, (uint32_t)gpt->config.vocab_size, tokens)) {
        return -1;
    }
    for (uint64_t at = 0; at < round->tokens; at += length) {
        const uint64_t left = round->tokens - at, scored = left < length ? left : length;
        windows[count++] = (struct loss_window){tokens + at, scored, scored, 0.0};
    }
    if (score_windows(gpt, windows, count, round)) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        *sum += windows[i].loss;
    }
    return 0;
}

int score_split(struct gpt *gpt, const struct ranks *ranks, const struct token_file *file,
                struct progress *progress, uint64_t *tokens, double *loss) {
    const uint64_t length = (uint64_t)gpt->options.sequence, targets = token_file_count(file) - 1;
    const uint64_t most = ROUND_TOKENS > length ? ROUND_TOKENS / length : 1; /* windows in a round */
    int32_t *room = malloc((most * length + 1) * sizeof *room);
    struct loss_window *windows = malloc(most * sizeof *windows);
    double sum = 0.0;
    int status = room && windows ? 0 : error_set("out of memory");
    if (status == 0 && targets == 0) {
        status = error_set("the token file has one token only: there is nothing to predict");
    }
    for (uint64_t done = 0; status == 0 && done < targets; done += most * length) {
        const uint64_t count = targets - done < most * length ? targets - done : most * length;
        const struct score_round round = {ranks, progress, "tokens", done, done + count, targets, done, count};
        status = score_round(gpt, file, &round, room, windows, &sum);
    }
    free(room);
    free(windows);
    *tokens = targets;
    *loss = sum / (double)targets;
    return status;
}
