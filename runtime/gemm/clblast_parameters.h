/* Parameters of CLBlast's kernels from the JSON files that its own tuners write (clblast_tuner_xgemm and
 * others). */
#pragma once

#include "runtime/device/device.h"

enum { CLBLAST_KERNELS = 7, CLBLAST_MOST_PARAMETERS = 16 };

struct clblast_parameters {
    struct clblast_kernel_parameters {
        double milliseconds;                    /* that the tuner measured with them; INFINITY: there are none */
        size_t values[CLBLAST_MOST_PARAMETERS]; /* in the order of the kernel's names in clblast_parameters.c */
    } kernels[CLBLAST_KERNELS];
};

/* Reads one such file, or all of a folder: of several for one kernel the fastest parameters. Files of a folder that
 * are for other kernels than those of GEMM, or for another precision than fp32, are passed over. -1 with an error
 * where the file, or any of the folder for these kernels, holds no valid parameters, or the folder has no such
 * file. */
int clblast_parameters_read(const char *path, struct clblast_parameters *parameters);

/* Makes CLBlast use them on this device, in this process, from now on. */
int clblast_parameters_apply(const struct clblast_parameters *parameters, const struct device *device);

/* Sets the size of square matrices from which on CLBlast takes its kernel for large GEMMs ("Xgemm"). */
int clblast_parameters_apply_bound(size_t bound, const struct device *device);
