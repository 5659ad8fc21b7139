/* Several residual variants and numbers of streams side by side: every one in a process of its own, which all take
 * a step in turn, so that what the machine does meanwhile happens to all of them. */
#pragma once

#include "src/bench/bench.h"

/* settings->compare: "rc,shc:2,mhc", names of variants with numbers of streams; without, settings' n_streams.
 * argv [argc]: how this process was started, to start the others likewise. Prints a table on stdout. As bench_run.
 */
enum bench_status bench_compare_run(const struct bench_settings *settings, struct ranks *ranks, int argc,
                                    char **argv);
