#include "src/model/branch.h"
#include "src/model/gpt_state.h"
#include "src/model/linear.h"
#include <inttypes.h>

const struct branch *const branches[BRANCHES] = {&branch_attention, &branch_mlp};

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
