#include "runtime/gemm/gemm_verify.h"
#include "runtime/device/self_test.h"
#include "runtime/gemm/gemm_backend.h"
#include "runtime/system/array.h"
#include "runtime/system/element.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/random.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BEHIND 8 /* elements after a matrix that must stay as they are */

/* ---- elements */

/* Between -2 and 2: with all of its bits in fp32, else with so few that sums of products are exact. */
static float draw(enum element_type type) {
    static uint64_t draws; /* so that no two matrices are alike */
    const uint64_t half = type == ELEMENT_FP32 ? 1 << 23 : 1 << 7;
    const uint64_t number = 1 + random_below(random_key(0, "gemm check"), draws++, 2 * half - 1);
    return 2.0f * ((float)number - (float)half) / (float)half;
}

/* ---- matrices, on the host and on the device */

struct sample {
    struct buffer buffer;
    struct matrix matrix;
    void *stored;   /* all elements of the buffer as they lie there, before the GEMM and then after it */
    float *numbers; /* the same before, decoded */
    size_t count;
};

static size_t sample_at(const struct sample *sample, size_t row, size_t column) {
    return sample->matrix.offset + row * sample->matrix.stride + column;
}

/* Everything is NaN besides the matrix's own elements, and these too unless `filled`. */
static int sample_create(struct compute *compute, struct sample *sample, enum element_type type, size_t rows,
                         size_t columns, size_t pad, size_t offset, bool filled) {
    const size_t stride = columns + pad;
    *sample = (struct sample){.matrix = {&sample->buffer, offset, rows, columns, stride},
                              .count = offset + rows * stride + BEHIND};
    const size_t bytes = sample->count * element_size(type);
    sample->stored = memory_allocate(1, bytes);
    sample->numbers = memory_allocate(sample->count, sizeof *sample->numbers);
    memset(sample->stored, 0xff, bytes); /* NaN of every type */
    memset(sample->numbers, 0xff, sample->count * sizeof *sample->numbers);
    for (size_t i = 0; filled && i < rows * columns; i++) {
        const size_t at = sample_at(sample, i / columns, i % columns);
        sample->numbers[at] = draw(type);
        element_put(sample->stored, at, sample->numbers[at], type);
    }
    if (buffer_create(compute, &sample->buffer, bytes)) {
        return -1;
    }
    sample->buffer.type = type;
    return buffer_write(compute, &sample->buffer, 0, sample->stored, bytes);
}

static void sample_release(struct compute *compute, struct sample *sample) {
    buffer_release(compute, &sample->buffer);
    free(sample->stored);
    free(sample->numbers);
}

static double sample_number(const struct sample *sample, bool transposed, size_t row, size_t column) {
    return (double)sample->numbers[transposed ? sample_at(sample, column, row) : sample_at(sample, row, column)];
}

/* ---- the right results */

enum { SAMPLE_A, SAMPLE_B, SAMPLE_C, SAMPLE_BIAS, SAMPLE_SIDE, SAMPLES };

static double gelu(double x) {
    return 0.5 * x * (1.0 + erf(x * sqrt(0.5)));
}

static double gelu_derivative(double x) {
    return 0.5 * (1.0 + erf(x * sqrt(0.5))) + x * exp(-0.5 * x * x) / sqrt(2.0 * acos(-1.0));
}

static double gelu_tanh(double x) {
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

static double gelu_tanh_derivative(double x) {
    const double pi = acos(-1.0), slope = sqrt(2.0 / pi) * (1.0 + 3.0 * 0.044715 * x * x);
    const double t = tanh(sqrt(2.0 / pi) * (x + 0.044715 * x * x * x));
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope;
}

static double silu(double x) {
    return x / (1.0 + exp(-x));
}

static double silu_derivative(double x) {
    const double sigmoid = 1.0 / (1.0 + exp(-x));
    return sigmoid * (1.0 + x * (1.0 - sigmoid));
}

static const struct activation {
    const char *name;
    double (*value)(double x);
    double (*derivative)(double x);
} activations[] = {
    {"gelu", gelu, gelu_derivative},
    {"gelu_tanh", gelu_tanh, gelu_tanh_derivative},
    {"silu", silu, silu_derivative},
};

static const struct activation *activation_find(const char *name) {
    size_t i = 0;
    while (i + 1 < COUNT(activations) && strcmp(activations[i].name, name) != 0) {
        i++;
    }
    return &activations[i];
}

/* An element of y (gemm_call.h), and the sum of magnitudes that rounding in fp32 may be relative to: of all terms,
 * unless their sums are exact. */
static double element_of_y(const struct gemm_case *wanted, const struct sample *samples, size_t row, size_t column,
                           double *magnitude) {
    const struct sample *b = &samples[wanted->symmetric ? SAMPLE_A : SAMPLE_B];
    double sum = 0.0, terms = 1.0;
    for (size_t p = 0; p < wanted->k; p++) {
        const double term = sample_number(&samples[SAMPLE_A], wanted->transpose_a, row, p) *
                            sample_number(b, wanted->transpose_b, p, column);
        sum += term;
        terms += fabs(term);
    }
    if (wanted->beta != 0.0f) {
        sum += (double)wanted->beta * sample_number(&samples[SAMPLE_C], false, row, column);
    }
    if (wanted->bias) {
        sum += sample_number(&samples[SAMPLE_BIAS], false, 0, column);
    }
    const bool exact = wanted->types[0] != ELEMENT_FP32 && wanted->types[1] != ELEMENT_FP32;
    *magnitude = exact ? 1.0 + fabs(sum) : terms + fabs(sum);
    return sum;
}

/* What the epilogue makes of y: of C and, where it is written, of what lies beside it. */
struct results {
    double c, side;
};

static struct results results_of(const struct gemm_case *wanted, const struct sample *samples, size_t row,
                                 size_t column, double y) {
    if (wanted->epilogue == EPILOGUE_NONE) {
        return (struct results){.c = y};
    }
    const struct activation *f = activation_find(wanted->activation);
    const double side = sample_number(&samples[SAMPLE_SIDE], false, row, column);
    const double gate = sample_number(&samples[SAMPLE_C], false, row, column);
    switch (wanted->epilogue) {
    case EPILOGUE_ACTIVATION:
        return (struct results){y, f->value(y)};
    case EPILOGUE_DERIVATIVE:
        return (struct results){.c = y * f->derivative(side)};
    default:
        return (struct results){y * side * f->derivative(gate), y * f->value(gate)};
    }
}

/* Storing may change an element by half a unit in the last place, and few operations in fp32 came before that. */
static int compare_element(const struct sample *sample, const char *name, size_t row, size_t column,
                           double expected, double magnitude) {
    const enum element_type type = sample->buffer.type;
    const double last = type == ELEMENT_FP32 ? 0.0 : element_roundoff(type);
    const double value = (double)element_at(sample->stored, sample_at(sample, row, column), type);
    if (fabs(value - expected) <= last * fabs(expected) + 1e-6 * magnitude) {
        return 0;
    }
    return error_set("%s[%zu, %zu] is %.9g, not %.9g", name, row, column, value, expected);
}

/* Reads what was written. All that is not part of the matrix has to be NaN still. */
static int read_back(struct compute *compute, struct sample *sample, const char *name) {
    const struct matrix *matrix = &sample->matrix;
    if (buffer_read(compute, &sample->buffer, 0, sample->stored, sample->buffer.bytes)) {
        return -1;
    }
    for (size_t at = 0; at < sample->count; at++) {
        const size_t inside = at - matrix->offset;
        const bool own = at >= matrix->offset && inside / matrix->stride < matrix->rows &&
                         inside % matrix->stride < matrix->columns;
        if (!own && !isnan(element_at(sample->stored, at, sample->buffer.type))) {
            return error_set("element %zu of %s's buffer, outside of the matrix, was written", at, name);
        }
    }
    return 0;
}

static int compare(struct compute *compute, const struct gemm_case *wanted, struct sample *samples) {
    if (read_back(compute, &samples[SAMPLE_C], "C") ||
        (epilogue_writes_side(wanted->epilogue) && read_back(compute, &samples[SAMPLE_SIDE], "side"))) {
        return -1;
    }
    for (size_t i = 0; i < wanted->m * wanted->n; i += wanted->sample ? wanted->sample : 1) {
        const size_t row = i / wanted->n, column = i % wanted->n;
        double magnitude;
        const double y = element_of_y(wanted, samples, row, column, &magnitude);
        const struct results results = results_of(wanted, samples, row, column, y);
        magnitude += fabs(results.c) + fabs(results.side);
        if (compare_element(&samples[SAMPLE_C], "C", row, column, results.c, magnitude) ||
            (epilogue_writes_side(wanted->epilogue) &&
             compare_element(&samples[SAMPLE_SIDE], "side", row, column, results.side, magnitude))) {
            return -1;
        }
    }
    return 0;
}

/* ---- one case */

static int create_samples(struct compute *compute, const struct gemm_case *x, struct sample *samples) {
    const size_t rows[] = {x->transpose_a ? x->k : x->m, x->transpose_b ? x->n : x->k, x->m};
    const size_t columns[] = {x->transpose_a ? x->m : x->k, x->transpose_b ? x->k : x->n, x->n};
    for (int i = SAMPLE_A; i <= SAMPLE_C; i++) {
        if (sample_create(compute, &samples[i], x->types[i], rows[i], columns[i], x->pads[i], x->offsets[i],
                          i < SAMPLE_C || x->beta != 0.0f || epilogue_reads_c(x->epilogue))) {
            return -1;
        }
    }
    const bool failed =
        (x->bias && sample_create(compute, &samples[SAMPLE_BIAS], ELEMENT_FP32, 1, x->n, 0, x->offsets[2], true)) ||
        (x->epilogue != EPILOGUE_NONE &&
         sample_create(compute, &samples[SAMPLE_SIDE], x->types[0], x->m, x->n, x->pads[2], x->offsets[2],
                       epilogue_reads_side(x->epilogue)));
    return failed ? -1 : 0;
}

static struct gemm_call call_of(const struct gemm_case *x, const struct sample *samples) {
    const struct matrix *bias = &samples[SAMPLE_BIAS].matrix; /* this and `side` may have no buffer */
    return (struct gemm_call){.bias = {bias->buffer, bias->offset},
                              .transpose_a = x->transpose_a,
                              .transpose_b = x->transpose_b,
                              .m = x->m,
                              .n = x->n,
                              .k = x->k,
                              .a = samples[SAMPLE_A].matrix,
                              .b = samples[x->symmetric ? SAMPLE_A : SAMPLE_B].matrix,
                              .c = samples[SAMPLE_C].matrix,
                              .beta = x->beta,
                              .symmetric = x->symmetric,
                              .epilogue = x->epilogue,
                              .side = samples[SAMPLE_SIDE].matrix,
                              .activation = x->activation,
                              .name = "check"};
}

int gemm_verify_case(const struct gemm_runner *runner, const struct gemm_case *wanted) {
    struct sample samples[SAMPLES] = {0};
    int status = create_samples(runner->compute, wanted, samples);
    if (status == 0) {
        const struct gemm_call call = call_of(wanted, samples);
        runner->run(runner->context, &call);
        status = compare(runner->compute, wanted, samples);
    }
    for (int i = 0; i < SAMPLES; i++) {
        sample_release(runner->compute, &samples[i]);
    }
    if (status == 0) {
        return 0;
    }
    return error_prefix("%c%c %zux%zux%zu", wanted->transpose_a ? 't' : 'n', wanted->transpose_b ? 't' : 'n',
                        wanted->m, wanted->n, wanted->k);
}

static void run_backend(void *compute, const struct gemm_call *call) {
    gemm_run(compute, call);
}

struct gemm_runner gemm_runner_of(struct compute *compute) {
    return (struct gemm_runner){compute, run_backend, compute};
}

/* ---- cases around tiles */

static int check_all(const struct gemm_runner *runner, const struct gemm_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (gemm_verify_case(runner, &cases[i])) {
            return -1;
        }
    }
    return 0;
}

int gemm_verify_layer(const struct gemm_runner *runner, size_t m, size_t n, size_t k, enum element_type type) {
    const struct gemm_case cases[] = {
        {false, true, m, n, 5 * k, {type, type, type}, .pads = {0, 0, 8}, .offsets = {0, 0, 16}},
        {true, false, m, n, 2 * k, {type, type, ELEMENT_FP32}, .beta = 1},
        {false,
         false,
         m - 3,
         n + 8,
         2 * k,
         {type, type, type},
         .epilogue = EPILOGUE_DERIVATIVE,
         .activation = "gelu"},
    };
    return check_all(runner, cases, COUNT(cases));
}

/* Rows that begin at multiples of 16 bytes and others, edges, C in runs and by elements, all epilogues. */
int gemm_verify_tiles(const struct gemm_runner *runner, size_t m, size_t n, size_t k, enum element_type type) {
    const struct gemm_case cases[] = {
        {.m = m + 9,
         .n = n + 5,
         .k = k + 3,
         .types = {type, type, ELEMENT_FP32},
         .pads = {13 - k % 8, 11 - n % 8, 1},
         .offsets = {8, 16, 3},
         .beta = 1},
        {true, false, m - 5, n + 1, 3 * k + 7, {type, type, ELEMENT_FP32}, {1, 0, 0}, {3, 1, 0}, .beta = 1},
        {true,
         true,
         16,
         8,
         4 * k,
         {type, type, type},
         .bias = true,
         .epilogue = EPILOGUE_ACTIVATION,
         .activation = "gelu"},
        {false,
         true,
         m,
         n,
         k,
         {type, type, ELEMENT_FP32},
         .bias = true,
         .epilogue = EPILOGUE_ACTIVATION,
         .activation = "gelu_tanh"},
        {false, false, m + 1, n + 8, k, {type, type, type}, .epilogue = EPILOGUE_GATES, .activation = "silu"},
    };
    return gemm_verify_layer(runner, m, n, k, type) || check_all(runner, cases, COUNT(cases)) ? -1 : 0;
}

/* ---- the backend of a program */

/* Sizes around the blocks of the portable GEMM on GPUs: `groups` is how many work-groups it is to aim at, which
 * decides on blocks and on k in parts. Rows of whole vectors but for one. */
static const struct {
    struct gemm_case gemm;
    size_t groups;
} classes[] = {
    {{.m = 128, .n = 120, .k = 64, .transpose_b = true}, 1},
    {{.m = 60, .n = 64, .k = 36}, 1},
    {{.m = 32, .n = 92, .k = 100, .transpose_a = true, .pads = {4, 0, 8}, .offsets = {4, 8, 16}, .beta = 1}, 9},
    {{.m = 33, .n = 31, .k = 65, .transpose_b = true, .pads = {1, 7, 5}, .offsets = {1, 0, 2}}, 1},
    {{.m = 20, .n = 12, .k = 516, .transpose_a = true, .beta = 1}, 99},
    {{.m = 61, .n = 61, .k = 37, .transpose_a = true, .symmetric = true, .pads = {0, 0, 3}}, 1},
};

/* As a layer has them: gradients of weights are fp32. */
static int verify_class(struct compute *compute, size_t number, enum element_type type) {
    struct gemm_state *state = gemm_state(compute);
    const struct gemm_runner runner = gemm_runner_of(compute);
    struct gemm_case wanted = classes[number].gemm;
    wanted.types[0] = wanted.types[1] = type;
    wanted.types[2] = wanted.transpose_a ? ELEMENT_FP32 : type;
    state->blocks.groups_expected = classes[number].groups;
    const int status = gemm_verify_case(&runner, &wanted);
    state->blocks.groups_expected = 0;
    return status;
}

static int verify_classes(struct compute *compute, enum element_type type, bool symmetric) {
    for (size_t i = 0; i < COUNT(classes); i++) {
        if (classes[i].gemm.symmetric == symmetric &&
            (verify_class(compute, i, ELEMENT_FP32) || (type != ELEMENT_FP32 && verify_class(compute, i, type)))) {
            return -1;
        }
    }
    return 0;
}

/* The forms of a layer by what the backend has for large fp32 matrices, in squares of this many rows. They begin
 * where oneDNN takes none, which has a test of its own and leaves them to that backend. */
static int verify_large(struct compute *compute, size_t edge) {
    const struct gemm_runner runner = gemm_runner_of(compute);
    for (int form = 0; form < 3; form++) {
        const struct gemm_case wanted = {.transpose_a = form == 2,
                                         .transpose_b = form == 0,
                                         .m = edge,
                                         .n = edge,
                                         .k = edge,
                                         .offsets = {1, 1, 1},
                                         .beta = form == 2 ? 1.0f : 0.0f,
                                         .sample = edge > 128 ? 61 : 1};
        if (gemm_verify_case(&runner, &wanted)) {
            return -1;
        }
    }
    return 0;
}

/* A device that cannot launch the kernels for large matrices, for want of local memory, computes nothing wrong; a
 * run that needs them reports that itself. */
static int verify_backend(struct compute *compute, enum element_type type) {
    const struct gemm_backend *fp32 = gemm_state(compute)->fp32;
    const size_t edge = fp32->take_large ? fp32->take_large(compute, true) : 0;
    const bool is_wrong = edge && verify_large(compute, edge) && !compute->failure;
    if (edge) {
        compute_forget(compute);
        fp32->take_large(compute, false);
    }
    return is_wrong || verify_classes(compute, type, false) ? -1 : 0;
}

static int verify_once(struct compute *compute, enum element_type type, bool symmetric) {
    const struct gemm_state *state = gemm_state(compute);
    char what[sizeof state->description + CHECKSUM_SIZE + 32], key[CHECKSUM_SIZE];
    snprintf(what, sizeof what, "%s%s %s %s", symmetric ? "symmetric " : "", element_name(type), state->identity,
             state->description);
    if (self_test_passed(compute, what, key)) {
        return 0;
    }
    if (symmetric ? verify_classes(compute, type, true) : verify_backend(compute, type)) {
        return compute->failure ? -1 : 1;
    }
    self_test_keep(compute, key);
    return 0;
}

int gemm_verify(struct compute *compute, enum element_type type) {
    return verify_once(compute, type, false);
}

int gemm_verify_symmetric(struct compute *compute, enum element_type type) {
    return verify_once(compute, type, true);
}
