#include "runtime/system/error.h"
#include "src/model/gpt.h"
#include <inttypes.h>

/* A pass over the batch, and the logits of the last `rows` tokens. */
static int run(struct gpt *gpt, struct token_shape shape, const int32_t *tokens, struct gpt_pass pass, size_t rows,
               float *logits) {
    if (gpt->options.mode != GPT_GENERATION) {
        return error_set("the model is not planned for generation");
    }
    if (gpt_set_batch(gpt, shape, tokens, NULL)) {
        return -1;
    }
    gpt_forward(gpt, pass);
    return gpt_read_logits(gpt, gpt_tokens(gpt) - rows, rows, logits);
}

int generation_prefill(struct gpt *gpt, int64_t row, const int32_t *tokens, size_t count, float *logits) {
    if (row < 0 || row >= gpt->options.batch || count < 1 || count > (size_t)gpt->options.sequence) {
        return error_set("%zu tokens for row %" PRId64 " do not fit into %" PRId64 " rows of %" PRId64, count, row,
                         gpt->options.batch, gpt->options.sequence);
    }
    return run(gpt, (struct token_shape){1, (int64_t)count}, tokens,
               (struct gpt_pass){.cache = CACHE_FILL, .cache_row = row}, 1, logits);
}

int generation_step(struct gpt *gpt, int64_t rows, int64_t position, const int32_t *tokens, float *logits) {
    if (rows < 1 || rows > gpt->options.batch || position < 1 || position >= gpt->options.sequence) {
        return error_set("position %" PRId64 " of %" PRId64 " rows does not fit into %" PRId64 " rows of %" PRId64,
                         position, rows, gpt->options.batch, gpt->options.sequence);
    }
    return run(gpt, (struct token_shape){rows, 1}, tokens,
               (struct gpt_pass){.cache = CACHE_STEP, .position = position}, (size_t)rows, logits);
}

void generation_copy(struct gpt *gpt, int64_t from, int64_t to) {
    const size_t bytes = (size_t)(head_shape(&gpt->operations.shape).kv_row * gpt->options.sequence) *
                         element_size(gpt->options.type); /* of a row */
    if (from == to) {
        return;
    }
    for (const struct sublayer *sublayer = gpt->sublayers; sublayer->branch; sublayer++) {
        const struct buffer *const caches[] = {sublayer->keys, sublayer->values};
        for (size_t i = 0; sublayer->keys && i < 2; i++) {
            buffer_copy(gpt->compute, caches[i], (size_t)from * bytes, caches[i], (size_t)to * bytes, bytes);
        }
    }
}
