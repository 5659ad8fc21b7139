/* Calls of gemm_run: checks, copies in fp32, batches; and what backends share. */
#include "runtime/device/profiler.h"
#include "runtime/gemm/gemm_backend.h"
#include "runtime/system/error.h"
#include <string.h>

/* ---- what backends share */

bool gemm_reserve(struct compute *compute, struct buffer *buffer, size_t bytes, const char *what) {
    if (buffer->bytes < bytes) {
        buffer_release(compute, buffer);
        if (buffer_create(compute, buffer, bytes)) {
            compute_fail(compute, "no memory for %s of a GEMM: %s", what, error_text());
            return false;
        }
    }
    return true;
}

struct kernel gemm_call_named(const struct gemm_call *call, const struct kernel *kernel) {
    struct kernel named = *kernel;
    memcpy(named.name, call->name, sizeof named.name);
    return named;
}

bool gemm_call_begin(struct compute *compute, const struct gemm_call *call) {
    const double outputs = (double)call->m * (double)call->n * (double)element_size(call->c.buffer->type);
    struct launch_entry record = {
        .read = (double)call->m * (double)call->k * (double)element_size(call->a.buffer->type) +
                (double)call->n * (double)call->k * (double)element_size(call->b.buffer->type) +
                (call->beta != 0.0f ? outputs : 0.0),
        .written = outputs,
        .flops = gemm_call_flops(call),
        .launches = true,
    };
    memcpy(record.name, call->name, sizeof record.name);
    compute_log(compute, &record);
    return !compute->dry;
}

cl_event gemm_call_mark(struct compute *compute) {
    cl_event marker = NULL;
    if (!compute->profiler || clEnqueueMarkerWithWaitList(compute->queue, 0, NULL, &marker) != CL_SUCCESS) {
        return NULL;
    }
    return marker;
}

void gemm_call_profile(struct compute *compute, const struct gemm_call *call, cl_event begin, cl_event end) {
    if (end) {
        profiler_add(compute->profiler, call->name, gemm_call_flops(call), begin, end);
    } else if (begin) {
        clReleaseEvent(begin);
    }
}

void gemm_call_run_native(struct compute *compute, const struct gemm_call *call, void(CL_CALLBACK *run)(void *work),
                          struct gemm_places *work, size_t bytes) {
    const void *places[] = {&work->addresses[0], &work->addresses[1], &work->addresses[2]};
    const cl_mem all[] = {call->a.buffer->memory, call->b.buffer->memory, call->c.buffer->memory};
    cl_event event = NULL;
    cl_mem memory[3]; /* each once: PoCL 3.1 leaves places unset when its list names one twice */
    cl_uint count = 0;
    for (size_t i = 0; i < 3; i++) {
        if ((count < 1 || all[i] != memory[0]) && (count < 2 || all[i] != memory[1])) {
            memory[count++] = all[i];
        }
    }
    const cl_int code = clEnqueueNativeKernel(compute->queue, run, work, bytes, count, memory, places, 0, NULL,
                                              compute->profiler ? &event : NULL);
    if (code != CL_SUCCESS) {
        compute_fail(compute, "cannot launch %s: %s", call->name, device_error_text(code));
    } else {
        gemm_call_profile(compute, call, NULL, event);
    }
}

/* ---- calls */

/* Whether the matrix, or the batch of it, is inside of its buffer; if not, that is kept as the failure. */
static bool matrix_fits(struct compute *compute, const struct gemm_call *call, const char *letter,
                        const struct matrix *matrix) {
    size_t rows, end, elements = matrix->buffer->bytes / element_size(matrix->buffer->type);
    bool fits = matrix->stride >= matrix->columns &&
                !__builtin_mul_overflow(matrix->rows, gemm_call_count(call), &rows) &&
                !__builtin_mul_overflow(rows - 1, matrix->stride, &end) &&
                !__builtin_add_overflow(end, matrix->columns, &end) &&
                !__builtin_add_overflow(end, matrix->offset, &end) && end <= elements;
    if (!fits) {
        compute_fail(compute, "%s: %s [%zu, %zu] at %zu with stride %zu does not fit its buffer of %zu elements",
                     call->name, letter, matrix->rows, matrix->columns, matrix->offset, matrix->stride, elements);
    }
    return fits;
}

/* As in the reference BLAS, A and B are not looked at when nothing of them counts. */
static bool call_fits(struct compute *compute, const struct gemm_call *x) {
    const struct matrix bias = matrix_of(x->bias.buffer, x->bias.offset, 1, x->n);
    return matrix_fits(compute, x, "C", &x->c) &&
           (!x->k || (matrix_fits(compute, x, "A", &x->a) && matrix_fits(compute, x, "B", &x->b))) &&
           (!bias.buffer || matrix_fits(compute, x, "bias", &bias)) &&
           (x->epilogue == EPILOGUE_NONE || matrix_fits(compute, x, "side", &x->side));
}

/* Sets m, n, k and the name. Matrices whose sizes do not agree are a failure. */
static void complete(struct compute *compute, struct gemm_call *call) {
    const size_t k = call->transpose_b ? call->b.columns : call->b.rows;
    call->m = call->c.rows;
    call->n = call->c.columns;
    call->k = call->transpose_a ? call->a.rows : call->a.columns;
    char times[32] = "";
    if (call->batch > 1) {
        snprintf(times, sizeof times, " %zu times", call->batch);
    }
    const int length =
        snprintf(call->name, sizeof(call->name), "gemm_%c%c %zux%zux%zu%s", call->transpose_a ? 't' : 'n',
                 call->transpose_b ? 't' : 'n', call->m, call->n, call->k, times);
    if (length >= (int)sizeof(call->name)) {
        strcpy(call->name, "gemm"); /* of sizes that no buffer has */
    }
    if (call->m != (call->transpose_a ? call->a.columns : call->a.rows) || call->k != k ||
        call->n != (call->transpose_b ? call->b.rows : call->b.columns)) {
        compute_fail(compute, "%s: the sizes of A, B and C do not agree", call->name);
    }
}

/* ---- running */

/* Elements from the first to the last one of a matrix, with those between its rows. */
static size_t matrix_span(const struct matrix *matrix) {
    return (matrix->rows - 1) * matrix->stride + matrix->columns;
}

/* Replaces a matrix of 16 bits by one of floats, with the same stride; with `fill` they are its numbers. */
static void copy_matrix(struct compute *compute, struct buffer *copy, struct matrix *matrix, bool fill) {
    const size_t count = matrix_span(matrix);
    if (matrix->buffer->type == ELEMENT_FP32 || compute->failure) {
        return;
    }
    if (!gemm_reserve(compute, copy, count > SIZE_MAX / sizeof(float) ? SIZE_MAX : count * sizeof(float),
                      "a copy in fp32")) {
        return;
    }
    if (fill) {
        convert_elements(compute, (struct span){matrix->buffer, matrix->offset}, (struct span){copy, 0}, count);
    }
    matrix->buffer = copy;
    matrix->offset = 0;
}

/* Runs the call on copies of what is not fp32. What lies between the rows of C is carried over with them. */
static void run_in_fp32(struct compute *compute, const struct gemm_call *call) {
    struct gemm_state *state = gemm_state(compute);
    struct gemm_call copied = *call;
    const bool gaps = call->c.stride != call->n;
    if (call->k) {
        copy_matrix(compute, &state->copies[0], &copied.a, true);
        copy_matrix(compute, &state->copies[1], &copied.b, true);
    }
    copy_matrix(compute, &state->copies[2], &copied.c, call->beta != 0.0f || gaps);
    if (compute->failure) {
        return;
    }
    (call->k ? state->fp32->run : gemm_panels_run)(compute, &copied);
    if (call->c.buffer->type != ELEMENT_FP32) {
        convert_elements(compute, (struct span){copied.c.buffer, 0}, (struct span){call->c.buffer, call->c.offset},
                         matrix_span(&call->c));
    }
}

/* Whether the chosen backend computes the call itself. */
static bool backend_takes(struct compute *compute, const struct gemm_call *call) {
    const struct gemm_backend *backend = gemm_state(compute)->backend;
    return call->k && backend->takes && backend->takes(compute, call);
}

/* Whether what computes the call, the backend or the one for fp32, takes the whole batch. */
static bool takes_batch(struct compute *compute, const struct gemm_call *call) {
    const struct gemm_state *state = gemm_state(compute);
    const bool takes = backend_takes(compute, call);
    const bool is_fp32 = call->a.buffer->type == ELEMENT_FP32 && call->b.buffer->type == ELEMENT_FP32 &&
                         call->c.buffer->type == ELEMENT_FP32 && !gemm_call_has_epilogue(call);
    const struct gemm_backend *backend = takes ? state->backend : state->fp32;
    return (takes || is_fp32) && backend->takes_batch && backend->takes_batch(compute, call);
}

void gemm_run(struct compute *compute, const struct gemm_call *asked) {
    const struct gemm_backend *backend = gemm_state(compute)->backend;
    struct gemm_call call = *asked;
    size_t count = 1;
    complete(compute, &call);
    if (compute->failure || !call.m || !call.n || !call_fits(compute, &call)) {
        return;
    }
    if (call.batch > 1 && !takes_batch(compute, &call)) { /* the matrices one by one */
        count = call.batch;
        call.batch = 1;
        complete(compute, &call);
    }
    for (size_t i = 0; i < count && !compute->failure; i++) {
        if (backend_takes(compute, &call)) {
            backend->run(compute, &call);
        } else if (gemm_call_has_epilogue(&call)) {
            compute_fail(compute, "%s: %s cannot add a bias or activate what comes out", call.name, backend->name);
        } else {
            run_in_fp32(compute, &call);
        }
        call.a.offset += call.a.rows * call.a.stride;
        call.b.offset += call.b.rows * call.b.stride;
        call.c.offset += call.c.rows * call.c.stride;
    }
}
