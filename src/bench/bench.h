/* Measures training steps of a model on random tokens. */
#pragma once

#include "runtime/ranks/ranks.h"
#include "src/training/train_settings.h"

struct bench_settings {
    struct train_settings train; /* model, batch, device and how ranks exchange are used, the rest is not */
    int64_t steps, warmup;
    bool ranks;    /* split the step into computation, exchange and the rest */
    char *json;    /* file for the figures, "" for none */
    char *compare; /* variants to measure side by side, "" for the one of the settings, see bench_compare.h */
    bool turns;    /* steps on demand, see bench_turns.h */
    bool tune;     /* CLBlast instead, see bench_tune.h */
    int64_t tune_minutes;
};

enum bench_status { BENCH_DONE, BENCH_FAILED, BENCH_WRONG /* settings */ };

/* Runs on all ranks; prints on rank 0. Otherwise all ranks have the error text; a failure of one rank alone ends
 * the job before. */
enum bench_status bench_run(const struct bench_settings *settings, struct ranks *ranks);
