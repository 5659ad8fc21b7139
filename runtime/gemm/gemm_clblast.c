/* CLBlast. Its kernels for large GEMMs want scratch memory; without a buffer of ours it would allocate some at
 * every call. */
#include "runtime/gemm/gemm_backend.h"
#include "runtime/system/library.h"
#include <clblast_c.h>
#include <limits.h>
#include <sys/stat.h>

static const char *status_name(CLBlastStatusCode status) {
    switch ((int)status) {
    case CLBlastInvalidLocalMemUsage:
        return "CLBlast: not enough local memory on the device";
    case CLBlastNoHalfPrecision:
        return "CLBlast: the device has no half precision";
    case CLBlastNoDoublePrecision:
        return "CLBlast: the device has no double precision";
    case CLBlastInsufficientMemoryTemp:
        return "CLBlast: the temporary buffer is too small";
    case CLBlastUnexpectedError:
        return "CLBlast: unexpected error";
    default:
        return device_error_text((cl_int)status);
    }
}

/* Another version of the library has other kernels, and tells its version nowhere: it is known by its file. */
static int clblast_open(struct compute *compute) {
    void *function;
    Dl_info place;
    struct stat status;
    if (!library_find(RTLD_DEFAULT, "CLBlastSgemmWithTempBuffer", &function) || !dladdr(function, &place) ||
        stat(place.dli_fname, &status)) {
        return 0;
    }
    const int64_t known_by[] = {status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
    gemm_identify(gemm_state(compute), known_by, sizeof known_by);
    return 0;
}

/* Its programs hold the context, and drivers may be gone when static destructors run. */
static void clblast_close(struct compute *compute) {
    (void)compute;
    CLBlastClearCache();
}

/* CLBlast counts elements in int, inside of its kernels, too. */
static bool matrix_is_addressable(const struct matrix *matrix) {
    size_t end;
    return matrix->offset <= INT_MAX && matrix->stride <= INT_MAX &&
           !__builtin_mul_overflow(matrix->rows, matrix->stride, &end) &&
           !__builtin_add_overflow(end, matrix->offset, &end) && end <= INT_MAX;
}

static void clblast_run(struct compute *compute, const struct gemm_call *call) {
    struct buffer *scratch = &gemm_state(compute)->scratch;
    const CLBlastTranspose transpose_a = call->transpose_a ? CLBlastTransposeYes : CLBlastTransposeNo;
    const CLBlastTranspose transpose_b = call->transpose_b ? CLBlastTransposeYes : CLBlastTransposeNo;
    size_t bytes = 0;
    cl_event end = NULL;
    if (call->m > INT_MAX || call->n > INT_MAX || call->k > INT_MAX || !matrix_is_addressable(&call->a) ||
        !matrix_is_addressable(&call->b) || !matrix_is_addressable(&call->c)) {
        compute_fail(compute, "%s: CLBlast takes no sizes, offsets or last elements above %d", call->name, INT_MAX);
        return;
    }
    if (!gemm_call_begin(compute, call)) {
        return;
    }
    CLBlastStatusCode status =
        CLBlastSGemmTempBufferSize(CLBlastLayoutRowMajor, transpose_a, transpose_b, call->m, call->n, call->k,
                                   call->a.offset, call->a.stride, call->b.offset, call->b.stride, call->c.offset,
                                   call->c.stride, &compute->queue, &bytes);
    if (status != CLBlastSuccess) {
        compute_fail(compute, "%s: cannot ask for the scratch size: %s", call->name, status_name(status));
        return;
    }
    if (bytes > (size_t)INT_MAX * sizeof(float)) {
        compute_fail(compute, "%s: CLBlast would need %zu bytes of scratch memory", call->name, bytes);
        return;
    }
    if (!gemm_reserve(compute, scratch, bytes, "scratch")) {
        return;
    }
    const cl_event begin = gemm_call_mark(compute); /* CLBlast's event is that of its last kernel only */
    status = CLBlastSgemmWithTempBuffer(CLBlastLayoutRowMajor, transpose_a, transpose_b, call->m, call->n, call->k,
                                        1.0f, call->a.buffer->memory, call->a.offset, call->a.stride,
                                        call->b.buffer->memory, call->b.offset, call->b.stride, call->beta,
                                        call->c.buffer->memory, call->c.offset, call->c.stride, &compute->queue,
                                        compute->profiler ? &end : NULL, scratch->memory);
    if (status != CLBlastSuccess) {
        compute_fail(compute, "cannot launch %s: %s", call->name, status_name(status));
    }
    gemm_call_profile(compute, call, begin, end);
    compute_finish_kernel(compute, call->name);
}

/* ---- its kernels for large GEMMs */

/* Whether a GEMM of squares of this many rows runs on those. They work on aligned copies, which matrices with an
 * offset need. */
static bool is_large(struct compute *compute, size_t edge) {
    size_t bytes = 0;
    return CLBlastSGemmTempBufferSize(CLBlastLayoutRowMajor, CLBlastTransposeNo, CLBlastTransposeYes, edge, edge,
                                      edge, 1, edge, 1, edge, 1, edge, &compute->queue, &bytes) == CLBlastSuccess &&
           bytes > 0;
}

/* The edge of squares from which on CLBlast takes its kernels for large GEMMs on this device, which it does not
 * tell in C. */
static size_t clblast_large_edge(struct compute *compute) {
    size_t small = 0, large = 4096;
    if (!is_large(compute, large)) {
        return 0;
    }
    while (large - small > 1) {
        const size_t middle = (small + large) / 2;
        *(is_large(compute, middle) ? &large : &small) = middle;
    }
    return large;
}

const struct gemm_backend gemm_backend_clblast = {.name = "clblast",
                                                  .open = clblast_open,
                                                  .run = clblast_run,
                                                  .close = clblast_close,
                                                  .large_edge = clblast_large_edge};
