#include "src/model/branch.h"
#include "src/model/gpt_state.h"
#include "src/model/linear.h"
#include <inttypes.h>

/* ---- attention */

static struct dropout attention_dropout(const struct gpt *gpt, const struct sublayer *sublayer) {
    return gpt_dropout(gpt, "%" PRId64 " attention", sublayer->index);
}

/* Beside attention, what the pass has to do with the cache. */
static void attend(struct gpt *gpt, const struct sublayer *sublayer) {
    struct operations *operations = &gpt->operations;
    const struct attention_cache cache = {sublayer->keys, sublayer->values, gpt->options.sequence};
    const struct attention_values values = {sublayer->in_proj_out, sublayer->out_proj_in, sublayer->lse};
    linear_forward(operations, &gpt->parameters, sublayer->at->in, gpt_tokens(gpt), sublayer->mix.normed,
                   sublayer->in_proj_out, NULL);
    compute_set_module(gpt->compute, "attention");
    if (gpt->pass.cache == CACHE_STEP) {
        attention_step(operations, gpt->shape.batch, gpt->pass.position, sublayer->in_proj_out, cache,
                       gpt->scratch.scores, sublayer->out_proj_in);
        return;
    }
    if (gpt->pass.cache == CACHE_FILL) {
        attention_fill(operations, gpt->shape, sublayer->in_proj_out, gpt->pass.cache_row, cache);
    }
    attention_forward(operations, gpt->shape, &values, &gpt->scratch.attention, attention_dropout(gpt, sublayer));
}

static void attend_backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_output) {
    struct operations *operations = &gpt->operations;
    const struct gpt_scratch *scratch = &gpt->scratch;
    const struct attention_values values = {sublayer->in_proj_out, sublayer->out_proj_in, sublayer->lse};
    const size_t tokens = gpt_tokens(gpt);
    linear_backward(operations, &gpt->parameters, sublayer->at->out, tokens, sublayer->out_proj_in, d_output,
                    scratch->d_out_proj_in, NULL);
    compute_set_module(gpt->compute, "attention");
    attention_backward(operations, gpt->shape, &values, &scratch->attention, attention_dropout(gpt, sublayer),
                       scratch->d_out_proj_in, scratch->d_in_proj_out);
    linear_backward(operations, &gpt->parameters, sublayer->at->in, tokens, sublayer->mix.normed,
                    scratch->d_in_proj_out, scratch->d_normed, NULL);
}

/* ---- MLP */

static void expand(struct gpt *gpt, const struct sublayer *sublayer) {
    linear_forward(&gpt->operations, &gpt->parameters, sublayer->at->in, gpt_tokens(gpt), sublayer->mix.normed,
                   sublayer->in_proj_out, sublayer->out_proj_in);
}

/* The GELU's output is the larger half of an MLP's memory: it is computed again unless the plan keeps it. */
static void expand_backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_output) {
    struct operations *operations = &gpt->operations;
    const struct buffer *d_out_proj_in = gpt->scratch.d_out_proj_in;
    const struct linear in = sublayer->at->in;
    const size_t tokens = gpt_tokens(gpt);
    if (!gpt->keeps_activation) {
        compute_set_module(gpt->compute, "GELU");
        gelu_forward(operations, tokens * in.out, sublayer->in_proj_out, sublayer->out_proj_in);
    }
    linear_backward(operations, &gpt->parameters, sublayer->at->out, tokens, sublayer->out_proj_in, d_output,
                    d_out_proj_in, sublayer->in_proj_out);
    linear_backward(operations, &gpt->parameters, in, tokens, sublayer->mix.normed, d_out_proj_in,
                    gpt->scratch.d_normed, NULL);
}

/* ---- either */

const struct branch branches[BRANCHES] = {
    {"ln_1", "attn.c_attn", "attn.c_proj", "hc_attn", 3, 1, true, false, attend, attend_backward},
    {"ln_2", "mlp.c_fc", "mlp.c_proj", "hc_mlp", 4, 4, false, true, expand, expand_backward},
};

static void drop(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *output) {
    compute_set_module(gpt->compute, "dropout");
    dropout_apply(&gpt->operations, gpt_tokens(gpt), (size_t)gpt->config.n_embd,
                  gpt_dropout(gpt, "%" PRId64 " output", sublayer->index), output);
}

void branch_forward(struct gpt *gpt, const struct sublayer *sublayer) {
    sublayer->branch->forward(gpt, sublayer);
    linear_forward(&gpt->operations, &gpt->parameters, sublayer->at->out, gpt_tokens(gpt), sublayer->out_proj_in,
                   sublayer->mix.output, NULL);
    drop(gpt, sublayer, sublayer->mix.output);
}

void branch_backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_output) {
    drop(gpt, sublayer, d_output);
    sublayer->branch->backward(gpt, sublayer, d_output);
}
