/* Names of the host's libraries for GEMM, which are loaded at run time, for library_load. */
#pragma once

#include "runtime/system/library.h"
#include <stdio.h>

/* OpenBLAS: first that of PyPI's scipy-openblas32, which only programs of our wheel find. Then threaded builds:
 * where the plain name is the sequential one (Fedora), the other exists. */
static const char *const blas_names[] = {"libscipy_openblas.so", "libopenblasp.so.0", "libopenblas.so.0",
                                         "libopenblas.so", NULL};

static const char *const onednn_names[] = {"libdnnl.so.3", "libdnnl.so.3.6" /* Debian 13 */, "libdnnl.so.2",
                                           "libdnnl.so", NULL};

/* As library_find; in scipy-openblas32 all functions have "scipy_" before their names. */
static inline bool blas_find(void *library, const char *name, void *function) {
    char prefixed[64];
    snprintf(prefixed, sizeof prefixed, "scipy_%s", name);
    return library_find(library, name, function) || library_find(library, prefixed, function);
}
