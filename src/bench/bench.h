/* What hc_bench does: measures training steps of a model on random tokens, in one of several ways. */
#pragma once

#include "runtime/ranks/ranks.h"
#include "src/training/train_settings.h"

struct bench_settings {
    struct train_settings train; /* model, batch, device and how ranks exchange are used, the rest is not */
    int64_t steps, warmup;
    bool ranks;    /* split the step into computation, exchange and the rest */
    char *json;    /* file for the figures, "" for none */
    char *compare; /* for bench_compare_run: variants to measure, "" for the one of the settings */
    bool turns;    /* bench_turns_run: steps on demand */
    bool tune;     /* bench_tune_run: CLBlast instead */
    int64_t tune_minutes;
    bool ledger; /* bench_ledger_run: what a step puts into the queue, counted */
    char *as;    /* of the ledger: name of a gpu_model.h, "" for the one that the device is */
    bool run;    /* of the ledger: on the device, in that shape, not only counted */
};

enum bench_status { BENCH_DONE, BENCH_FAILED, BENCH_WRONG /* settings */ };

/* Runs on all ranks; prints on rank 0. Otherwise all ranks have the error text; a failure of one rank alone ends
 * the job before. */
enum bench_status bench_run(const struct bench_settings *settings, struct ranks *ranks);

/* Several residual variants and numbers of streams side by side: every one in a process of its own, which all take a
 * step in turn, so that what the machine does meanwhile happens to all of them. settings->compare: "rc,shc:2,mhc",
 * names of variants with numbers of streams; without, settings' n_streams. argv [argc]: how this process was started,
 * to start the others likewise. Prints a table on stdout. As bench_run. */
enum bench_status bench_compare_run(const struct bench_settings *settings, struct ranks *ranks, int argc,
                                    char **argv);

/* Measured steps on demand, so that several programs can take turns on one machine: what it does to one it then
 * does to all. Alone (ranks->count is 1); a program that starts this one reads and writes lines:
 *
 *   out: an object with what is known of the model (bench_model_facts), when it is ready
 *   in:  any line         out: {"seconds": time of one step}
 *   in:  the end          out: the object again, now with the most memory and the kernels' times
 *
 * As bench_run. */
enum bench_status bench_turns_run(const struct bench_settings *settings, struct ranks *ranks);

/* The ledger: all that a micro-step and the optimiser's step put into the queue of a device known by its data sheet, with
 * the seconds that its roofline gives each launch. Nothing runs, and no device has to be there, unless settings->run says
 * so. Prints tables on stdout, and writes settings->json. One rank. */
enum bench_status bench_ledger_run(const struct bench_settings *settings, struct ranks *ranks);

/* Looks for CLBlast's fastest parameters on the device, or for tiles of matrix units, for the products of the settings'
 * model, settings->tune_minutes long, and keeps them in the cache folder for all later runs. Prints what it found on
 * stdout. One rank. */
enum bench_status bench_tune_run(const struct bench_settings *settings, struct ranks *ranks);
