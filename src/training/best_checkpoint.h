/* ckpt-best: the weights with the lowest validation loss of a run. The rule:
 *
 *   written    after an evaluation whose loss is lower than the lowest so far (best_improves);
 *   kept       when a run is resumed, with the lower one of two losses: of the checkpoint that is resumed, and of a
 *              ckpt-best that a later iteration wrote before the run went back;
 *   forgotten  when a run is resumed and its losses do not compare any more, since val.bin or the tokens of it that
 *              are scored are others, or ckpt-best is gone: the next evaluation writes a new one. */
#pragma once

#include "src/training/trainer.h"

/* No evaluation so far. */
void best_forget(struct training_state *state);

/* Takes an evaluation's loss into the state; true: it is the lowest, and ckpt-best is to be written. */
bool best_improves(struct training_state *state, double val_loss);

/* Applies the rule to the state of a run that begins or is resumed. `before` is the state as its checkpoint has it;
 * trainer->state has the digest of today's val.bin, and which of its tokens are scored. Rank 0's folder counts.
 * Collective: all ranks get the same state. */
int best_resume(struct trainer *trainer, const struct training_state *before);
