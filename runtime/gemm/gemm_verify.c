#include "runtime/gemm/gemm_verify.h"
#include "runtime/device/self_test.h"
#include "runtime/gemm/gemm_backend.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the right results */

enum { MATRIX_A, MATRIX_B, MATRIX_C, MATRIX_BIAS, MATRIX_SIDE, MATRICES };

static double number_at(const struct self_test_matrix *matrix, bool transposed, size_t row, size_t column) {
    return matrix->numbers[transposed ? column * matrix->columns + row : row * matrix->columns + column];
}

/* f(x) and f'(x). */
static double activate(const char *name, double x, double *derivative) {
    const double pi = acos(-1.0);
    if (!strcmp(name, "silu")) {
        const double sigmoid = 1.0 / (1.0 + exp(-x));
        *derivative = sigmoid * (1.0 + x * (1.0 - sigmoid));
        return x * sigmoid;
    }
    if (!strcmp(name, "gelu")) {
        const double share = 0.5 * (1.0 + erf(x * sqrt(0.5)));
        *derivative = share + x * exp(-0.5 * x * x) / sqrt(2.0 * pi);
        return x * share;
    }
    const double t = tanh(sqrt(2.0 / pi) * (x + 0.044715 * x * x * x)); /* gelu_tanh */
    *derivative = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * sqrt(2.0 / pi) * (1.0 + 3.0 * 0.044715 * x * x);
    return 0.5 * x * (1.0 + t);
}

/* Element [row, column] of C and, where it is written, of `side`, as gemm.h has them. Returns the sum of
 * magnitudes that rounding in fp32 may be relative to: of all terms, or of the sum if it is exact. */
static double expect(const struct gemm_case *wanted, const struct self_test_matrix *matrices, size_t row,
                     size_t column, double *c, double *side) {
    const struct self_test_matrix *b = &matrices[wanted->symmetric ? MATRIX_A : MATRIX_B];
    const bool is_exact = wanted->types[0] != ELEMENT_FP32 && wanted->types[1] != ELEMENT_FP32;
    double y = 0.0, terms = 0.0, derivative;
    for (size_t p = 0; p < wanted->k; p++) {
        const double term = number_at(&matrices[MATRIX_A], wanted->transpose_a, row, p) *
                            number_at(b, wanted->transpose_b, p, column);
        y += term;
        terms += is_exact ? 0.0 : fabs(term);
    }
    if (wanted->beta != 0.0f) {
        y += (double)wanted->beta * number_at(&matrices[MATRIX_C], false, row, column);
    }
    if (wanted->bias) {
        y += number_at(&matrices[MATRIX_BIAS], false, 0, column);
    }
    *c = y;
    *side = 0.0;
    if (wanted->epilogue == EPILOGUE_ACTIVATION) {
        *side = activate(wanted->activation, y, &derivative);
    } else if (wanted->epilogue == EPILOGUE_DERIVATIVE) {
        activate(wanted->activation, number_at(&matrices[MATRIX_SIDE], false, row, column), &derivative);
        *c = y * derivative;
    } else if (wanted->epilogue == EPILOGUE_GATES) {
        const double gate = number_at(&matrices[MATRIX_C], false, row, column);
        *side = y * activate(wanted->activation, gate, &derivative);
        *c = y * number_at(&matrices[MATRIX_SIDE], false, row, column) * derivative;
    }
    return 1.0 + terms + fabs(y) + fabs(*c) + fabs(*side);
}

/* Storing may change an element by half a unit in the last place, and few operations in fp32 came before that. */
static int compare_element(enum element_type type, const char *name, size_t row, size_t column, double found,
                           double expected, double magnitude) {
    const double last = type == ELEMENT_FP32 ? 0.0 : element_roundoff(type);
    return self_test_compare(&found, &expected, 1, last * fabs(expected) + 1e-6 * magnitude, "%s[%zu, %zu]", name,
                             row, column);
}

/* ---- one case */

int gemm_verify_case(struct compute *compute, gemm_function *run, const struct gemm_case *x) {
    const bool has_side = x->epilogue != EPILOGUE_NONE;
    struct self_test_matrix matrices[MATRICES] = {
        [MATRIX_A] = {.rows = x->transpose_a ? x->k : x->m, .columns = x->transpose_a ? x->m : x->k},
        [MATRIX_B] = {.rows = x->transpose_b ? x->n : x->k, .columns = x->transpose_b ? x->k : x->n},
        [MATRIX_C] = {.rows = x->m, .columns = x->n},
        [MATRIX_BIAS] = {.rows = 1, .columns = x->n},
        [MATRIX_SIDE] = {.rows = x->m, .columns = x->n},
    };
    struct matrix operands[MATRICES];
    int status = 0;
    for (size_t i = 0; i < MATRICES; i++) {
        struct self_test_matrix *matrix = &matrices[i];
        const size_t like = i < MATRIX_C ? i : MATRIX_C; /* the others are as C is */
        const bool exists = i <= MATRIX_C || (i == MATRIX_BIAS ? x->bias : has_side);
        const bool is_read =
            i < MATRIX_C || i == MATRIX_BIAS ||
            (i == MATRIX_C ? x->beta != 0.0f || epilogue_reads_c(x->epilogue) : epilogue_reads_side(x->epilogue));
        const enum element_type type = i <= MATRIX_C ? x->types[i] : i == MATRIX_BIAS ? ELEMENT_FP32 : x->types[0];
        matrix->offset = x->offsets[like];
        matrix->stride = matrix->columns + (i == MATRIX_BIAS ? 0 : x->pads[like]);
        operands[i] =
            (struct matrix){&matrix->buffer, matrix->offset, matrix->rows, matrix->columns, matrix->stride};
        if (exists && status == 0) {
            status = self_test_create(compute, matrix, type, is_read ? i + 1 : 0, 1.0f);
        }
    }
    if (status == 0) {
        const struct gemm_call call = {.bias = {x->bias ? &matrices[MATRIX_BIAS].buffer : NULL, x->offsets[2]},
                                       .transpose_a = x->transpose_a,
                                       .transpose_b = x->transpose_b,
                                       .m = x->m,
                                       .n = x->n,
                                       .k = x->k,
                                       .a = operands[MATRIX_A],
                                       .b = operands[x->symmetric ? MATRIX_A : MATRIX_B],
                                       .c = operands[MATRIX_C],
                                       .beta = x->beta,
                                       .symmetric = x->symmetric,
                                       .epilogue = x->epilogue,
                                       .side = operands[MATRIX_SIDE],
                                       .activation = x->activation,
                                       .name = "check"};
        double *found = memory_allocate(2 * x->m * x->n, sizeof *found), *found_side = found + x->m * x->n;
        run(compute, &call);
        status = self_test_read(compute, &matrices[MATRIX_C], "C", found);
        if (status == 0 && epilogue_writes_side(x->epilogue)) {
            status = self_test_read(compute, &matrices[MATRIX_SIDE], "side", found_side);
        }
        for (size_t i = 0; i < x->m * x->n && status == 0; i += x->sample ? x->sample : 1) {
            const size_t row = i / x->n, column = i % x->n;
            double c, side;
            const double magnitude = expect(x, matrices, row, column, &c, &side);
            status = compare_element(x->types[2], "C", row, column, found[i], c, magnitude);
            if (status == 0 && epilogue_writes_side(x->epilogue)) {
                status = compare_element(x->types[0], "side", row, column, found_side[i], side, magnitude);
            }
        }
        free(found);
    }
    for (size_t i = 0; i < MATRICES; i++) {
        self_test_release(compute, &matrices[i]);
    }
    if (status) {
        error_prefix("%c%c %zux%zux%zu", x->transpose_a ? 't' : 'n', x->transpose_b ? 't' : 'n', x->m, x->n, x->k);
    }
    return status;
}

/* ---- cases around tiles */

static int check_all(struct compute *compute, gemm_function *run, const struct gemm_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (gemm_verify_case(compute, run, &cases[i])) {
            return -1;
        }
    }
    return 0;
}

int gemm_verify_layer(struct compute *compute, gemm_function *run, size_t m, size_t n, size_t k,
                      enum element_type type) {
    const struct gemm_case cases[] = {
        {false, true, m, n, 5 * k, {type, type, type}, .pads = {0, 0, 8}, .offsets = {0, 0, 16}},
        {true, false, m, n, 2 * k, {type, type, ELEMENT_FP32}, .beta = 1},
        {false, false, m - 3, n + 8, 2 * k, {type, type, type}, EPILOGUE_DERIVATIVE, .activation = "gelu"},
    };
    return check_all(compute, run, cases, COUNT(cases));
}

/* Rows that begin at multiples of 16 bytes and others, edges, C in runs and by elements, all epilogues. */
int gemm_verify_tiles(struct compute *compute, gemm_function *run, size_t m, size_t n, size_t k,
                      enum element_type type) {
    const struct gemm_case cases[] = {
        {.m = m + 9,
         .n = n + 5,
         .k = k + 3,
         .types = {type, type, ELEMENT_FP32},
         .beta = 1,
         .pads = {13 - k % 8, 11 - n % 8, 1},
         .offsets = {8, 16, 3}},
        {true,
         false,
         m - 5,
         n + 1,
         3 * k + 7,
         {type, type, ELEMENT_FP32},
         .beta = 1,
         .pads = {1},
         .offsets = {3, 1}},
        {true, true, 16, 8, 4 * k, {type, type, type}, EPILOGUE_ACTIVATION, "gelu", .bias = true},
        {false, true, m, n, k, {type, type, ELEMENT_FP32}, EPILOGUE_ACTIVATION, "gelu_tanh", .bias = true},
        {false, false, m + 1, n + 8, k, {type, type, type}, EPILOGUE_GATES, .activation = "silu"},
    };
    if (gemm_verify_layer(compute, run, m, n, k, type)) {
        return -1;
    }
    return check_all(compute, run, cases, COUNT(cases));
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

/* As a layer has them: gradients of weights are fp32. In fp32, and then with operands of this type. */
static int verify_classes(struct compute *compute, enum element_type type, bool symmetric) {
    const enum element_type types[] = {ELEMENT_FP32, type};
    const size_t type_count = type == ELEMENT_FP32 ? 1 : 2;
    size_t *groups_expected = &gemm_state(compute)->groups_expected;
    int status = 0;
    for (size_t i = 0; i < COUNT(classes) && status == 0; i++) {
        struct gemm_case wanted = classes[i].gemm;
        for (size_t j = 0; j < type_count && wanted.symmetric == symmetric && status == 0; j++) {
            wanted.types[0] = wanted.types[1] = types[j];
            wanted.types[2] = wanted.transpose_a ? ELEMENT_FP32 : wanted.types[0];
            *groups_expected = classes[i].groups;
            status = gemm_verify_case(compute, gemm_run, &wanted);
        }
    }
    *groups_expected = 0;
    return status;
}

/* The forms of a layer by what the backend has for large fp32 matrices. They begin where oneDNN takes none, which
 * has a test of its own and leaves them to that backend. A device that cannot launch such kernels, for want of
 * local memory, computes nothing wrong; a run that needs them reports that itself. */
static int verify_large(struct compute *compute) {
    const struct gemm_backend *fp32 = gemm_state(compute)->fp32;
    const size_t edge = fp32->large_edge ? fp32->large_edge(compute) : 0;
    int status = 0;
    for (int form = 0; form < 3 && edge && status == 0; form++) {
        const struct gemm_case wanted = {.transpose_a = form == 2,
                                         .transpose_b = form == 0,
                                         .m = edge,
                                         .n = edge,
                                         .k = edge,
                                         .offsets = {1, 1, 1},
                                         .beta = form == 2 ? 1.0f : 0.0f,
                                         .sample = 61};
        status = gemm_verify_case(compute, gemm_run, &wanted);
    }
    status = compute->failure ? 0 : status;
    compute_forget(compute);
    return status;
}

int gemm_verify(struct compute *compute, enum element_type type, bool symmetric) {
    const struct gemm_state *state = gemm_state(compute);
    char what[sizeof state->description + CHECKSUM_SIZE + 32], key[CHECKSUM_SIZE];
    snprintf(what, sizeof what, "%s%s %s %s", symmetric ? "symmetric " : "", element_name(type), state->identity,
             state->description);
    if (self_test_passed(compute, what, key)) {
        return 0;
    }
    if ((!symmetric && verify_large(compute)) || verify_classes(compute, type, symmetric)) {
        return compute->failure ? -1 : 1;
    }
    self_test_keep(compute, key);
    return 0;
}
