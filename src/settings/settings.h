/* Settings that several programs share; shared_rows.h has their rows for tables of options. */
#pragma once

#include "runtime/device/compute.h"
#include "runtime/options/options.h"
#include "src/model/optimizer.h"

/* --gemm */
#define GEMM_WORDS "auto|clblast|cblas|mma|portable|onednn"
enum gemm_word { GEMM_AUTO, GEMM_CLBLAST, GEMM_CBLAS, GEMM_MMA, GEMM_PORTABLE, GEMM_ONEDNN };

/* --dtype: an enum element_type, or TYPE_AUTO, for which type_choice.h finds one */
#define TYPE_WORDS "fp32|bf16|fp16|auto"
enum { TYPE_AUTO = ELEMENT_FP16 + 1 };

/* --invalid: what is done about text that is not UTF-8 */
#define INVALID_WORDS "error|replace"
enum invalid_word { INVALID_ERROR, INVALID_REPLACE };

struct device_settings {
    char *device;
    int gemm; /* enum gemm_word */
    char *clblast_parameters;
    bool profile;
    bool unverified; /* skip the comparison of the device's results with the host's; no option */
    /* As in struct compute_options; no options of programs. */
    const struct gpu_model *model;
    bool record, dry;
};

/* Opens the device that the settings name, for GEMMs of this type; of several GPUs the one with this number among
 * the ranks of the host. Its GEMMs are not compared with sums on the host yet. */
int settings_open_unverified(const struct device_settings *settings, enum element_type type, unsigned local_rank,
                             struct compute **compute);

/* Compares them, in fp32 and this type, unless nothing is to be verified. -1 with what is wrong and what to do. */
int settings_verify_device(struct compute *compute, enum element_type type);

/* Both. */
int settings_open_device(const struct device_settings *settings, enum element_type type, unsigned local_rank,
                         struct compute **compute);

/* Appends the options of the optimizer. `iterations`: what lr_decay_iters follows, in words; schedule.h has the
 * rules. */
void settings_optimizer_options(struct optimizer_settings *settings, const char *iterations,
                                struct option_table *table);
