/* The device's conversions between fp32 and the 16-bit types, and the host's, against the same in double
 * (rounding.c): every 16-bit number, and floats at, beside and between the places where rounding decides; vectors
 * and single numbers. */
#include "runtime/device/compute.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "tests/support/rounding.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct compute *compute;

static const enum element_type types[] = {ELEMENT_BF16, ELEMENT_FP16};

static int begin(void **state) {
    const char *word = getenv("HC_TEST_DEVICE");
    const struct compute_options options = {.device = word ? word : "pocl", .cache_dir = ""};
    if (scratch_begin(state) || gemm_compute_open(&compute, &options)) {
        fprintf(stderr, "%s\n", error_text());
        return -1;
    }
    return 0;
}

static int end(void **state) {
    compute_close(compute);
    return scratch_end(state);
}

static struct buffer create(enum element_type type, size_t count) {
    struct buffer buffer;
    assert_int_equal(buffer_create(compute, &buffer, count * element_size(type)), 0);
    buffer.type = type;
    return buffer;
}

/* Floats to the device's 16 bits: from `skipped` on, so that vectors begin at odd places. */
static void round_floats(enum element_type type, const float *values, size_t count, size_t skipped,
                         uint16_t *results) {
    struct buffer from = create(ELEMENT_FP32, count), to = create(type, count);
    assert_int_equal(buffer_write(compute, &from, 0, values, count * sizeof *values), 0);
    convert_elements(compute, (struct span){&from, 0}, (struct span){&to, 0}, skipped);
    convert_elements(compute, (struct span){&from, skipped}, (struct span){&to, skipped}, count - skipped);
    assert_int_equal(buffer_read(compute, &to, 0, results, count * sizeof *results), 0);
    buffer_release(compute, &from);
    buffer_release(compute, &to);
}

/* A NaN may be any. */
static void assert_same_number(enum element_type type, uint16_t actual, uint16_t expected, float from) {
    if (isnan(rounding_decode(type, expected))) {
        assert_true(isnan(rounding_decode(type, actual)));
    } else if (actual != expected) {
        print_error("%a: 0x%04x instead of 0x%04x in %s\n", (double)from, actual, expected, element_name(type));
        fail();
    }
}

static void check_rounding(enum element_type type, const float *values, size_t count) {
    uint16_t *results = malloc(count * sizeof *results);
    assert_non_null(results);
    for (size_t skipped = 0; skipped < 4; skipped += 3) {
        round_floats(type, values, count, skipped, results);
        for (size_t i = 0; i < count; i++) {
            const uint16_t expected = rounding_encode(type, (double)values[i]);
            assert_same_number(type, results[i], expected, values[i]);
            assert_same_number(type, element_encode(values[i], type), expected, values[i]);
        }
    }
    free(results);
}

static void assert_same_value(float value, double expected) {
    assert_true(isnan(expected) ? isnan(value)
                                : (double)value == expected && !signbit(value) == !signbit(expected));
}

/* Each of the 65536 to float, exactly, and back to the same bits. */
UNIT_TEST(test_every_number) {
    enum { COUNT = 65536 };
    uint16_t *bits = malloc(COUNT * sizeof *bits);
    float *values = malloc(COUNT * sizeof *values);
    assert_true(bits && values);
    for (size_t t = 0; t < 2; t++) {
        struct buffer from = create(types[t], COUNT), to = create(ELEMENT_FP32, COUNT);
        for (size_t i = 0; i < COUNT; i++) {
            bits[i] = (uint16_t)i;
        }
        assert_int_equal(buffer_write(compute, &from, 0, bits, COUNT * sizeof *bits), 0);
        convert_elements(compute, (struct span){&from, 0}, (struct span){&to, 0}, COUNT);
        assert_int_equal(buffer_read(compute, &to, 0, values, COUNT * sizeof *values), 0);
        for (size_t i = 0; i < COUNT; i++) {
            const double expected = rounding_decode(types[t], (uint16_t)i);
            assert_same_value(values[i], expected);
            assert_same_value(element_decode((uint16_t)i, types[t]), expected);
        }
        check_rounding(types[t], values, COUNT);
        buffer_release(compute, &from);
        buffer_release(compute, &to);
    }
    free(bits);
    free(values);
}

/* Between each two neighbours of one sign, infinity as the last: the tie, and the floats beside it. */
UNIT_TEST(test_ties) {
    enum { MOST = 3 * 32768 };
    float *values = malloc(MOST * sizeof *values);
    assert_non_null(values);
    for (size_t t = 0; t < 2; t++) {
        for (uint16_t sign = 0; sign < 2; sign++) {
            size_t count = 0;
            for (uint16_t low = 0; isfinite(rounding_decode(types[t], low)); low++) {
                const double below = rounding_decode(types[t], low), next = rounding_decode(types[t], low + 1);
                const double step = low ? below - rounding_decode(types[t], low - 1) : next;
                const float tie = (float)(isinf(next) ? below + step / 2 : (below + next) / 2);
                const float near[] = {nextafterf(tie, 0.0f), tie, nextafterf(tie, INFINITY)};
                for (size_t i = 0; i < 3; i++) {
                    values[count++] = sign ? -near[i] : near[i];
                }
            }
            check_rounding(types[t], values, count);
        }
    }
    free(values);
}

/* Floats of all kinds, with those at the ends. */
UNIT_TEST(test_any_floats) {
    enum { COUNT = 200001 }; /* no whole number of vectors */
    const uint32_t ends[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7f7fffff, 0xff7fffff,
                             0x7fc00000, 0x7f800001, 0xffffffff, 0x7fffffff, 0x00000001, 0x007fffff};
    const uint64_t key = random_key(5, "floats");
    float *values = malloc(COUNT * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < COUNT; i++) {
        const size_t count = COUNT(ends);
        const uint32_t bits = i < count ? ends[i] : (uint32_t)random_below(key, i, (uint64_t)1 << 32);
        memcpy(values + i, &bits, sizeof bits);
    }
    for (size_t t = 0; t < 2; t++) {
        check_rounding(types[t], values, COUNT);
    }
    free(values);
}

UNIT_TEST(test_refused) {
    struct compute *own;
    const struct compute_options options = {.device = "pocl", .cache_dir = ""};
    assert_int_equal(gemm_compute_open(&own, &options), 0);
    struct buffer bf16, fp16;
    assert_int_equal(buffer_create(own, &bf16, 8) || buffer_create(own, &fp16, 8), 0);
    bf16.type = ELEMENT_BF16;
    fp16.type = ELEMENT_FP16;
    convert_elements(own, (struct span){&bf16, 0}, (struct span){&fp16, 0}, 0);
    convert_elements(own, (struct span){&bf16, 0}, (struct span){&bf16, 2}, 2);
    assert_int_equal(compute_check(own), 0);
    convert_elements(own, (struct span){&bf16, 3}, (struct span){&bf16, 0}, 2);
    assert_error(compute_check(own), "cannot convert from 4 bytes at 6: the buffer has 8 bytes");
    buffer_release(own, &bf16);
    buffer_release(own, &fp16);
    compute_close(own);
}

DEVICE_TEST_MAIN(begin, end)
