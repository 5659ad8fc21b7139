#include "runtime/gemm/gemm.h"
#include "runtime/device/compute.h"
#include "runtime/device/vulkan_driver.h"
#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/mma_choice.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <stdlib.h>
#include <string.h>

/* ---- choosing */

static const struct gemm_backend *const backends[] = {&gemm_backend_cblas, &gemm_backend_clblast, &gemm_backend_mma,
                                                      &gemm_backend_onednn, &gemm_backend_portable};

/* Closes what `backend` opened for fp32. */
static void close_fp32(struct compute *compute, const struct gemm_backend *backend) {
    const struct gemm_backend *fp32 = gemm_state(compute)->fp32;
    if (fp32 != backend && fp32->close) {
        fp32->close(compute);
    }
}

static int open_backend(struct compute *compute, const struct gemm_backend *backend) {
    struct gemm_state *state = gemm_state(compute);
    state->fp32 = backend;
    if (backend->open(compute)) {
        close_fp32(compute, backend);
        return -1;
    }
    state->backend = backend;
    snprintf(state->description, sizeof(state->description), "%s%s%s%s%s%s%s", backend->name,
             *state->runs_on ? " on " : "", state->runs_on,
             !*state->refusal         ? ""
             : compute->device.is_gpu ? "; no matrix cores: "
                                      : "; 16 bits in fp32: ",
             state->refusal, *state->passed_over ? "; without oneDNN: " : "", state->passed_over);
    return 0;
}

static int open_or_fail(struct compute *compute, const struct gemm_backend *backend) {
    return open_backend(compute, backend) ? error_prefix("GEMM backend %s", backend->name) : 0;
}

int gemm_identify(struct gemm_state *state, const void *data, size_t bytes) {
    char digest[CHECKSUM_SIZE];
    const char *const parts[] = {state->identity, digest};
    return checksum_memory(data, bytes, digest) || checksum_strings(parts, 2, state->identity) ? -1 : 0;
}

void gemm_keep_reason(char reason[REASON_SIZE]) {
    snprintf(reason, REASON_SIZE, "%.*s", (int)strcspn(error_text(), "\n"), error_text());
}

/* Opens the backend if it is one for this device. Why it cannot be opened is kept. */
static bool try_backend(struct compute *compute, const struct gemm_backend *backend, bool suits, char *reason) {
    if (!suits) {
        return false;
    }
    if (open_backend(compute, backend) == 0) {
        return true;
    }
    gemm_keep_reason(reason);
    return false;
}

/* On Intel's GPUs oneDNN, also for fp32; for operands of 16 bits matrix cores, or on a CPU that has instructions
 * for them oneDNN. Then the host's BLAS. CLBlast's kernels are written for the vendors' compilers of OpenCL: what
 * clspv makes of them for Vulkan is slow (a tenth of the portable GEMM's rate on lavapipe). */
static int open_automatically(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    const struct device *device = &compute->device;
    const bool by_intel = device->is_gpu && device_by_intel(device) && !device->model;
    const bool has_16_bits = state->operands != ELEMENT_FP32;
    const bool is_cpu = device->native_kernels && !device->is_gpu && !compute->dry;
    if (try_backend(compute, &gemm_backend_onednn, by_intel, state->passed_over) ||
        try_backend(compute, &gemm_backend_mma, has_16_bits && device->is_gpu, state->refusal) ||
        try_backend(compute, &gemm_backend_onednn, is_cpu && *device->matrix_cores.names[state->operands],
                    state->refusal) ||
        open_backend(compute, &gemm_backend_cblas) == 0) {
        return 0;
    }
    return open_or_fail(compute, strcmp(device->platform_name, VULKAN_PLATFORM) ? &gemm_backend_clblast
                                                                                : &gemm_backend_portable);
}

void gemm_close(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    if (state->backend) {
        close_fp32(compute, state->backend);
    }
    if (state->backend && state->backend->close) {
        state->backend->close(compute);
    }
    for (size_t i = 0; i < 3; i++) {
        buffer_release(compute, &state->copies[i]);
    }
    free(state);
    compute->attached = NULL;
    compute->close_attached = NULL;
}

int gemm_open(struct compute *compute, const char *name, enum element_type operands) {
    struct gemm_state *state = memory_zeroed(1, sizeof(*state));
    compute->attached = state;
    compute->close_attached = gemm_close;
    state->operands = operands;
    state->automatic = !strcmp(name, "auto");
    if (state->automatic) {
        return open_automatically(compute);
    }
    for (size_t i = 0; i < COUNT(backends); i++) {
        if (!strcmp(name, backends[i]->name)) {
            return open_or_fail(compute, backends[i]);
        }
    }
    return error_set("no GEMM backend \"%s\"; there are: auto, cblas, clblast, mma, onednn, portable", name);
}

int gemm_compute_open(struct compute **opened, const struct compute_options *options) {
    if (compute_open(opened, options)) {
        return -1;
    }
    if (gemm_open(*opened, options->gemm ? options->gemm : "auto", options->operands)) {
        error_prefix("cannot open device %s", (*opened)->device.name);
        compute_close(*opened);
        *opened = NULL;
        return -1;
    }
    return 0;
}

bool gemm_copies(const struct compute *compute, enum element_type type) {
    const struct gemm_backend *backend = gemm_state(compute)->backend;
    return type != ELEMENT_FP32 && !(backend->takes_type && backend->takes_type(compute, type));
}

size_t gemm_parts_bytes(const struct compute *compute, enum element_type type) {
    const struct gemm_state *state = gemm_state(compute);
    if (state->backend == &gemm_backend_portable && gemm_blocks_suit(compute)) {
        return GEMM_PARTS_BYTES;
    }
    return type != ELEMENT_FP32 && state->mma ? MMA_PARTS_BYTES : 0;
}

size_t gemm_iterations(const struct compute *compute, size_t k) {
    return gemm_state(compute)->backend == &gemm_backend_portable && !gemm_blocks_suit(compute)
               ? gemm_panels_iterations(compute, k)
               : 0;
}

bool gemm_fuses(const struct compute *compute, enum element_type type) {
    return type != ELEMENT_FP32 && gemm_state(compute)->backend->fuses;
}

bool gemm_uses_matrix_cores(const struct compute *compute) {
    return gemm_state(compute)->backend->uses_matrix_cores;
}

const char *gemm_name(const struct compute *compute) {
    return gemm_state(compute)->backend->name;
}

const char *gemm_description(const struct compute *compute) {
    const struct gemm_state *state = gemm_state(compute);
    return state->description;
}

struct gemm_matrix_cores gemm_matrix_cores(const struct compute *compute) {
    const struct gemm_state *state = gemm_state(compute);
    return (struct gemm_matrix_cores){.name = state->matrix_cores,
                                      .refusal = *state->refusal ? state->refusal : NULL,
                                      .failed = *state->refusal && state->tried};
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

/* A call of fp32 matrices. */
static void run_fp32(struct compute *compute, const struct gemm_call *call) {
    (call->k ? gemm_state(compute)->fp32->run : gemm_panels_run)(compute, call);
}

/* Runs the call on copies of what is not fp32. What lies between the rows of C is carried over with them. */
static void run_copied(struct compute *compute, const struct gemm_call *call) {
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
    run_fp32(compute, &copied);
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

/* A call that was checked, and has one matrix or a batch that the backend takes. */
static void run_checked(struct compute *compute, const struct gemm_call *call) {
    const struct gemm_backend *backend = gemm_state(compute)->backend;
    if (backend_takes(compute, call)) {
        backend->run(compute, call);
    } else if (gemm_call_has_epilogue(call)) {
        compute_fail(compute, "%s: %s cannot add a bias or activate what comes out", call->name, backend->name);
    } else if (gemm_call_is_plain_fp32(call)) {
        run_fp32(compute, call);
    } else {
        run_copied(compute, call);
    }
}

static bool takes_batch(struct compute *compute, const struct gemm_call *call) {
    const struct gemm_state *state = gemm_state(compute);
    const bool takes = backend_takes(compute, call);
    const struct gemm_backend *backend = takes ? state->backend : state->fp32;
    return (takes || gemm_call_is_plain_fp32(call)) && backend->takes_batch && backend->takes_batch(compute, call);
}

/* Matrices of a batch one by one. */
static void run_each(struct compute *compute, const struct gemm_call *batch) {
    struct gemm_call call = *batch;
    call.batch = 1;
    complete(compute, &call);
    for (size_t i = 0; i < batch->batch && !compute->failure; i++) {
        run_checked(compute, &call);
        call.a.offset += call.a.rows * call.a.stride;
        call.b.offset += call.b.rows * call.b.stride;
        call.c.offset += call.c.rows * call.c.stride;
    }
}

void gemm_run(struct compute *compute, const struct gemm_call *asked) {
    struct gemm_call call = *asked;
    complete(compute, &call);
    if (compute->failure || !call.m || !call.n || !call_fits(compute, &call)) {
        return;
    }
    if (call.batch > 1 && !takes_batch(compute, &call)) {
        run_each(compute, &call);
    } else {
        run_checked(compute, &call);
    }
}
