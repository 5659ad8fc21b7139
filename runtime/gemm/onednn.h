/* GEMMs by oneDNN, from the library that the machine has: looked for at run time, the newest first, with the C
 * interface of version 3 or
 * 2. They run on the queue of an Intel GPU, through oneDNN's OpenCL runtime, or on the memory of a device that is
 * the host, in the thread that asks for them and those that oneDNN starts. */
#pragma once

#include "runtime/device/compute.h"

struct onednn;      /* the library, with its engine for a device, and the GEMMs that it compiled */
struct onednn_gemm; /* compiled for one shape, for as many runs as wanted */

/* C [m, n] = op(A) [m, k] op(B) [k, n] + beta C, row-major, all of them at least 1. Arrays are for A, B and C. */
struct onednn_shape {
    bool transpose_a, transpose_b;
    size_t m, n, k;
    size_t strides[3]; /* elements from row to row, as they are stored */
    enum element_type types[3];
    float beta;
};

/* Loads the library and makes an engine for the compute's device and queue, which must stay until onednn_close. -1
 * where no library is found, none that knows such a device, or the device's driver is not one that oneDNN takes. */
int onednn_open(struct compute *compute, struct onednn **opened);
void onednn_close(struct onednn *onednn);

/* "3.2.0". */
const char *onednn_version(const struct onednn *onednn);

/* Whether the library can be told to keep sums in one order, and so gives the same bits each time; from 3.4 on. */
bool onednn_repeats(const struct onednn *onednn);

/* Whether any GEMM so far is a plain loop, which the library has for tests and where it does not know a device's
 * matrix cores. */
bool onednn_has_plain_loops(const struct onednn *onednn);

/* The GEMM of a shape, compiled at the first need and kept; valid until the next call. NULL where the library has
 * none such for the device, or cannot compile it. */
const struct onednn_gemm *onednn_find(struct onednn *onednn, const struct onednn_shape *shape);

/* matrices[i] is the first element of A, B or C: on a GPU a cl_mem, and the GEMM is only put into the queue; on a
 * CPU an address, and the GEMM is done on return, by one thread at a time. 0, or the library's status for
 * onednn_status_text. */
int onednn_run(const struct onednn_gemm *gemm, void *const matrices[3]);
const char *onednn_status_text(const struct onednn *onednn, int status);
