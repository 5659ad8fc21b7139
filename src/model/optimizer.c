#include "src/model/optimizer.h"
#include "runtime/options/option_rows.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include <math.h>
#include <string.h>

/* ---- the table */

static const struct optimizer *const optimizers[] = {&optimizer_adamw, &optimizer_muon};

const struct optimizer *optimizer_at(size_t number) {
    return number < COUNT(optimizers) ? optimizers[number] : NULL;
}

const char *optimizer_names(void) {
    static char names[256];
    for (size_t i = 0, used = 0; i < COUNT(optimizers); i++) {
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? "|" : "", optimizers[i]->name);
    }
    return names;
}

const char *optimizer_help(void) {
    static char text[512];
    for (size_t i = 0, used = 0; i < COUNT(optimizers); i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s: of %s", i ? "; " : "", optimizers[i]->name,
                                 optimizers[i]->updates);
    }
    return text;
}

enum element_type optimizer_matrix_type(const struct optimizer_settings *settings, const struct compute *compute,
                                        enum element_type activations) {
    const struct optimizer_matrices *matrices = optimizer_at((size_t)settings->optimizer)->matrices;
    return matrices ? matrices->type(settings, compute, activations) : ELEMENT_FP32;
}

const char *optimizer_state(const struct optimizer *optimizer, const struct parameter *parameter, size_t state) {
    if (state < OPTIMIZER_MOST_STATES && !(optimizer->matrices && parameter->matrices[0])) {
        return optimizer->states[state];
    }
    return state == 0 ? optimizer->matrices->state : NULL;
}

uint64_t optimizer_state_offset(const struct optimizer *optimizer, const struct parameters *parameters,
                                size_t state, uint64_t offset) {
    return optimizer->matrices && state > 0 ? parameters_outside_matrices(parameters, offset) : offset;
}

int64_t optimizer_steps(const struct gpt *gpt, const struct parameter *parameter, int64_t iteration) {
    if (parameter->without_gradient ||
        (gpt->options.optimizer.freeze_alpha_res && parameter_is_alpha_res(parameter))) {
        return 0;
    }
    return parameter->frozen ? parameter->steps : trained_steps(gpt, parameter, iteration);
}

bool optimizer_has_option(const struct optimizer *optimizer, const char *name) {
    static struct option_table table;
    struct optimizer_settings settings;
    table.count = 0;
    for (; optimizer; optimizer = optimizer->others) {
        if (optimizer->options) {
            optimizer->options(&settings, &table);
        }
    }
    for (size_t i = 0; i < table.count; i++) {
        if (table.rows[i].name && strcmp(table.rows[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

int optimizer_check_following(const char *name, double value, const char *follows) {
    if (value < 0.0 && !(value == -1.0)) {
        return error_set("%s = %g is negative: give 0 or more, or -1 for %s", name, value, follows);
    }
    return 0;
}

int optimizer_check(const struct optimizer_settings *settings) {
    const struct optimizer *optimizer = optimizer_at((size_t)settings->optimizer);
    for (; optimizer; optimizer = optimizer->others) {
        if (optimizer->check && optimizer->check(settings)) {
            return -1;
        }
    }
    return optimizer_check_following("new_learning_rate", settings->new_learning_rate,
                                     "the rate of other parameters");
}

/* ---- a step */

void optimizer_update(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration,
                      struct optimizer_range range) {
    compute_set_module(gpt->compute, "optimizer");
    gpt->optimizer->step(gpt, settings, iteration, range);
}

void optimizer_step(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration) {
    const struct parameters *parameters = &gpt->parameters;
    compute_set_module(gpt->compute, "optimizer");
    norm_total(&gpt->operations, parameters->gradients, parameters->gradients_end, 1.0f / gpt->loss_scale.scale,
               (struct span){gpt->gradient_norm, 0});
    optimizer_update(gpt, settings, iteration, (struct optimizer_range){0, parameters->gradients_end, {0}});
}

/* ---- the schedule of the learning rate */

/* What is left of the way from learning_rate down to min_lr `done` iterations after it began, of `whole`: 1 .. 0.
 */
static double line(double done, double whole) {
    return done >= whole ? 0.0 : done <= 0.0 ? 1.0 : 1.0 - done / whole;
}

static double height(const struct optimizer_settings *settings, double now) {
    const double warm = (double)settings->warmup_iters, end = (double)settings->lr_decay_iters,
                 cooldown = settings->cooldown_fraction * end;
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
    const double now = settings->schedule_now > 0.0 ? settings->schedule_now : (double)iteration;
    if (now < (double)settings->warmup_iters) {
        return highest * (now + 1.0) / (double)(settings->warmup_iters + 1);
    }
    return lowest + height(settings, now) * (highest - lowest);
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

/* ---- the loss scale */

/* As PyTorch's GradScaler has them; it has no limits. Gradients that overflow at a scale of 1 are above 65504. */
static const float FIRST = 65536.0f, LEAST = 1.0f, MOST = 0x1p+32f, GROWTH = 2.0f, BACKOFF = 0.5f;
static const int64_t GROWTH_INTERVAL = 2000;

struct loss_scale loss_scale_begin(enum element_type type) {
    const bool dynamic = type == ELEMENT_FP16;
    return (struct loss_scale){.scale = dynamic ? FIRST : 1.0f, .dynamic = dynamic};
}

bool loss_scale_is_valid(const struct loss_scale *scale) {
    int exponent;
    return scale->scale >= LEAST && scale->scale <= MOST && frexpf(scale->scale, &exponent) == 0.5f &&
           scale->good_steps >= 0 && scale->good_steps < GROWTH_INTERVAL && scale->skipped >= 0;
}

bool loss_scale_update(struct loss_scale *scale, bool finite) {
    if (!scale->dynamic || (!finite && scale->scale <= LEAST)) {
        return finite;
    }
    if (!finite) {
        scale->scale *= BACKOFF;
        scale->good_steps = 0;
        scale->skipped++;
    } else if (++scale->good_steps == GROWTH_INTERVAL) {
        scale->scale = fminf(scale->scale * GROWTH, MOST);
        scale->good_steps = 0;
    }
    return true;
}
