/* Means and their 95 % intervals, with the quantiles of Student's t that tables print. */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/system/mean_interval.h"
#include <math.h>

static void assert_near(double actual, double expected, double tolerance) {
    if (!(fabs(actual - expected) <= tolerance)) {
        fail_msg("%.9g instead of %.9g", actual, expected);
    }
}

/* Of n values whose deviation is d the half width is t(n - 1) d / sqrt(n). */
static void half_widths_are_those_of_tables(void **state) {
    (void)state;
    static const struct {
        size_t degrees;
        double quantile;
    } rows[] = {{1, 12.7062}, {2, 4.3027}, {3, 3.1824}, {4, 2.7764}, {9, 2.2622}, {30, 2.0423}, {120, 1.9799}};
    double values[121];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const size_t count = rows[i].degrees + 1;
        for (size_t k = 0; k < count; k++) {
            values[k] = 3.0 + 0.25 * (double)(k * k % 7);
        }
        const struct mean_interval interval = mean_interval_of(values, count);
        assert_near(interval.half_width * sqrt((double)count) / interval.deviation, rows[i].quantile, 5e-5);
    }
}

static void means_and_deviations(void **state) {
    (void)state;
    const double values[] = {0.01, 0.02, 0.03, 0.04, 0.05};
    const struct mean_interval five = mean_interval_of(values, 5), one = mean_interval_of(values, 1),
                               none = mean_interval_of(values, 0);
    assert_near(five.mean, 0.03, 1e-12);
    assert_near(five.deviation, 0.0158113883, 1e-9);
    assert_near(five.half_width, 0.0196324, 1e-6);
    assert_near(one.mean, 0.01, 0.0);
    assert_true(isnan(one.deviation) && isnan(one.half_width) && isnan(none.mean));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_widths_are_those_of_tables),
        cmocka_unit_test(means_and_deviations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
