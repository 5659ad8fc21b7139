#include "src/settings/schedule.h"
#include "runtime/system/error.h"
#include "runtime/system/message.h"
#include <stdlib.h>
#include <string.h>

/* Which parts are open, and which of them were given all the same, but earlier than what they follow from. */
struct open_parts {
    bool min_lr, lr_decay_iters, warmup_iters;
    bool min_lr_given, lr_decay_iters_given, warmup_iters_given;
    const char *warmup_follows; /* the setting that warmup_iters was given before, if it is open and was given */
};

/* The source that set the option; 0 if none did, or there is no such option. */
static unsigned source_of(const struct option_spec *specs, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++) {
        if (specs[i].name && strcmp(specs[i].name, name) == 0) {
            return specs[i].given;
        }
    }
    return 0;
}

static struct open_parts find_open(const struct option_spec *specs, size_t count) {
    const unsigned min_lr = source_of(specs, count, "min_lr"), decay = source_of(specs, count, "lr_decay_iters");
    const unsigned warmup = source_of(specs, count, "warmup_iters");
    const unsigned iterations = source_of(specs, count, "max_iters");
    const bool decay_open = decay == 0 || decay < iterations;
    return (struct open_parts){
        .min_lr = min_lr == 0 || min_lr < source_of(specs, count, "learning_rate"),
        .lr_decay_iters = decay_open,
        .warmup_iters = warmup == 0 || warmup < (decay_open ? iterations : decay),
        .min_lr_given = min_lr > 0,
        .lr_decay_iters_given = decay > 0,
        .warmup_iters_given = warmup > 0,
        .warmup_follows = decay_open ? "max_iters" : "lr_decay_iters",
    };
}

/* The double that the tenth has in decimal: 6e-5 for 6e-4, where a division gives 5.9999999999999995e-05. */
static double tenth(double number) {
    char text[32];
    snprintf(text, sizeof text, "%.15g", number / 10.0);
    return strtod(text, NULL);
}

/* Says what was derived in one line, with the given value that it replaces. `followed` is the setting that was
 * given later than that value; NULL: no value was given. */
static void print_part(FILE *console, const char *name, double value, const char *rule, const char *followed,
                       double before) {
    if (console) {
        message_print(console, "schedule %s = %.15g, %s", name, value, rule);
        if (followed && before != value) {
            message_print(console, " (replaces %s = %.15g, which was given before %s)", name, before, followed);
        }
        fputc('\n', console);
    }
}

void schedule_complete(const struct option_spec *specs, size_t count, int64_t iterations,
                       struct optimizer_settings *optimizer, FILE *console) {
    const struct open_parts open = find_open(specs, count);
    const struct optimizer_settings before = *optimizer;
    if (open.min_lr) {
        optimizer->min_lr = tenth(optimizer->learning_rate);
        print_part(console, "min_lr", optimizer->min_lr, "a tenth of learning_rate",
                   open.min_lr_given ? "learning_rate" : NULL, before.min_lr);
    }
    if (open.lr_decay_iters && iterations > 0) {
        optimizer->lr_decay_iters = iterations;
        print_part(console, "lr_decay_iters", (double)iterations, "the number of iterations",
                   open.lr_decay_iters_given ? "max_iters" : NULL, (double)before.lr_decay_iters);
    }
    if (open.warmup_iters && optimizer->warmup_iters > optimizer->lr_decay_iters / 10) {
        optimizer->warmup_iters = optimizer->lr_decay_iters / 10;
        print_part(console, "warmup_iters", (double)optimizer->warmup_iters, "a tenth of lr_decay_iters",
                   open.warmup_iters_given ? open.warmup_follows : NULL, (double)before.warmup_iters);
    }
}

void schedule_keep(const struct option_spec *specs, size_t count, const struct optimizer_settings *saved,
                   struct optimizer_settings *optimizer) {
    const struct open_parts open = find_open(specs, count);
    optimizer->min_lr = open.min_lr ? saved->min_lr : optimizer->min_lr;
    optimizer->lr_decay_iters = open.lr_decay_iters ? saved->lr_decay_iters : optimizer->lr_decay_iters;
    optimizer->warmup_iters = open.warmup_iters ? saved->warmup_iters : optimizer->warmup_iters;
}

int schedule_check(const struct optimizer_settings *optimizer) {
    return optimizer->min_lr <= optimizer->learning_rate
               ? 0
               : error_set(
                     "the learning rate would rise from learning_rate = %g to min_lr = %g: give a min_lr of at "
                     "most learning_rate, or leave it out for a tenth",
                     optimizer->learning_rate, optimizer->min_lr);
}
