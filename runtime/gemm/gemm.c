#include "runtime/gemm/gemm.h"
#include "runtime/device/convert.h"
#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/gemm_epilogue.h"
#include "runtime/system/error.h"
#include "runtime/system/progress.h"
#include <stdlib.h>
#include <string.h>

#define TILE 4 /* rows and columns of C per work-item, as in cl/gemm.cl */

/* ---- cl/gemm.cl: the portable backend, and C = beta C for all of them */

static int portable_prepare(struct compute *compute) {
    struct gemm_state *state = compute->gemm_state;
    const char *const files[] = {"gemm.cl", NULL};
    if (state->program) {
        return 0;
    }
    if (program_build(compute, files, NULL, &state->program)) {
        return -1;
    }
    if (kernel_create(compute, state->program, "gemm_tile", &state->tile)) {
        return -1;
    }
    return kernel_create(compute, state->program, "gemm_scale", &state->scale);
}

/* Work-items of a work-group: enough to fill a GPU's wave or to vectorise over on a CPU. */
static size_t portable_local(const struct compute *compute) {
    return compute->device.max_work_group < 64 ? 1 : 64;
}

static int portable_open(struct compute *compute, void **state) {
    *state = NULL;
    return portable_prepare(compute);
}

static void portable_close(struct compute *compute, void *state) {
    (void)compute, (void)state;
}

static void portable_run(struct compute *compute, void *own, const struct gemm_call *call) {
    (void)own;
    struct gemm_state *state = compute->gemm_state;
    const struct matrix *a = &call->a, *b = &call->b, *c = &call->c;
    size_t local = portable_local(compute), tiles;
    if (__builtin_mul_overflow((call->m - 1) / TILE + 1, (call->n - 1) / TILE + 1, &tiles)) {
        compute_fail(compute, "%s is too large", call->name);
        return;
    }
    struct kernel named = state->tile;
    memcpy(named.name, call->name, sizeof(named.name)); /* the name in profiles */
    KERNEL_RUN(compute, &named, (tiles - 1) / local + 1, local, ARG_U64(call->m), ARG_U64(call->n),
               ARG_U64(call->k), ARG_F32(call->alpha), ARG_BUFFER(a->buffer), ARG_U64(a->offset),
               ARG_U64(call->transpose_a ? 1 : a->stride), ARG_U64(call->transpose_a ? a->stride : 1),
               ARG_BUFFER(b->buffer), ARG_U64(b->offset), ARG_U64(call->transpose_b ? 1 : b->stride),
               ARG_U64(call->transpose_b ? b->stride : 1), ARG_F32(call->beta), ARG_BUFFER(c->buffer),
               ARG_U64(c->offset), ARG_U64(c->stride));
}

const struct gemm_backend gemm_backend_portable = {"portable", portable_open, portable_close, portable_run, NULL};

/* C = beta C, what is left of a product over nothing. */
static void scale_run(struct compute *compute, const struct gemm_call *call) {
    struct gemm_state *state = compute->gemm_state;
    size_t local = portable_local(compute), elements;
    if (portable_prepare(compute)) {
        compute_fail(compute, "%s", error_text());
        return;
    }
    if (__builtin_mul_overflow(call->m, call->n, &elements)) {
        compute_fail(compute, "%s is too large", call->name);
        return;
    }
    KERNEL_RUN(compute, &state->scale, (elements - 1) / local + 1, local, ARG_U64(call->m), ARG_U64(call->n),
               ARG_F32(call->beta), ARG_BUFFER(call->c.buffer), ARG_U64(call->c.offset), ARG_U64(call->c.stride));
}

/* ---- choosing */

static const struct gemm_backend *const backends[] = {&gemm_backend_cblas, &gemm_backend_clblast, &gemm_backend_mma,
                                                      &gemm_backend_portable};
#define BACKEND_COUNT (sizeof(backends) / sizeof(*backends))

static int open_backend(struct compute *compute, const struct gemm_backend *backend) {
    struct gemm_state *state = compute->gemm_state;
    if (backend->open(compute, &state->backend)) {
        return error_prefix("GEMM backend %s", backend->name);
    }
    compute->gemm = backend;
    snprintf(state->description, sizeof(state->description), "%s%s%s%s%s%s", backend->name,
             *state->unit ? " on " : "", state->unit, state->tuned ? ", tuned" : "",
             *state->refusal ? "; no matrix units: " : "", state->refusal);
    return 0;
}

/* Matrix units where they are worth it. Why they are not is kept for the description: its first line, without a
 * compiler's log. */
static bool open_units(struct compute *compute) {
    struct gemm_state *state = compute->gemm_state;
    if (state->operands == ELEMENT_FP32 || !compute->device.is_gpu) {
        return false;
    }
    if (open_backend(compute, &gemm_backend_mma) == 0) {
        return true;
    }
    snprintf(state->refusal, sizeof(state->refusal), "%.*s", (int)strcspn(error_text(), "\n"), error_text());
    return false;
}

static int open_automatically(struct compute *compute) {
    if (open_units(compute) || open_backend(compute, &gemm_backend_cblas) == 0) {
        return 0;
    }
    return open_backend(compute, &gemm_backend_clblast);
}

static void gemm_close(struct compute *compute) {
    struct gemm_state *state = compute->gemm_state;
    if (!state) {
        return;
    }
    if (compute->gemm) {
        compute->gemm->close(compute, state->backend);
    }
    for (size_t i = 0; i < 3; i++) {
        buffer_release(compute, &state->copies[i]);
    }
    gemm_epilogue_close(compute);
    kernel_release(&state->tile);
    kernel_release(&state->scale);
    if (state->program) {
        clReleaseProgram(state->program);
    }
    free(state);
    compute->gemm_state = NULL;
}

int gemm_open(struct compute *compute, const char *name, enum element_type operands, bool untuned) {
    struct gemm_state *state = calloc(1, sizeof(*state));
    compute->gemm_state = state;
    if (!state) {
        return error_set("out of memory");
    }
    compute_on_close(compute, gemm_close);
    state->untuned = untuned;
    state->operands = operands;
    state->automatic = !strcmp(name, "auto");
    if (state->automatic) {
        return open_automatically(compute);
    }
    for (size_t i = 0; i < BACKEND_COUNT; i++) {
        if (!strcmp(name, backends[i]->name)) {
            return open_backend(compute, backends[i]);
        }
    }
    return error_set("no GEMM backend \"%s\"; there are: auto, cblas, clblast, mma, portable", name);
}

int gemm_compute_open(struct compute **opened, const struct compute_options *options) {
    if (compute_open(opened, options)) {
        return -1;
    }
    if (gemm_open(*opened, options->gemm ? options->gemm : "auto", options->operands, options->untuned)) {
        error_prefix("cannot open device %s", (*opened)->device.name);
        compute_close(*opened);
        *opened = NULL;
        return -1;
    }
    return 0;
}

bool gemm_copies(const struct compute *compute, enum element_type type) {
    return type != ELEMENT_FP32 && !compute->gemm->takes;
}

bool gemm_fuses(const struct compute *compute, enum element_type type) {
    return type != ELEMENT_FP32 && compute->gemm->takes;
}

const char *gemm_name(const struct compute *compute) {
    return compute->gemm->name;
}

const char *gemm_description(const struct compute *compute) {
    const struct gemm_state *state = compute->gemm_state;
    return state->description;
}

bool gemm_is_tuned(const struct compute *compute) {
    const struct gemm_state *state = compute->gemm_state;
    return state->tuned;
}

/* ---- running */

/* Whether `rows` rows of `columns` elements lie in the matrix's buffer; if not, that is kept as the failure. */
static bool matrix_fits(struct compute *compute, const struct gemm_call *call, const char *letter,
                        const struct matrix *matrix, size_t rows, size_t columns) {
    size_t end, elements = matrix->buffer->bytes / element_size(matrix->buffer->type);
    bool fits = matrix->stride >= columns && !__builtin_mul_overflow(rows - 1, matrix->stride, &end) &&
                !__builtin_add_overflow(end, columns, &end) && !__builtin_add_overflow(end, matrix->offset, &end) &&
                end <= elements;
    if (!fits) {
        compute_fail(compute, "%s: %s [%zu, %zu] at %zu with stride %zu does not fit its buffer of %zu elements",
                     call->name, letter, rows, columns, matrix->offset, matrix->stride, elements);
    }
    return fits;
}

static bool inputs_fit(struct compute *compute, const struct gemm_call *call) {
    const struct gemm_call *x = call;
    return matrix_fits(compute, x, "A", &x->a, x->transpose_a ? x->k : x->m, x->transpose_a ? x->m : x->k) &&
           matrix_fits(compute, x, "B", &x->b, x->transpose_b ? x->n : x->k, x->transpose_b ? x->k : x->n);
}

/* The last matrix of a batch; its place stands for those of all before it. */
static bool last_of_batch(const struct gemm_batch *batch, size_t step, struct matrix *matrix) {
    size_t far;
    return !__builtin_mul_overflow(batch->count - 1, step, &far) &&
           !__builtin_add_overflow(matrix->offset, far, &matrix->offset);
}

static bool batch_fits(struct compute *compute, const struct gemm_call *call) {
    struct gemm_call last = *call;
    if (!last_of_batch(&call->batch, call->batch.a, &last.a) ||
        !last_of_batch(&call->batch, call->batch.b, &last.b) ||
        !last_of_batch(&call->batch, call->batch.c, &last.c)) {
        compute_fail(compute, "%s: a batch of %zu is too large", call->name, call->batch.count);
        return false;
    }
    return matrix_fits(compute, &last, "C", &last.c, call->m, call->n) && (!call->k || inputs_fit(compute, &last));
}

static bool epilogue_fits(struct compute *compute, const struct gemm_call *call) {
    const struct gemm_epilogue *epilogue = &call->epilogue;
    const struct matrix bias = {epilogue->bias.buffer, epilogue->bias.offset, call->n};
    return (!bias.buffer || matrix_fits(compute, call, "bias", &bias, 1, call->n)) &&
           (!epilogue->activated.buffer ||
            matrix_fits(compute, call, "activated", &epilogue->activated, call->m, call->n)) &&
           (!epilogue->residual.buffer ||
            matrix_fits(compute, call, "residual", &epilogue->residual, call->m, call->n));
}

/* Whether the backend can have it as it is. As in the reference BLAS, A and B are not looked at when nothing of
 * them counts. */
static bool is_taken(const struct compute *compute, const struct gemm_call *call) {
    const struct gemm_backend *backend = compute->gemm;
    return call->k && call->alpha != 0.0f &&
           (backend->takes ? backend->takes(call) : gemm_call_is_plain_fp32(call));
}

/* Elements from the first to the last one of a matrix, with those between its rows. */
static size_t matrix_span(const struct matrix *matrix, size_t rows, size_t columns) {
    return (rows - 1) * matrix->stride + columns;
}

/* Replaces a matrix of 16 bits by one of floats, with the same stride; with `fill` they are its numbers. */
static void copy_matrix(struct compute *compute, struct buffer *copy, struct matrix *matrix, size_t rows,
                        size_t columns, bool fill) {
    const size_t count = matrix_span(matrix, rows, columns);
    if (matrix->buffer->type == ELEMENT_FP32 || compute->failure) {
        return;
    }
    if (copy->bytes / sizeof(float) < count) {
        buffer_release(compute, copy);
        if (count > SIZE_MAX / sizeof(float) || buffer_create(compute, copy, count * sizeof(float))) {
            compute_fail(compute, "no fp32 copy of a matrix [%zu, %zu]: %s", rows, columns, error_text());
            return;
        }
    }
    if (fill) {
        convert_elements(compute, (struct span){matrix->buffer, matrix->offset}, (struct span){copy, 0}, count);
    }
    matrix->buffer = copy;
    matrix->offset = 0;
}

/* A product of fp32 matrices. */
static void run_fp32(struct compute *compute, const struct gemm_call *call) {
    struct gemm_state *state = compute->gemm_state;
    if (is_taken(compute, call)) {
        compute->gemm->run(compute, state->backend, call);
    } else {
        scale_run(compute, call);
    }
}

/* The product on copies of what is not fp32. What lies between the rows of C is carried over with them. */
static void run_copied(struct compute *compute, const struct gemm_call *call) {
    struct gemm_state *state = compute->gemm_state;
    struct gemm_call copied = *call;
    const bool reads_inputs = call->k && call->alpha != 0.0f, gaps = call->c.stride != call->n;
    if (reads_inputs) {
        copy_matrix(compute, &state->copies[0], &copied.a, call->transpose_a ? call->k : call->m,
                    call->transpose_a ? call->m : call->k, true);
        copy_matrix(compute, &state->copies[1], &copied.b, call->transpose_b ? call->n : call->k,
                    call->transpose_b ? call->k : call->n, true);
    }
    copy_matrix(compute, &state->copies[2], &copied.c, call->m, call->n, call->beta != 0.0f || gaps);
    if (compute->failure) {
        return;
    }
    run_fp32(compute, &copied);
    if (call->c.buffer->type != ELEMENT_FP32) {
        convert_elements(compute, (struct span){copied.c.buffer, 0}, (struct span){call->c.buffer, call->c.offset},
                         matrix_span(&call->c, call->m, call->n));
    }
}

/* One product without an epilogue. */
static void run_single(struct compute *compute, const struct gemm_call *call) {
    struct gemm_state *state = compute->gemm_state;
    if (gemm_call_is_plain_fp32(call)) {
        run_fp32(compute, call);
    } else if (is_taken(compute, call)) {
        compute->gemm->run(compute, state->backend, call);
    } else {
        run_copied(compute, call);
    }
}

static void run_pieces(struct compute *compute, const struct gemm_call *call) {
    struct gemm_call piece = *call;
    piece.batch = (struct gemm_batch){.count = 1};
    piece.epilogue = (struct gemm_epilogue){.activation = GEMM_NO_ACTIVATION};
    for (size_t i = 0; i < call->batch.count && !compute->failure; i++) {
        run_single(compute, &piece);
        piece.a.offset += call->batch.a;
        piece.b.offset += call->batch.b;
        piece.c.offset += call->batch.c;
    }
    if (gemm_epilogue_exists(&call->epilogue)) {
        gemm_epilogue_run(compute, call);
    }
}

static void name_call(struct gemm_call *call) {
    const int length =
        snprintf(call->name, sizeof(call->name), "gemm_%c%c %zux%zux%zu", call->transpose_a ? 't' : 'n',
                 call->transpose_b ? 't' : 'n', call->m, call->n, call->k);
    if (length >= (int)sizeof(call->name)) {
        strcpy(call->name, "gemm"); /* of sizes that no buffer has */
    }
}

static void run_call(struct compute *compute, struct gemm_call call) {
    struct gemm_state *state = compute->gemm_state;
    if (compute->failure || !call.m || !call.n || !call.batch.count) {
        return;
    }
    name_call(&call);
    if (!batch_fits(compute, &call) || !epilogue_fits(compute, &call)) {
        return;
    }
    if (is_taken(compute, &call)) {
        compute->gemm->run(compute, state->backend, &call);
    } else {
        run_pieces(compute, &call);
    }
}

/* Of the arguments that all forms have; a single product with nothing behind it. */
#define CALL                                                                                                       \
    {                                                                                                              \
        .transpose_a = transpose_a, .transpose_b = transpose_b, .m = m, .n = n, .k = k, .alpha = alpha, .a = a,    \
        .b = b, .beta = beta, .c = c, .batch = {.count = 1},                                                       \
    }

void gemm_run(struct compute *compute, bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k,
              float alpha, struct matrix a, struct matrix b, float beta, struct matrix c) {
    const struct gemm_call call = CALL;
    run_call(compute, call);
}

void gemm_run_batched(struct compute *compute, bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k,
                      float alpha, struct matrix a, struct matrix b, float beta, struct matrix c,
                      struct gemm_batch batch) {
    struct gemm_call call = CALL;
    call.batch = batch;
    run_call(compute, call);
}

void gemm_run_fused(struct compute *compute, bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k,
                    float alpha, struct matrix a, struct matrix b, float beta, struct matrix c,
                    const struct gemm_epilogue *epilogue) {
    struct gemm_call call = CALL;
    call.epilogue = *epilogue;
    run_call(compute, call);
}

/* ---- measuring */

/* Fills with values in [-0.5, 0.5): zeros would not draw the power that real data does. */
static int fill_buffer(struct compute *compute, const struct buffer *buffer) {
    size_t count = buffer->bytes / sizeof(float);
    float *values = malloc(buffer->bytes);
    if (!values) {
        return error_set("out of memory");
    }
    uint32_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525U + 1013904223U;
        values[i] = (float)(state >> 8) / 16777216.0f - 0.5f;
    }
    int result = buffer_write(compute, buffer, 0, values, buffer->bytes);
    free(values);
    return result;
}

static int measure(struct compute *compute, const struct gemm_call *call, double *rate) {
    double flops = 2.0 * (double)call->m * (double)call->n * (double)call->k, deadline = 0.0;
    for (int round = 0;; round++) {
        double start = progress_clock();
        gemm_run(compute, false, true, call->m, call->n, call->k, 1.0f, call->a, call->b, 0.0f, call->c);
        if (compute_finish(compute)) {
            return -1;
        }
        double end = progress_clock();
        if (round == 0) {
            deadline = end + 0.3; /* the first call compiles and warms up */
        } else if (end > start && flops / (end - start) > *rate) {
            *rate = flops / (end - start);
        }
        if (round > 1 && end > deadline) {
            return 0;
        }
    }
}

/* Creates a buffer of 16-bit elements with what is in another of floats, which is released. */
static int narrow(struct compute *compute, struct buffer *buffer, enum element_type type) {
    struct buffer wide = *buffer;
    const size_t count = wide.bytes / sizeof(float);
    int result = buffer_create(compute, buffer, count * element_size(type));
    buffer->type = type;
    if (!result) {
        convert_elements(compute, (struct span){&wide, 0}, (struct span){buffer, 0}, count);
        result = compute_check(compute);
    }
    buffer_release(compute, &wide);
    return result;
}

/* Creates the buffer of a rows x columns matrix with something in it. */
static int create_matrix(struct compute *compute, struct buffer *buffer, enum element_type type, size_t rows,
                         size_t columns) {
    size_t bytes;
    if (__builtin_mul_overflow(rows, columns, &bytes) || __builtin_mul_overflow(bytes, sizeof(float), &bytes)) {
        return error_set("a matrix of %zu x %zu is too large", rows, columns);
    }
    if (buffer_create(compute, buffer, bytes) || fill_buffer(compute, buffer)) {
        return -1;
    }
    return type == ELEMENT_FP32 ? 0 : narrow(compute, buffer, type);
}

int gemm_measure_rate(struct compute *compute, enum element_type type, size_t m, size_t n, size_t k,
                      double *flops_per_second) {
    struct buffer a = {0}, b = {0}, c = {0};
    *flops_per_second = 0.0;
    if (!m || !n || !k) {
        return error_set("cannot measure the rate of an empty product");
    }
    struct gemm_call call = {.m = m, .n = n, .k = k, .a = {&a, 0, k}, .b = {&b, 0, k}, .c = {&c, 0, n}};
    int result = create_matrix(compute, &a, type, m, k) || create_matrix(compute, &b, type, n, k) ||
                 create_matrix(compute, &c, type, m, n) || measure(compute, &call, flops_per_second);
    buffer_release(compute, &a);
    buffer_release(compute, &b);
    buffer_release(compute, &c);
    if (result) {
        *flops_per_second = 0.0;
    }
    return result ? error_prefix("measuring the rate of gemm") : 0;
}
