/* Looks for CLBlast's fastest parameters on the device and keeps them in the cache folder for all later runs. */
#pragma once

#include "src/bench/bench.h"

/* For the products of the settings' model, settings->tune_minutes long. Prints what it found on stdout. One rank.
 */
enum bench_status bench_tune_run(const struct bench_settings *settings, struct ranks *ranks);
