#include "src/model/optimizer_settings.h"
#include <math.h>

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
    case LR_COSINE:
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

double optimizer_rate_of(const struct optimizer_settings *settings, int64_t iteration, double highest) {
    struct optimizer_settings shape = *settings;
    if (highest < 0.0) {
        return optimizer_rate(settings, iteration);
    }
    if (settings->learning_rate <= 0.0) {
        shape.learning_rate = 1.0;
        shape.min_lr = 0.0;
    }
    return optimizer_rate(&shape, iteration) * highest / shape.learning_rate;
}
