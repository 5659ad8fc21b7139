/* GEMMs: which backend runs those of a device; calls of gemm_run, with checks, copies in fp32 and batches; what
 * backends share; and how fast GEMMs are. */
#include "runtime/device/profiler.h"
#include "runtime/gemm/gemm_backend.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/progress.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct gemm_backend *const backends[] = {&gemm_backend_cblas, &gemm_backend_clblast, &gemm_backend_mma,
                                                      &gemm_backend_onednn, &gemm_backend_portable};

static int open_backend(struct compute *compute, const struct gemm_backend *backend) {
    struct gemm_state *state = gemm_state(compute);
    state->fp32 = backend;
    if (backend->open && backend->open(compute)) {
        if (state->fp32 != backend && state->fp32->close) {
            state->fp32->close(compute);
        }
        return -1;
    }
    state->backend = backend;
    const char *refused = compute->device.is_gpu ? "; no matrix cores: " : "; 16 bits in fp32: ";
    snprintf(state->description, sizeof(state->description), "%s%s%s%s%s%s%s", backend->name,
             *state->runs_on ? " on " : "", state->runs_on, *state->refusal ? refused : "", state->refusal,
             *state->passed_over ? "; without oneDNN: " : "", state->passed_over);
    return 0;
}

void gemm_identify(struct gemm_state *state, const void *data, size_t bytes) {
    char digest[CHECKSUM_SIZE];
    const char *const parts[] = {state->identity, digest};
    checksum_memory(data, bytes, digest);
    checksum_strings(parts, 2, state->identity);
}

void gemm_keep_reason(char reason[REASON_SIZE]) {
    snprintf(reason, REASON_SIZE, "%.*s", (int)strcspn(error_text(), "\n"), error_text());
}

/* The rule of "auto". The backend of the first row that suits the device, and that opens there, is taken:
 *
 *   device                          | operands      | backend
 *   GPU by Intel's driver           | any           | onednn
 *   GPU                             | bf16, fp16    | mma, if its matrix cores pass their self-test
 *   CPU with instructions for them  | bf16, fp16    | onednn, which leaves fp32 to cblas
 *   CPU                             | any           | cblas
 *   on Vulkan                       | any           | portable
 *   any                             | any           | clblast
 *
 * CLBlast's kernels are written for the vendors' compilers of OpenCL: what clspv makes of them for Vulkan is slow
 * (a tenth of the portable GEMM's rate on lavapipe). */
static int choose_backend(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    const struct device *device = &compute->device;
    const bool has_16_bits = state->operands != ELEMENT_FP32;
    const bool is_cpu = device->native_kernels && !device->is_gpu && !compute->dry;
    const bool on_vulkan = !strcmp(device->platform_name, VULKAN_PLATFORM);
    const struct {
        bool suits;
        const struct gemm_backend *backend;
        char *reason; /* why it was not opened is kept here; NULL: nowhere */
    } rows[] = {
        {device->is_gpu && device_by_intel(device) && !device->model, &gemm_backend_onednn, state->passed_over},
        {device->is_gpu && has_16_bits, &gemm_backend_mma, state->refusal},
        {is_cpu && *device->matrix_cores.names[state->operands], &gemm_backend_onednn, state->refusal},
        {true, &gemm_backend_cblas, NULL},
        {on_vulkan, &gemm_backend_portable, NULL},
        {true, &gemm_backend_clblast, NULL},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (rows[i].suits && open_backend(compute, rows[i].backend) == 0) {
            return 0;
        }
        if (rows[i].suits && rows[i].reason) {
            gemm_keep_reason(rows[i].reason);
        }
    }
    return error_prefix("GEMM backend %s", gemm_backend_clblast.name);
}

/* Releases what gemm_open made. */
static void gemm_close(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    const struct gemm_backend *backend = state->backend;
    if (backend && state->fp32 != backend && state->fp32->close) {
        state->fp32->close(compute);
    }
    if (backend && backend->close) {
        backend->close(compute);
    }
    for (size_t i = 0; i < 3; i++) {
        buffer_release(compute, &state->copies[i]);
    }
    buffer_release(compute, &state->scratch);
    buffer_release(compute, &state->partial);
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
        return choose_backend(compute);
    }
    for (size_t i = 0; i < COUNT(backends); i++) {
        if (!strcmp(name, backends[i]->name)) {
            return open_backend(compute, backends[i]) ? error_prefix("GEMM backend %s", name) : 0;
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
    return type != ELEMENT_FP32 && state->backend == &gemm_backend_mma ? MMA_PARTS_BYTES : 0;
}

bool gemm_fuses(const struct compute *compute, enum element_type type) {
    return type != ELEMENT_FP32 && gemm_state(compute)->backend->fuses;
}

struct gemm_facts gemm_facts(const struct compute *compute) {
    const struct gemm_state *state = gemm_state(compute);
    return (struct gemm_facts){.name = state->backend->name,
                               .description = state->description,
                               .uses_matrix_cores = state->backend->uses_matrix_cores,
                               .matrix_cores = state->matrix_cores,
                               .refusal = *state->refusal ? state->refusal : NULL,
                               .failed = *state->refusal && state->tried};
}

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

/* ---- how fast GEMMs are */

#define ROUNDS     3     /* at least */
#define SECONDS    0.1   /* of rounds for a rate */
#define PERIOD     65521 /* elements until they repeat: a prime, so that rows differ */
#define ROUND      0.01  /* seconds of calls for one wait of the host, which may take as long as a GEMM */
#define MOST_CALLS 256   /* in a round */

/* Creates the buffer of a rows x columns matrix of this type with numbers in [-0.5, 0.5) in it: zeros would not
 * draw the power that real data does. */
static int create_matrix(struct compute *compute, struct buffer *buffer, enum element_type type, size_t rows,
                         size_t columns) {
    size_t count, bytes;
    if (__builtin_mul_overflow(rows, columns, &count) ||
        __builtin_mul_overflow(count, element_size(type), &bytes)) {
        return error_set("a matrix of %zu x %zu is too large", rows, columns);
    }
    if (buffer_create(compute, buffer, bytes)) {
        return -1;
    }
    buffer->type = type;
    char *elements = memory_allocate(1, bytes);
    uint32_t state = 1;
    for (size_t i = 0; i < count && i < PERIOD; i++) {
        state = state * 1664525U + 1013904223U;
        element_put(elements, i, (float)(state >> 8) / 16777216.0f - 0.5f, type);
    }
    for (size_t at = PERIOD * element_size(type); at < bytes; at++) {
        elements[at] = elements[at - PERIOD * element_size(type)];
    }
    const int status = buffer_write(compute, buffer, 0, elements, bytes);
    free(elements);
    return status;
}

/* Seconds of so many calls one after another; -1 with an error. */
static double time_calls(struct compute *compute, const struct gemm_call *call, size_t calls) {
    const double start = progress_clock();
    for (size_t i = 0; i < calls; i++) {
        gemm_run(compute, call);
    }
    return compute_finish(compute) ? -1.0 : progress_clock() - start;
}

/* Takes the fastest of a few rounds, after two calls that compile and warm up. A round is as many calls as take 10
 * ms, but at least one and at most MOST_CALLS, one after another without waiting. */
int gemm_measure_rate(struct compute *compute, enum element_type type, size_t m, size_t n, size_t k,
                      double *flops_per_second) {
    struct buffer a = {0}, b = {0}, c = {0};
    const struct gemm_call call = {.transpose_b = true,
                                   .a = matrix_of(&a, 0, m, k),
                                   .b = matrix_of(&b, 0, n, k),
                                   .c = matrix_of(&c, 0, m, n)};
    double seconds = -1.0, best = INFINITY;
    *flops_per_second = 0.0;
    if (!m || !n || !k) {
        return error_set("cannot measure the rate of an empty GEMM");
    }
    if (!create_matrix(compute, &a, type, m, k) && !create_matrix(compute, &b, type, n, k) &&
        !create_matrix(compute, &c, type, m, n) && time_calls(compute, &call, 1) >= 0.0) {
        seconds = time_calls(compute, &call, 1);
        const size_t calls = (size_t)fmin(fmax(ROUND / seconds, 1.0), MOST_CALLS);
        const double deadline = progress_clock() + SECONDS;
        for (int round = 0; seconds >= 0.0 && (round < ROUNDS || progress_clock() <= deadline); round++) {
            seconds = time_calls(compute, &call, calls);
            best = fmin(best, seconds / (double)calls);
        }
    }
    buffer_release(compute, &a);
    buffer_release(compute, &b);
    buffer_release(compute, &c);
    if (seconds < 0.0) {
        return error_prefix("measuring the rate of gemm");
    }
    *flops_per_second = 2.0 * (double)m * (double)n * (double)k / best;
    return 0;
}
