#include "src/model/gpt_state.h"
#include <stdarg.h>

size_t gpt_tokens(const struct gpt *gpt) {
    return (size_t)(gpt->shape.batch * gpt->shape.sequence);
}

bool gpt_drops(const struct gpt *gpt) {
    return gpt->pass.dropout && gpt->config.dropout != 0.0;
}

struct dropout gpt_dropout(const struct gpt *gpt, const char *format, ...) {
    char place[64];
    va_list arguments;
    if (!gpt_drops(gpt)) {
        return (struct dropout){0};
    }
    va_start(arguments, format);
    vsnprintf(place, sizeof place, format, arguments);
    va_end(arguments);
    return (struct dropout){
        .rate = (float)gpt->config.dropout,
        .key = dropout_key(gpt->pass.seed, gpt->pass.iteration, place),
        .first_row = gpt->pass.first_row,
    };
}

struct layer_norm gpt_norm(const struct buffer *arena, struct norm_offsets at) {
    return (struct layer_norm){{arena, at.gain}, {arena, at.bias}};
}
