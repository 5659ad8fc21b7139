#include "runtime/system/error.h"
#include "src/model/gpt.h"
#include <inttypes.h>
#include <string.h>

/* Counts, then places: tokens grouped by id in the order of their first id, each group in the order of its places.
 */
static int group_tokens(struct gpt *gpt, const int32_t *x) {
    const size_t tokens = gpt_tokens(gpt), vocabulary = (size_t)gpt->config.vocab_size;
    int32_t *counts = gpt->token_scratch, *ids = counts + vocabulary, *starts = ids + tokens;
    int32_t *places = starts + tokens + 1;
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
    return buffer_write(gpt->compute, gpt->groups.ids, 0, ids, distinct * sizeof *ids) ||
                   buffer_write(gpt->compute, gpt->groups.starts, 0, starts, (distinct + 1) * sizeof *starts) ||
                   buffer_write(gpt->compute, gpt->groups.places, 0, places, tokens * sizeof *places)
               ? -1
               : 0;
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

int64_t gpt_batch_room(const struct gpt *gpt, int64_t sequence) {
    const struct gpt_options *options = &gpt->options;
    if (options->mode == GPT_GENERATION) {
        return sequence == 1 ? options->batch : 1;
    }
    const int64_t by_tokens = options->batch * options->sequence / sequence;
    const int64_t by_keys = options->batch * (int64_t)operations_padded(gpt->compute, options->sequence) /
                            (int64_t)operations_padded(gpt->compute, sequence);
    return by_tokens < by_keys ? by_tokens : by_keys;
}

int gpt_set_batch(struct gpt *gpt, struct token_shape shape, const int32_t *x, const int32_t *y) {
    if (shape.batch < 1 || shape.sequence < 1 || shape.sequence > gpt->options.sequence ||
        shape.batch > gpt_batch_room(gpt, shape.sequence)) {
        return error_set("a batch of %" PRId64 " x %" PRId64 " does not fit into %" PRId64 " x %" PRId64,
                         shape.batch, shape.sequence, gpt->options.batch, gpt->options.sequence);
    }
    gpt->shape = shape;
    compute_part(gpt->compute, "upload");
    const size_t tokens = gpt_tokens(gpt);
    if (check_ids(gpt, x, 0, gpt->config.vocab_size, "x") ||
        (y && check_ids(gpt, y, -1, (int64_t)gpt->vocabulary, "y")) ||
        buffer_write(gpt->compute, gpt->tokens, 0, x, tokens * sizeof *x)) {
        return -1;
    }
    gpt->valid_targets = 0;
    for (size_t i = 0; y && i < tokens; i++) {
        gpt->valid_targets += y[i] >= 0;
    }
    if (y && buffer_write(gpt->compute, gpt->targets, 0, y, tokens * sizeof *y)) {
        return -1;
    }
    return gpt->options.mode == GPT_TRAINING ? group_tokens(gpt, x) : 0;
}
