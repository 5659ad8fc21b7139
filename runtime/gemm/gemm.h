/* Matrix products, row-major, through a BLAS.
 *
 * Backends: "clblast" runs on any device; "cblas" calls the host's BLAS from a native kernel, on the buffers
 * themselves and in queue order, on devices that share host memory and run native kernels (PoCL). "mma" computes
 * products of bf16 or fp16 matrices, summed in float, on the matrix units of GPUs (runtime/gemm/gemm_mma.h). "onednn" is
 * Intel's library, on its GPUs' queues and on CPUs (runtime/gemm/onednn.h). "portable" is our own in OpenCL C alone
 * (runtime/gemm/gemm_blocks.h).
 *
 * The types of the three buffers say what is stored in them. A backend that does not take them works on fp32
 * copies, which are made and taken back here; the sums are fp32 either way. */
#pragma once

#include "runtime/gemm/gemm_call.h"

/* Chooses the backend by name. "auto": oneDNN on Intel's GPUs where the library is; where most operands have 16 bits, a
 * GPU's matrix units if they work, or oneDNN for those of a CPU that has units for them; else the host's BLAS where it
 * can run, else CLBlast, or on Vulkan the portable product. `clblast_parameters` is a file or folder for
 * clblast_parameters_read; NULL or "" is none. */
int gemm_open(struct compute *compute, const char *name, enum element_type operands,
              const char *clblast_parameters);

/* What gemm_open made; compute_close does it, too. */
void gemm_close(struct compute *compute);

/* compute_open, then gemm_open as the options say. */
int gemm_compute_open(struct compute **opened, const struct compute_options *options);

/* A launch: failures are kept in the compute. Extents are checked against the buffers. */
void gemm_run(struct compute *compute, const struct gemm_call *call);

/* Whether all products of operands of this type go through fp32 copies, as they do where the backend lacks the type or computes it wrong; single ones may with "onednn", where matrices begin
 * at no multiple of some bytes. They are kept from product to product, one each
 * for A, B and C, as large as the largest: for memory plans. */
bool gemm_copies(const struct compute *compute, enum element_type type);

/* Bytes that such products may need besides, at most, for sums that several work-groups share: for memory plans. */
size_t gemm_parts_bytes(const struct compute *compute, enum element_type type);

/* Whether products of operands of this type may have a bias, an activation or its derivative behind them. */
bool gemm_fuses(const struct compute *compute, enum element_type type);

/* Whether GEMMs of 16 bits run on the device's matrix cores, so that attention's may, too. */
bool gemm_uses_matrix_cores(const struct compute *compute);

/* Turns of loops that a work-item of the portable GEMM makes for sums of k, at most; 0 where another backend or local memory divides
 * the work. */
size_t gemm_turns(const struct compute *compute, size_t k);

/* The name of the backend in use. */
const char *gemm_name(const struct compute *compute);

/* The same for people: also on which unit it runs, whether with given parameters, and why not on
 * matrix units where "auto" wanted some. */
const char *gemm_description(const struct compute *compute);

/* Which of the device's matrix cores are used, or why none are. */
struct gemm_matrix_cores {
    const char *name;    /* of those on which GEMMs of 16 bits run, e.g. "mma.sync"; NULL: none, or an emulation */
    const char *refusal; /* why "auto" uses none where it wanted some, a line; NULL: it does, or wanted none */
    bool failed;         /* the device should have some: they were tried, and did not compile or compute right */
};

/* The texts stay until the compute is closed. */
struct gemm_matrix_cores gemm_matrix_cores(const struct compute *compute);
