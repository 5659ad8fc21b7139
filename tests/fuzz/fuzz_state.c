/* Any bytes as the files of a checkpoint: reading its state, resuming from it, and updating it after an
 * evaluation. */
#include "runtime/options/option_rows.h"
#include "runtime/system/error.h"
#include "src/checkpoint/checkpoint.h"
#include "tests/fuzz/fuzz_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An update comes back. */
static void update(const char *folder, struct training_state state) {
    struct training_state read;
    state.best_val_loss = 1.25;
    state.best_iteration = state.evaluated_at = state.iteration;
    state.seconds = 3.5;
    fuzz_require(checkpoint_update(folder, &state) == 0, "what can be read cannot be updated");
    fuzz_require(checkpoint_read_state(folder, &read, NULL) == 0 &&
                     memcmp(&read.best_val_loss, &state.best_val_loss, sizeof(double)) == 0 &&
                     read.evaluated_at == state.iteration && read.tokens == state.tokens,
                 "the update is not there");
}

/* A model of two parameters, one of which may have steps of its own. */
static struct gpt model_of(struct parameter table[2], bool dynamic) {
    table[0] = (struct parameter){.name = "transformer.wte.weight"};
    table[1] = (struct parameter){.name = "transformer.ln_f.weight"};
    return (struct gpt){.parameters = {.table = table, .count = 2},
                        .loss_scale = {.dynamic = dynamic, .scale = 1.0f}};
}

/* A state to resume from is written again, and the same comes back. */
static void write_again(const char *folder, const struct training_state *state, struct gpt *gpt) {
    struct parameter table[2];
    struct gpt found = model_of(table, gpt->loss_scale.dynamic);
    int64_t layers = 3;
    struct option_spec specs[] = {INT("n_layer", &layers, "3", 1, 1000, NULL)};
    const struct checkpoint_content content = {.state = state,
                                               .settings = specs,
                                               .setting_count = 1,
                                               .optimizer = true};
    struct training_state again;
    fuzz_require(checkpoint_write_state(folder, gpt, &content) == 0, "what was read cannot be written");
    fuzz_require(checkpoint_resume_state(folder, &found, &again) == 0, "what was written is refused");
    fuzz_require(again.iteration == state->iteration && again.tokens == state->tokens &&
                     again.seed == state->seed && again.best_iteration == state->best_iteration &&
                     again.evaluated_at == state->evaluated_at &&
                     found.loss_scale.skipped == gpt->loss_scale.skipped &&
                     table[0].steps == gpt->parameters.table[0].steps &&
                     table[1].steps == gpt->parameters.table[1].steps &&
                     strcmp(again.train_digest, state->train_digest) == 0,
                 "another state came back");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char *const names[] = {"state.json", "config.json", "model.safetensors", OPTIMIZER_FILE, NULL};
    const char *folder = fuzz_folder(data, bytes, names);
    struct training_state state = {0}, resumed;
    struct parameter table[2];
    struct gpt gpt = model_of(table, bytes % 2 == 1);
    char *settings = NULL;
    error_clear();
    if (checkpoint_resume_state(folder, &gpt, &resumed)) {
        fuzz_require(*error_text() != '\0', "a failure without a reason");
    } else {
        fuzz_require(loss_scale_is_valid(&gpt.loss_scale) || !gpt.loss_scale.dynamic,
                     "a loss scale that cannot be");
        write_again(folder, &resumed, &gpt);
    }
    if (checkpoint_read_state(folder, &state, &settings) == 0) {
        fuzz_require(state.iteration >= 0 && settings, "a state that cannot be");
        update(folder, state);
    }
    free(settings);
    return 0;
}
