/* One forward and backward pass of a checkpoint on a given batch, everything dumped; or a few optimizer steps on
 * given batches. Tests and other programs compare with it. */
#pragma once

#include "runtime/options/options.h"
#include "src/model/optimizer.h"

struct probe_settings {
    char *checkpoint; /* folder */
    char *batch;      /* safetensors file with x and y, I32 [B, T], or [iterations, micro, B, T] with train */
    char *out;        /* file, or folder with train */
    bool logits, grad, streams, train;
    enum element_type dtype;             /* of activations */
    struct optimizer_settings optimizer; /* what is open of its schedule follows from the number of iterations */
    const struct option_spec *specs;     /* [spec_count], the table that filled it; NULL: nothing is open */
    size_t spec_count;
};

/* Writes settings->out; 0 or -1. */
int probe_run(struct compute *compute, const struct probe_settings *settings);
