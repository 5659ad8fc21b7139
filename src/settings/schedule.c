#include "src/settings/schedule.h"
#include "runtime/system/error.h"
#include "runtime/system/message.h"
#include <stdlib.h>

/* The parts, and for each the setting that it follows; NULL: the part was given, together with it or later. */
enum part { MIN_LR, LR_DECAY_ITERS, WARMUP_ITERS, PARTS };
static const char *const names[PARTS] = {"min_lr", "lr_decay_iters", "warmup_iters"};

static void find_followed(const struct option_spec *specs, size_t count, const char *followed[PARTS]) {
    followed[MIN_LR] = "learning_rate";
    followed[LR_DECAY_ITERS] = followed[WARMUP_ITERS] = "max_iters";
    for (int part = 0; part < PARTS; part++) {
        const unsigned given = options_source(specs, count, names[part]);
        if (part == WARMUP_ITERS && !followed[LR_DECAY_ITERS]) {
            followed[part] = "lr_decay_iters";
        }
        if (given > 0 && given >= options_source(specs, count, followed[part])) {
            followed[part] = NULL;
        }
    }
}

/* The double that the tenth has in decimal: 6e-5 for 6e-4, where a division gives 5.9999999999999995e-05. */
static double tenth(double number) {
    char text[32];
    snprintf(text, sizeof text, "%.15g", number / 10.0);
    return strtod(text, NULL);
}

void schedule_complete(const struct option_spec *specs, size_t count, int64_t iterations,
                       struct optimizer_settings *optimizer, FILE *console) {
    static const char *const rules[PARTS] = {"a tenth of learning_rate", "the number of iterations",
                                             "a tenth of lr_decay_iters"};
    const double before[PARTS] = {optimizer->min_lr, (double)optimizer->lr_decay_iters,
                                  (double)optimizer->warmup_iters};
    const bool decays = optimizer->lr_schedule != LR_CONSTANT;
    bool prints[PARTS] = {false};
    const char *followed[PARTS];
    find_followed(specs, count, followed);
    if (followed[MIN_LR]) {
        optimizer->min_lr = tenth(optimizer->learning_rate);
        prints[MIN_LR] = decays;
    }
    if (followed[LR_DECAY_ITERS] && iterations > 0) {
        optimizer->lr_decay_iters = iterations;
        prints[LR_DECAY_ITERS] = decays;
    }
    if (followed[WARMUP_ITERS] && optimizer->warmup_iters > optimizer->lr_decay_iters / 10) {
        optimizer->warmup_iters = optimizer->lr_decay_iters / 10;
        prints[WARMUP_ITERS] = true;
    }
    const double after[PARTS] = {optimizer->min_lr, (double)optimizer->lr_decay_iters,
                                 (double)optimizer->warmup_iters};
    for (int part = 0; console && part < PARTS; part++) {
        if (!prints[part]) {
            continue;
        }
        message_print(console, "schedule %s = %.15g, %s", names[part], after[part], rules[part]);
        if (options_source(specs, count, names[part]) > 0 && before[part] != after[part]) {
            message_print(console, " (replaces %s = %.15g, which was given before %s)", names[part], before[part],
                          followed[part]);
        }
        fputc('\n', console);
    }
}

void schedule_keep(const struct option_spec *specs, size_t count, const struct optimizer_settings *saved,
                   struct optimizer_settings *optimizer) {
    const char *followed[PARTS];
    find_followed(specs, count, followed);
    optimizer->min_lr = followed[MIN_LR] ? saved->min_lr : optimizer->min_lr;
    optimizer->lr_decay_iters = followed[LR_DECAY_ITERS] ? saved->lr_decay_iters : optimizer->lr_decay_iters;
    optimizer->warmup_iters = followed[WARMUP_ITERS] ? saved->warmup_iters : optimizer->warmup_iters;
}

int schedule_check(const struct optimizer_settings *optimizer) {
    if (optimizer->min_lr <= optimizer->learning_rate) {
        return optimizer_check(optimizer);
    }
    return error_set(
        "the learning rate would rise from learning_rate = %g to min_lr = %g: give a min_lr of at most "
        "learning_rate, or leave it out for a tenth",
        optimizer->learning_rate, optimizer->min_lr);
}
