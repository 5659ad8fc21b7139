/* Measurements of a checkpoint's residual connection on samples of a token file: the matrices H_res, and the
 * weights with which sublayers read and write. */
#pragma once

#include <stdint.h>

struct compute;

struct measure_settings {
    char *data_dir;     /* folder of token files */
    int split;          /* enum token_split, of that folder */
    int64_t samples;    /* sequences of block_size tokens, spread evenly over the split */
    int64_t batch_size; /* sequences at a time */
};

/* Writes {"samples", "value_means": see value_means.h, "h": of a connection with matrices, see h_measurement.h} to
 * the file `out`; an empty object of a model with one plain stream, where there is nothing to measure. The forward
 * pass is in fp32. -1 with an error; "interrupted" when the process was. */
int measure_checkpoint(struct compute *compute, const char *checkpoint, const struct measure_settings *settings,
                       const char *out);
