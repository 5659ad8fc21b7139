/* A second process that compiles kernels of the model while this one tests the device, which needs other kernels.
 *
 * PoCL compiles one kernel at a time in a process, when the kernel is launched for the first time, and keeps what
 * it compiled in files where other processes find it. So the second process, the same program with --compile-only,
 * runs one small step of a model of two layers. It changes nothing else, and nothing depends on it: without it all
 * is compiled here. */
#pragma once

#include "runtime/device/compute.h"
#include "runtime/files/checksum.h"
#include "runtime/options/options.h"
#include "src/model/model_config.h"
#include <sys/types.h>

struct background_compile {
    const struct option_spec *specs; /* of this program, which has the option compile_only */
    size_t spec_count;
    struct model_config *model;
    const char *option; /* one that the other process also gets, or NULL */
    char *program;      /* NULL: the one that runs; another in tests */
    char purpose[80];   /* what kernels depend on besides the model and the device */
    char key[CHECKSUM_SIZE];
    pid_t child; /* 0: none */
};

/* Starts the other process, once, if the device is PoCL's, a core is idle, and this model's kernels have not been
 * compiled for this device before. HCTRAIN_BACKGROUND_COMPILE=0 in the environment keeps it from that, and 1 says
 * that a core is idle. */
void background_compile_start(struct background_compile *background, const struct compute *compute);

/* Call when all kernels have run, and in any case before the program ends: ends the other process if it is still
 * there. If `used`, later starts know that the kernels are compiled. */
void background_compile_end(struct background_compile *background, const struct compute *compute, bool used);

/* What --compile-only prints at the end; `start` by progress_clock. */
void compile_only_print(const struct compute *compute, double start);

/* Makes a model for --compile-only: with as few layers as kernels allow, and a short context. */
void compile_only_reduce(struct model_config *model);
