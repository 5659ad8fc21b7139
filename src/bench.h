/* Measures training steps of a model on random tokens. */
#ifndef HC_SRC_BENCH_H
#define HC_SRC_BENCH_H

#include "src/train.h"

struct bench_settings {
    struct train_settings train; /* model, batch, device and how ranks exchange are used, the rest is not */
    int64_t steps, warmup;
    bool ranks; /* split the step into computation, exchange and the rest */
    char *json; /* file for the figures, "" for none */
};

/* What one number was over the steps: seconds. */
struct bench_figure {
    double minimum, median, maximum;
};

struct bench_result {
    struct bench_figure step;    /* of the slowest rank */
    struct bench_figure compute; /* forward and backward, until the device has finished them; mean over ranks */
    struct bench_figure exposed; /* after that, until the sums are there; mean over ranks */
    struct bench_figure rest;    /* optimiser, and what is exchanged after it */
    struct bench_figure active;  /* in which something was under way, hidden or not */
    double tokens, tokens_per_second;   /* of all ranks, a step */
    double bytes;                       /* sent by rank 0, a step */
    double exchange_alone, bytes_alone; /* seconds for the same sums with an idle device, median; sent for them */
    uint64_t gradient_bytes;
    double gemm_rate; /* FLOP/s of all ranks together */
};

enum bench_status { BENCH_DONE, BENCH_FAILED, BENCH_WRONG /* settings */ };

/* Runs on all ranks; prints on rank 0. Otherwise all ranks have the error text; a failure of one rank alone ends
 * the job before. */
enum bench_status bench_run(const struct bench_settings *settings, struct ranks *ranks);

#endif
