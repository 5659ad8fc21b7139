/* Token files that move, change or become shorter under a run. */
#include "tests/support/run_control.h"

RUN_TEST(name_of_the_data_may_be_any_bytes) {
    copy_data("data-\xff");
    assert_done(TRAIN("oddly-named", "--data-dir", scratch_path("data-\xff"), "--max-iters", "10"));
    assert_done(RESUME("oddly-named", "--max-iters", "20"));
    assert_done(TRAIN("plainly-named"));
    assert_same_run("oddly-named", "plainly-named", "ckpt-20");
}

RUN_TEST(exchanged_data_must_be_accepted) {
    copy_data("changing");
    assert_done(TRAIN("exchanged", "--data-dir", scratch_path("changing"), "--max-iters", "10"));
    turn_round("changing/train.bin");
    assert_failed(RESUME("exchanged", "--max-iters", "15"), FAILED, "--accept-new-data");
    assert_true(has("exchanged", "ckpt-10"));
    assert_int_equal(count_lines("exchanged/metrics.jsonl"), 10);
    assert_done(RESUME("exchanged", "--max-iters", "15", "--accept-new-data"));
    assert_done(RESUME("exchanged", "--max-iters", "20"));
    assert_true(has("exchanged", "ckpt-20"));
    turn_round("changing/train.bin"); /* back: no longer what it trained on last */
    assert_failed(RESUME("exchanged", "--max-iters", "25"), FAILED, "--accept-new-data");
}

RUN_TEST(data_may_move) {
    copy_data("data-here");
    assert_done(TRAIN("data-moved", "--data-dir", scratch_path("data-here"), "--max-iters", "10"));
    assert_int_equal(rename(scratch_path("data-here"), scratch_path("data-there")), 0);
    assert_done(RESUME("data-moved", "--data-dir", scratch_path("data-there"), "--max-iters", "15"));
    assert_done(RESUME("data-moved", "--max-iters", "20"));
    assert_done(TRAIN("data-stayed"));
    assert_same_run("data-moved", "data-stayed", "ckpt-20");
}

RUN_TEST(data_that_becomes_shorter_ends_the_run_with_a_checkpoint) {
    struct stat status;
    copy_data("shrinking");
    start(TRAIN_ARGUMENTS("shortened", "--data-dir", scratch_path("shrinking"), "--max-iters", "100000",
                          "--checkpoint-interval", "100000"));
    wait_for(more_lines, "shortened", 2);
    assert_int_equal(stat(scratch_path("shrinking/train.bin"), &status), 0);
    assert_int_equal(truncate(scratch_path("shrinking/train.bin"), status.st_size / 4 * 2), 0);
    assert_failed(finish(), FAILED, "became shorter");
    const long at = newest("shortened", 1); /* not a periodic one */
    assert_int_equal(count_lines("shortened/metrics.jsonl"), at);
    copy("data/train.bin", "shrinking/train.bin");
    assert_done(RESUME("shortened", "--max-iters", decimal(at + 3)));
    assert_done(TRAIN("unshortened", "--max-iters", decimal(at + 3)));
    assert_same_run("shortened", "unshortened", checkpoint(at + 3));
}

/* No step is made with what was written, so that the run goes on as if nothing had happened once the file is back.
 * Times alone do not matter. */
RUN_TEST(data_that_is_written_over_ends_the_run_with_a_checkpoint) {
    copy_data("rewritten");
    start(TRAIN_ARGUMENTS("overwritten", "--data-dir", scratch_path("rewritten"), "--max-iters", "100000",
                          "--checkpoint-interval", "100000"));
    wait_for(more_lines, "overwritten", 2);
    corpus_write_over("rewritten/train.bin", "data/train.bin", false);
    assert_int_equal(link(scratch_path("rewritten/val.bin"), scratch_path("rewritten/link")), 0);
    wait_for(more_lines, "overwritten", count_lines("overwritten/metrics.jsonl") + 2);
    corpus_write_over("rewritten/train.bin", "data/train.bin", true);
    assert_failed(finish(), FAILED, "was changed while it was in use");
    const long at = newest("overwritten", 1);
    assert_int_equal(count_lines("overwritten/metrics.jsonl"), at);
    assert_failed(RESUME("overwritten", "--max-iters", decimal(at + 3)), FAILED, "--accept-new-data");
    corpus_write_over("rewritten/train.bin", "data/train.bin", false);
    assert_done(RESUME("overwritten", "--max-iters", decimal(at + 3)));
    assert_done(TRAIN("not-overwritten", "--max-iters", decimal(at + 3)));
    assert_same_run("overwritten", "not-overwritten", checkpoint(at + 3));
}

UNIT_TEST_MAIN(run_control_begin, scratch_end)
