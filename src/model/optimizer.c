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

/* What is left of the way from learning_rate down to min_lr `done` iterations after it began, of `whole`: 1 .. 0.
 */
static double line(double done, double whole) {
    return done >= whole ? 0.0 : done <= 0.0 ? 1.0 : 1.0 - done / whole;
}

static double height(const struct optimizer_settings *settings, int64_t iteration) {
    const double now = (double)iteration, warm = (double)settings->warmup_iters,
                 end = (double)settings->lr_decay_iters, cooldown = settings->cooldown_fraction * end;
    const bool is_over = now > end || end <= warm;
    switch (settings->lr_schedule) {
    case LR_CONSTANT:
        return 1.0;
    case LR_WSD:
        return line(now - (end - cooldown), cooldown);
    case LR_LINEAR:
        return line(now - warm, end - warm);
    default:
        return is_over ? 0.0 : 0.5 * (1.0 + cos(3.14159265358979323846 * ((now - warm) / (end - warm))));
    }
}

double optimizer_rate(const struct optimizer_settings *settings, int64_t iteration) {
    const double highest = settings->learning_rate, lowest = settings->min_lr;
    if (iteration < settings->warmup_iters) {
        return highest * (double)(iteration + 1) / (double)(settings->warmup_iters + 1);
    }
    return lowest + height(settings, iteration) * (highest - lowest);
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
