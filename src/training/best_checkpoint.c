/* ckpt-best: the weights with the lowest validation loss of a run. The rule:
 *
 *   written    after an evaluation whose loss is lower than the lowest so far (best_improves);
 *   kept       when a run is resumed, with the lower one of two losses: of the checkpoint that is resumed, and of a
 *              ckpt-best that a later iteration wrote before the run went back;
 *   forgotten  when a run is resumed and its losses do not compare any more, since val.bin or the tokens of it that
 *              are scored are others, or ckpt-best is gone. Only the number is forgotten: the files stay until the
 *              next evaluation writes new ones. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "src/training/trainer.h"
#include <math.h>
#include <string.h>

void best_forget(struct training_state *state) {
    state->best_val_loss = HUGE_VAL;
    state->best_iteration = -1;
}

bool best_improves(struct training_state *state, double val_loss) {
    if (!(val_loss < state->best_val_loss)) {
        return false;
    }
    state->best_val_loss = val_loss;
    state->best_iteration = state->iteration;
    return true;
}

/* Takes over the loss of a ckpt-best of a later iteration than the checkpoint's, if it is lower and of the same
 * tokens. Older versions did not write which tokens it is of. */
static void adopt(struct training_state *state, const char *path) {
    struct training_state best;
    if (checkpoint_read_state(path, &best, NULL)) {
        error_clear(); /* it cannot be read, which costs the run nothing */
        return;
    }
    const bool comparable = strcmp(best.val_digest, state->val_digest) == 0 &&
                            (!*best.evaluation || strcmp(best.evaluation, state->evaluation) == 0);
    if (comparable && best.best_iteration > state->iteration && best.best_val_loss < state->best_val_loss) {
        state->best_iteration = best.best_iteration;
        state->best_val_loss = best.best_val_loss;
    }
}

int best_resume(struct trainer *trainer, const struct training_state *before) {
    struct training_state *state = &trainer->state;
    const bool other_file = trainer_has_another(before->val_digest, state->val_digest);
    const bool other_tokens =
        before->best_iteration >= 0 && trainer_has_another(before->evaluation, state->evaluation);
    if (other_file || other_tokens) {
        best_forget(state);
    }
    if (other_tokens && !other_file) {
        PRINT(trainer, "evaluate other tokens than before: the next evaluation makes a new ckpt-best\n");
    }
    if (trainer_is_first(trainer) && trainer->settings->resumes) {
        const struct path path = path_of("%s/" CHECKPOINT_BEST, trainer->folder.path.text);
        if (files_exist(path.text)) {
            adopt(state, path.text);
        } else {
            best_forget(state);
        }
    }
    return ranks_broadcast(trainer->ranks, state, sizeof *state);
}
