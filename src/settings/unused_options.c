#include "src/settings/unused_options.h"
#include "runtime/system/array.h"
#include "runtime/system/message.h"
#include <string.h>

/* Whether one of `optimizers` other than the chosen one has the option, and that one has not. */
static bool is_of_another(const struct optimizer *chosen, const char *name) {
    const struct optimizer *other;
    bool is_known = false;
    for (size_t i = 0; (other = optimizer_at(i)); i++) {
        is_known |= optimizer_has_option(other, name);
    }
    return is_known && !optimizer_has_option(chosen, name);
}

void unused_options_print(const struct option_spec *specs, size_t count, const struct model_config *model,
                          const struct optimizer_settings *optimizer, bool is_resumed, FILE *console) {
    const struct optimizer *chosen = optimizer_at((size_t)optimizer->optimizer);
    const bool is_constant = optimizer->lr_schedule == LR_CONSTANT, is_wsd = optimizer->lr_schedule == LR_WSD,
               turns = model->position == POSITION_ROPE;
    char schedule[32], position[32];
    options_word(LR_SCHEDULE_WORDS, optimizer->lr_schedule, schedule, sizeof schedule);
    options_word(position_names(), model->position, position, sizeof position);
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
        {"model   ", "softcap_kind", model->logit_softcap <= 0.0, "logit_softcap", "0"},
        {"model   ", "rope_theta", !turns, "position", position},
        {"model   ", "rope_fraction", !turns, "position", position},
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
        if (is_of_another(chosen, specs[i].name)) {
            message_print(console, "optimizer %s does nothing with optimizer = %s\n", specs[i].name, chosen->name);
        }
    }
}
