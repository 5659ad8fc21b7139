/* What hc_probe does. Tests and other programs compare with it. */
#pragma once

#include "runtime/options/options.h"
#include "src/model/optimizer.h"

struct probe_settings {
    char *checkpoint;     /* folder */
    char *adapter, *base; /* as in model_files_open; NULL: none */
    char *out;            /* file, or folder with train */

    /* of one pass, and of training */
    char *batch; /* safetensors file with x and y, I32 [B, T], or [iterations, micro, B, T] with train */
    bool logits, grad, streams, train;
    enum element_type dtype;             /* of activations */
    struct optimizer_settings optimizer; /* what is open of its schedule follows from the number of iterations */
    const struct option_spec *specs;     /* [spec_count], the table that filled it; NULL: nothing is open */
    size_t spec_count;

    /* of measuring */
    bool measure;
    char *data_dir;     /* folder of token files */
    int split;          /* enum token_split, of that folder */
    int64_t samples;    /* sequences of block_size tokens, spread evenly over the split */
    int64_t batch_size; /* sequences at a time */
};

/* One forward and backward pass of a checkpoint on a given batch, everything dumped; or, with train, optimizer
 * steps on given batches. Writes settings->out; 0 or -1. */
int probe_run(struct compute *compute, const struct probe_settings *settings);

/* Measures the residual connection on samples of a token file, in fp32. Writes {"samples", "value_means": means
 * over tokens of what the frame computes in each sublayer (frame.h), of a gate also over channels, "h": of a
 * connection with matrices, see h_measurement.h}; an empty object for a model with one plain stream, where there is
 * nothing to measure. -1 with an error; "interrupted" when the process was. */
int probe_measure(struct compute *compute, const struct probe_settings *settings);
