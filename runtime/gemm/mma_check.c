#include "runtime/gemm/mma_check.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BEHIND 8 /* elements after a matrix that must stay as they are */

/* ---- elements */

/* A number that every type has exactly. */
static void encode(float value, void *elements, size_t at, enum element_type type) {
    if (type == ELEMENT_FP32) {
        ((float *)elements)[at] = value;
    } else {
        ((uint16_t *)elements)[at] = element_encode(value, type);
    }
}

/* What storing x may change: half a unit in the last place, and in float what few operations on the way change. */
static double tolerance(double x, enum element_type type) {
    const double last = type == ELEMENT_FP32 ? 0.0 : element_roundoff(type);
    return last * fabs(x) + 1e-6 * (1.0 + fabs(x));
}

/* ---- matrices, on the host and on the device */

struct sample {
    struct buffer buffer;
    struct matrix matrix;
    void *before, *after; /* all elements of the buffer, before and after the product */
    size_t count, rows, columns, step, batch;
};

static uint64_t draws; /* so that no two matrices are alike */

static size_t sample_at(const struct sample *sample, size_t batch, size_t row, size_t column) {
    return sample->matrix.offset + batch * sample->step + row * sample->matrix.stride + column;
}

/* Everything is NaN (all bits set) besides the matrices' own elements, and these too unless `filled`. */
static int sample_create(struct compute *compute, struct sample *sample, enum element_type type, size_t rows,
                         size_t columns, size_t pad, size_t offset, size_t batch, bool filled) {
    const size_t stride = columns + pad;
    *sample = (struct sample){.rows = rows, .columns = columns, .step = rows * stride, .batch = batch};
    sample->count = offset + batch * rows * stride + BEHIND;
    const size_t bytes = sample->count * element_size(type);
    sample->before = malloc(bytes);
    sample->after = malloc(bytes);
    if (!sample->before || !sample->after) {
        return error_set("out of memory");
    }
    memset(sample->before, 0xff, bytes);
    sample->matrix = (struct matrix){&sample->buffer, offset, stride};
    for (size_t i = 0; filled && i < batch * rows * columns; i++) {
        const float value = (float)random_below(random_key(0, "mma check"), draws++, 255) / 64.0f - 127.0f / 64.0f;
        encode(value, sample->before, sample_at(sample, i / columns / rows, i / columns % rows, i % columns), type);
    }
    if (buffer_create(compute, &sample->buffer, bytes)) {
        return -1;
    }
    sample->buffer.type = type;
    return buffer_write(compute, &sample->buffer, 0, sample->before, bytes);
}

static void sample_release(struct compute *compute, struct sample *sample) {
    buffer_release(compute, &sample->buffer);
    free(sample->before);
    free(sample->after);
}

static int sample_read(struct compute *compute, struct sample *sample) {
    return buffer_read(compute, &sample->buffer, 0, sample->after, sample->buffer.bytes);
}

static double sample_value(const struct sample *sample, size_t batch, size_t row, size_t column, bool transposed) {
    const size_t at = transposed ? sample_at(sample, batch, column, row) : sample_at(sample, batch, row, column);
    return (double)element_at(sample->before, at, sample->buffer.type);
}

/* ---- what comes out */

enum { SAMPLE_A, SAMPLE_B, SAMPLE_C, SAMPLE_BIAS, SAMPLE_ACTIVATED, SAMPLE_RESIDUAL, SAMPLES };

static double activation_value(double x, enum gemm_activation activation) {
    if (activation == GEMM_GELU_TANH) {
        return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    }
    return activation == GEMM_GELU ? 0.5 * x * (1.0 + erf(x * sqrt(0.5))) : x;
}

static double product_value(const struct mma_case *wanted, const struct sample *samples, size_t batch, size_t row,
                            size_t column) {
    double sum = 0.0;
    for (size_t p = 0; p < wanted->k; p++) {
        sum += sample_value(&samples[SAMPLE_A], batch, row, p, wanted->transpose_a) *
               sample_value(&samples[SAMPLE_B], batch, p, column, wanted->transpose_b);
    }
    sum *= (double)wanted->alpha;
    if (wanted->beta != 0.0f) {
        sum += (double)wanted->beta * sample_value(&samples[SAMPLE_C], batch, row, column, false);
    }
    return wanted->bias ? sum + sample_value(&samples[SAMPLE_BIAS], 0, 0, column, false) : sum;
}

static int compare_one(const struct sample *sample, const char *name, size_t batch, size_t row, size_t column,
                       double expected) {
    const enum element_type type = sample->buffer.type;
    const double value = (double)element_at(sample->after, sample_at(sample, batch, row, column), type);
    if (fabs(value - expected) <= tolerance(expected, type)) {
        return 0;
    }
    return error_set("%s[%zu, %zu] of product %zu is %.9g, not %.9g", name, row, column, batch, value, expected);
}

static int compare_element(const struct mma_case *wanted, const struct sample *samples, size_t batch, size_t row,
                           size_t column) {
    const double kept = product_value(wanted, samples, batch, row, column);
    double result = activation_value(kept, wanted->activation);
    if (wanted->residual) {
        result += sample_value(&samples[SAMPLE_RESIDUAL], 0, row, column, false);
    }
    if (!wanted->activated) {
        return compare_one(&samples[SAMPLE_C], "C", batch, row, column, result);
    }
    return compare_one(&samples[SAMPLE_C], "C", batch, row, column, kept) ||
                   compare_one(&samples[SAMPLE_ACTIVATED], "activated", batch, row, column, result)
               ? -1
               : 0;
}

/* Whether all that is not part of the matrices is as it was. */
static int compare_surroundings(const struct sample *sample, const char *name) {
    const size_t size = element_size(sample->buffer.type);
    for (size_t at = 0; at < sample->count; at++) {
        const size_t inside = at - sample->matrix.offset, row = inside / sample->matrix.stride;
        const bool own = at >= sample->matrix.offset && row < sample->batch * sample->rows &&
                         inside % sample->matrix.stride < sample->columns;
        if (!own && memcmp((char *)sample->before + at * size, (char *)sample->after + at * size, size) != 0) {
            return error_set("element %zu of %s's buffer, outside of the matrix, was written", at, name);
        }
    }
    return 0;
}

static int compare(struct compute *compute, const struct mma_case *wanted, struct sample *samples) {
    if (sample_read(compute, &samples[SAMPLE_C]) || compare_surroundings(&samples[SAMPLE_C], "C")) {
        return -1;
    }
    if (wanted->activated && (sample_read(compute, &samples[SAMPLE_ACTIVATED]) ||
                              compare_surroundings(&samples[SAMPLE_ACTIVATED], "activated"))) {
        return -1;
    }
    for (size_t i = 0; i < wanted->batch * wanted->m * wanted->n; i++) {
        if (compare_element(wanted, samples, i / wanted->n / wanted->m, i / wanted->n % wanted->m, i % wanted->n)) {
            return -1;
        }
    }
    return 0;
}

/* ---- all of it */

static int create_samples(struct compute *compute, const struct mma_case *x, struct sample *samples) {
    const size_t a_rows = x->transpose_a ? x->k : x->m, a_columns = x->transpose_a ? x->m : x->k;
    const size_t b_rows = x->transpose_b ? x->n : x->k, b_columns = x->transpose_b ? x->k : x->n;
    return sample_create(compute, &samples[SAMPLE_A], x->type, a_rows, a_columns, x->pad_a, x->offset_a, x->batch,
                         true) ||
                   sample_create(compute, &samples[SAMPLE_B], x->type, b_rows, b_columns, x->pad_b, x->offset_b,
                                 x->batch, true) ||
                   sample_create(compute, &samples[SAMPLE_C], x->type_c, x->m, x->n, x->pad_c, x->offset_c,
                                 x->batch, x->beta != 0.0f) ||
                   sample_create(compute, &samples[SAMPLE_BIAS], ELEMENT_FP32, 1, x->n, 0, 1, 1, true) ||
                   sample_create(compute, &samples[SAMPLE_ACTIVATED], x->type, x->m, x->n, 1, 3, 1, false) ||
                   sample_create(compute, &samples[SAMPLE_RESIDUAL], x->type_c, x->m, x->n, 2, 5, 1, true)
               ? -1
               : 0;
}

static struct gemm_call call_of(const struct mma_case *x, const struct sample *samples) {
    struct gemm_call call = {.transpose_a = x->transpose_a,
                             .transpose_b = x->transpose_b,
                             .m = x->m,
                             .n = x->n,
                             .k = x->k,
                             .alpha = x->alpha,
                             .a = samples[SAMPLE_A].matrix,
                             .b = samples[SAMPLE_B].matrix,
                             .beta = x->beta,
                             .c = samples[SAMPLE_C].matrix,
                             .name = "self-test",
                             .batch = {x->batch, samples[SAMPLE_A].step, samples[SAMPLE_B].step,
                                       samples[SAMPLE_C].step},
                             .epilogue = {.activation = x->activation}};
    if (x->bias) {
        call.epilogue.bias = (struct span){&samples[SAMPLE_BIAS].buffer, 1};
    }
    if (x->activated) {
        call.epilogue.activated = samples[SAMPLE_ACTIVATED].matrix;
    }
    if (x->residual) {
        call.epilogue.residual = samples[SAMPLE_RESIDUAL].matrix;
    }
    return call;
}

int mma_check(struct mma *mma, const struct mma_case *wanted) {
    struct compute *compute = mma->compute;
    struct sample samples[SAMPLES] = {0};
    int status = create_samples(compute, wanted, samples);
    if (status == 0) {
        const struct gemm_call call = call_of(wanted, samples);
        if (mma_takes(&call)) {
            mma_run(mma, &call);
            status = compare(compute, wanted, samples);
        } else {
            status = error_set("this product cannot be run");
        }
    }
    for (int i = 0; i < SAMPLES; i++) {
        sample_release(compute, &samples[i]);
    }
    if (status == 0) {
        return 0;
    }
    return error_prefix("%c%c %zux%zux%zu", wanted->transpose_a ? 't' : 'n', wanted->transpose_b ? 't' : 'n',
                        wanted->m, wanted->n, wanted->k);
}

/* ---- the test at the start */

/* Besides all transpositions: the three ways to load, edges, both kinds of C, both epilogues, a batch. Sizes are
 * for tiles as they come. */
static int test_tiles(struct mma *mma, const struct mma_tiles *tiles, enum element_type type) {
    const size_t m = tiles->block_m, n = tiles->block_n, k = tiles->block_k;
    const struct mma_case cases[] = {
        {false, true, type, type, m, n, 5 * k, 1, 0, 0, 2, 0, 0, 0, 1.0f, 0.0f, false, false, false, 0},
        {false, false, type,  ELEMENT_FP32, m + 9, n + 5, k + 3, 2, 5 + 8 - k % 8, 3 + 8 - n % 8, 1, 8,
         16,    3,     -0.5f, 1.0f,         false, false, false, 0},
        {true, false, type, ELEMENT_FP32, m - 5, n + 1, 3 * k + 7, 1,     1, 0, 0,
         3,    1,     0,    1.0f,         1.0f,  false, false,     false, 0},
        {true, true, type, type, 16, 8, 4 * k, 1, 0, 0, 0, 0, 0, 0, 1.0f, 0.0f, true, true, true, GEMM_GELU},
        {false, true,  type,  ELEMENT_FP32,  m, n, k, 1, 0, 0, 0, 0, 0, 0, 2.0f, 0.0f,
         true,  false, false, GEMM_GELU_TANH},
        {true, false, type, ELEMENT_FP32, m, n, 2 * k, 1, 0, 0, 0, 0, 0, 0, 1.0f, 1.0f, false, false, false, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        if (mma_check(mma, &cases[i])) {
            return -1;
        }
    }
    return 0;
}

int mma_self_test(struct mma *mma, enum element_type type) {
    /* one tile at a time, whatever a product's size would choose */
    const struct mma_tiles large = mma->large, small = mma->small;
    int status = 0;
    for (int i = 0; i < 2 && status == 0; i++) {
        mma->large = mma->small = i ? small : large;
        status = test_tiles(mma, &mma->large, type);
    }
    mma->large = large;
    mma->small = small;
    compute_forget(mma->compute);
    return status ? error_prefix("self-test with %s", type == ELEMENT_BF16 ? "bf16" : "fp16") : 0;
}
