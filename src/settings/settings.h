/* Settings that several programs share, and the rows of their options for tables. */
#pragma once

#include "runtime/device/compute.h"
#include "runtime/options/option_rows.h"
#include "src/model/optimizer.h"
#include <stdio.h>

/* --gemm */
#define GEMM_WORDS "auto|clblast|cblas|mma|portable|onednn"
enum gemm_word { GEMM_AUTO, GEMM_CLBLAST, GEMM_CBLAS, GEMM_MMA, GEMM_PORTABLE, GEMM_ONEDNN };

/* --dtype: an enum element_type, or TYPE_AUTO, for which type_choice.h finds one */
#define TYPE_WORDS "fp32|bf16|fp16|auto"
enum { TYPE_AUTO = ELEMENT_FP16 + 1 };

/* --invalid: what is done about text that is not UTF-8 */
#define INVALID_WORDS "error|replace"
enum invalid_word { INVALID_ERROR, INVALID_REPLACE };

struct background_compile;

struct device_settings {
    char *device;
    int gemm; /* enum gemm_word */
    bool profile;
    struct background_compile *background; /* what to start when the device is open; NULL: nothing */
    bool unverified; /* skip the comparison of the device's results with the host's; no option */
    /* As in struct compute_options; no options of programs. */
    const struct gpu_model *model;
    bool record, dry;
};

/* Appends the options of the optimizer. `iterations`: what lr_decay_iters follows, in words (see below). */
void settings_optimizer_options(struct optimizer_settings *settings, const char *iterations,
                                struct option_table *table);

/* Prints a line for each option that was given and has no effect beside the others, if its value is not its
 * default: settings.conf lists all options. That of a resumed run also lists min_lr and lr_decay_iters, which other
 * settings may have determined: these are left out. `specs` is the table that filled the settings; console may be
 * NULL. */
void unused_options_print(const struct option_spec *specs, size_t count, const struct model_config *model,
                          const struct optimizer_settings *optimizer, bool is_resumed, FILE *console);

/* ---- the parts of the learning rate's schedule that the user has left open
 *
 * The rate of a step is optimizer_rate in src/model/optimizer_settings.h. Each part follows from another setting:
 *
 *     min_lr          a tenth of learning_rate
 *     lr_decay_iters  the number of iterations (max_iters)
 *     warmup_iters    what it is, but at most a tenth of lr_decay_iters
 *
 * A part is open where it was not given, and where what it follows from was given later: after a config file with
 * max_iters = 2000 and lr_decay_iters = 2000, --max-iters 300 on the command line means a decay over 300
 * iterations. Parts that were given together, or later, stay as they are. */

/* Works out the open parts and prints a line for each; console may be NULL. `specs` is the table that filled the
 * settings. 0 iterations: lr_decay_iters stays. */
void schedule_complete(const struct option_spec *specs, size_t count, int64_t iterations,
                       struct optimizer_settings *optimizer, FILE *console);

/* For a resumed run: the open parts keep what the run has. */
void schedule_keep(const struct option_spec *specs, size_t count, const struct optimizer_settings *saved,
                   struct optimizer_settings *optimizer);

/* An error if the learning rate would rise to min_lr, or settings of the optimizer cannot be. */
int schedule_check(const struct optimizer_settings *optimizer);

/* ---- rows of options */

/* settings: a struct device_settings * */
#define DEVICE_OPTIONS(settings)                                                                                   \
    HEADING("Device"),                                                                                             \
        TEXT("device", &(settings)->device, "auto",                                                                \
             "auto, gpu, cpu, pocl, vulkan, vulkan:N, a number or part of a name as hc_devices lists them"),       \
        CHOICE("gemm", &(settings)->gemm, "auto", GEMM_WORDS,                                                      \
               "what computes GEMMs. auto: the fastest that works; clblast: any device; cblas: the host's BLAS, "  \
               "on CPUs; mma: a GPU's matrix cores, 16-bit types; portable: our own kernels, any device; onednn: " \
               "Intel's GPUs, and CPUs, best where they have bf16 instructions")
#define COMPILE_ONLY_OPTION(variable)                                                                              \
    PROCESS_BOOL("compile_only", variable,                                                                         \
                 "compile the kernels that these settings need, so that a later start is quick, and stop")
#define PROFILE_OPTION(settings)                                                                                   \
    PROCESS_BOOL("profile", &(settings)->profile, "time every kernel: a table at the end, and a Chrome trace file")

/* type: an int *, for an enum element_type or TYPE_AUTO; initial: the default's word */
#define TYPE_OPTION(type, initial)                                                                                 \
    CHOICE("dtype", type, initial, TYPE_WORDS,                                                                     \
           "type of activations, their gradients and the low-precision weights in GEMMs; sums are always fp32, "   \
           "and master weights unless --master says otherwise. auto: bf16 where a GPU's matrix cores pass a "      \
           "test, or a CPU has bf16 instructions and the model at least 256 channels; else fp32")

/* kept: an int *, for an enum frozen_weights */
#define FROZEN_WEIGHTS_OPTION(kept)                                                                                \
    CHOICE("frozen_weights", kept, "as_others", FROZEN_WEIGHTS_WORDS,                                              \
           "how matrices of layers that are not trained are kept. bf16, with --dtype bf16: 2 bytes a weight, "     \
           "without a copy in fp32; int8: 1.06 bytes; nf4: 0.56 bytes (QLoRA). What is narrower than the type of " \
           "activations is expanded to it, one layer at a time, before each GEMM")

/* adapter, base: char ** */
#define ADAPTER_OPTIONS(adapter, base)                                                                             \
    TEXT("adapter", adapter, NULL,                                                                                 \
         "folder of an adapter (LoRA) of the model in --checkpoint, as PEFT saves it, or of a run with one"),      \
        TEXT("base", base, NULL,                                                                                   \
             "folder of the base model, if --checkpoint has an adapter and its base model has moved")

/* master: an int *, for an enum element_type; of programs that do not train */
#define MASTER_OPTION(master)                                                                                      \
    CHOICE("master", master, "fp32", KEPT_TYPE_WORDS,                                                              \
           "type in which embeddings and the weights of Linear layers are kept. bf16, with --dtype bf16: there "   \
           "is no copy in fp32, so that each takes 2 bytes instead of 6; embeddings are rounded, too, which "      \
           "changes the results a little unless the checkpoint's are exact in bf16")
