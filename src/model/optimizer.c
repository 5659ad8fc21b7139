#include "src/model/optimizer.h"
#include "runtime/options/option_rows.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
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
    return parameter->frozen ? parameter->steps : adamw_steps(gpt, parameter, iteration);
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
