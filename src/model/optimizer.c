#include "src/model/optimizer.h"
#include "runtime/system/array.h"
#include <math.h>

/* ---- AdamW */

static void adamw(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration,
                  struct optimizer_range range) {
    const struct parameters *parameters = &gpt->parameters;
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
        .first_moments = parameters->states[0],
        .second_moments = parameters->states[1],
        .decayed = parameters->decayed,
    };
    adamw_step(&gpt->operations, &arenas, range, &step, gpt->gradient_norm);
}

static const struct optimizer_option adamw_options[] = {
    {"beta1", "0.9", offsetof(struct optimizer_settings, beta1), 0, 0.999999, "adamw: decay of the first moment"},
    {"beta2", "0.95", offsetof(struct optimizer_settings, beta2), 0, 0.999999, "adamw: decay of the second moment"},
    {.name = NULL},
};

/* ---- the table */

static const struct optimizer optimizers[] = {
    {"adamw", {"exp_avg", "exp_avg_sq"}, adamw_options, adamw},
};

const struct optimizer *optimizer_at(size_t number) {
    return number < COUNT(optimizers) ? &optimizers[number] : NULL;
}

const char *optimizer_names(void) {
    static char names[256];
    for (size_t i = 0, used = 0; i < COUNT(optimizers); i++) {
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? "|" : "", optimizers[i].name);
    }
    return names;
}

/* ---- a step */

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
                      struct optimizer_range range) {
    compute_set_module(gpt->compute, "optimizer");
    gpt->options.optimizer->step(gpt, settings, iteration, range);
}

void optimizer_step(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration) {
    const struct parameters *parameters = &gpt->parameters;
    compute_set_module(gpt->compute, "optimizer");
    norm_total(&gpt->operations, parameters->gradients, parameters->elements, 1.0f / gpt->loss_scale.scale,
               (struct span){gpt->gradient_norm, 0});
    optimizer_update(gpt, settings, iteration, (struct optimizer_range){0, parameters->elements, 0});
}
