#include "src/operations/attention_check.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
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

/* What one of the two computes. */
struct results {
    struct buffer y, lse, d_qkv;
};

struct trial {
    struct operations *operations;
    size_t rows, head_size; /* of y */
    struct buffer qkv, d_y, keys_t, values_t, delta;
    struct results expected, found;
};

/* A result of `count` elements, and what is BEHIND it, all stale. */
static int create_stale(struct compute *compute, struct buffer *buffer, enum element_type type, size_t count) {
    const size_t bytes = count * element_size(type) + BEHIND * sizeof(uint16_t);
    uint16_t *stale = malloc(bytes);
    if (!stale) {
        return error_set("out of memory");
    }
    for (size_t i = 0; i < bytes / sizeof(*stale); i++) {
        stale[i] = STALE;
    }
    const int status =
        buffer_create(compute, buffer, bytes) || buffer_write(compute, buffer, 0, stale, bytes) ? -1 : 0;
    buffer->type = type;
    free(stale);
    return status;
}

static int create_numbers(struct compute *compute, struct buffer *buffer, enum element_type type, size_t count,
                          uint64_t key) {
    uint16_t *numbers = malloc(count * sizeof(*numbers));
    if (!numbers) {
        return error_set("out of memory");
    }
    for (size_t i = 0; i < count; i++) {
        const float drawn = (float)random_below(key, i, 2 * LARGEST + 1) - LARGEST;
        numbers[i] = element_encode(drawn * 0x1p-6f, type);
    }
    const size_t bytes = count * sizeof(*numbers);
    const int status =
        buffer_create(compute, buffer, bytes) || buffer_write(compute, buffer, 0, numbers, bytes) ? -1 : 0;
    free(numbers);
    return status;
}

static int create_results(const struct trial *trial, struct results *results) {
    struct compute *compute = trial->operations->compute;
    const enum element_type type = trial->operations->shape.type;
    const size_t count = trial->rows * trial->head_size;
    return create_stale(compute, &results->y, type, count) ||
                   create_stale(compute, &results->lse, ELEMENT_FP32, trial->rows) ||
                   create_stale(compute, &results->d_qkv, type, 3 * count)
               ? -1
               : 0;
}

static int create_buffers(struct trial *trial) {
    struct compute *compute = trial->operations->compute;
    const enum element_type type = trial->operations->shape.type;
    const size_t count = trial->rows * trial->head_size;
    const size_t padded = count / SEQUENCE * operations_padded(trial->operations, SEQUENCE) * element_size(type);
    return create_numbers(compute, &trial->qkv, type, 3 * count, KEY) ||
                   create_numbers(compute, &trial->d_y, type, count, KEY + 1) ||
                   buffer_create(compute, &trial->keys_t, padded) ||
                   buffer_create(compute, &trial->values_t, padded) ||
                   buffer_create(compute, &trial->delta, trial->rows * sizeof(float)) ||
                   create_results(trial, &trial->expected) || create_results(trial, &trial->found)
               ? -1
               : 0;
}

static void release_buffers(struct trial *trial) {
    struct buffer *const buffers[] = {&trial->qkv,          &trial->d_y,
                                      &trial->keys_t,       &trial->values_t,
                                      &trial->delta,        &trial->expected.y,
                                      &trial->expected.lse, &trial->expected.d_qkv,
                                      &trial->found.y,      &trial->found.lse,
                                      &trial->found.d_qkv};
    for (size_t i = 0; i < sizeof(buffers) / sizeof(*buffers); i++) {
        buffer_release(trial->operations->compute, buffers[i]);
    }
}

/* ---- comparing */

/* A result's elements, on the heap; NULL on failure, also where something was written behind them. */
static float *read_result(struct compute *compute, const char *name, const struct buffer *buffer, size_t count) {
    const enum element_type type = buffer->type;
    unsigned char *data = malloc(buffer->bytes);
    float *values = malloc(count * sizeof(*values));
    int status = data && values ? buffer_read(compute, buffer, 0, data, buffer->bytes) : error_set("out of memory");
    for (size_t i = 0; i < count && status == 0; i++) {
        values[i] = type == ELEMENT_FP32 ? ((const float *)(void *)data)[i]
                                         : element_decode(((const uint16_t *)(void *)data)[i], type);
    }
    const uint16_t *behind = (const uint16_t *)(void *)(data + count * element_size(type));
    for (size_t i = 0; i < BEHIND && status == 0; i++) {
        status = behind[i] == STALE ? 0 : error_set("something was written behind %s", name);
    }
    free(data);
    if (status) {
        free(values);
        return NULL;
    }
    return values;
}

static double square(double x) {
    return x * x;
}

static int compare_rows(const char *name, const float *expected, const float *found, size_t rows, size_t width,
                        double part) {
    double total = 0.0;
    for (size_t i = 0; i < rows * width; i++) {
        total += square((double)expected[i]);
    }
    const double mean = sqrt(total / (double)rows);
    for (size_t row = 0; row < rows; row++) {
        double length = 0.0, difference = 0.0;
        for (size_t i = row * width; i < (row + 1) * width; i++) {
            length += square((double)expected[i]);
            difference += square((double)found[i] - (double)expected[i]);
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

static int compare(const struct trial *trial, const char *name, const struct buffer *expected,
                   const struct buffer *found, size_t rows, size_t width) {
    struct compute *compute = trial->operations->compute;
    const enum element_type type = expected->type;
    const double part = type == ELEMENT_FP32 ? PART_OF_LSE : PARTS_OF_ROUNDOFF * element_roundoff(type);
    float *values = read_result(compute, name, expected, rows * width);
    float *others = values ? read_result(compute, name, found, rows * width) : NULL;
    const int status = others ? compare_rows(name, values, others, rows, width, part) : -1;
    free(values);
    free(others);
    return status;
}

/* One pass after the other, so that an error of the first one is not looked for in the second. */
static int run(struct trial *trial, struct attention_units *units) {
    struct operations *operations = trial->operations;
    const struct results *expected = &trial->expected, *found = &trial->found;
    const struct token_shape tokens = {1, SEQUENCE};
    const struct dropout dropout = {0.25f, KEY, UINT32_MAX - 5U};
    attention_forward(operations, tokens, &trial->qkv, dropout, &trial->keys_t, &expected->y, &expected->lse);
    attention_units_forward(units, tokens, &trial->qkv, dropout, &found->y, &found->lse);
    if (compare(trial, "y", &expected->y, &found->y, trial->rows, trial->head_size) ||
        compare(trial, "lse", &expected->lse, &found->lse, trial->rows, 1)) {
        return -1;
    }
    attention_backward(operations, tokens, &trial->qkv, dropout, &expected->y, &expected->lse, &trial->d_y,
                       &trial->keys_t, &trial->values_t, &trial->delta, &expected->d_qkv);
    attention_units_backward(units, tokens, &trial->qkv, dropout, &expected->y, &expected->lse, &trial->d_y,
                             &trial->delta, &found->d_qkv);
    return compare(trial, "d_qkv", &expected->d_qkv, &found->d_qkv, 3 * trial->rows, trial->head_size);
}

int attention_check(struct operations *operations, struct attention_units *units) {
    const size_t heads = (size_t)operations->shape.heads;
    struct trial trial = {
        .operations = operations,
        .rows = SEQUENCE * heads,
        .head_size = (size_t)operations->shape.channels / heads,
    };
    const int status = create_buffers(&trial) || run(&trial, units) ? -1 : 0;
    release_buffers(&trial);
    compute_forget(operations->compute);
    return status;
}

/* ---- choosing */

/* The first unit of the device that is right; NULL with the reason why there is none. */
static struct attention_units *find_units(struct operations *operations) {
    const struct operation_shape *shape = &operations->shape;
    const struct attention_units_shape wanted = {shape->heads, shape->channels / shape->heads, shape->type};
    struct mma_unit found[MMA_MOST_UNITS];
    const size_t count =
        attention_units_check_shape(&wanted) ? 0 : mma_units_find(&operations->compute->device, found);
    for (size_t i = 0; i < count; i++) {
        struct attention_units *units;
        if (attention_units_open(operations->compute, &wanted, &found[i], &units) == 0 &&
            attention_check(operations, units) == 0) {
            return units;
        }
        attention_units_close(units);
        error_prefix("%s", found[i].name);
    }
    return NULL;
}

void attention_open_units(struct operations *operations) {
    char *text = operations->attention_by;
    const size_t size = sizeof operations->attention_by;
    if (operations->shape.type == ELEMENT_FP32 || strcmp(gemm_name(operations->compute), "mma") != 0) {
        snprintf(text, size, "portable kernels");
        return;
    }
    operations->attention_units = find_units(operations);
    if (operations->attention_units) {
        snprintf(text, size, "%s", attention_units_name(operations->attention_units));
    } else {
        snprintf(text, size, "portable kernels (%.*s)", (int)strcspn(error_text(), "\n"), error_text());
        error_clear();
    }
}
