/* The MPI job of this process: joining it, finding out which rank is on which host, and leaving it. */
#pragma once

#include "runtime/ranks/ranks.h"

/* Joins the job that mpirun started, or sets *ranks to ranks_alone if there is none. Call it once, early in main.
 */
int job_start(struct ranks *ranks);

/* Leaves the job. Collective. */
void job_stop(struct ranks *ranks);
