#include "src/operations/attention_check.h"
#include "runtime/device/self_test.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "src/operations/attention_sums.h"
#include "src/operations/kernels.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEQUENCE 83     /* several blocks of rows, the last one not full */
#define BEHIND   16     /* elements of 16 bits after a result that must stay as they are */
#define STALE    0x5a5a /* what they and the results hold before, a number that no result is near */
#define LARGEST  127    /* of the numbers drawn, in units of 2^-6: every type has them exactly */
#define KEY      0x9e3779b97f4a7c15U

/* How far the device may be from the sums on the host. Both start from the same numbers, and the backward passes from the
 * same y, so that only roundings tell them apart. With u the unit roundoff of a 16-bit type:
 *
 * A row of y, dq, dk or dv is a sum of rows of v, k, q or dy, with factors P or dS that matrix units round to 16 bits
 * and the portable kernels do not. What is summed was drawn independently around zero, so the squares of a row's
 * terms add up to about the square of the row's length; and a rounding changes a term by a part of at most u, evenly
 * spread, u / sqrt(3) in the mean of squares. Roundings are as independent: those of the factors change the row by
 * about u / sqrt(3) of its length, and that of the result as much again; together sqrt(2 / 3) u times the length. A row
 * can be shorter than its terms by chance, or vanish where they cancel, as ds of a first token does. Hence four times u,
 * of the row's length and the mean row's together; of that the emulation uses a quarter in its worst row.
 *
 * lse is a float. Its scores are sums of D products of numbers below 2, scaled by 1 / sqrt(D). The units add these
 * products exactly; the portable kernels scale one factor first, so that each addition rounds, by 2^-24 (D + 8) 4 sqrt(D)
 * at most, which is 2^-11 for D = 128. That is 2^-13 of the mean lse, about 4, and less than a missing key changes. A
 * probability is as precise as its score: where all else is fp32, too, rows may be 2^-11 of their length off. */
#define PARTS_OF_ROUNDOFF 4.0
#define PART_OF_LSE       0x1p-13
#define PART_IN_FP32      0x1p-11

/* ---- buffers */

enum { QKV, D_Y, Y, LSE, D_QKV, KEYS_T, VALUES_T, DELTA, D_QUERIES, BUFFERS };

struct trial {
    struct operations *operations;
    size_t rows, head_size;  /* of y */
    double *qkv, *d_y;       /* what was drawn */
    double *y, *lse, *d_qkv; /* the sums on the host */
    struct buffer buffers[BUFFERS];
};

/* `count` elements drawn from the key, or stale ones (key 0), with stale ones BEHIND them; `numbers` become what was drawn. */
static int create(struct compute *compute, struct buffer *buffer, enum element_type type, size_t count,
                  uint64_t key, double *numbers) {
    const size_t size = element_size(type), bytes = count * size + BEHIND * sizeof(uint16_t);
    uint16_t *bits = malloc(bytes);
    if (!bits) {
        return error_set("out of memory");
    }
    for (size_t i = 0; i < bytes / sizeof(*bits); i++) {
        bits[i] = STALE;
    }
    for (size_t i = 0; key && i < count; i++) {
        const float number = ((float)random_below(key, i, 2 * LARGEST + 1) - LARGEST) * 0x1p-6f;
        numbers[i] = (double)number;
        element_put(bits, i, number, type);
    }
    const int status =
        buffer_create(compute, buffer, bytes) || buffer_write(compute, buffer, 0, bits, bytes) ? -1 : 0;
    buffer->type = type;
    free(bits);
    return status;
}

static int create_buffers(struct trial *trial) {
    const enum element_type type = trial->operations->shape.type;
    const size_t rows = trial->rows, count = rows * trial->head_size;
    const size_t padded = count / SEQUENCE * operations_transposed(trial->operations->compute, SEQUENCE);
    const struct {
        enum element_type type;
        size_t count;
        uint64_t key;
        double *numbers;
    } wanted[BUFFERS] = {
        [QKV] = {type, 3 * count, KEY, trial->qkv},
        [D_Y] = {type, count, KEY + 1, trial->d_y},
        [Y] = {type, count, 0, NULL},
        [LSE] = {ELEMENT_FP32, rows, 0, NULL},
        [D_QKV] = {type, 3 * count, 0, NULL},
        [KEYS_T] = {type, padded, 0, NULL},
        [VALUES_T] = {type, padded, 0, NULL},
        [DELTA] = {ELEMENT_FP32, rows, 0, NULL},
        [D_QUERIES] = {ELEMENT_FP32, count, 0, NULL},
    };
    for (size_t i = 0; i < BUFFERS; i++) {
        if (create(trial->operations->compute, &trial->buffers[i], wanted[i].type, wanted[i].count, wanted[i].key,
                   wanted[i].numbers)) {
            return -1;
        }
    }
    return 0;
}

/* ---- comparing */

/* Reads a result's `count` elements into `found`; -1 also where something was written behind them. */
static int read_result(struct compute *compute, const char *name, const struct buffer *buffer, size_t count,
                       double *found) {
    uint16_t *bits = malloc(buffer->bytes);
    int status = bits ? buffer_read(compute, buffer, 0, bits, buffer->bytes) : error_set("out of memory");
    for (size_t i = 0; i < count && status == 0; i++) {
        found[i] = (double)element_at(bits, i, buffer->type);
    }
    for (size_t i = buffer->bytes / sizeof(*bits) - BEHIND; i < buffer->bytes / sizeof(*bits) && status == 0; i++) {
        status = bits[i] == STALE ? 0 : error_set("something was written behind %s", name);
    }
    free(bits);
    return status;
}

static double square(double x) {
    return x * x;
}

/* Rows of `width` elements. */
static int compare_rows(const char *name, const double *expected, const double *found, double part, size_t rows,
                        size_t width) {
    double total = 0.0;
    for (size_t i = 0; i < rows * width; i++) {
        total += square(expected[i]);
    }
    const double mean = sqrt(total / (double)rows);
    for (size_t row = 0; row < rows; row++) {
        double length = 0.0, difference = 0.0;
        for (size_t i = row * width; i < (row + 1) * width; i++) {
            length += square(expected[i]);
            difference += square(found[i] - expected[i]);
        }
        const double allowed = part * (sqrt(length) + mean);
        if (!(sqrt(difference) <= allowed)) {
            return error_set(
                "row %zu of %s is %.2g away from the sums on the host, and roundings explain no more than %.2g",
                row, name, sqrt(difference), allowed);
        }
    }
    return 0;
}

static int compare(const struct trial *trial, const char *name, size_t result, const double *expected, size_t rows,
                   size_t width) {
    const enum element_type type = trial->operations->shape.type;
    const double part = result == LSE          ? PART_OF_LSE
                        : type == ELEMENT_FP32 ? PART_IN_FP32
                                               : PARTS_OF_ROUNDOFF * element_roundoff(type);
    double *found = malloc(rows * width * sizeof *found);
    if (!found) {
        return error_set("out of memory");
    }
    const int status =
        read_result(trial->operations->compute, name, &trial->buffers[result], rows * width, found) ||
                compare_rows(name, expected, found, part, rows, width)
            ? -1
            : 0;
    free(found);
    return status;
}

/* ---- both passes */

static struct attention_sums sums_of(const struct trial *trial, struct dropout dropout) {
    return (struct attention_sums){SEQUENCE, trial->rows / SEQUENCE, trial->head_size, dropout, trial->qkv};
}

static int run_forward(struct trial *trial, struct dropout dropout) {
    const struct buffer *b = trial->buffers;
    const struct attention_values values = {&b[QKV], &b[Y], &b[LSE]};
    const struct attention_scratch scratch = {&b[KEYS_T], &b[VALUES_T], &b[DELTA], &b[D_QUERIES]};
    const struct attention_sums sums = sums_of(trial, dropout);
    attention_forward(trial->operations, (struct token_shape){1, SEQUENCE}, &values, &scratch, dropout);
    return attention_sums_forward(&sums, trial->y, trial->lse) ||
                   compare(trial, "y", Y, trial->y, trial->rows, trial->head_size) ||
                   compare(trial, "lse", LSE, trial->lse, trial->rows, 1)
               ? -1
               : 0;
}

/* From the device's y, so that an error of the forward pass is not looked for here. */
static int run_backward(struct trial *trial, struct dropout dropout) {
    struct compute *compute = trial->operations->compute;
    const struct buffer *b = trial->buffers;
    const struct attention_values values = {&b[QKV], &b[Y], &b[LSE]};
    const struct attention_scratch scratch = {&b[KEYS_T], &b[VALUES_T], &b[DELTA], &b[D_QUERIES]};
    const struct attention_sums sums = sums_of(trial, dropout);
    buffer_zero(compute, &b[D_QKV], 0, b[D_QKV].bytes - BEHIND * sizeof(uint16_t));
    attention_backward(trial->operations, (struct token_shape){1, SEQUENCE}, &values, &scratch, dropout, &b[D_Y],
                       &b[D_QKV]);
    return read_result(compute, "y", &b[Y], trial->rows * trial->head_size, trial->y) ||
                   attention_sums_backward(&sums, trial->y, trial->d_y, trial->d_qkv) ||
                   compare(trial, "d_qkv", D_QKV, trial->d_qkv, 3 * trial->rows, trial->head_size)
               ? -1
               : 0;
}

/* Forward there may be a kernel with dropout and one without; backward a CPU's work-items take blocks of a head, or a whole one
 * where heads are enough for its cores. */
static int run(struct trial *trial) {
    struct operations *operations = trial->operations;
    const struct dropout none = {0}, dropout = {0.25f, KEY, UINT32_MAX - 5U};
    const size_t cores = operations->head_cores;
    int status = run_forward(trial, none) || run_forward(trial, dropout) ? -1 : 0;
    for (size_t i = 0; i <= (cores ? 1 : 0) && status == 0; i++) {
        operations->head_cores = i;
        status = run_backward(trial, dropout);
    }
    operations->head_cores = cores;
    return status;
}

int attention_check(struct operations *operations) {
    const size_t heads = (size_t)operations->shape.heads, rows = SEQUENCE * heads;
    const size_t head_size = (size_t)operations->shape.channels / heads, count = rows * head_size;
    double *numbers = malloc((8 * count + rows) * sizeof *numbers);
    if (!numbers) {
        return error_set("out of memory");
    }
    struct trial trial = {
        .operations = operations,
        .rows = rows,
        .head_size = head_size,
        .qkv = numbers,
        .d_y = numbers + 3 * count,
        .y = numbers + 4 * count,
        .d_qkv = numbers + 5 * count,
        .lse = numbers + 8 * count,
    };
    struct compute *compute = operations->compute;
    int status = create_buffers(&trial);
    if (status == 0) {
        status = run(&trial) == 0 ? 0 : compute->failure ? -1 : 1;
    }
    for (size_t i = 0; i < BUFFERS; i++) {
        buffer_release(compute, &trial.buffers[i]);
    }
    compute_forget(compute);
    free(numbers);
    return status;
}

/* ---- pairs */

#define LANES 16

/* Numbers that a rounding to bf16 moves up, down, and to the even one of two that are as near. All products and sums of the rounded
 * ones are floats without rounding. */
static void draw_pairs(float numbers[2 * LANES], float sums[LANES], float expected[LANES]) {
    for (size_t i = 0; i < LANES; i++) {
        numbers[i] = 1.0f + (float)i * 0x1p-8f;
        numbers[LANES + i] = -2.0f - (float)(3 * i) * 0x1p-7f;
        sums[i] = (float)i;
        const uint16_t rounded[2] = {element_encode(numbers[i], ELEMENT_BF16),
                                     element_encode(numbers[LANES + i], ELEMENT_BF16)};
        const float first = element_at(rounded, 0, ELEMENT_BF16), second = element_at(rounded, 1, ELEMENT_BF16);
        expected[i] = sums[i] + first * first + second * second;
    }
}

static int run_pairs(struct operations *operations, struct buffer *numbers, struct buffer *sums) {
    struct compute *compute = operations->compute;
    float drawn[2 * LANES], found[LANES], expected[LANES];
    draw_pairs(drawn, found, expected);
    if (buffer_create(compute, numbers, sizeof drawn) || buffer_create(compute, sums, sizeof found) ||
        buffer_write(compute, numbers, 0, drawn, sizeof drawn) ||
        buffer_write(compute, sums, 0, found, sizeof found)) {
        return -1;
    }
    KERNEL_RUN(compute, &operations->kernels->attention_cpu_bf16_check, 1, 1, ARG_IN(numbers, 2 * LANES),
               ARG_IN_OUT(sums, LANES));
    if (buffer_read(compute, sums, 0, found, sizeof found)) {
        return -1;
    }
    return memcmp(found, expected, sizeof found) ? error_set("wrong products of pairs of bf16") : 0;
}

int attention_check_bf16(struct operations *operations) {
    struct buffer numbers = {0}, sums = {0};
    const int status = run_pairs(operations, &numbers, &sums);
    buffer_release(operations->compute, &numbers);
    buffer_release(operations->compute, &sums);
    compute_forget(operations->compute);
    return status;
}

/* ---- choosing */

/* As attention_check, which is done unless it passed in an earlier run. */
static int check_once(struct operations *operations, const char *kernels) {
    const struct operation_shape *shape = &operations->shape;
    char what[sizeof operations->attention_by + 96], key[CHECKSUM_SIZE];
    snprintf(what, sizeof what, "attention by %s, %" PRId64 " heads, %" PRId64 " channels, %s", kernels,
             shape->heads, shape->channels, element_name(shape->type));
    if (self_test_passed(operations->compute, what, key)) {
        return 0;
    }
    const int status = attention_check(operations);
    if (status == 0) {
        self_test_keep(operations->compute, key);
    }
    return status;
}

/* Opens the device's unit if it is right; false with the reason why not. */
static bool find_units(struct operations *operations) {
    const struct operation_shape *shape = &operations->shape;
    const struct attention_matrix_cores_shape wanted = {shape->heads, shape->channels / shape->heads, shape->type};
    struct attention_matrix_cores **units = &operations->attention_matrix_cores;
    struct mma_unit unit;
    if (attention_matrix_cores_check_shape(&wanted) || mma_unit_find(&operations->compute->device, &unit)) {
        return false;
    }
    if (attention_matrix_cores_open(operations->compute, &wanted, &unit, units) == 0 &&
        (operations->compute->device.model || check_once(operations, attention_matrix_cores_name(*units)) == 0)) {
        return true;
    }
    attention_matrix_cores_close(*units);
    *units = NULL;
    error_prefix("%s", unit.name);
    return false;
}

/* Takes over the error that keeps attention from units. */
static void say_why_portable(struct operations *operations) {
    snprintf(operations->attention_by, sizeof operations->attention_by, "portable kernels (%.*s)",
             (int)strcspn(error_text(), "\n"), error_text());
    error_clear();
}

static int choose(struct operations *operations) {
    char *text = operations->attention_by;
    const size_t size = sizeof operations->attention_by;
    if (operations->attention_products && (operations->compute->dry || attention_check_bf16(operations) == 0)) {
        snprintf(text, size, "the CPU's " ATTENTION_PAIRS_UNIT);
        return 0;
    }
    if (operations->attention_products) {
        attention_leave_bf16(operations);
        say_why_portable(operations);
        return operations_build(operations, "attention.cl");
    }
    if (operations->shape.type == ELEMENT_FP32 || !gemm_on_units(operations->compute)) {
        snprintf(text, size, "portable kernels");
    } else if (find_units(operations)) {
        snprintf(text, size, "%s", attention_matrix_cores_name(operations->attention_matrix_cores));
    } else {
        say_why_portable(operations);
    }
    return 0;
}

int attention_open(struct operations *operations) {
    struct compute *compute = operations->compute;
    if (choose(operations)) {
        return -1;
    }
    const bool is_verified = !compute->verify || operations->attention_matrix_cores;
    const int status = is_verified ? 0 : check_once(operations, operations->attention_by);
    return status > 0 ? self_test_refuse(compute, "attention",
                                         operations->shape.type == ELEMENT_FP32 ? "" : "--dtype fp32, ")
                      : status;
}
