/* When the gradients of a step are complete: what bench/scaling replays on machines that one does not have. */
#pragma once

#include "src/bench/ledger.h"
#include "src/training/data_parallel.h"
#include <jansson.h>

/* Of a backward pass by the ledger: how many records there were when a sublayer's gradients were launched. */
struct schedule_marks {
    const struct launch_log *log;
    size_t *marks; /* [BRANCHES n_layer + 2], by sublayer + 1 */
};

/* To be told during gpt_backward. */
void schedule_mark(void *marks, int64_t sublayer);

/* A list of [elements, seconds, of tokens]: for each bucket how long before the end of the backward pass it is complete, were the
 * token embedding's rows apart, which matters to those of the token embedding alone. NULL out of memory. By what ran last: */
json_t *schedule_measured(const struct data_parallel *parallel);
/* and by the ledger, whose records take ledger_seconds each. */
json_t *schedule_recorded(const struct data_parallel *parallel, const struct schedule_marks *marks,
                          const struct gpu_model *model);
