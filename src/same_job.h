/* Ranks that do not train the same model on the same data would silently train nonsense. */
#ifndef HC_SRC_SAME_JOB_H
#define HC_SRC_SAME_JOB_H

#include "src/trainer.h"

/* Collective: an error on all ranks, which names what differs and where, unless all run the same program (the
 * file's SHA-256) with the same settings (but for paths, devices and what is of one process only), on the same
 * tokens (sizes, and the content of up to 64 MiB of each file), from the same checkpoint (folder; NULL for none).
 * Also checks that the tokens looked at are in the vocabulary. */
int same_job_check(struct trainer *trainer, const char *folder);

#endif
