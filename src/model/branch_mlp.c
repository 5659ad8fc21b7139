/* MLP with M hidden channels: output = f(normed W_fc^T) W_proj^T; or, gated, (f(normed W_gate^T) * (normed W_fc^T))
 * W_proj^T, where one GEMM computes both input projections. f is the activation of operations.h. */
#include "src/model/gpt.h"
#include "src/model/linear.h"

static bool is_gated(const struct gpt *gpt) {
    return mlp_is_gated(gpt->config.mlp);
}

static void add_parameters(struct parameter_builder *builder, struct sublayer_offsets *at) {
    const struct model_config *config = builder->config;
    const size_t width = (size_t)config->n_embd, hidden = (size_t)config->mlp_width;
    const bool gated = mlp_is_gated(config->mlp);
    parameters_add_linear(builder, gated ? "mlp.c_gate" : "mlp.c_fc", width, hidden, NULL, config->bias,
                          LINEAR_INNER, &at->in);
    if (gated) {
        parameters_join_linear(builder, "mlp.c_fc", &at->in);
    }
    parameters_add_adapters(builder, &at->in, gated ? 2 : 1,
                            (enum lora_module[]){gated ? LORA_GATE : LORA_UP, LORA_UP},
                            (uint64_t[]){hidden, hidden});
    parameters_add_linear(builder, "mlp.c_proj", hidden, width, NULL, config->bias, LINEAR_OUTPUT, &at->out);
    parameters_add_adapters(builder, &at->out, 1, (enum lora_module[]){LORA_DOWN}, (uint64_t[]){width});
}

/* in_proj_out -> out_proj_in */
static void activate(struct gpt *gpt, const struct sublayer *sublayer) {
    const size_t tokens = gpt_tokens(gpt);
    compute_set_module(gpt->compute, is_gated(gpt) ? "gated MLP" : "activation");
    if (is_gated(gpt)) {
        gated_forward(&gpt->operations, tokens, sublayer->in_proj_out, sublayer->out_proj_in);
    } else {
        activation_forward(&gpt->operations, tokens * sublayer->at->in.out, sublayer->in_proj_out,
                           sublayer->out_proj_in);
    }
}

static void forward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct linear_input input = {0, sublayer->at->in.out, sublayer->mix.normed, NULL,
                                       gpt_adapter_dropout(gpt, sublayer->index, "in")};
    linear_forward(&gpt->operations, &gpt->parameters, &sublayer->at->in, gpt_tokens(gpt), &input, 1,
                   sublayer->in_proj_out, is_gated(gpt) ? NULL : sublayer->out_proj_in);
    if (is_gated(gpt)) {
        activate(gpt, sublayer);
    }
}

/* The activation's output is a large part of an MLP's memory: it is computed again unless the plan keeps it. Of a
 * gated MLP the gradient of in_proj_out takes its place. */
static void backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_output) {
    struct operations *operations = &gpt->operations;
    const struct buffer *d_out_proj_in = gpt->scratch.d_out_proj_in;
    const struct buffer *d_in_proj_out = is_gated(gpt) ? sublayer->in_proj_out : d_out_proj_in;
    const size_t tokens = gpt_tokens(gpt);
    if (!gpt->keeps_activation) {
        activate(gpt, sublayer);
    }
    const struct linear_input output = {0, sublayer->at->out.out, sublayer->out_proj_in, d_out_proj_in,
                                        gpt_adapter_dropout(gpt, sublayer->index, "out")};
    linear_backward(operations, &gpt->parameters, &sublayer->at->out, tokens, &output, 1, d_output,
                    sublayer->in_proj_out);
    const struct linear_input input = {0, sublayer->at->in.out, sublayer->mix.normed, gpt->scratch.d_normed,
                                       gpt_adapter_dropout(gpt, sublayer->index, "in")};
    linear_backward(operations, &gpt->parameters, &sublayer->at->in, tokens, &input, 1, d_in_proj_out, NULL);
}

const struct branch branch_mlp = {
    .norm = "ln_2",
    .hyper_connection = "hc_mlp",
    .recomputed = true,
    .add_parameters = add_parameters,
    .forward = forward,
    .backward = backward,
};
