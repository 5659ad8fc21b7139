/* Options that several programs share, as rows for their tables. */
#ifndef HC_SRC_SETTINGS_H
#define HC_SRC_SETTINGS_H

#include "runtime/device/compute.h"
#include "runtime/options/options.h"
#include "src/model/optimizer.h"

struct device_settings {
    char *device, *gemm;
    bool profile;
};

#define DEVICE_OPTIONS(settings)                                                                                   \
    {.type = OPTION_HEADING, .help = "Device"},                                                                    \
        {.type = OPTION_TEXT,                                                                                      \
         .name = "device",                                                                                         \
         .target = &(settings)->device,                                                                            \
         .default_value = "auto",                                                                                  \
         .help = "auto, gpu, cpu, pocl, a number or part of a name as hc_devices lists them"},                     \
    {                                                                                                              \
        .type = OPTION_CHOICE, .name = "gemm", .target = &(settings)->gemm, .default_value = "auto",               \
        .choices = "auto|clblast|cblas|mma|portable",                                                              \
        .help =                                                                                                    \
            "matrix products: CLBlast on any device, the host's BLAS on CPU devices, a GPU's matrix units (of "    \
            "16-bit operands), or a plain kernel"                                                                  \
    }

/* A word for settings_type. */
#define TYPE_OPTION(word)                                                                                          \
    {                                                                                                              \
        .type = OPTION_CHOICE, .name = "dtype", .target = (word), .default_value = "fp32",                         \
        .choices = "fp32|bf16|fp16",                                                                               \
        .help =                                                                                                    \
            "what activations, their gradients and the weights in matrix products are stored in; sums, master "    \
            "weights and the optimiser's moments are fp32 in any case"                                             \
    }

#define PROFILE_OPTION(settings)                                                                                   \
    {                                                                                                              \
        .type = OPTION_BOOL, .name = "profile", .target = &(settings)->profile, .default_value = "false",          \
        .transient = true, .help = "time every kernel: a table at the end, and a Chrome trace file"                \
    }

#define OPTIMIZER_OPTIONS(settings)                                                                                \
    {.type = OPTION_HEADING, .help = "Optimiser (AdamW)"},                                                         \
        {.type = OPTION_FLOAT,                                                                                     \
         .name = "learning_rate",                                                                                  \
         .target = &(settings)->learning_rate,                                                                     \
         .default_value = "6e-4",                                                                                  \
         .minimum = 0,                                                                                             \
         .maximum = 10,                                                                                            \
         .help = "highest learning rate, after warm-up"},                                                          \
        {.type = OPTION_FLOAT,                                                                                     \
         .name = "min_lr",                                                                                         \
         .target = &(settings)->min_lr,                                                                            \
         .default_value = "6e-5",                                                                                  \
         .minimum = 0,                                                                                             \
         .maximum = 10,                                                                                            \
         .help = "learning rate at lr_decay_iters and after"},                                                     \
        {.type = OPTION_INT,                                                                                       \
         .name = "warmup_iters",                                                                                   \
         .target = &(settings)->warmup_iters,                                                                      \
         .default_value = "200",                                                                                   \
         .minimum = 0,                                                                                             \
         .maximum = 1e12,                                                                                          \
         .help = "iterations of linear warm-up"},                                                                  \
        {.type = OPTION_INT,                                                                                       \
         .name = "lr_decay_iters",                                                                                 \
         .target = &(settings)->lr_decay_iters,                                                                    \
         .default_value = "10000",                                                                                 \
         .minimum = 0,                                                                                             \
         .maximum = 1e12,                                                                                          \
         .help = "where the cosine ends"},                                                                         \
        {.type = OPTION_FLOAT,                                                                                     \
         .name = "weight_decay",                                                                                   \
         .target = &(settings)->weight_decay,                                                                      \
         .default_value = "0.1",                                                                                   \
         .minimum = 0,                                                                                             \
         .maximum = 10,                                                                                            \
         .help = "on Linear, embedding and projection weights"},                                                   \
        {.type = OPTION_FLOAT,                                                                                     \
         .name = "beta1",                                                                                          \
         .target = &(settings)->beta1,                                                                             \
         .default_value = "0.9",                                                                                   \
         .minimum = 0,                                                                                             \
         .maximum = 0.999999,                                                                                      \
         .help = "decay of the first moment"},                                                                     \
        {.type = OPTION_FLOAT,                                                                                     \
         .name = "beta2",                                                                                          \
         .target = &(settings)->beta2,                                                                             \
         .default_value = "0.95",                                                                                  \
         .minimum = 0,                                                                                             \
         .maximum = 0.999999,                                                                                      \
         .help = "decay of the second moment"},                                                                    \
    {                                                                                                              \
        .type = OPTION_FLOAT, .name = "grad_clip", .target = &(settings)->grad_clip, .default_value = "1.0",       \
        .minimum = 0, .maximum = 1e9, .help = "largest global gradient norm, 0 for no clipping"                    \
    }

/* "fp32", "bf16" or "fp16", as TYPE_OPTION reads it. */
enum element_type settings_type(const char *word);

/* Opens the device that the settings name, for matrix products of this type; of several GPUs that of this number
 * among the ranks of the host. */
int settings_open_device(const struct device_settings *settings, enum element_type type, unsigned local_rank,
                         struct compute **compute);

/* options_parse; without first_free, arguments that are not options are wrong too. */
enum options_result settings_read(struct option_spec *specs, size_t count, const struct program_info *program,
                                  int argc, char **argv, int *first_free);

/* Parses for mains: 0 to go on, -1 when --help or --version was printed (exit 0), 2 when wrong and 1 when
 * help could not be printed (both said on stderr). As settings_read otherwise. */
int settings_parse(struct option_spec *specs, size_t count, const struct program_info *program, int argc,
                   char **argv, int *first_free);

/* For mains: prints "<program>: <error text>" to stderr and returns `status`. */
int settings_fail(const char *program, int status);

#endif
