/* checkpoints: which entries of a run directory are some. */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "src/checkpoint/checkpoint.h"
#include "tests/support/scratch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const lookalikes[] = {"ckpt-0030", "ckpt-+31", "ckpt-32x",  "ckpt- 33",
                                         "ckpt--34",  "ckpt-",    "ckpt-best", "ckpt-99999999999999999999",
                                         "ckpt-0x40", "CKPT-41"};
enum { LOOKALIKES = sizeof lookalikes / sizeof *lookalikes };

static void make_folder(const char *run, const char *name) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", run, name);
    assert_int_equal(files_make_folder(scratch_path(path)), 0);
}

static void assert_newest(const char *run, const char *name) {
    char *path = checkpoint_newest(scratch_path(run));
    assert_non_null(path);
    assert_string_equal(path + strlen(scratch_path(run)) + 1, name);
    free(path);
}

static void test_other_names_are_no_checkpoints(void **state) {
    (void)state;
    for (int i = 0; i < LOOKALIKES; i++) {
        make_folder("names", lookalikes[i]);
    }
    assert_null(checkpoint_newest(scratch_path("names")));
    assert_non_null(strstr(error_text(), "there is no checkpoint in "));
    make_folder("names", "ckpt-0");
    assert_newest("names", "ckpt-0");
    make_folder("names", "ckpt-9");
    make_folder("names", "ckpt-10");
    assert_newest("names", "ckpt-10");
    assert_int_equal(checkpoint_prune(scratch_path("names"), 1), 0);
    assert_int_equal(scratch_entries(scratch_path("names")), LOOKALIKES + 1);
    assert_newest("names", "ckpt-10");
}

static void test_files_are_no_checkpoints_and_links_stay(void **state) {
    (void)state;
    make_folder("kinds", "ckpt-5");
    make_folder("kinds", "elsewhere");
    scratch_write("kinds/ckpt-99", "notes", 5);
    assert_int_equal(symlink("elsewhere", scratch_path("kinds/ckpt-98")), 0);
    assert_newest("kinds", "ckpt-98");
    assert_int_equal(checkpoint_prune(scratch_path("kinds"), 1), 0);
    assert_true(files_exist(scratch_path("kinds/ckpt-5")));
    assert_int_equal(checkpoint_prune(scratch_path("kinds"), 0), 0);
    assert_false(files_exist(scratch_path("kinds/ckpt-5")));
    assert_int_equal(scratch_entries(scratch_path("kinds")), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_names_are_no_checkpoints),
        cmocka_unit_test(test_files_are_no_checkpoints_and_links_stay),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
