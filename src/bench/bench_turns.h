/* Measured steps on demand, so that several programs can take turns on one machine: what it does to one it then
 * does to all. A program that starts this one reads and writes lines:
 *
 *   out: an object with what is known of the model (bench_model_facts), when it is ready
 *   in:  any line         out: {"seconds": time of one step}
 *   in:  the end          out: the object again, now with the most memory and the kernels' times
 */
#pragma once

#include "src/bench/bench.h"

/* Talks on stdin and stdout, alone (ranks->count is 1). As bench_run. */
enum bench_status bench_turns_run(const struct bench_settings *settings, struct ranks *ranks);
