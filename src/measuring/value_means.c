#include "src/measuring/value_means.h"
#include "runtime/device/compute.h"
#include "runtime/system/element.h"
#include "runtime/system/memory.h"
#include "src/model/frame.h"
#include "src/model/gpt.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of a value for one token. */
static size_t size_of(const struct frame_value *value) {
    return (size_t)(value->shape[0] * (value->rank > 1 ? value->shape[1] : 1));
}

/* The mean that a value of this channel count belongs to: the one at `place`, which the first pass adds. */
static struct value_mean *mean_at(struct value_means *means, size_t place, const struct frame_value *value,
                                  bool by_channel) {
    if (place == means->count) {
        means->values = memory_resize(means->values, ++means->count, sizeof *means->values);
        struct value_mean *added = &means->values[place];
        *added = (struct value_mean){.rank = by_channel ? 1 : value->rank,
                                     .shape = {value->shape[0], by_channel ? 1 : value->shape[1]},
                                     .sums = memory_zeroed(size_of(value), sizeof *added->sums)};
        memcpy(added->name, value->name, sizeof added->name);
    }
    return &means->values[place];
}

/* Adds a value of all tokens, rows of the buffer's type. `channels` numbers in turn are added up, divided by their
 * count. */
static void add_rows(struct value_mean *mean, const struct frame_value *value, const void *rows, size_t tokens,
                     size_t channels) {
    const size_t count = size_of(value);
    for (size_t token = 0; token < tokens; token++) {
        const size_t first = token * value->row + value->first;
        for (size_t i = 0; i < count; i++) {
            mean->sums[i / channels] += (double)element_at(rows, first + i, value->buffer->type) / (double)channels;
        }
    }
}

static int add_value(struct value_means *means, size_t place, struct gpt *gpt, const struct frame_value *value) {
    const size_t tokens = gpt_tokens(gpt);
    const bool by_channel = value->rank > 1 && value->shape[1] == (uint64_t)gpt->config.n_embd;
    struct value_mean *mean = mean_at(means, place, value, by_channel);
    const size_t bytes = element_size(value->buffer->type);
    void *rows = memory_allocate(tokens * value->row, bytes);
    const int status = buffer_read(gpt->compute, value->buffer, 0, rows, tokens * value->row * bytes);
    if (status == 0) {
        add_rows(mean, value, rows, tokens, by_channel ? (size_t)value->shape[1] : 1);
    }
    free(rows);
    return status;
}

int value_means_add(struct value_means *means, struct gpt *gpt) {
    size_t place = 0;
    for (int64_t sublayer = 0; gpt->frame->values && sublayer <= BRANCHES * gpt->config.n_layer; sublayer++) {
        struct frame_value values[FRAME_MOST_VALUES];
        const size_t count = gpt->frame->values(gpt, sublayer, values);
        for (size_t i = 0; i < count; i++, place++) {
            if (add_value(means, place, gpt, &values[i])) {
                return -1;
            }
        }
    }
    means->tokens += gpt_tokens(gpt);
    return 0;
}

void value_means_free(struct value_means *means) {
    for (size_t i = 0; i < means->count; i++) {
        free(means->values[i].sums);
    }
    free(means->values);
    *means = (struct value_means){.count = 0};
}

/* ---- as JSON */

static json_t *row_json(const double *sums, uint64_t count, uint64_t tokens) {
    json_t *row = json_array();
    for (uint64_t i = 0; i < count; i++) {
        const double mean = sums[i] / (double)tokens;
        json_array_append_new(row, isfinite(mean) ? json_real(mean) : json_null());
    }
    return row;
}

json_t *value_means_json(const struct value_means *means) {
    json_t *json = json_object();
    for (size_t i = 0; i < means->count; i++) {
        const struct value_mean *mean = &means->values[i];
        json_t *rows = json_array();
        for (uint64_t row = 0; mean->rank > 1 && row < mean->shape[0]; row++) {
            json_array_append_new(rows, row_json(mean->sums + row * mean->shape[1], mean->shape[1], means->tokens));
        }
        json_object_set_new(json, mean->name,
                            mean->rank > 1 ? rows : row_json(mean->sums, mean->shape[0], means->tokens));
        if (mean->rank < 2) {
            json_decref(rows);
        }
    }
    return json;
}
