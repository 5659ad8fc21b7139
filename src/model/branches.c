#include "src/model/branches.h"
#include "src/model/linear.h"
#include <inttypes.h>

/* Dropout at a place of a sublayer in the current pass. */
static struct dropout dropout_at(const struct gpt *gpt, int64_t index, const char *place) {
    if (!gpt->pass.dropout || gpt->config.dropout == 0.0) {
        return (struct dropout){0};
    }
    char name[64];
    snprintf(name, sizeof name, "%" PRId64 " %s", index, place);
    return (struct dropout){
        .rate = (float)gpt->config.dropout,
        .key = dropout_key(gpt->pass.seed, gpt->pass.iteration, name),
        .first_row = gpt->pass.first_row,
    };
}

/* The linear layers into and out of a branch, `inner` wide in between. */
static struct linear layer_in(const struct gpt *gpt, int64_t index) {
    const struct sublayer_offsets *at = &gpt->parameters.sublayers[index];
    const size_t width = (size_t)gpt->config.n_embd;
    return (struct linear){at->in_weight, at->in_bias, width, index % 2 ? 4 * width : 3 * width};
}

static struct linear layer_out(const struct gpt *gpt, int64_t index) {
    const struct sublayer_offsets *at = &gpt->parameters.sublayers[index];
    const size_t width = (size_t)gpt->config.n_embd;
    return (struct linear){at->out_weight, at->out_bias, index % 2 ? 4 * width : width, width};
}

/* wide (qkv) -> inner, and what the pass has to do with the cache */
static void attend(struct gpt *gpt, int64_t index) {
    struct operations *operations = &gpt->operations;
    const struct sublayer *sublayer = &gpt->sublayers[index];
    const struct attention_cache cache = {sublayer->keys, sublayer->values, gpt->options.sequence};
    if (gpt->pass.cache == CACHE_STEP) {
        attention_step(operations, gpt->shape.batch, gpt->pass.position, sublayer->wide, cache, gpt->scratch.scores,
                       sublayer->inner);
        return;
    }
    if (gpt->pass.cache == CACHE_FILL) {
        attention_fill(operations, gpt->shape, sublayer->wide, gpt->pass.cache_row, cache);
    }
    attention_forward(operations, gpt->shape, sublayer->wide, dropout_at(gpt, index, "attention"),
                      gpt->scratch.keys_t, sublayer->inner, sublayer->lse);
}

void branch_forward(struct gpt *gpt, int64_t index) {
    struct operations *operations = &gpt->operations;
    const struct sublayer *sublayer = &gpt->sublayers[index];
    const size_t tokens = gpt_tokens(gpt), width = (size_t)gpt->config.n_embd;
    const struct linear in = layer_in(gpt, index);
    if (index % 2 == 0) {
        linear_forward(operations, &gpt->parameters, in, tokens, sublayer->normed, sublayer->wide);
        attend(gpt, index);
    } else {
        linear_forward_gelu(operations, &gpt->parameters, in, tokens, sublayer->normed, sublayer->wide,
                            sublayer->inner);
    }
    linear_forward(operations, &gpt->parameters, layer_out(gpt, index), tokens, sublayer->inner, sublayer->output);
    dropout_apply(operations, tokens, width, dropout_at(gpt, index, "output"), sublayer->output);
}

void branch_backward(struct gpt *gpt, int64_t index, const struct buffer *d_output) {
    struct operations *operations = &gpt->operations;
    const struct sublayer *sublayer = &gpt->sublayers[index];
    const struct gpt_scratch *scratch = &gpt->scratch;
    const size_t tokens = gpt_tokens(gpt), width = (size_t)gpt->config.n_embd;
    dropout_apply(operations, tokens, width, dropout_at(gpt, index, "output"), d_output);
    if (index % 2 == 1) {
        /* the GELU's output is shared by all layers and computed again here: it is the larger half of an MLP's
         * memory */
        gelu_forward(operations, tokens * 4 * width, sublayer->wide, sublayer->inner);
    }
    linear_backward(operations, &gpt->parameters, layer_out(gpt, index), tokens, sublayer->inner, d_output,
                    scratch->d_inner);
    const struct buffer *d_wide = scratch->d_wide;
    if (index % 2 == 0) {
        attention_backward(operations, gpt->shape, sublayer->wide, dropout_at(gpt, index, "attention"),
                           sublayer->inner, sublayer->lse, scratch->d_inner, scratch->keys_t, scratch->values_t,
                           scratch->delta, d_wide);
    } else {
        gelu_backward(operations, tokens * 4 * width, sublayer->wide, scratch->d_inner);
        d_wide = scratch->d_inner;
    }
    linear_backward(operations, &gpt->parameters, layer_in(gpt, index), tokens, sublayer->normed, d_wide,
                    scratch->d_normed);
}
