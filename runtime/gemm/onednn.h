/* oneDNN's matrix products, from the library that the machine has: looked for at run time, the newest first, with the C
 * interface of version 3 or 2. They run on the queue of an Intel GPU, through oneDNN's OpenCL runtime, or on the memory of a
 * device that is the host, in the thread that asks for them and those that oneDNN starts. */
#pragma once

#include "runtime/device/compute.h"

struct onednn;         /* the library, with its engine for a device */
struct onednn_product; /* made for one shape, for as many runs as wanted */

/* C [m, n] = op(A) [m, k] op(B) [k, n] + beta C, row-major, all of them at least 1. Arrays are for A, B and C. */
struct onednn_shape {
    bool transpose_a, transpose_b;
    size_t m, n, k;
    size_t strides[3]; /* elements from row to row, as they are stored */
    enum element_type types[3];
    float beta;
};

/* Loads the library and makes an engine for the compute's device and queue, which must stay until onednn_close. -1 where no
 * library is found, none that knows such a device, or the device's driver is not one that oneDNN takes. */
int onednn_open(struct compute *compute, struct onednn **opened);
void onednn_close(struct onednn *onednn);

/* "3.2.0". */
const char *onednn_version(const struct onednn *onednn);

/* Whether the library can be told to keep sums in one order, and so gives the same bits each time; from 3.4 on. */
bool onednn_repeats(const struct onednn *onednn);

/* Compiles a product, which the caller destroys before onednn_close; *created is NULL where the library has none such for
 * the device. -1 when that fails. */
int onednn_product_create(struct onednn *onednn, const struct onednn_shape *shape, struct onednn_product **created);
void onednn_product_destroy(struct onednn_product *product);

/* What the library calls its code for it, e.g. "jit:gemm:any"; with "ref" in it a plain loop that is there for tests. */
const char *onednn_product_code(const struct onednn_product *product);

/* matrices[i] is the first element of A, B or C: on a GPU a cl_mem, and the product is only put into the queue; on a CPU an
 * address, and the product is done on return, by one thread at a time. 0, or the library's status for onednn_status_text. */
int onednn_product_run(const struct onednn_product *product, void *const matrices[3]);
const char *onednn_status_text(const struct onednn *onednn, int status);
