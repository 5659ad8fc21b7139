#include "src/operations/attention_check.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "src/operations/operations.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BEHIND  16     /* elements after a result that must stay as they are */
#define STALE   0x5a5a /* what they and the results hold before, a number that no result is near */
#define QUANTUM 0x1p-6 /* of the numbers drawn, which have at most 8 digits: every type has them exactly */
#define MOST    (255 * QUANTUM)

/* ---- numbers of a case */

static int draw(uint64_t key, size_t count, double deviation, enum element_type type, uint16_t **bits,
                double **values) {
    float *normals = malloc(count * sizeof(*normals));
    *bits = malloc(count * sizeof(**bits));
    *values = malloc(count * sizeof(**values));
    if (!normals || !*bits || !*values) {
        free(normals);
        return error_set("out of memory");
    }
    random_normal(key, 0, count, 0.0, deviation, normals);
    for (size_t i = 0; i < count; i++) {
        (*values)[i] = fmax(-MOST, fmin(MOST, QUANTUM * rint((double)normals[i] / QUANTUM)));
        (*bits)[i] = element_encode_exact((float)(*values)[i], type);
    }
    free(normals);
    return 0;
}

int attention_numbers_draw(const struct attention_case *shape, struct attention_numbers *numbers) {
    const size_t elements = shape->batch * shape->sequence * shape->heads * shape->head_size;
    *numbers = (struct attention_numbers){0};
    if (draw(shape->key, 3 * elements, shape->spread, shape->type, &numbers->qkv_bits, &numbers->qkv) ||
        draw(shape->key + 1, elements, 1.0, shape->type, &numbers->d_y_bits, &numbers->d_y)) {
        attention_numbers_free(numbers);
        return -1;
    }
    return 0;
}

void attention_numbers_free(struct attention_numbers *numbers) {
    free(numbers->qkv_bits);
    free(numbers->d_y_bits);
    free(numbers->qkv);
    free(numbers->d_y);
    *numbers = (struct attention_numbers){0};
}

/* ---- on the device */

struct arena {
    struct buffer qkv, d_y, y, lse, delta, d_qkv;
};

/* A result: `bytes`, and those BEHIND it, stale. */
static int create_stale(struct compute *compute, struct buffer *buffer, size_t bytes) {
    const size_t all = bytes + BEHIND * sizeof(uint16_t);
    uint16_t *stale = malloc(all);
    if (!stale) {
        return error_set("out of memory");
    }
    for (size_t i = 0; i < all / sizeof(*stale); i++) {
        stale[i] = STALE;
    }
    const int status = buffer_create(compute, buffer, all) || buffer_write(compute, buffer, 0, stale, all) ? -1 : 0;
    free(stale);
    return status;
}

static int create_input(struct compute *compute, struct buffer *buffer, const uint16_t *bits, size_t count) {
    const size_t bytes = count * sizeof(*bits);
    return buffer_create(compute, buffer, bytes) || buffer_write(compute, buffer, 0, bits, bytes) ? -1 : 0;
}

static int arena_create(struct compute *compute, const struct attention_case *shape,
                        const struct attention_numbers *numbers, struct arena *arena) {
    const size_t rows = shape->batch * shape->sequence * shape->heads, elements = rows * shape->head_size;
    return create_input(compute, &arena->qkv, numbers->qkv_bits, 3 * elements) ||
                   create_input(compute, &arena->d_y, numbers->d_y_bits, elements) ||
                   create_stale(compute, &arena->y, elements * sizeof(uint16_t)) ||
                   create_stale(compute, &arena->lse, rows * sizeof(float)) ||
                   create_stale(compute, &arena->delta, rows * sizeof(float)) ||
                   create_stale(compute, &arena->d_qkv, 3 * elements * sizeof(uint16_t))
               ? -1
               : 0;
}

static void arena_release(struct compute *compute, struct arena *arena) {
    struct buffer *buffers = (struct buffer *)arena; /* the struct holds nothing else */
    for (size_t i = 0; i < sizeof(*arena) / sizeof(*buffers); i++) {
        if (buffers[i].memory) {
            buffer_release(compute, &buffers[i]);
        }
    }
}

/* ---- comparing */

/* Elements of `type` against their bounds; in *worst the largest part of a bound that was used. */
static int compare(struct compute *compute, const char *name, const struct buffer *buffer, enum element_type type,
                   const struct bounded *expected, size_t count, double *worst) {
    const size_t size = element_size(type), bytes = count * size + BEHIND * sizeof(uint16_t);
    unsigned char *data = malloc(bytes);
    int status = data ? buffer_read(compute, buffer, 0, data, bytes) : error_set("out of memory");
    for (size_t i = 0; i < count && status == 0; i++) {
        float single = 0.0f;
        uint16_t bits = 0;
        memcpy(type == ELEMENT_FP32 ? (void *)&single : (void *)&bits, data + i * size, size);
        const double value = type == ELEMENT_FP32 ? (double)single : (double)element_decode(bits, type);
        const double part = fabs(value - expected[i].value) / expected[i].bound;
        *worst = fmax(*worst, part);
        if (!(part <= 1.0)) {
            status = error_set("element %zu of %s is %.9g, not %.9g +- %.2g", i, name, value, expected[i].value,
                               expected[i].bound);
        }
    }
    for (size_t i = 0; i < BEHIND && status == 0; i++) {
        uint16_t bits;
        memcpy(&bits, data + count * size + i * sizeof(bits), sizeof(bits));
        status = bits == STALE ? 0 : error_set("something was written behind %s", name);
    }
    free(data);
    return status;
}

/* One pass after the other, so that an error of the first one is not looked for in the second. */
static int run_and_compare(struct attention_units *units, const struct attention_case *shape,
                           const struct arena *arena, const struct attention_results *expected, double *worst) {
    struct compute *compute = attention_units_compute(units);
    const size_t rows = shape->batch * shape->sequence * shape->heads, elements = rows * shape->head_size;
    const struct token_shape tokens = {(int64_t)shape->batch, (int64_t)shape->sequence};
    const struct dropout dropout = {shape->dropout, shape->key, shape->first_row};
    attention_units_forward(units, tokens, &arena->qkv, dropout, &arena->y, &arena->lse);
    if (compare(compute, "y", &arena->y, shape->type, expected->y, elements, worst) ||
        compare(compute, "lse", &arena->lse, ELEMENT_FP32, expected->lse, rows, worst)) {
        return -1;
    }
    const struct attention_values values = {.qkv = &arena->qkv, .y = &arena->y, .lse = &arena->lse};
    attention_units_backward(units, tokens, &values, dropout, &arena->d_y, &arena->delta, &arena->d_qkv);
    return compare(compute, "d_qkv", &arena->d_qkv, shape->type, expected->d_qkv, 3 * elements, worst);
}

static int check_numbers(struct attention_units *units, const struct attention_case *shape,
                         const struct attention_numbers *numbers, double *worst) {
    struct compute *compute = attention_units_compute(units);
    struct attention_results expected;
    struct arena arena = {0};
    if (attention_reference(shape, numbers->qkv, numbers->d_y, &expected)) {
        return -1;
    }
    const int status =
        arena_create(compute, shape, numbers, &arena) || run_and_compare(units, shape, &arena, &expected, worst)
            ? -1
            : 0;
    char *kept = status ? error_keep() : NULL;
    arena_release(compute, &arena);
    attention_results_free(&expected);
    return status ? error_restore(kept) : 0;
}

int attention_check(struct attention_units *units, const struct attention_case *wanted, double *worst) {
    struct attention_numbers numbers;
    double largest = 0.0;
    if (attention_numbers_draw(wanted, &numbers)) {
        return -1;
    }
    const int status = check_numbers(units, wanted, &numbers, &largest);
    attention_numbers_free(&numbers);
    if (worst) {
        *worst = largest;
    }
    return status;
}
