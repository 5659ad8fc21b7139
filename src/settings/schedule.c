#include "src/settings/schedule.h"
#include "runtime/system/error.h"
#include "runtime/system/message.h"
#include <stdlib.h>

/* A part that may follow another setting. */
struct open_part {
    const char *followed; /* that setting; NULL: the part was given, together with it or later, and stays */
    bool given;           /* the part was given all the same, but earlier */
};

static struct open_part find_part(const struct option_spec *specs, size_t count, const char *part,
                                  const char *followed) {
    const unsigned given = options_source(specs, count, part);
    const bool is_open = given == 0 || given < options_source(specs, count, followed);
    return (struct open_part){is_open ? followed : NULL, given > 0};
}

struct open_parts {
    struct open_part min_lr, lr_decay_iters, warmup_iters;
};

static struct open_parts find_open(const struct option_spec *specs, size_t count) {
    const struct open_part decay = find_part(specs, count, "lr_decay_iters", "max_iters");
    return (struct open_parts){
        .min_lr = find_part(specs, count, "min_lr", "learning_rate"),
        .lr_decay_iters = decay,
        .warmup_iters = find_part(specs, count, "warmup_iters", decay.followed ? "max_iters" : "lr_decay_iters"),
    };
}

/* The double that the tenth has in decimal: 6e-5 for 6e-4, where a division gives 5.9999999999999995e-05. */
static double tenth(double number) {
    char text[32];
    snprintf(text, sizeof text, "%.15g", number / 10.0);
    return strtod(text, NULL);
}

/* Prints what was derived in one line, with the value from before if that was given. */
static void print_part(FILE *console, const char *name, double value, const char *rule, struct open_part part,
                       double before) {
    if (console) {
        message_print(console, "schedule %s = %.15g, %s", name, value, rule);
        if (part.given && before != value) {
            message_print(console, " (replaces %s = %.15g, which was given before %s)", name, before,
                          part.followed);
        }
        fputc('\n', console);
    }
}

void schedule_complete(const struct option_spec *specs, size_t count, int64_t iterations,
                       struct optimizer_settings *optimizer, FILE *console) {
    const struct open_parts open = find_open(specs, count);
    const struct optimizer_settings before = *optimizer;
    FILE *const decay_console = optimizer->lr_schedule == LR_CONSTANT ? NULL : console;
    if (open.min_lr.followed) {
        optimizer->min_lr = tenth(optimizer->learning_rate);
        print_part(decay_console, "min_lr", optimizer->min_lr, "a tenth of learning_rate", open.min_lr,
                   before.min_lr);
    }
    if (open.lr_decay_iters.followed && iterations > 0) {
        optimizer->lr_decay_iters = iterations;
        print_part(decay_console, "lr_decay_iters", (double)iterations, "the number of iterations",
                   open.lr_decay_iters, (double)before.lr_decay_iters);
    }
    if (open.warmup_iters.followed && optimizer->warmup_iters > optimizer->lr_decay_iters / 10) {
        optimizer->warmup_iters = optimizer->lr_decay_iters / 10;
        print_part(console, "warmup_iters", (double)optimizer->warmup_iters, "a tenth of lr_decay_iters",
                   open.warmup_iters, (double)before.warmup_iters);
    }
}

void schedule_keep(const struct option_spec *specs, size_t count, const struct optimizer_settings *saved,
                   struct optimizer_settings *optimizer) {
    const struct open_parts open = find_open(specs, count);
    optimizer->min_lr = open.min_lr.followed ? saved->min_lr : optimizer->min_lr;
    optimizer->lr_decay_iters = open.lr_decay_iters.followed ? saved->lr_decay_iters : optimizer->lr_decay_iters;
    optimizer->warmup_iters = open.warmup_iters.followed ? saved->warmup_iters : optimizer->warmup_iters;
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
