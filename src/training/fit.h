/* --fit: the settings with which a training run fits into so much memory, the fastest first. */
#pragma once

#include "src/training/data_parallel.h"
#include <stdio.h>

/* What --fit names: bytes, and the GPU whose shape the plan is for, by its data sheet (gpu_model.h); NULL: that of
 * the open device. */
struct fit {
    uint64_t bytes;
    const struct gpu_model *model;
};

/* Reads "16GiB", "16GB", "8192MiB" or "8000MB", and behind a colon the name of a GPU. -1 with an error that says
 * what is wrong. */
int fit_read(const char *text, struct fit *fit);

/* Gives the open device the memory of *fit, and of it the share for the largest buffer that it had. Then changes
 * batch_size, gradient_accumulation_steps, recompute, moments and master in *settings to the first of these that
 * fit, with as many sequences in an optimizer step as before:
 *
 *   the largest micro-batch of up to 8192 tokens or the size that is given, and of no fewer than 1024 or that size;
 *   with --recompute layer the largest one of any size up to that: the same results in about a quarter more time;
 *   both once more with --moments bf16, which changes the results a little;
 *   both once more with --master bf16, too, if activations are bf16 and ranks do not divide the states.
 *
 * Prints the choice as options to `console`. -1 with an error if nothing fits. All ranks decide alike. */
int fit_choose(const struct fit *fit, struct train_settings *settings, struct ranks *ranks, struct compute *compute,
               FILE *console);
