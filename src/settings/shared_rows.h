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
               "matrix products: CLBlast on any device, the host's BLAS on CPU devices, a GPU's matrix units (of " \
               "16-bit operands), kernels in plain OpenCL C, or oneDNN (on Intel's GPUs and for 16 bits on CPUs "  \
               "with units for them, where auto takes it, and on any CPU)"),                                       \
        TEXT("clblast_parameters", &(settings)->clblast_parameters, "",                                            \
             "file that a tuner of CLBlast wrote (clblast_tuner_xgemm), or folder of such files: fast parameters " \
             "for "                                                                                                \
             "GEMMs of CLBlast on this device")
#define PROFILE_OPTION(settings)                                                                                   \
    PROCESS_BOOL("profile", &(settings)->profile, "time every kernel: a table at the end, and a Chrome trace file")

/* type: an int *, for an enum element_type or TYPE_AUTO; initial: the default's word */
#define TYPE_OPTION(type, initial)                                                                                 \
    CHOICE("dtype", type, initial, TYPE_WORDS,                                                                     \
           "what activations, their gradients and the weights in matrix products are stored in; sums, master "     \
           "weights and the optimiser's moments are fp32 in any case. auto: bf16 on GPUs whose matrix units pass " \
           "a test at the start, and on CPUs that have some in models of 256 channels and more, fp32 elsewhere")
