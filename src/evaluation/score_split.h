/* The mean loss of a model over a whole token file. */
#pragma once

#include "runtime/files/token_file.h"
#include "runtime/ranks/ranks.h"
#include "runtime/system/progress.h"
#include "src/model/gpt.h"

/* Windows of the planned sequence's length follow each other without overlap; the last one is shorter. Each token
 * but the file's first is predicted once, from the tokens before it in its window. *tokens is their number, *loss
 * the mean of -log p. Collective; the same on any number of ranks, which have the same file. Fails with
 * "interrupted" on all ranks when one is. */
int score_split(struct gpt *gpt, const struct ranks *ranks, const struct token_file *file,
                struct progress *progress, uint64_t *tokens, double *loss);
