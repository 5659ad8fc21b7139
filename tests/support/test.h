/* cmocka, behind the headers that it needs, and tests that list themselves:
 *
 *     UNIT_TEST(sums_are_right) {
 *         assert_int_equal(1 + 1, 2);
 *     }
 *
 *     UNIT_TEST_MAIN(scratch_begin, scratch_end)
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "runtime/system/error.h"
#include "tests/support/freed.h"
#include <string.h>

/* The tests of this file in the order of their lines: constructors may run in any order. */
static struct CMUnitTest unit_tests[64];
static int unit_test_lines[COUNT(unit_tests)];
static size_t unit_test_count;

static inline void unit_test_add(int line, struct CMUnitTest test) {
    size_t place = unit_test_count++;
    if (place == COUNT(unit_tests)) {
        abort();
    }
    for (; place > 0 && unit_test_lines[place - 1] > line; place--) {
        unit_test_lines[place] = unit_test_lines[place - 1];
        unit_tests[place] = unit_tests[place - 1];
    }
    unit_test_lines[place] = line;
    unit_tests[place] = test;
}

/* Whether all is asked for: `ci/test.sh all`. Else tests leave out what is nearly the same as something else and
 * takes long, which is compiling almost always. */
static inline bool test_is_whole(void) {
    return getenv("HC_WHOLE_TESTS") != NULL;
}

/* A test, and one between two functions of cmocka's type CMFixtureFunction, which may be NULL. */
#define UNIT_TEST(name) UNIT_TEST_BETWEEN(NULL, name, NULL)
#define UNIT_TEST_BETWEEN(set_up, name, tear_down)                                                                 \
    static void name(void **state);                                                                                \
    __attribute__((constructor)) static void list_##name(void) {                                                   \
        unit_test_add(__LINE__, (struct CMUnitTest){#name, name, set_up, tear_down, NULL});                        \
    }                                                                                                              \
    static void name(__attribute__((unused)) void **state)

/* A test only of what is whole. */
#define LONG_TEST(name)                                                                                            \
    static void name(void **state);                                                                                \
    __attribute__((constructor)) static void list_##name(void) {                                                   \
        if (test_is_whole()) {                                                                                     \
            unit_test_add(__LINE__, (struct CMUnitTest){#name, name, NULL, NULL, NULL});                           \
        }                                                                                                          \
    }                                                                                                              \
    static void name(__attribute__((unused)) void **state)

/* Runs all tests between two functions for the whole group, which may be NULL. Returns the number of failures. */
static inline int unit_tests_run(CMFixtureFunction set_up, CMFixtureFunction tear_down) {
    return _cmocka_run_group_tests("tests", unit_tests, unit_test_count, set_up, tear_down);
}

/* The program, whose argument is a pattern of names: of the tests that run. */
#define UNIT_TEST_MAIN(set_up, tear_down)                                                                          \
    int main(int argc, char **argv) {                                                                              \
        cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);                                                         \
        return unit_tests_run(set_up, tear_down);                                                                  \
    }

/* The same for tests that open devices (runtime/device/device.h). */
#define DEVICE_TEST_MAIN(set_up, tear_down)                                                                        \
    int main(int argc, char **argv) {                                                                              \
        device_prepare_environment();                                                                              \
        cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);                                                         \
        return unit_tests_run(set_up, tear_down);                                                                  \
    }

/* Fails unless the error text has these words. */
static inline void assert_error_text(const char *words) {
    if (strstr(error_text(), words) == NULL) {
        fail_msg("'%s' is not in '%s'", words, error_text());
    }
}

/* Fails with the error text unless a call has succeeded (0). */
static inline void require(int status) {
    if (status != 0) {
        fail_msg("%s", error_text());
    }
}

/* Fails unless a call has failed (-1) with these words in its error text. */
static inline void assert_error(int status, const char *words) {
    if (status != -1) {
        fail_msg("status %d instead of an error with '%s'", status, words);
    }
    assert_error_text(words);
}
