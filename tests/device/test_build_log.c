/* Places in the logs of kernels' compilers: files and lines of ours where a compiler has lines of all of the text. */
#include "runtime/device/programs.h"
#include "tests/support/test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Line 6 of it is b.cl's second. */
static const char text[] = "#line 1 \"a.cl\"\n"
                           "int a1;\n"
                           "int a2;\n"
                           "#line 1 \"b.cl\"\n"
                           "int b1;\n"
                           "int b2;\n"
                           "\n";

static void assert_located(const char *log, const char *expected) {
    char *located = build_log_locate(text, log);
    assert_string_equal(located, expected);
    free(located);
}

static void lines_of_all_files_get_the_place_in_one(void **state) {
    (void)state;
    static const struct {
        const char *log, *place;
    } cases[] = {
        {"<kernel>:6:4: error: use of undeclared identifier 'x'", "b.cl:2"}, /* NVIDIA, Mesa */
        {"input.cl:2:5: warning: unused", "a.cl:1"},
        {"/tmp/comgr-1/input/CompileSource:3:1: error: x", "a.cl:2"}, /* AMD's comgr */
        {"1:5:1: error: x", "b.cl:1"},                                /* Intel */
        {"error (6:12): no such thing", "b.cl:2"},
        {"ptxas error at line 6, near x", "b.cl:2"},
        {"note: <kernel>:5:1: here", "b.cl:1"},
    };
    char log[200], expected[200];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(log, sizeof log, "%s\r\nint b2;\n   ^\n", cases[i].log);
        snprintf(expected, sizeof expected, "%s [%s]\nint b2;\n   ^\n", cases[i].log, cases[i].place);
        assert_located(log, expected);
    }
}

static void other_lines_stay(void **state) {
    (void)state;
    static const char *const logs[] = {
        "",
        "\n\n",
        "no log",
        "/tmp/pocl/b.cl:2:4: error: named by the directive",
        "<kernel>:0:1: error: before all",
        "<kernel>:1:1: error: a directive is of no file",
        "<kernel>:8:1: error: behind all",
        "<kernel>:99999999999999999999999:1: error: behind all",
        "baseline 6",
        "line six",
    };
    for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
        assert_located(logs[i], logs[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_of_all_files_get_the_place_in_one),
        cmocka_unit_test(other_lines_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
