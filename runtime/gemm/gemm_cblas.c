/* The host's BLAS as a native kernel: in queue order, on the buffers' own memory; small GEMMs by a kernel of our
 * own.
 *
 * OpenBLAS is loaded at run time and not linked, for two reasons: it reads OPENBLAS_THREAD_TIMEOUT (see
 * device_prepare_environment) in its constructor, so it must not be loaded before main; and machines that train on
 * a GPU need not have it. In a program that links another user of OpenBLAS, such as LAPACKE, it is loaded already;
 * then its threads spin for the default time, and only that much speed is lost. */
#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/gemm_libraries.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
#include "runtime/system/memory.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* The C interface of BLAS, with 32-bit integers, as every libopenblas.so.0 has it. */
enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 };
typedef void sgemm_function(int layout, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                            const float *a, int a_stride, const float *b, int b_stride, float beta, float *c,
                            int c_stride);
typedef void set_threads_function(int count);

enum {
    PIECE_BYTES = 128 << 20, /* that OpenBLAS maps for a thread, at most */
    WARM_UP = 256,           /* rows and columns of a GEMM that all threads share */
};

/* Of the library, which stays loaded until the process ends. */
static sgemm_function *sgemm;

/* What the native kernel gets. */
struct work {
    struct gemm_places places;
    struct gemm_call call; /* its buffers may be gone by then, though not their memory */
    const float *a, *b;
    float *c;
};

/* OpenBLAS takes its working memory at the first GEMMs, a piece for each thread, and tries for ever where it gets
 * none, as under a limit on address space (ulimit -v) or on memory that can be written to (ulimit -d). So that is
 * asked for here, and taken at once. */
static int take_memory(void) {
    const size_t bytes = ((size_t)host_cores() + 1) * PIECE_BYTES;
    void *reserved = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) {
        return error_set(
            "OpenBLAS needs %zu MiB of address space for itself: raise the limit (ulimit -v, ulimit -d)",
            bytes >> 20);
    }
    munmap(reserved, bytes);
    float *matrix = memory_zeroed((size_t)WARM_UP * WARM_UP, sizeof *matrix);
    sgemm(ROW_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE, WARM_UP, WARM_UP, WARM_UP, 1.0f, matrix, WARM_UP, matrix, WARM_UP,
          0.0f, matrix, WARM_UP);
    free(matrix);
    return 0;
}

static int cblas_open(struct compute *compute) {
    set_threads_function *set_threads;
    const char *(*get_config)(void);
    if (!compute->device.native_kernels) {
        return error_set("device %s does not run native kernels on host memory; use clblast", compute->device.name);
    }
    if (compute->dry) {
        return 0;
    }
    void *library = library_load(blas_names);
    if (!library) {
        return error_set("cannot load OpenBLAS: %s", dlerror());
    }
    if (!blas_find(library, "cblas_sgemm", &sgemm)) {
        return error_set("OpenBLAS here has no cblas_sgemm");
    }
    if (!getenv("OPENBLAS_NUM_THREADS") && blas_find(library, "openblas_set_num_threads", &set_threads)) {
        set_threads((int)host_cores());
    }
    /* what a new version, or another kind of processor, changes */
    const char *version = blas_find(library, "openblas_get_config", &get_config) ? get_config() : "";
    if (*version) {
        gemm_identify(gemm_state(compute), version, strlen(version));
    }
    return take_memory();
}

static void CL_CALLBACK work_run(void *argument) {
    const struct work *work = argument;
    const struct gemm_call *call = &work->call;
    sgemm(ROW_MAJOR, call->transpose_a ? TRANSPOSE : NO_TRANSPOSE, call->transpose_b ? TRANSPOSE : NO_TRANSPOSE,
          (int)call->m, (int)call->n, (int)call->k, 1.0f, work->a, (int)call->a.stride, work->b,
          (int)call->b.stride, call->beta, work->c, (int)call->c.stride);
}

static void cblas_run(struct compute *compute, const struct gemm_call *call) {
    if (gemm_panels_are_faster(compute, call)) {
        gemm_panels_run(compute, call);
        return;
    }
    /* the stride of a one-row matrix is never used, but checked against the width */
    if ((call->m | call->n | call->k | call->a.stride | call->b.stride | call->c.stride) > INT_MAX) {
        compute_fail(compute, "%s: the host's BLAS takes no sizes and strides above %d", call->name, INT_MAX);
        return;
    }
    if (!gemm_call_begin(compute, call)) {
        return;
    }
    struct work work = {
        {{NULL}}, *call, matrix_address(&call->a), matrix_address(&call->b), matrix_address(&call->c)};
    gemm_call_run_native(compute, call, work_run, &work.places, sizeof work);
}

/* The library is not called for less. */
static size_t cblas_large_edge(struct compute *compute) {
    (void)compute;
    return 512;
}

const struct gemm_backend gemm_backend_cblas = {.name = "cblas",
                                                .open = cblas_open,
                                                .run = cblas_run,
                                                .takes_batch = gemm_panels_are_faster,
                                                .large_edge = cblas_large_edge};
