#include "src/operations/attention_check.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "src/operations/kernels.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEQUENCE 83     /* several blocks of rows, the last one not full */
#define BEHIND   16     /* elements of 16 bits after a result that must stay as they are */
#define STALE    0x5a5a /* what they and the results hold before, a number that no result is near */
#define LARGEST  127    /* of the numbers drawn, in units of 2^-6: every type has them exactly */
#define KEY      0x9e3779b97f4a7c15U

/* How far the two may be apart. Both start from the same 16-bit numbers, and the backward passes from the same y and
 * lse, so that only roundings tell them apart. With u the unit roundoff of the type:
 *
 * A row of y, dq, dk or dv is a sum of rows of v, k, q or dy, with factors P or dS that the units round to 16 bits
 * and the portable kernels do not. What is summed was drawn independently around zero, so the squares of a row's
 * terms add up to about the square of the row's length; and a rounding changes a term by a part of at most u, evenly
 * spread, u / sqrt(3) in the mean of squares. Roundings are as independent: those of the factors change the row by
 * about u / sqrt(3) of its length. Each of the two then rounds its result, which gives as much again, and all three
 * together make u times the length. A row can be shorter than its terms by chance, or vanish where they cancel, as
 * ds of a first token does. Hence four times u, of the row's length and the mean row's together; of that the
 * emulation uses a quarter in its worst row.
 *
 * lse is a float on both sides. Its scores are sums of D products of numbers below 2, scaled by 1 / sqrt(D). The
 * units add these products exactly; the portable kernels scale one factor first, so that each addition rounds, by
 * 2^-24 (D + 8) 4 sqrt(D) at most, which is 2^-11 for D = 128. That is 2^-13 of the mean lse, about 4, and less than
 * a missing key changes. */
#define PARTS_OF_ROUNDOFF 4.0
#define PART_OF_LSE       0x1p-13

/* ---- buffers */

/* What both read, what the portable kernels compute, what the units compute, and scratch. */
enum { QKV, D_Y, Y, LSE, D_QKV, UNITS_Y, UNITS_LSE, UNITS_D_QKV, KEYS_T, VALUES_T, DELTA, D_QUERIES, BUFFERS };

struct trial {
    struct operations *operations;
    struct attention_units *units;
    size_t rows, head_size; /* of y */
    struct buffer buffers[BUFFERS];
};

/* `count` elements drawn from the key, or stale ones (key 0); stale is what is BEHIND them, too. */
static int create(struct compute *compute, struct buffer *buffer, enum element_type type, size_t count,
                  uint64_t key) {
    const size_t bytes = count * element_size(type) + BEHIND * sizeof(uint16_t);
    uint16_t *bits = malloc(bytes);
    if (!bits) {
        return error_set("out of memory");
    }
    for (size_t i = 0; i < bytes / sizeof(*bits); i++) {
        const float number = ((float)random_below(key, i, 2 * LARGEST + 1) - LARGEST) * 0x1p-6f;
        bits[i] = key && i < count ? element_encode(number, type) : STALE;
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
    } wanted[BUFFERS] = {
        [QKV] = {type, 3 * count, KEY},
        [D_Y] = {type, count, KEY + 1},
        [Y] = {type, count, 0},
        [LSE] = {ELEMENT_FP32, rows, 0},
        [D_QKV] = {type, 3 * count, 0},
        [UNITS_Y] = {type, count, 0},
        [UNITS_LSE] = {ELEMENT_FP32, rows, 0},
        [UNITS_D_QKV] = {type, 3 * count, 0},
        [KEYS_T] = {type, padded, 0},
        [VALUES_T] = {type, padded, 0},
        [DELTA] = {ELEMENT_FP32, rows, 0},
        [D_QUERIES] = {ELEMENT_FP32, count, 0},
    };
    for (size_t i = 0; i < BUFFERS; i++) {
        if (create(trial->operations->compute, &trial->buffers[i], wanted[i].type, wanted[i].count,
                   wanted[i].key)) {
            return -1;
        }
    }
    return 0;
}

/* ---- comparing */

/* A result's elements as they are stored, on the heap; NULL on failure, also where something was written behind them.
 */
static void *read_result(struct compute *compute, const char *name, const struct buffer *buffer) {
    uint16_t *bits = malloc(buffer->bytes);
    int status = bits ? buffer_read(compute, buffer, 0, bits, buffer->bytes) : error_set("out of memory");
    for (size_t i = buffer->bytes / sizeof(*bits) - BEHIND; i < buffer->bytes / sizeof(*bits) && status == 0; i++) {
        status = bits[i] == STALE ? 0 : error_set("something was written behind %s", name);
    }
    if (status) {
        free(bits);
        return NULL;
    }
    return bits;
}

static double square(double x) {
    return x * x;
}

/* Rows of `width` elements. */
static int compare_rows(const char *name, const void *expected, const void *found, enum element_type type,
                        size_t rows, size_t width) {
    const double part = type == ELEMENT_FP32 ? PART_OF_LSE : PARTS_OF_ROUNDOFF * element_roundoff(type);
    double total = 0.0;
    for (size_t i = 0; i < rows * width; i++) {
        total += square((double)element_at(expected, i, type));
    }
    const double mean = sqrt(total / (double)rows);
    for (size_t row = 0; row < rows; row++) {
        double length = 0.0, difference = 0.0;
        for (size_t i = row * width; i < (row + 1) * width; i++) {
            const double value = (double)element_at(expected, i, type);
            length += square(value);
            difference += square((double)element_at(found, i, type) - value);
        }
        const double allowed = part * (sqrt(length) + mean);
        if (!(sqrt(difference) <= allowed)) {
            return error_set("row %zu of %s is %.2g away from that of the portable kernels, and roundings explain "
                             "no more than %.2g",
                             row, name, sqrt(difference), allowed);
        }
    }
    return 0;
}

static int compare(const struct trial *trial, const char *name, size_t expected, size_t found, size_t rows,
                   size_t width) {
    struct compute *compute = trial->operations->compute;
    void *one = read_result(compute, name, &trial->buffers[expected]);
    void *other = one ? read_result(compute, name, &trial->buffers[found]) : NULL;
    const int status = other ? compare_rows(name, one, other, trial->buffers[expected].type, rows, width) : -1;
    free(one);
    free(other);
    return status;
}

static int run_forward(struct trial *trial, struct dropout dropout) {
    struct operations *operations = trial->operations;
    const struct buffer *b = trial->buffers;
    const struct token_shape tokens = {1, SEQUENCE};
    const struct attention_values values = {&b[QKV], &b[Y], &b[LSE]};
    const struct attention_scratch scratch = {&b[KEYS_T], &b[VALUES_T], &b[DELTA], &b[D_QUERIES]};
    attention_forward(operations, tokens, &values, &scratch, dropout);
    attention_units_forward(trial->units, tokens, &b[QKV], dropout, &b[UNITS_Y], &b[UNITS_LSE]);
    return compare(trial, "y", Y, UNITS_Y, trial->rows, trial->head_size) ||
           compare(trial, "lse", LSE, UNITS_LSE, trial->rows, 1);
}

/* One pass after the other, so that an error of the first one is not looked for in the second; forward there is a kernel with
 * dropout and one without. */
static int run(struct trial *trial) {
    struct operations *operations = trial->operations;
    const struct buffer *b = trial->buffers;
    const struct token_shape tokens = {1, SEQUENCE};
    const struct dropout none = {0}, dropout = {0.25f, KEY, UINT32_MAX - 5U};
    const struct attention_values values = {&b[QKV], &b[Y], &b[LSE]};
    const struct attention_scratch scratch = {&b[KEYS_T], &b[VALUES_T], &b[DELTA], &b[D_QUERIES]};
    if (run_forward(trial, none) || run_forward(trial, dropout)) {
        return -1;
    }
    attention_backward(operations, tokens, &values, &scratch, dropout, &b[D_Y], &b[D_QKV]);
    attention_units_backward(trial->units, tokens, &values, dropout, &b[D_Y], &b[DELTA], &b[UNITS_D_QKV]);
    return compare(trial, "d_qkv", D_QKV, UNITS_D_QKV, 3 * trial->rows, trial->head_size);
}

int attention_check(struct operations *operations, struct attention_units *units) {
    const size_t heads = (size_t)operations->shape.heads;
    struct trial trial = {
        .operations = operations,
        .units = units,
        .rows = SEQUENCE * heads,
        .head_size = (size_t)operations->shape.channels / heads,
    };
    const int status = create_buffers(&trial) || run(&trial) ? -1 : 0;
    for (size_t i = 0; i < BUFFERS; i++) {
        buffer_release(operations->compute, &trial.buffers[i]);
    }
    compute_forget(operations->compute);
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
    KERNEL_RUN(compute, &operations->kernels->attention_pairs_check, 1, 1, ARG_IN(numbers, 2 * LANES),
               ARG_IN_OUT(sums, LANES));
    if (buffer_read(compute, sums, 0, found, sizeof found)) {
        return -1;
    }
    return memcmp(found, expected, sizeof found) ? error_set("wrong products of pairs of bf16") : 0;
}

int attention_check_pairs(struct operations *operations) {
    struct buffer numbers = {0}, sums = {0};
    const int status = run_pairs(operations, &numbers, &sums);
    buffer_release(operations->compute, &numbers);
    buffer_release(operations->compute, &sums);
    compute_forget(operations->compute);
    return status;
}

/* ---- choosing */

/* On the device's unit if it is right; NULL with the reason why not. */
static struct attention_units *find_units(struct operations *operations) {
    const struct operation_shape *shape = &operations->shape;
    const struct attention_units_shape wanted = {shape->heads, shape->channels / shape->heads, shape->type};
    struct mma_unit unit;
    struct attention_units *units;
    if (attention_units_check_shape(&wanted) || mma_unit_find(&operations->compute->device, &unit)) {
        return NULL;
    }
    if (attention_units_open(operations->compute, &wanted, &unit, &units) == 0 &&
        (operations->compute->device.model || attention_check(operations, units) == 0)) {
        return units;
    }
    attention_units_close(units);
    error_prefix("%s", unit.name);
    return NULL;
}

/* Takes over the error that keeps attention from units. */
static void say_why_portable(struct operations *operations) {
    snprintf(operations->attention_by, sizeof operations->attention_by, "portable kernels (%.*s)",
             (int)strcspn(error_text(), "\n"), error_text());
    error_clear();
}

int attention_open_units(struct operations *operations) {
    char *text = operations->attention_by;
    const size_t size = sizeof operations->attention_by;
    if (operations->attention_products && (operations->compute->dry || attention_check_pairs(operations) == 0)) {
        snprintf(text, size, "the CPU's " ATTENTION_PAIRS_UNIT);
        return 0;
    }
    if (operations->attention_products) {
        operations_leave_pairs(operations);
        say_why_portable(operations);
        return operations_build(operations, "attention.cl");
    }
    if (operations->shape.type == ELEMENT_FP32 || !gemm_on_units(operations->compute)) {
        snprintf(text, size, "portable kernels");
        return 0;
    }
    operations->attention_units = find_units(operations);
    if (operations->attention_units) {
        snprintf(text, size, "%s", attention_units_name(operations->attention_units));
    } else {
        say_why_portable(operations);
    }
    return 0;
}
