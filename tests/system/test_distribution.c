/* Distributions, and work on several cores. */
#include "runtime/system/distribution.h"
#include "runtime/system/error.h"
#include "runtime/system/parallel.h"
#include "runtime/system/random.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 50000 };

static double values[COUNT];

/* Of several sizes and both signs; exact ones, doubles and zeros among them. */
static double value_of(uint64_t index, int kind) {
    const double uniform = random_uniform(random_key((uint64_t)kind, "distribution"), index);
    switch (kind) {
    case 0:
        return uniform;
    case 1:
        return 2.0 * uniform - 1.0;
    case 2:
        return exp(40.0 * uniform - 20.0) * (index % 3 == 0 ? -1.0 : 1.0);
    case 3:
        return 1.0 + 1e-7 * uniform;
    default:
        return (double)(index % 5) - 2.0;
    }
}

static void check(int kind, size_t count) {
    static const double fractions[] = {0.0, 0.001, 0.1, 0.25, 0.5, 0.9, 0.999, 1.0};
    struct distribution distribution, halves[2];
    distribution_begin(&distribution);
    distribution_begin(&halves[0]);
    distribution_begin(&halves[1]);
    double sum = 0.0, squares = 0.0;
    for (size_t i = 0; i < count; i++) {
        values[i] = value_of(i, kind);
        sum += values[i] / (double)count;
        assert_int_equal(distribution_add(&distribution, values[i]), 0);
        assert_int_equal(distribution_add(&halves[i % 2], values[i]), 0);
    }
    for (size_t i = 0; i < count; i++) {
        squares += (values[i] - sum) * (values[i] - sum) / (double)count;
    }
    percentile_sort(values, count);
    distribution_merge(&halves[0], &halves[1]);
    assert_true(distribution.minimum == values[0] && distribution.maximum == values[count - 1]);
    assert_int_equal(halves[0].count, count);
    const double scale = fmax(fabs(values[0]), fabs(values[count - 1]));
    assert_true(fabs(distribution_mean(&distribution) - sum) <= 1e-12 * scale);
    assert_true(fabs(distribution_deviation(&distribution) - sqrt(squares)) <= 3e-8 * scale);
    for (size_t i = 0; i < COUNT(fractions); i++) {
        const double expected = percentile(values, count, fractions[i]);
        const double got = distribution_quantile(&distribution, fractions[i]);
        const double place = fractions[i] * (double)(count - 1);
        const double near = fmax(fabs(values[(size_t)place]), fabs(values[(size_t)ceil(place)]));
        if (!(fabs(got - expected) <= ldexp(near, -18) + 1e-38)) {
            fail_msg("kind %d, fraction %g: %.9g, not %.9g", kind, fractions[i], got, expected);
        }
        assert_true(got == distribution_quantile(&halves[0], fractions[i]));
    }
    distribution_end(&distribution);
    distribution_end(&halves[0]);
    distribution_end(&halves[1]);
}

UNIT_TEST(test_quantiles) {
    for (int kind = 0; kind < 5; kind++) {
        check(kind, 1);
        check(kind, 2);
        check(kind, 11);
        check(kind, COUNT);
    }
}

UNIT_TEST(test_none_and_infinite) {
    struct distribution distribution;
    distribution_begin(&distribution);
    assert_true(isnan(distribution_mean(&distribution)) && isnan(distribution_quantile(&distribution, 0.5)));
    assert_int_equal(distribution_add(&distribution, (double)INFINITY), -1);
    assert_int_equal(distribution_add(&distribution, (double)NAN), -1);
    assert_error(distribution_add(&distribution, 1e300), "not finite");
    assert_int_equal(distribution.count, 0);
    distribution_end(&distribution);
}

static int count_piece(void *context, size_t index) {
    __atomic_fetch_add(&((unsigned *)context)[index], 1, __ATOMIC_RELAXED);
    return 0;
}

static int fail_at_7(void *context, size_t index) {
    (void)context;
    return index == 7 ? error_set("piece 7 is broken") : 0;
}

UNIT_TEST(test_parallel) {
    static unsigned counts[1000];
    assert_int_equal(parallel_run(1000, count_piece, counts), 0);
    assert_int_equal(parallel_run(0, count_piece, counts), 0);
    for (size_t i = 0; i < 1000; i++) {
        assert_int_equal(counts[i], 1);
    }
    assert_int_equal(parallel_run(1000, fail_at_7, NULL), -1);
    assert_string_equal(error_text(), "piece 7 is broken");
}

UNIT_TEST_MAIN(NULL, NULL)
