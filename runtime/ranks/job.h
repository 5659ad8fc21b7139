/* The job that this process was started in by mpirun or the like: joining it, finding out which of its ranks are where, and leaving. */
#pragma once

#include "runtime/ranks/ranks.h"

/* Joins the job; without one, ranks_alone. Call it once, early in main. */
int job_start(struct ranks *ranks);

/* Leaves in good order; all ranks must come here. */
void job_stop(struct ranks *ranks);
