/* Windows of tokens, scored on a device in batches and by all ranks together. */
#pragma once

#include "runtime/files/token_file.h"
#include "runtime/ranks/ranks.h"
#include "runtime/system/progress.h"
#include "src/model/gpt.h"

/* Sums over targets, of which some stand for bytes of text and control tokens do not. */
struct loss_sums {
    double targets, loss; /* their number, and -log p, natural */
    double text_loss;     /* of those that stand for text */
    double bytes;         /* of text; 0: not known */
};

/* Bits per byte of text; NAN if the bytes are not known. */
double loss_sums_bits(const struct loss_sums *sums);

/* Adds the sums of others. */
void loss_sums_add(struct loss_sums *sums, const struct loss_sums *others);

/* Adds the losses of targets [count], -1 for none. token_bytes [vocab_size] of tokenizer_share_bytes
 * (src/text/tokenizer.h): the bytes that each token stands for, or NULL. */
void loss_sums_add_targets(struct loss_sums *sums, const float *losses, const int32_t *targets, size_t count,
                           const uint16_t *token_bytes);

/* Replaces values [count - 1] by their sums over all ranks. The last of `count` is for this function, which fails
 * with "interrupted" on all ranks if one of them is interrupted. Collective. */
int loss_sums_share(const struct ranks *ranks, double *values, size_t count);

struct loss_window {
    const int32_t *tokens;  /* [length + 1]: those that are read, and the last one's successor */
    size_t length;          /* 1 .. gpt's sequence */
    size_t scored;          /* so many predictions at its end count */
    const int32_t *targets; /* [length + 1]: tokens, or -1 in place of those whose prediction does not count; NULL:
                             * all count */
    struct loss_sums sums;  /* out */
    bool looks_for_miss; /* whether `missed` is wanted: each prediction up to it costs a pass of the output layer */
    bool missed;         /* out: one of the scored predictions has not the largest logit, the first of equal ones */
};

/* Who scores, and where the windows of a round stand in all that is scored, for the progress line. */
struct score_round {
    const struct ranks *ranks;
    struct progress *progress;
    const char *label;             /* the unit of what is read, */
    uint64_t before, after, total; /* and how much of it at the round's ends, and in all; total 0: not known */
    uint64_t scored, tokens;       /* predicted in earlier rounds, and in this one */
    const uint16_t *token_bytes;   /* or NULL */
};

/* Sets the losses of windows [count], which are the same on all ranks, before and after. Collective. Batches, and
 * so the last bit of a loss, do not depend on the number of ranks. Windows of like length share a batch, the more
 * of them the shorter they are. Stops early, with the error "interrupted" on all ranks, when one of them is
 * interrupted. A loss may be infinite or NaN, as the model computes it. */
int score_windows(struct gpt *gpt, struct loss_window *windows, size_t count, const struct score_round *round);

/* The losses over a whole token file. Windows of the planned sequence's length follow each other without
 * overlap; the last one is shorter. Each token but the file's first is predicted once, from the tokens before it in
 * its window. A file without targets (token_file_read_targets) is refused. Collective; the same on any number of
 * ranks, which have the same file. Fails with "interrupted" on all ranks when one is. */
int score_split(struct gpt *gpt, const struct ranks *ranks, const struct token_file *file,
                struct progress *progress, const uint16_t *token_bytes, struct loss_sums *sums);
