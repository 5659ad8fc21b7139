/* Runs that differ in the seed alone as one run, so that pictures of H_res show all seeds. */
#pragma once

#include <jansson.h>

/* From runs with their "kind" (see analyze.h), a new array with one run for each kind, in their order. A kind of one run is that
 * run. Of several, "name" is as in legends, and statistics and measured checkpoints are means over the runs, of extremes the
 * extremes. Runs whose statistics or checkpoints are of other iterations than the first one's are left out: the name counts
 * those that are in it. NULL with an error when memory runs out. */
json_t *seed_means(const json_t *runs);
