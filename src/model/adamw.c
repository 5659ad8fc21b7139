#include "runtime/options/option_rows.h"
#include "runtime/system/array.h"
#include "runtime/system/random.h"
#include "src/model/optimizer.h"
#include <inttypes.h>
#include <string.h>

/* ---- a step */

uint64_t rounding_key(const struct gpt *gpt, int64_t iteration) {
    char purpose[48];
    snprintf(purpose, sizeof purpose, "rounding %" PRId64, iteration);
    return random_key(gpt->pass.seed, purpose);
}

/* The highest rate of a parameter; negative: learning_rate. */
static double highest_rate(const struct parameters *parameters, const struct parameter *parameter,
                           const struct optimizer_settings *settings) {
    const struct {
        const char *ending; /* of names */
        double rate;
    } named[] = {{".value_embed.weight", settings->value_embed_learning_rate},
                 {".lambda_resid", settings->resid_lambda_learning_rate},
                 {".lambda_x0", settings->x0_lambda_learning_rate}};
    for (size_t i = 0; i < COUNT(named); i++) {
        const size_t length = strlen(parameter->name), behind = strlen(named[i].ending);
        if (named[i].rate >= 0.0 && length > behind &&
            strcmp(parameter->name + length - behind, named[i].ending) == 0) {
            return named[i].rate;
        }
    }
    if (parameter->auxiliary && settings->new_learning_rate >= 0.0) {
        return settings->new_learning_rate;
    }
    if (parameter->sublayer < 0 && parameter->decayed) { /* wte or wpe */
        return settings->embed_learning_rate;
    }
    if (parameter->offset == parameters->head && !parameters->head_is_embedding) {
        return settings->head_learning_rate;
    }
    return parameter->rank < 2 ? settings->scalar_learning_rate : -1.0;
}

/* Whether the step leaves a parameter out. An alpha_res without a gradient would be moved by weight decay alone. */
static bool is_frozen(const struct gpt *gpt, const struct parameter *parameter,
                      const struct optimizer_settings *settings) {
    return parameter->frozen ||
           (settings->decay_all && gpt->options.optimizer.freeze_alpha_res && parameter_is_alpha_res(parameter));
}

int64_t trained_steps(const struct gpt *gpt, const struct parameter *parameter, int64_t iteration) {
    return iteration - gpt->loss_scale.skipped - gpt->resumed_steps + parameter->steps;
}

/* What all parameters of a launch have in common. */
struct group {
    double highest; /* rate */
    bool to_one;    /* what decays does so to 1, not to 0: the gain of the RMSNorm before projections, which other
                     * programs store as what it exceeds 1 by */
    int64_t steps;  /* with this one */
};

static bool is_same(struct group a, struct group b) {
    return a.steps == b.steps && a.to_one == b.to_one && !(a.highest < b.highest) && !(a.highest > b.highest);
}

/* Updates what [first, end) and the range have in common. Without matrices the second state has no place for
 * them. */
static void step_group(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration,
                       struct optimizer_range range, bool skips_matrices, struct group group, uint64_t first,
                       uint64_t end) {
    const struct parameters *parameters = &gpt->parameters;
    const uint64_t low = size_larger(first, range.first), high = size_smaller(end, range.first + range.count);
    if (high <= low) {
        return;
    }
    const uint64_t before = low - range.first;
    const uint64_t second = skips_matrices ? parameters_outside_matrices(parameters, low) -
                                                 parameters_outside_matrices(parameters, range.first)
                                           : before;
    const struct optimizer_range part = {low,
                                         high - low,
                                         {range.states_first[0] + before, range.states_first[1] + second}};
    const struct update_settings step = {
        .rate = (float)optimizer_rate_of(settings, iteration, group.highest),
        .beta1 = (float)settings->beta1,
        .beta2 = (float)settings->beta2,
        .decay = (float)settings->weight_decay,
        .epsilon = (float)settings->adam_eps,
        .clip = (float)settings->grad_clip,
        .step = group.steps,
        .unscale = 1.0f / gpt->loss_scale.scale,
        .key = rounding_key(gpt, iteration),
        .centre = group.to_one ? 1.0f : 0.0f,
    };
    const struct update_arenas arenas = {
        .weights = parameters->weights,
        .gradients = parameters->gradients,
        .weights_lowp = parameters->weights_lowp,
        .first_moments = parameters->states[0],
        .second_moments = parameters->states[1],
        .decayed_from = settings->decay_all ? 0 : parameters->decayed_from,
        .lowp_only_from = parameters->lowp_only_from,
    };
    adamw_step(&gpt->operations, &arenas, part, &step, gpt->gradient_norm);
}

/* Neighbours in the arena that have the same rate, as many steps, and decay alike are one launch. */
static void step_groups(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration,
                        struct optimizer_range range) {
    const bool skips_matrices = gpt->optimizer->matrices; /* they are the other optimizer's */
    const struct parameters *parameters = &gpt->parameters;
    const bool to_one = settings->decay_all && settings->decay_hc_gain == DECAY_TO_ONE;
    struct group run = {0}; /* of [run_first, first) */
    uint64_t run_first = 0; /* of the next launch */
    bool is_running = false;
    for (size_t i = 0; i <= parameters->count; i++) {
        const struct parameter *parameter =
            i < parameters->count ? &parameters->table[parameters->in_arena[i]] : NULL;
        struct group own = {0};
        bool is_taken = false;
        uint64_t first = parameters->elements;
        if (parameter) {
            own = (struct group){highest_rate(parameters, parameter, settings), to_one && parameter->is_hc_gain,
                                 trained_steps(gpt, parameter, iteration + 1)};
            is_taken = !(skips_matrices && parameter->matrices[0]) && !is_frozen(gpt, parameter, settings);
            first = i > 0 ? parameter->offset : 0; /* with the gap before it */
        }
        if (is_running && (!is_taken || !is_same(own, run))) {
            step_group(gpt, settings, iteration, range, skips_matrices, run, run_first, first);
            is_running = false;
        }
        if (is_taken && !is_running) {
            is_running = true;
            run_first = first;
            run = own;
        }
    }
}

/* ---- options */

static void append_options(struct optimizer_settings *settings, struct option_table *table) {
    const struct option_spec rows[] = {
        HEADING("AdamW, of all parameters or of those that another optimizer leaves to it"),
        FLOAT("beta1", &settings->beta1, "0.9", 0, 0.999999, "decay of the first moment"),
        FLOAT("beta2", &settings->beta2, "0.95", 0, 0.999999, "decay of the second moment"),
        FLOAT("adam_eps", &settings->adam_eps, "1e-8", 1e-30, 1, "what is added to the root of the second moment"),
        BOOL("decay_all", &settings->decay_all, "false",
             "weight decay of all parameters, gains, biases and scalars too"),
        CHOICE("decay_hc_gain", &settings->decay_hc_gain, "zero", DECAY_HC_GAIN_WORDS,
               "what the gains of the norms in hyper-connections decay to, with decay_all: zero, or one, as in the "
               "public code of s2HC, which stores a gain less 1"),
        FLOAT("embed_learning_rate", &settings->embed_learning_rate, "-1", -1, 10,
              "highest learning rate of wte and wpe, with the same schedule (-1: learning_rate; 0: they stay)"),
        FLOAT("head_learning_rate", &settings->head_learning_rate, "-1", -1, 10,
              "highest learning rate of lm_head, which is there with tie_embeddings = false (-1: learning_rate; 0: "
              "it stays)"),
        FLOAT("scalar_learning_rate", &settings->scalar_learning_rate, "-1", -1, 10,
              "highest learning rate of parameters with fewer than two dimensions: gains, biases and scalars (-1: "
              "learning_rate; 0: they stay)"),
        FLOAT("value_embed_learning_rate", &settings->value_embed_learning_rate, "-1", -1, 10,
              "highest learning rate of the tables of value_embeds (-1: learning_rate)"),
        FLOAT("resid_lambda_learning_rate", &settings->resid_lambda_learning_rate, "-1", -1, 10,
              "highest learning rate of lambda_resid, with x0_lambdas (-1: scalar_learning_rate)"),
        FLOAT("x0_lambda_learning_rate", &settings->x0_lambda_learning_rate, "-1", -1, 10,
              "highest learning rate of lambda_x0, with x0_lambdas (-1: scalar_learning_rate)"),
    };
    options_append(table, rows, COUNT(rows));
}

static int check(const struct optimizer_settings *settings) {
    const struct {
        const char *name;
        double rate;
        const char *follows;
    } rates[] = {{"embed_learning_rate", settings->embed_learning_rate, "learning_rate"},
                 {"head_learning_rate", settings->head_learning_rate, "learning_rate"},
                 {"scalar_learning_rate", settings->scalar_learning_rate, "learning_rate"},
                 {"value_embed_learning_rate", settings->value_embed_learning_rate, "learning_rate"},
                 {"resid_lambda_learning_rate", settings->resid_lambda_learning_rate, "scalar_learning_rate"},
                 {"x0_lambda_learning_rate", settings->x0_lambda_learning_rate, "scalar_learning_rate"}};
    int status = 0;
    for (size_t i = 0; i < COUNT(rates) && status == 0; i++) {
        status = optimizer_check_following(rates[i].name, rates[i].rate, rates[i].follows);
    }
    return status;
}

const struct optimizer optimizer_adamw = {.name = "adamw",
                                          .updates = "all weights",
                                          .states = {"exp_avg", "exp_avg_sq"},
                                          .options = append_options,
                                          .check = check,
                                          .step = step_groups};
