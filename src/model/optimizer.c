#include "src/model/optimizer.h"
#include <math.h>

double optimizer_rate(const struct optimizer_settings *settings, int64_t iteration) {
    const double highest = settings->learning_rate, lowest = settings->min_lr;
    if (iteration < settings->warmup_iters) {
        return highest * (double)(iteration + 1) / (double)(settings->warmup_iters + 1);
    }
    if (iteration > settings->lr_decay_iters || settings->lr_decay_iters <= settings->warmup_iters) {
        return lowest;
    }
    const double done =
        (double)(iteration - settings->warmup_iters) / (double)(settings->lr_decay_iters - settings->warmup_iters);
    return lowest + 0.5 * (1.0 + cos(3.14159265358979323846 * done)) * (highest - lowest);
}

void optimizer_update(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration,
                      struct adamw_range range) {
    const struct parameters *parameters = &gpt->parameters;
    compute_set_module(gpt->compute, "optimiser");
    const struct adamw_settings step = {
        .rate = (float)optimizer_rate(settings, iteration),
        .beta1 = (float)settings->beta1,
        .beta2 = (float)settings->beta2,
        .decay = (float)settings->weight_decay,
        .clip = (float)settings->grad_clip,
        .step = iteration + 1 - gpt->loss_scale.skipped,
        .unscale = 1.0f / gpt->loss_scale.scale,
    };
    const struct adamw_arenas arenas = {
        .weights = parameters->weights,
        .gradients = parameters->gradients,
        .weights_lowp = parameters->weights_lowp,
        .first_moments = parameters->first_moments,
        .second_moments = parameters->second_moments,
        .decayed = parameters->decayed,
    };
    adamw_step(&gpt->operations, &arenas, range, &step, gpt->gradient_norm);
}

void optimizer_step(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration) {
    const struct parameters *parameters = &gpt->parameters;
    compute_set_module(gpt->compute, "optimiser");
    norm_total(&gpt->operations, parameters->gradients, parameters->elements, 1.0f / gpt->loss_scale.scale,
               (struct span){gpt->gradient_norm, 0});
    optimizer_update(gpt, settings, iteration, (struct adamw_range){0, parameters->elements, 0});
}
