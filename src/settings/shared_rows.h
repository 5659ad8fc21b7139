/* Rows of options that several programs share, for their tables. */
#pragma once

#include "runtime/options/option_rows.h"
#include "src/model/optimizer.h"
#include "src/settings/settings.h"

/* settings: a struct device_settings * */
#define DEVICE_OPTIONS(settings)                                                                                   \
    HEADING("Device"),                                                                                             \
        TEXT("device", &(settings)->device, "auto",                                                                \
             "auto, gpu, cpu, pocl, vulkan, vulkan:N, a number or part of a name as hc_devices lists them"),       \
        CHOICE("gemm", &(settings)->gemm, "auto", GEMM_WORDS,                                                      \
               "matrix products: CLBlast on any device, the host's BLAS on CPU devices, a GPU's matrix units (of " \
               "16-bit operands), kernels in plain OpenCL C, or oneDNN (on Intel's GPUs and for 16 bits on CPUs "  \
               "with units for them, where auto takes it, and on any CPU)")
#define PROFILE_OPTION(settings)                                                                                   \
    PROCESS_BOOL("profile", &(settings)->profile, "time every kernel: a table at the end, and a Chrome trace file")

/* type: an int *, for an enum element_type or TYPE_AUTO; initial: the default's word */
#define TYPE_OPTION(type, initial)                                                                                 \
    CHOICE("dtype", type, initial, TYPE_WORDS,                                                                     \
           "what activations, their gradients and the weights in matrix products are stored in; sums, master "     \
           "weights and the optimiser's moments are fp32 in any case. auto: bf16 on GPUs whose matrix units pass " \
           "a test at the start, and on CPUs that have some in models of 256 channels and more, fp32 elsewhere")

/* settings: a struct optimizer_settings *; iterations: what lr_decay_iters follows, in words. schedule.h works out what follows. */
#define OPTIMIZER_OPTIONS(settings, iterations)                                                                    \
    HEADING("Optimiser (AdamW)"),                                                                                  \
        FLOAT("learning_rate", &(settings)->learning_rate, "6e-4", 0, 10, "highest learning rate, after warm-up"), \
        FLOAT_FOLLOWING("a tenth of learning_rate", "min_lr", &(settings)->min_lr, "6e-5", 0, 10,                  \
                        "learning rate at lr_decay_iters and after, not above learning_rate"),                     \
        INT_FOLLOWING("200, or a tenth of lr_decay_iters if that is less", "warmup_iters",                         \
                      &(settings)->warmup_iters, "200", 0, 1e12, "iterations of linear warm-up"),                  \
        INT_FOLLOWING(iterations, "lr_decay_iters", &(settings)->lr_decay_iters, "1000", 0, 1e12,                  \
                      "where the cosine ends"),                                                                    \
        FLOAT("weight_decay", &(settings)->weight_decay, "0.1", 0, 10,                                             \
              "on Linear, embedding and projection weights"),                                                      \
        FLOAT("beta1", &(settings)->beta1, "0.9", 0, 0.999999, "decay of the first moment"),                       \
        FLOAT("beta2", &(settings)->beta2, "0.95", 0, 0.999999, "decay of the second moment"),                     \
        FLOAT("grad_clip", &(settings)->grad_clip, "1.0", 0, 1e9,                                                  \
              "largest global gradient norm, 0 for no clipping")
