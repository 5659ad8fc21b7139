#include "src/model/frame_parts.h"

void frame_add_norm(struct parameter_builder *builder, int64_t sublayer) {
    const bool is_top = sublayer == BRANCHES * builder->config->n_layer;
    parameters_add_norm(builder, is_top ? "ln_f" : branches[sublayer % BRANCHES]->norm,
                        &builder->parameters->sublayers[sublayer].norm);
}

bool frame_plan_streams(struct gpt *gpt, struct sublayer *sublayer) {
    const int64_t streams = gpt->config.n_streams;
    const bool is_top = !sublayer->branch, shared = sublayer->index >= BRANCHES && !is_top;
    if (shared && gpt_shares_streams(gpt)) {
        return false;
    }
    const bool inside = gpt->options.recompute && sublayer->index % BRANCHES > 0; /* a layer */
    if (!(shared && inside)) {
        sublayer->mix.streams = gpt_plan_activations(gpt, "streams", streams * gpt->config.n_embd);
    }
    sublayer->mix.squares = gpt_plan_floats(gpt, "streams", streams);
    return true;
}
