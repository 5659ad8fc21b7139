#include "src/model/generation.h"
#include "runtime/system/error.h"
#include <inttypes.h>

static int check_mode(const struct gpt *gpt) {
    return gpt->options.mode == GPT_GENERATION ? 0 : error_set("the model is not planned for generation");
}

int generation_prefill(struct gpt *gpt, int64_t row, const int32_t *tokens, size_t count, float *logits) {
    if (check_mode(gpt)) {
        return -1;
    }
    if (row < 0 || row >= gpt->options.batch || count < 1 || count > (size_t)gpt->options.sequence) {
        return error_set("%zu tokens for row %" PRId64 " do not fit into %" PRId64 " rows of %" PRId64, count, row,
                         gpt->options.batch, gpt->options.sequence);
    }
    if (gpt_set_batch(gpt, (struct token_shape){1, (int64_t)count}, tokens, NULL)) {
        return -1;
    }
    gpt_forward(gpt, (struct gpt_pass){.cache = CACHE_FILL, .cache_row = row});
    return gpt_read_logits(gpt, count - 1, 1, logits);
}

int generation_step(struct gpt *gpt, int64_t rows, int64_t position, const int32_t *tokens, float *logits) {
    if (check_mode(gpt)) {
        return -1;
    }
    if (rows < 1 || rows > gpt->options.batch || position < 1 || position >= gpt->options.sequence) {
        return error_set("position %" PRId64 " of %" PRId64 " rows does not fit into %" PRId64 " rows of %" PRId64,
                         position, rows, gpt->options.batch, gpt->options.sequence);
    }
    if (gpt_set_batch(gpt, (struct token_shape){rows, 1}, tokens, NULL)) {
        return -1;
    }
    gpt_forward(gpt, (struct gpt_pass){.cache = CACHE_STEP, .position = position});
    return gpt_read_logits(gpt, 0, (size_t)rows, logits);
}

void generation_copy(struct gpt *gpt, int64_t from, int64_t to) {
    const size_t bytes =
        (size_t)(gpt->config.n_embd * gpt->options.sequence) * element_size(gpt->options.type); /* of a row */
    if (from == to) {
        return;
    }
    for (const struct sublayer *sublayer = gpt->sublayers; sublayer->branch; sublayer++) {
        const struct buffer *const caches[] = {sublayer->keys, sublayer->values};
        for (size_t i = 0; sublayer->branch->attends && i < 2; i++) {
            buffer_copy(gpt->compute, caches[i], (size_t)from * bytes, caches[i], (size_t)to * bytes, bytes);
        }
    }
}
