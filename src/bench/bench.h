/* What hc_bench does: measures training steps of a model on random tokens, in one of several ways. */
#pragma once

#include "src/settings/type_choice.h"
#include "src/training/data_parallel.h"
#include "src/training/train_settings.h"
#include <jansson.h>

struct bench_settings {
    struct train_settings train; /* model, batch, device and how ranks exchange are used, the rest is not */
    int64_t steps, warmup;
    bool ranks;          /* split the step into computation, exchange and the rest */
    char *json;          /* file for the timings, "" for none */
    bool step_on_demand; /* bench_step_on_demand_run */
    bool roofline;       /* bench_roofline_run */
    char *as;            /* of the roofline: name of a gpu_model.h, "" for the one that the device is */
    bool roofline_runs;  /* on the device, in that shape; else launches are only counted */
};

/* Runs on all ranks; prints on rank 0. Otherwise all ranks have the error text; a failure of one rank alone ends
 * the job before. */
enum program_status bench_run(const struct bench_settings *settings, struct ranks *ranks);

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

/* ---- a model on random tokens, step by step: what all of these measure */

/* Kinds of seconds measured in a step. ACTIVE is the time in which something was exchanged, hidden or not. */
enum bench_kind { BENCH_STEP, BENCH_COMPUTE, BENCH_EXPOSED, BENCH_REST, BENCH_ACTIVE, BENCH_KINDS };

struct bench_model {
    const struct train_settings *train;
    struct model_config config;    /* with a vocabulary */
    const char *vocabulary_source; /* where that is from, in words behind "vocabulary N" */
    struct ranks *ranks;
    struct compute *compute;
    struct type_choice choice; /* of the type of activations */
    struct gpt gpt;
    struct data_parallel parallel;
    int64_t micro_steps; /* of this rank in a step */
    int32_t *tokens;     /* [2, batch, block_size] */
    double gemm_rate;    /* FLOP/s of all ranks in GEMMs alone, after data_parallel_measure_rate */
    double sent;         /* bytes, in messages of the last step */
};

/* Whether the settings can be measured at all; fills in micro_steps and the vocabulary, which is the one that
 * hc_train would take, or GPT-2's where no data are prepared and none are named. */
int bench_model_check(struct bench_model *bench, const struct train_settings *train, struct ranks *ranks);

/* Collective; after a check that all ranks have passed. */
int bench_model_set_up(struct bench_model *bench);
void bench_model_release(struct bench_model *bench);

/* Micro-step `micro` of step number `step`: forward and backward; gpt_zero comes before the first one. A launch,
 * but for what sets the batch. */
int bench_model_micro_step(struct bench_model *bench, uint64_t step, int64_t micro);

/* Prints "model    ..." without the end of the line. */
void bench_model_print(const struct bench_model *bench);

/* An object with what is known of the model and its device, and, when profiled, the kernels' times so far. */
json_t *bench_model_facts(struct bench_model *bench);

/* Writes these facts and the members of `more`, which it takes, to a file. */
int bench_model_write_json(struct bench_model *bench, const char *path, json_t *more);
