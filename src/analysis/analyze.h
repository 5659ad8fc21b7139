/* Measures runs and checkpoints for what the paper shows of them. */
#pragma once

#include "runtime/files/token_file.h"
#include "src/model/gpt.h"
#include <jansson.h>

struct analyze_settings {
    const char *const *inputs; /* run directories, checkpoints, and folders that hold run directories */
    size_t input_count;
    char *data_dir;       /* of token files; "": nothing is computed, only what runs have logged is read */
    int split;            /* enum token_split, of that folder */
    int64_t samples;      /* sequences of block_size tokens, spread evenly over the split */
    int64_t batch_size;   /* sequences at a time */
    bool all_checkpoints; /* of a run directory; else the newest one */
    bool waits;           /* runs may not have begun: inputs without a run are reported on stderr and left out */
    char *bench;          /* what hc_bench --compare --json wrote, or "" */
    char *baselines;      /* names of residual variants that others are compared with, see comparison.h */
    const json_t *before; /* an earlier result, of which checkpoints that are still there are taken over; or NULL */
};

/* {"samples", "bench": as in its file, "comparison": see comparison.h,
 *  "runs": [{"name", "path", "config", "parameters": {"total", "auxiliary"}, "record": see run_reader.h,
 *            "checkpoints": [{"iter", "h": see h_measurement.h}]}]}
 *
 * Only run directories have "record". "checkpoints" is empty for rc, whose single stream has no H. NULL with an
 * error; "interrupted" when the process was. */
json_t *analyze_run(struct compute *compute, const struct analyze_settings *settings);
