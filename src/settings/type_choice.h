/* What --dtype auto stands for: bf16 if a GPU's matrix cores multiply it, or a CPU's bf16 instructions in a model
 * that is wide enough; else fp32, as with a --gemm that multiplies in fp32 (cblas, clblast, portable). Never fp16.
 * A run that is resumed keeps the type in its settings.conf. */
#pragma once

#include "runtime/gemm/gemm.h"
#include "runtime/ranks/ranks.h"
#include "src/settings/settings.h"
#include <stdio.h>

struct type_choice {
    enum element_type type;
    char reason[1024];  /* why that one, in words; "" where it was given */
    char warning[1024]; /* what the user should know, "" for nothing */
};

/* Opens the device that the settings name, for GEMMs of the type wanted (enum element_type, or TYPE_AUTO) in a
 * model of so many channels, 0 if that is not known yet; of several GPUs the one with the rank's number on its
 * host. *choice is the same for all ranks: with "auto" fp32 for all if one of them has no matrix cores that work.
 * Collective; on failure all ranks have the error, and a *compute that is not NULL is still to be closed. */
int type_choice_open(const struct device_settings *settings, int wanted, size_t channels, struct ranks *ranks,
                     struct compute **compute, struct type_choice *choice);

/* Compares the device's GEMMs in fp32 and this type with sums on the host, if the compute asks for it. -1 with what
 * is wrong and what to do. */
int device_verify(struct compute *compute, enum element_type type);

/* If the optimizer multiplies matrices, sets the type in which it does (fp32 if one rank needs that), where
 * activations are of type `type`, and verifies these products. Collective. */
int type_choice_optimizer(struct compute *compute, enum element_type type, struct ranks *ranks,
                          struct optimizer_settings *optimizer);

/* For rank 0: prints "dtype    bf16: ..." to `lines` unless the type was given, or `lines` is NULL; the warning to
 * stderr. */
void type_choice_print(const struct type_choice *choice, FILE *lines);

/* The same behind a line for the device: its name, and what computes GEMMs. */
void type_choice_print_device(const struct type_choice *choice, const struct compute *compute, FILE *lines);

/* ---- the decisions themselves */

/* What one rank's choice depends on. */
struct type_facts {
    int wanted;         /* enum element_type, or TYPE_AUTO */
    int gemm;           /* enum gemm_word */
    const char *device; /* its name */
    bool is_gpu;
    struct gemm_facts backend; /* of a device opened for the type wanted, or for bf16 with TYPE_AUTO */
    bool untested;             /* the device is not there: its matrix cores are taken to work */
    size_t channels;           /* of the model; 0: not known, taken as many */
};

void type_choice_make(const struct type_facts *facts, struct type_choice *choice);

struct rank_choice {
    enum element_type type;
    bool chose_fp32; /* it was not given */
    char host[256];
    char gemm[32]; /* the backend that it opened */
};

/* Changes one rank's choice to fp32 if one of all ranks [count] chose that. */
void type_choice_merge(const struct rank_choice *all, int count, struct type_choice *merged);

/* Warns of a rank with another GEMM backend than rank 0, if there is no warning yet. One that could not load its
 * BLAS, for example, holds up all others, and rounds in another way. */
void type_choice_compare(const struct rank_choice *all, int count, struct type_choice *merged);
