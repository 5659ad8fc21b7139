/* What hc_bench does: measures training steps of a model on random tokens, in one of several ways. */
#pragma once

#include "runtime/ranks/ranks.h"
#include "src/training/train_settings.h"

struct bench_settings {
    struct train_settings train; /* model, batch, device and how ranks exchange are used, the rest is not */
    int64_t steps, warmup;
    bool ranks;          /* split the step into computation, exchange and the rest */
    char *json;          /* file for the timings, "" for none */
    char *compare;       /* for bench_compare_run: variants to measure, "" for the one of the settings */
    bool step_on_demand; /* bench_step_on_demand_run */
    bool roofline;       /* bench_roofline_run */
    char *as;            /* of the roofline: name of a gpu_model.h, "" for the one that the device is */
    bool roofline_runs;  /* on the device, in that shape; else launches are only counted */
};

/* Runs on all ranks; prints on rank 0. Otherwise all ranks have the error text; a failure of one rank alone ends
 * the job before. */
enum program_status bench_run(const struct bench_settings *settings, struct ranks *ranks);

/* Several residual variants and numbers of streams side by side: every one in a process of its own, which all take
 * a step in turn, so that what the machine does meanwhile happens to all of them. settings->compare:
 * "rc,shc:2,mhc", names of variants with numbers of streams; without, settings' n_streams. argv [argc]: how this
 * process was started, to start the others likewise. Prints a table on stdout. As bench_run. */
enum program_status bench_compare_run(const struct bench_settings *settings, struct ranks *ranks, int argc,
                                      char **argv);

/* Measures a step whenever another program asks for one, so that several programs can alternate on one machine:
 * what the machine does meanwhile then happens to all. Alone (ranks->count is 1). The other program reads and
 * writes lines:
 *
 *   out: an object with what is known of the model (bench_model_facts), when it is ready
 *   in:  any line         out: {"seconds": time of one step}
 *   in:  the end          out: the object again, now with the most memory and the kernels' times
 *
 * As bench_run. */
enum program_status bench_step_on_demand_run(const struct bench_settings *settings, struct ranks *ranks);

/* The roofline estimate: counts all launches of a micro-step and of the optimizer's step on a device known by its
 * data sheet, with the seconds that its roofline allows for each launch. Nothing runs, and no device has to be
 * there, unless settings->roofline_runs. Prints tables on stdout, and writes settings->json. One rank. */
enum program_status bench_roofline_run(const struct bench_settings *settings, struct ranks *ranks);
