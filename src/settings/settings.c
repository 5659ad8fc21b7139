#include "src/settings/settings.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "runtime/system/message.h"
#include <stdlib.h>
#include <string.h>

void settings_optimizer_options(struct optimizer_settings *settings, const char *iterations,
                                struct option_table *table) {
    const struct option_spec shared[] = {
        HEADING("Optimizer"),
        CHOICE("optimizer", &settings->optimizer, optimizer_at(0)->name, optimizer_names(), optimizer_help()),
        FLOAT("learning_rate", &settings->learning_rate, "6e-4", 0, 10, "highest learning rate, after warm-up"),
        FLOAT_FOLLOWING("a tenth of learning_rate", "min_lr", &settings->min_lr, "6e-5", 0, 10,
                        "learning rate at lr_decay_iters and after, not above learning_rate"),
        INT_FOLLOWING("200, or a tenth of lr_decay_iters if that is less", "warmup_iters", &settings->warmup_iters,
                      "200", 0, 1e12, "iterations of linear warm-up"),
        INT_FOLLOWING(iterations, "lr_decay_iters", &settings->lr_decay_iters, "1000", 0, 1e12,
                      "where learning_rate has come down to min_lr"),
        CHOICE("lr_schedule", &settings->lr_schedule, "cosine", LR_SCHEDULE_WORDS,
               "how the rate falls after warm-up: along a cosine; wsd: in a line at the end alone, over "
               "cooldown_fraction of lr_decay_iters; in a line all the way; not at all"),
        FLOAT("cooldown_fraction", &settings->cooldown_fraction, "0.7", 0, 1,
              "wsd: share of lr_decay_iters over which the rate falls"),
        FLOAT("weight_decay", &settings->weight_decay, "0.1", 0, 10, "of Linear, embedding and projection weights"),
        FLOAT("grad_clip", &settings->grad_clip, "1.0", 0, 1e9, "largest global gradient norm, 0 for no clipping"),
        FLOAT("new_learning_rate", &settings->new_learning_rate, "-1", -1, 10,
              "highest learning rate of the parameters that a residual connection adds to a plain model (hc_attn, "
              "hc_mlp, hc_head, mudd, dense, stream_scale, lambdas, value embeddings), unless they have a rate of "
              "their own, with the same schedule. For a pretrained model it should be above learning_rate "
              "(-1: as of other parameters; 0: they keep their values)"),
        TEXT("freeze", &settings->freeze, "",
             "parameters whose names this regular expression (PCRE2) matches somewhere, such as 'wte|ln_', "
             "keep their values: they are not in the gradient norm, and have no weight decay"),
        FROZEN_WEIGHTS_OPTION(&settings->frozen_weights),
        CHOICE("moments", &settings->moments, "fp32", KEPT_TYPE_WORDS,
               "type in which the optimizer's states, moments or momentum, are kept. bf16: half the bytes, rounded "
               "up or down "
               "at random so that the mean is right"),
        CHOICE(
            "master", &settings->master, "fp32", KEPT_TYPE_WORDS,
            "type in which embeddings and the weights of Linear layers are kept between steps. bf16, with --dtype "
            "bf16: there is no copy in fp32, which saves 4 bytes for each, and a step rounds them up or down at "
            "random"),
        BOOL("freeze_alpha_res", &settings->freeze_alpha_res, "false",
             "keep alpha_res of hyper-connections as they are, outside the gradient norm"),
    };
    const struct optimizer *optimizer;
    options_append(table, shared, COUNT(shared));
    for (size_t i = 0; (optimizer = optimizer_at(i)); i++) {
        if (optimizer->options) {
            optimizer->options(settings, table);
        }
    }
}

/* ---- options that do nothing */

void unused_options_print(const struct option_spec *specs, size_t count, const struct model_config *model,
                          const struct optimizer_settings *optimizer, bool is_resumed, FILE *console) {
    const struct optimizer *chosen = optimizer_at((size_t)optimizer->optimizer);
    const bool is_constant = optimizer->lr_schedule == LR_CONSTANT, is_wsd = optimizer->lr_schedule == LR_WSD,
               turns = model->position == POSITION_ROPE;
    char schedule[32], position[32];
    options_word(LR_SCHEDULE_WORDS, optimizer->lr_schedule, schedule, sizeof schedule);
    options_word(POSITION_WORDS, model->position, position, sizeof position);
    const struct {
        const char *subject, *name;
        bool is_unused;
        const char *setting, *word; /* with which it has no effect */
    } all[] = {
        {"schedule", "min_lr", is_constant && !is_resumed, "lr_schedule", schedule},
        {"schedule", "lr_decay_iters", is_constant && !is_resumed, "lr_schedule", schedule},
        {"schedule", "cooldown_fraction", !is_wsd, "lr_schedule", schedule},
        {"optimizer", "decay_hc_gain", !optimizer->decay_all, "decay_all", "false"},
        {"optimizer", "head_learning_rate", model->tie_embeddings, "tie_embeddings", "true"},
        {"optimizer", "value_embed_learning_rate", !model->value_embeds, "value_embeds", "false"},
        {"optimizer", "resid_lambda_learning_rate", !model->x0_lambdas, "x0_lambdas", "false"},
        {"optimizer", "x0_lambda_learning_rate", !model->x0_lambdas, "x0_lambdas", "false"},
        {"model   ", "softcap_kind", model->logit_softcap <= 0.0, "logit_softcap", "0"},
        {"model   ", "rope_theta", !turns, "position", position},
        {"model   ", "rope_fraction", !turns, "position", position},
        {"model   ", "hc_norm_gain", !model->hc_dynamic, "hc_dynamic", "false"},
        {"model   ", "hc_norm_eps", !model->hc_dynamic, "hc_dynamic", "false"},
        {"model   ", "hc_init", !model->hc_dynamic, "hc_dynamic", "false"},
        {"optimizer", "freeze_alpha_res", !model->hc_dynamic, "hc_dynamic", "false"},
    };
    for (size_t i = 0; console && i < count; i++) {
        if (specs[i].type == OPTION_HEADING || specs[i].given == 0 || options_is_default(&specs[i])) {
            continue;
        }
        for (size_t k = 0; k < COUNT(all); k++) {
            if (all[k].is_unused && strcmp(all[k].name, specs[i].name) == 0) {
                message_print(console, "%s %s does nothing with %s = %s\n", all[k].subject, specs[i].name,
                              all[k].setting, all[k].word);
            }
        }
        const struct residual_variant *owner;
        if (residual_setting_at(residual_setting_find(specs[i].name), &owner) &&
            !residual_uses_settings(model->residual, owner)) {
            message_print(console, "model    %s does nothing with residual = %s\n", specs[i].name,
                          model->residual->name);
        }
        const struct optimizer *other;
        bool is_of_another = false;
        for (size_t k = 0; (other = optimizer_at(k)); k++) {
            is_of_another |= optimizer_has_option(other, specs[i].name);
        }
        if (is_of_another && !optimizer_has_option(chosen, specs[i].name)) {
            message_print(console, "optimizer %s does nothing with optimizer = %s\n", specs[i].name, chosen->name);
        }
    }
}

/* ---- the learning rate's schedule */

/* The parts, and for each the setting that it follows; NULL: the part was given, together with it or later. */
enum part { MIN_LR, LR_DECAY_ITERS, WARMUP_ITERS, PARTS };
static const char *const part_names[PARTS] = {"min_lr", "lr_decay_iters", "warmup_iters"};

static void find_followed(const struct option_spec *specs, size_t count, const char *followed[PARTS]) {
    followed[MIN_LR] = "learning_rate";
    followed[LR_DECAY_ITERS] = followed[WARMUP_ITERS] = "max_iters";
    for (int part = 0; part < PARTS; part++) {
        const unsigned given = options_source(specs, count, part_names[part]);
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
        message_print(console, "schedule %s = %.15g, %s", part_names[part], after[part], rules[part]);
        if (options_source(specs, count, part_names[part]) > 0 && before[part] != after[part]) {
            message_print(console, " (replaces %s = %.15g, which was given before %s)", part_names[part],
                          before[part], followed[part]);
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
