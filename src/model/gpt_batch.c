#include "runtime/system/error.h"
#include "src/model/gpt.h"
#include <inttypes.h>
#include <string.h>

/* What a staging area holds, in this order: rows of upload_tokens numbers. */
enum staged { STAGED_TOKENS, STAGED_TARGETS, STAGED_IDS, STAGED_STARTS, STAGED_PLACES };

static void send(struct gpt *gpt, enum staged which, const struct buffer *buffer, size_t count) {
    const size_t row = gpt->upload_tokens * sizeof(int32_t);
    upload_send(&gpt->upload, (size_t)which * row, buffer, count * sizeof(int32_t));
}

/* Counts, then places: tokens grouped by id in the order of their first id, each group in the order of its places.
 */
static void group_tokens(struct gpt *gpt, const int32_t *x, int32_t *staging) {
    const size_t tokens = gpt_tokens(gpt), vocabulary = (size_t)gpt->config.vocab_size;
    int32_t *counts = gpt->token_counts, *ids = staging + STAGED_IDS * gpt->upload_tokens;
    int32_t *starts = ids + gpt->upload_tokens, *places = starts + gpt->upload_tokens;
    memset(counts, 0, vocabulary * sizeof *counts);
    for (size_t i = 0; i < tokens; i++) {
        counts[x[i]]++;
    }
    size_t distinct = 0;
    int32_t start = 0;
    for (size_t id = 0; id < vocabulary; id++) {
        if (counts[id] > 0) {
            ids[distinct] = (int32_t)id;
            starts[distinct++] = start;
            start += counts[id];
            counts[id] = start - counts[id]; /* from here on: where its next place goes */
        }
    }
    starts[distinct] = start;
    for (size_t i = 0; i < tokens; i++) {
        places[counts[x[i]]++] = (int32_t)i;
    }
    gpt->groups.distinct = distinct;
    send(gpt, STAGED_IDS, gpt->groups.ids, distinct);
    send(gpt, STAGED_STARTS, gpt->groups.starts, distinct + 1);
    send(gpt, STAGED_PLACES, gpt->groups.places, tokens);
}

static int check_ids(const struct gpt *gpt, const int32_t *ids, int32_t lowest, int64_t count, const char *name) {
    for (size_t i = 0; i < gpt_tokens(gpt); i++) {
        if (ids[i] < lowest || ids[i] >= count) {
            return error_set("%s[%zu] = %" PRId32 " is not a token of this model (%s %" PRId64 ")", name, i, ids[i],
                             count == gpt->config.vocab_size ? "vocab_size" : "it is scored over the first", count);
        }
    }
    return 0;
}

int64_t gpt_batch_capacity(const struct gpt *gpt, int64_t sequence) {
    const struct gpt_options *options = &gpt->options;
    if (options->mode == GPT_GENERATION) {
        return sequence == 1 ? options->batch : 1;
    }
    const int64_t by_tokens = options->batch * options->sequence / sequence;
    const int64_t by_keys = options->batch * (int64_t)operations_padded(&gpt->operations, options->sequence) /
                            (int64_t)operations_padded(&gpt->operations, sequence);
    return by_tokens < by_keys ? by_tokens : by_keys;
}

int gpt_set_batch(struct gpt *gpt, struct token_shape shape, const int32_t *x, const int32_t *y) {
    if (shape.batch < 1 || shape.sequence < 1 || shape.sequence > gpt->options.sequence ||
        shape.batch > gpt_batch_capacity(gpt, shape.sequence)) {
        return error_set("a batch of %" PRId64 " x %" PRId64 " does not fit into %" PRId64 " x %" PRId64,
                         shape.batch, shape.sequence, gpt->options.batch, gpt->options.sequence);
    }
    gpt->shape = shape;
    compute_set_module(gpt->compute, "upload");
    const size_t tokens = gpt_tokens(gpt);
    if (check_ids(gpt, x, 0, gpt->config.vocab_size, "x") ||
        (y && check_ids(gpt, y, -1, (int64_t)gpt->vocabulary, "y"))) {
        return -1;
    }
    int32_t *staging = upload_begin(&gpt->upload);
    memcpy(staging, x, tokens * sizeof *x);
    send(gpt, STAGED_TOKENS, gpt->tokens, tokens);
    gpt->valid_targets = 0;
    for (size_t i = 0; y && i < tokens; i++) {
        gpt->valid_targets += y[i] >= 0;
    }
    if (y) {
        memcpy(staging + STAGED_TARGETS * gpt->upload_tokens, y, tokens * sizeof *y);
        send(gpt, STAGED_TARGETS, gpt->targets, tokens);
    }
    if (gpt->options.mode == GPT_TRAINING) {
        group_tokens(gpt, x, staging);
    }
    return compute_check(gpt->compute);
}
