#include "src/model/branch.h"
#include "src/model/gpt_state.h"
#include "src/model/linear.h"
#include <inttypes.h>

/* ---- attention */

static struct attention_values values_of(const struct gpt *gpt, const struct sublayer *sublayer) {
    return (struct attention_values){sublayer->wide, sublayer->inner, sublayer->lse, gpt->scratch.keys_t};
}

static struct dropout attention_dropout(const struct gpt *gpt, const struct sublayer *sublayer) {
    return gpt_dropout(gpt, "%" PRId64 " attention", sublayer->index);
}

/* Beside attention, what the pass has to do with the cache. */
static void attend(struct gpt *gpt, const struct sublayer *sublayer) {
    struct operations *operations = &gpt->operations;
    const struct attention_cache cache = {sublayer->keys, sublayer->values, gpt->options.sequence};
    const struct attention_values values = values_of(gpt, sublayer);
    linear_forward(operations, &gpt->parameters, sublayer->at->in, gpt_tokens(gpt), sublayer->normed,
                   sublayer->wide);
    if (gpt->pass.cache == CACHE_STEP) {
        attention_step(operations, gpt->shape.batch, gpt->pass.position, sublayer->wide, cache, gpt->scratch.scores,
                       sublayer->inner);
        return;
    }
    if (gpt->pass.cache == CACHE_FILL) {
        attention_fill(operations, gpt->shape, sublayer->wide, gpt->pass.cache_row, cache);
    }
    attention_forward(operations, gpt->shape, &values, attention_dropout(gpt, sublayer));
}

static void attend_backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_output) {
    struct operations *operations = &gpt->operations;
    const struct gpt_scratch *scratch = &gpt->scratch;
    const struct attention_values values = values_of(gpt, sublayer);
    const size_t tokens = gpt_tokens(gpt);
    linear_backward(operations, &gpt->parameters, sublayer->at->out, tokens, sublayer->inner, d_output,
                    scratch->d_inner);
    attention_backward(operations, gpt->shape, &values, attention_dropout(gpt, sublayer), scratch->d_inner,
                       scratch->values_t, scratch->delta, scratch->d_wide);
    linear_backward(operations, &gpt->parameters, sublayer->at->in, tokens, sublayer->normed, scratch->d_wide,
                    scratch->d_normed);
}

/* ---- MLP */

static void expand(struct gpt *gpt, const struct sublayer *sublayer) {
    linear_forward_gelu(&gpt->operations, &gpt->parameters, sublayer->at->in, gpt_tokens(gpt), sublayer->normed,
                        sublayer->wide, sublayer->inner);
}

/* The GELU's output is the larger half of an MLP's memory: it is computed again. */
static void expand_backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_output) {
    struct operations *operations = &gpt->operations;
    const struct buffer *d_inner = gpt->scratch.d_inner;
    const struct linear in = sublayer->at->in;
    const size_t tokens = gpt_tokens(gpt);
    gelu_forward(operations, tokens * in.out, sublayer->wide, sublayer->inner);
    linear_backward(operations, &gpt->parameters, sublayer->at->out, tokens, sublayer->inner, d_output, d_inner);
    gelu_backward(operations, tokens * in.out, sublayer->wide, d_inner);
    linear_backward(operations, &gpt->parameters, in, tokens, sublayer->normed, d_inner, gpt->scratch.d_normed);
}

/* ---- either */

const struct branch branches[BRANCHES] = {
    {.norm = "ln_1",
     .in = "attn.c_attn",
     .out = "attn.c_proj",
     .hyper_connection = "hc_attn",
     .wide = 3,
     .inner = 1,
     .attends = true,
     .forward = attend,
     .backward = attend_backward},
    {.norm = "ln_2",
     .in = "mlp.c_fc",
     .out = "mlp.c_proj",
     .hyper_connection = "hc_mlp",
     .wide = 4,
     .inner = 4,
     .inner_again = true,
     .forward = expand,
     .backward = expand_backward},
};

static void drop(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *output) {
    dropout_apply(&gpt->operations, gpt_tokens(gpt), (size_t)gpt->config.n_embd,
                  gpt_dropout(gpt, "%" PRId64 " output", sublayer->index), output);
}

void branch_forward(struct gpt *gpt, const struct sublayer *sublayer) {
    sublayer->branch->forward(gpt, sublayer);
    linear_forward(&gpt->operations, &gpt->parameters, sublayer->at->out, gpt_tokens(gpt), sublayer->inner,
                   sublayer->output);
    drop(gpt, sublayer, sublayer->output);
}

void branch_backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_output) {
    drop(gpt, sublayer, d_output);
    sublayer->branch->backward(gpt, sublayer, d_output);
}
