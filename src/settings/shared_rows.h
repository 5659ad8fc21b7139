/* Rows of options that several programs share, for their tables. */
#pragma once

#include "runtime/options/option_rows.h"
#include "src/settings/settings.h"

/* settings: a struct device_settings * */
#define DEVICE_OPTIONS(settings)                                                                                   \
    HEADING("Device"),                                                                                             \
        TEXT("device", &(settings)->device, "auto",                                                                \
             "auto, gpu, cpu, pocl, vulkan, vulkan:N, a number or part of a name as hc_devices lists them"),       \
        CHOICE("gemm", &(settings)->gemm, "auto", GEMM_WORDS,                                                      \
               "what computes GEMMs. auto: the fastest that works; clblast: any device; cblas: the host's BLAS, "  \
               "on CPUs; mma: a GPU's matrix cores, 16-bit types; portable: our own kernels, any device; onednn: " \
               "Intel's GPUs, and CPUs, best where they have bf16 instructions"),                                  \
        TEXT("clblast_parameters", &(settings)->clblast_parameters, "",                                            \
             "file that a tuner of CLBlast wrote (clblast_tuner_xgemm), or a folder of such files: fast "          \
             "parameters of CLBlast for "                                                                          \
             "this device")
#define PROFILE_OPTION(settings)                                                                                   \
    PROCESS_BOOL("profile", &(settings)->profile, "time every kernel: a table at the end, and a Chrome trace file")

/* type: an int *, for an enum element_type or TYPE_AUTO; initial: the default's word */
#define TYPE_OPTION(type, initial)                                                                                 \
    CHOICE("dtype", type, initial, TYPE_WORDS,                                                                     \
           "type of activations, their gradients and the low-precision weights in GEMMs; sums, master weights "    \
           "and the optimizer's moments are always fp32. auto: bf16 where a GPU's matrix cores pass a test, or a " \
           "CPU has bf16 instructions and the model at least 256 channels; else fp32")
