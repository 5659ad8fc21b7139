#include "src/model/row_gradients.h"
#include "runtime/system/memory.h"
#include <stdlib.h>
#include <string.h>

size_t row_gradients_words(const struct gpt *gpt) {
    return ((size_t)gpt->config.vocab_size + 31) / 32;
}

void row_gradients_plan(struct gpt *gpt, size_t most) {
    const char *const group = "gradients of token rows";
    const size_t half = (size_t)gpt->config.vocab_size / 2;
    struct row_gradients *rows = &gpt->row_gradients;
    rows->most = most < half ? most : half;
    if (rows->most) {
        struct buffer *sums =
            memory_plan_add(&gpt->plan, group, rows->most * (uint64_t)gpt->config.n_embd, ELEMENT_FP32);
        sums->shareable = gpt->options.shareable;
        rows->rows = sums;
        rows->ids = memory_plan_add(&gpt->plan, group, rows->most, ELEMENT_INT32);
        rows->places = memory_plan_add(&gpt->plan, group, gpt_tokens(gpt), ELEMENT_INT32);
        rows->numbers = memory_plan_add(&gpt->plan, group, rows->most + 1, ELEMENT_INT32);
    }
}

int row_gradients_create(struct gpt *gpt) {
    struct row_gradients *rows = &gpt->row_gradients;
    const size_t count = rows->most + 1, bytes = (rows->most + gpt_tokens(gpt)) * sizeof(int32_t);
    if (rows->most == 0) {
        return 0;
    }
    if (upload_create(gpt->compute, &rows->upload, bytes)) {
        return -1;
    }
    int32_t *numbers = memory_allocate(count, sizeof *numbers);
    for (size_t i = 0; i < count; i++) {
        numbers[i] = (int32_t)i;
    }
    const int status = buffer_write(gpt->compute, rows->numbers, 0, numbers, count * sizeof *numbers);
    free(numbers);
    return status;
}

void row_gradients_release(struct gpt *gpt) {
    upload_release(&gpt->row_gradients.upload);
}

/* ---- a pass */

/* The batch's counts are those of its groups by now: an end of each group, zero where there is none. */
static bool is_in_batch(const struct gpt *gpt, size_t id) {
    return gpt->token_counts[id] > 0;
}

void row_gradients_mark(const struct gpt *gpt, uint32_t *words) {
    for (size_t id = 0; id < (size_t)gpt->config.vocab_size; id++) {
        words[id / 32] |= (uint32_t)is_in_batch(gpt, id) << id % 32;
    }
}

void row_gradients_begin(struct gpt *gpt, const uint32_t *words) {
    struct row_gradients *rows = &gpt->row_gradients;
    const size_t row = (size_t)gpt->config.n_embd * sizeof(float);
    size_t count = 0;
    for (size_t i = 0; i < row_gradients_words(gpt); i++) {
        count += (size_t)__builtin_popcount(words[i]);
    }
    rows->count = 0;
    if (count > rows->most) {
        return;
    }
    compute_set_module(gpt->compute, "embedding");
    int32_t *ids = upload_begin(&rows->upload), *places = ids + rows->most;
    size_t distinct = 0;
    for (size_t id = 0; id < (size_t)gpt->config.vocab_size; id++) {
        if (words[id / 32] >> id % 32 & 1) {
            if (is_in_batch(gpt, id)) {
                places[distinct++] = (int32_t)rows->count;
            }
            ids[rows->count++] = (int32_t)id;
        }
    }
    upload_send(&rows->upload, 0, rows->ids, count * sizeof *ids);
    upload_send(&rows->upload, rows->most * sizeof *ids, rows->places, distinct * sizeof *places);
    buffer_zero(gpt->compute, rows->rows, 0, count * row);
}

void row_gradients_join(struct gpt *gpt) {
    struct row_gradients *rows = &gpt->row_gradients;
    if (rows->count) {
        const struct parameters *parameters = &gpt->parameters;
        compute_set_module(gpt->compute, "embedding");
        embedding_add_rows(&gpt->operations, rows->count, rows->rows, rows->ids, rows->numbers,
                           (struct span){parameters->gradients, parameters->token_embedding});
        rows->count = 0;
    }
}
