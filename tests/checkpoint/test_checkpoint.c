/* checkpoints: which entries of a run directory are some. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "src/checkpoint/checkpoint.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const lookalikes[] = {"ckpt-0030", "ckpt-+31", "ckpt-32x",  "ckpt- 33",
                                         "ckpt--34",  "ckpt-",    "ckpt-best", "ckpt-99999999999999999999",
                                         "ckpt-0x40", "CKPT-41"};
enum { LOOKALIKES = COUNT(lookalikes) };

static void make_folder(const char *run, const char *name) {
    assert_int_equal(files_make_folder(scratch_path(scratch_format("%s/%s", run, name))), 0);
}

/* With what tells a checkpoint, and nothing else. */
static void make_checkpoint(const char *run, const char *name, long iteration) {
    static const char *const files[] = {"config.json", "model.safetensors", "optimizer.safetensors", "state.json"};
    char path[128], state[160];
    make_folder(run, name);
    snprintf(state, sizeof state,
             "{\"iteration\": %ld, \"checksums\": {\"config.json\": \"\", \"model.safetensors\": \"\"}}",
             iteration);
    for (size_t i = 0; i < COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s/%s", run, name, files[i]);
        scratch_put(path, state);
    }
}

static int entries(const char *path) {
    return scratch_entries(scratch_path(path));
}

static void assert_newest(const char *run, const char *name) {
    char *path = checkpoint_newest(scratch_path(run));
    assert_non_null(path);
    assert_string_equal(path + strlen(scratch_path(run)) + 1, name);
    free(path);
}

UNIT_TEST(test_other_names_are_no_checkpoints) {
    for (int i = 0; i < LOOKALIKES; i++) {
        make_folder("names", lookalikes[i]);
    }
    assert_null(checkpoint_newest(scratch_path("names")));
    assert_error_text("there is no checkpoint in ");
    make_checkpoint("names", "ckpt-0", 0);
    assert_newest("names", "ckpt-0");
    make_checkpoint("names", "ckpt-9", 9);
    make_checkpoint("names", "ckpt-10", 10);
    assert_newest("names", "ckpt-10");
    assert_int_equal(checkpoint_prune(scratch_path("names"), 1), 0);
    assert_int_equal(scratch_entries(scratch_path("names")), LOOKALIKES + 1);
    assert_newest("names", "ckpt-10");
}

UNIT_TEST(test_files_are_no_checkpoints_and_links_stay) {
    make_checkpoint("kinds", "ckpt-5", 5);
    make_checkpoint("kinds", "elsewhere", 98);
    scratch_put("kinds/ckpt-99", "notes");
    assert_int_equal(symlink("elsewhere", scratch_path("kinds/ckpt-98")), 0);
    assert_int_equal(symlink("ckpt-100", scratch_path("kinds/ckpt-100")), 0); /* a circle */
    assert_newest("kinds", "ckpt-98");
    assert_int_equal(checkpoint_prune(scratch_path("kinds"), 1), 0);
    assert_true(files_exist(scratch_path("kinds/ckpt-5")));
    assert_int_equal(checkpoint_prune(scratch_path("kinds"), 0), 0);
    assert_false(files_exist(scratch_path("kinds/ckpt-5")));
    assert_int_equal(entries("kinds"), 4);
    assert_int_equal(entries("kinds/elsewhere"), 4);
}

/* Whatever else has the name of a checkpoint stays, and takes no place of one that is kept. */
UNIT_TEST(test_what_is_no_checkpoint_stays) {
    make_checkpoint("others", "ckpt-1", 1);
    make_checkpoint("others", "ckpt-2", 2);
    make_folder("others", "ckpt-3"); /* photographs */
    scratch_put("others/ckpt-3/photo", "mine");
    make_checkpoint("others", "ckpt-4", 2); /* a copy under another name */
    make_checkpoint("others", "ckpt-5", 5); /* an export */
    assert_int_equal(unlink(scratch_path("others/ckpt-5/state.json")), 0);
    make_checkpoint("others", "ckpt-6", 6); /* damaged */
    scratch_put("others/ckpt-6/state.json", "{");
    assert_int_equal(checkpoint_prune(scratch_path("others"), 1), 0);
    assert_false(files_exist(scratch_path("others/ckpt-1")));
    assert_int_equal(entries("others"), 5);
    assert_int_equal(entries("others/ckpt-2"), 4);
    assert_int_equal(entries("others/ckpt-3"), 1);
    assert_int_equal(entries("others/ckpt-4"), 4);
    assert_int_equal(entries("others/ckpt-5"), 3);
    assert_int_equal(entries("others/ckpt-6"), 4);
    assert_int_equal(checkpoint_prune(scratch_path("others"), 0), 0);
    assert_int_equal(entries("others"), 4);
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
