/* MLP: output = gelu(normed W_fc^T) W_proj^T, with 4 C hidden channels. */
#include "src/model/gpt_state.h"
#include "src/model/linear.h"

static void add_parameters(struct parameter_builder *builder, struct sublayer_offsets *at) {
    const size_t width = (size_t)builder->config->n_embd;
    parameters_add_linear(builder, "mlp.c_fc", width, 4 * width, LINEAR_INNER, &at->in);
    parameters_add_linear(builder, "mlp.c_proj", 4 * width, width, LINEAR_OUTPUT, &at->out);
}

static void forward(struct gpt *gpt, const struct sublayer *sublayer) {
    linear_forward(&gpt->operations, &gpt->parameters, sublayer->at->in, gpt_tokens(gpt), sublayer->mix.normed,
                   sublayer->in_proj_out, sublayer->out_proj_in);
}

/* The GELU's output is the larger half of an MLP's memory: it is computed again unless the plan keeps it. */
static void backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_output) {
    struct operations *operations = &gpt->operations;
    const struct buffer *d_hidden = gpt->scratch.d_out_proj_in;
    const struct linear in = sublayer->at->in;
    const size_t tokens = gpt_tokens(gpt);
    if (!gpt->keeps_activation) {
        compute_set_module(gpt->compute, "GELU");
        activation_forward(operations, tokens * in.out, sublayer->in_proj_out, sublayer->out_proj_in);
    }
    linear_backward(operations, &gpt->parameters, sublayer->at->out, tokens, sublayer->out_proj_in, d_output,
                    d_hidden, sublayer->in_proj_out);
    linear_backward(operations, &gpt->parameters, in, tokens, sublayer->mix.normed, d_hidden, gpt->scratch.d_normed,
                    NULL);
}

const struct branch branch_mlp = {
    .norm = "ln_2",
    .hyper_connection = "hc_mlp",
    .recomputed = true,
    .add_parameters = add_parameters,
    .forward = forward,
    .backward = backward,
};
