/* Paths that are links: outputs go through them, and runs write to nothing that a link in their folder leads to. */
#include "tests/support/run_control.h"

static void assert_link(const char *name) {
    struct stat status;
    assert_int_equal(lstat(scratch_path(name), &status), 0);
    assert_true(S_ISLNK(status.st_mode));
}

RUN_TEST(run_directory_may_be_a_link) {
    assert_int_equal(files_make_folder(scratch_path("real-run")), 0);
    link_to("real-run", "link-run");
    assert_done(TRAIN("link-run", "--max-iters", "2"));
    assert_done(RESUME("link-run", "--max-iters", "4"));
    assert_true(has("real-run", "ckpt-4"));
    assert_int_equal(count_lines("real-run/metrics.jsonl"), 4);
    assert_link("link-run");
}

RUN_TEST(token_files_may_go_through_a_link) {
    assert_int_equal(files_make_folder(scratch_path("real-data")), 0);
    link_to("real-data", "link-data");
    assert_done(PREPARE("--out", scratch_path("link-data"), scratch_path("text.txt")));
    assert_same_file("real-data/train.bin", "data/train.bin");
    assert_done(PREPARE("--out", scratch_path("link-data"), scratch_path("text.txt"))); /* over the older ones */
    assert_same_file("real-data/train.bin", "data/train.bin");
    assert_int_equal(scratch_entries(scratch_path("real-data")), 3);
    assert_link("link-data");
}

RUN_TEST(evaluation_may_be_written_through_a_link) {
    assert_int_equal(files_make_folder(scratch_path("real-eval")), 0);
    scratch_write("real-eval/old.json", "old", 3);
    link_to("real-eval", "link-eval");
    link_to("real-eval/old.json", "link.json");
    assert_done(EVALUATE("--json", scratch_path("link-eval/r.json"), scratch_path("short.txt")));
    assert_true(has("real-eval", "r.json"));
    assert_done(EVALUATE("--json", scratch_path("link.json"), scratch_path("short.txt")));
    assert_link("link-eval");
    assert_link("link.json");
    json_t *json = read_json("real-eval/old.json");
    assert_true(json_is_integer(json_object_get(json, "context")));
    json_decref(json);
    assert_int_equal(scratch_entries(scratch_path("real-eval")), 2);
}

RUN_TEST(export_may_be_replaced_through_a_link) {
    assert_done(EXPORT("base/ckpt-1", "real-export"));
    assert_done(EXPORT("base/ckpt-2", "export-2"));
    link_to("real-export", "link-export");
    assert_done(EXPORT("base/ckpt-2", "link-export"));
    assert_link("link-export");
    assert_same_file("real-export/model.safetensors", "export-2/model.safetensors");
}

RUN_TEST(analysis_may_go_through_a_link) {
    assert_int_equal(files_make_folder(scratch_path("real-report")), 0);
    link_to("real-report", "link-report");
    assert_done(ANALYZE("--out", scratch_path("link-report"), scratch_path("base")));
    assert_true(has("real-report", "report.html") && has("real-report", "analysis.json"));
    assert_link("link-report");
}

/* Going on with one of them leaves the other one as it is. */
RUN_TEST(hard_linked_copy_of_a_run_is_its_own) {
    static const char *const files[] = {"metrics.jsonl", "h_statistics.jsonl", "settings.conf",
                                        "ckpt-6/state.json"};
    assert_done(TRAIN("linked", "--max-iters", "6", "--checkpoint-interval", "3", "--statistics-interval", "1"));
    assert_int_equal(files_make_folder(scratch_path("linked-before/ckpt-6")), 0);
    for (int i = 0; i < 4; i++) {
        copy(run_path("linked", files[i]), run_path("linked-before", files[i]));
    }
    assert_done(
        CHILD_RUN("/bin/cp", "-al", scratch_path("linked"), scratch_path("linked-copy"))); /* as backups do */
    assert_done(RESUME("linked-copy", "--eval-iters", "1", "--eval-interval", "6")); /* into ckpt-6/state.json */
    remove_checkpoint("linked-copy", 6);
    assert_done(RESUME("linked-copy", "--max-iters", "5", "--learning-rate", "1e-3", "--eval-iters", "0"));
    for (int i = 0; i < 4; i++) {
        assert_same_file(run_path("linked", files[i]), run_path("linked-before", files[i]));
    }
    assert_int_equal(count_lines("linked-copy/metrics.jsonl"), 5);
    assert_done(TRAIN("linked-once", "--max-iters", "3", "--statistics-interval", "1"));
    assert_done(RESUME("linked-once", "--max-iters", "5", "--learning-rate", "1e-3"));
    assert_same_metrics("linked-copy", "linked-once");
}

/* Nothing is written through links, whatever they lead to. */
RUN_TEST(links_in_a_run_are_refused) {
    static const char *const names[] = {"metrics.jsonl", "h_statistics.jsonl", "settings.conf", "trace.json"};
    assert_done(TRAIN("links", "--max-iters", "2", "--eval-interval", "2", "--eval-iters", "1"));
    for (int i = 0; i < 4; i++) {
        unlink(scratch_path(run_path("links", names[i])));
        scratch_write("thesis", "# 1\n# 2\n", 8);
        link_to("../thesis", run_path("links", names[i]));
        assert_failed(RESUME("links", "--max-iters", "4"), FAILED, "is a symbolic link");
        assert_failed(TRAIN("links", "--start-over", "--max-iters", "4"), FAILED, "is a symbolic link");
        assert_has_text("thesis", "# 1\n# 2\n");
        assert_int_equal(unlink(scratch_path(run_path("links", names[i]))), 0);
    }
    assert_int_equal(rename(scratch_path("links/ckpt-best"), scratch_path("best-of-others")), 0);
    link_to("../best-of-others", "links/ckpt-best");
    assert_failed(RESUME("links", "--max-iters", "4"), FAILED, "is a symbolic link");
    assert_int_equal(unlink(scratch_path("links/ckpt-best")), 0);
    assert_done(RESUME("links", "--max-iters", "4"));
    assert_int_equal(scratch_entries(scratch_path("best-of-others")), 3);
}

/* A checkpoint that is a link is resumed, and not written to. */
RUN_TEST(linked_checkpoint_is_only_read) {
    assert_done(TRAIN("lender", "--max-iters", "2"));
    copy("lender/ckpt-2/state.json", "lent.json");
    assert_int_equal(files_make_folder(scratch_path("borrower")), 0);
    link_to("../lender/ckpt-2", "borrower/ckpt-2");
    assert_done(RESUME("borrower", "--max-iters", "2", "--eval-iters", "1"));
    assert_int_equal(count_evaluations("borrower", 2), 1);
    assert_same_file("lender/ckpt-2/state.json", "lent.json");
    assert_done(RESUME("borrower", "--max-iters", "3"));
    assert_int_equal(files_remove_folder(scratch_path("borrower/ckpt-3")), 0);
    link_to("../lender/ckpt-2", "borrower/ckpt-3");
    assert_failed(TRAIN("borrower", "--init-from", "resume"), FAILED, "is of iteration 2");
}

UNIT_TEST_MAIN(run_control_begin, scratch_end)
