/* ckpt-best has the weights with the lowest validation loss, whatever is resumed, lost or exchanged. */
#include "tests/support/runs.h"

RUN_TEST(weights_that_training_made_worse_are_kept) {
    assert_done(TRAIN("worse", "--residual", "rc", "--learning-rate", "10", "--min-lr", "10", "--grad-clip", "0",
                      "--warmup-iters", "0", "--max-iters", "2", "--eval-interval", "1", "--eval-iters", "2"));
    json_t *lines = metrics("worse");
    assert_true(json_number_value(json_object_get(json_array_get(lines, 0), "val_loss")) < 6.0);
    json_decref(lines);
    assert_true(has("worse", "ckpt-best/model.safetensors"));
    assert_int_equal(saved_integer("worse/ckpt-best/state.json", "iteration"), 0);
}

RUN_TEST(failing_best_checkpoint_does_not_cost_the_run) {
    assert_done(TRAIN("no-best", "--max-iters", "2"));
    scratch_put("no-best/ckpt-best", "");
    assert_failed(RESUME("no-best", "--max-iters", "20", "--eval-interval", "4", "--eval-iters", "1",
                         "--checkpoint-interval", "1000"),
                  1, "something of this name that is not a folder");
    assert_true(has("no-best", "ckpt-4/state.json"));
    assert_int_equal(saved_integer("no-best/ckpt-4/state.json", "evaluated_at"), -1);
    assert_int_equal(unlink(scratch_path("no-best/ckpt-best")), 0);
    assert_done(RESUME("no-best", "--max-iters", "20", "--eval-interval", "4", "--eval-iters", "1"));
    assert_true(has("no-best", "ckpt-best/state.json"));
}

/* The best weights stay when an earlier checkpoint is resumed, which may know of no evaluation; on other data they
 * are the best no more. */
RUN_TEST(best_weights_of_a_later_iteration_stay) {
    assert_done(TRAIN("later-best", "--max-iters", "5"));
    assert_done(TRAIN("later-best", "--max-iters", "15", "--init-from", "resume", "--eval-interval", "15",
                      "--eval-iters", "2", "--checkpoint-interval", "1000"));
    assert_int_equal(files_remove_folder(scratch_path("later-best/ckpt-15")), 0);
    assert_done(TRAIN("later-best", "--max-iters", "6", "--init-from", "resume", "--eval-interval", "15",
                      "--eval-iters", "2"));
    assert_int_equal(saved_integer("later-best/ckpt-best/state.json", "iteration"), 15);
    assert_int_equal(saved_integer("later-best/ckpt-6/state.json", "best_iteration"), 15);
    set_in_json("later-best/ckpt-best/state.json", "data.val", json_string("another"));
    set_in_json("later-best/ckpt-6/state.json", "best_iteration", json_integer(-1));
    set_in_json("later-best/ckpt-6/state.json", "best_val_loss", json_null());
    assert_done(TRAIN("later-best", "--max-iters", "7", "--init-from", "resume", "--eval-interval", "15",
                      "--eval-iters", "2"));
    assert_int_equal(saved_integer("later-best/ckpt-best/state.json", "iteration"), 7);
}

/* Losses on val.bin compare as long as it is the same file. */
RUN_TEST(best_loss_is_that_of_the_validation_data) {
    copy_data("half-changing");
    assert_done(TRAIN("half-changed", "--data-dir", scratch_path("half-changing"), "--max-iters", "4",
                      "--eval-interval", "100", "--eval-iters", "2"));
    assert_int_equal(saved_integer("half-changed/ckpt-4/state.json", "best_iteration"), 4);
    corpus_write_over("half-changing/train.bin", "half-changing/train.bin", true);
    assert_done(RESUME("half-changed", "--max-iters", "5", "--accept-new-data", "--eval-iters", "0"));
    assert_int_equal(saved_integer("half-changed/ckpt-5/state.json", "best_iteration"), 4);
    corpus_write_over("half-changing/val.bin", "half-changing/val.bin", true);
    assert_done(RESUME("half-changed", "--max-iters", "6", "--accept-new-data", "--learning-rate", "0", "--min-lr",
                       "0", "--eval-iters", "2"));
    assert_int_equal(saved_integer("half-changed/ckpt-6/state.json", "best_iteration"), 6);
}

/* Both runs score all of val.bin, whatever their batches are. */
RUN_TEST(best_loss_on_the_whole_split_outlives_another_batch_size) {
    assert_done(TRAIN("other-batch", "--max-iters", "4", "--eval-interval", "100", "--eval-iters", "200"));
    json_t *saved = read_json("other-batch/ckpt-4/state.json");
    assert_string_equal(json_string_value(json_object_get(saved, "evaluation")), "whole");
    json_object_set_new(saved, "best_val_loss", json_real(0.001));
    assert_int_equal(json_dump_file(saved, scratch_path("other-batch/ckpt-4/state.json"), 0), 0);
    json_decref(saved);
    assert_done(RESUME("other-batch", "--max-iters", "5", "--batch-size", "3"));
    assert_int_equal(saved_integer("other-batch/ckpt-5/state.json", "best_iteration"), 4);
    assert_null(strstr(child_message(), "other tokens"));
    assert_done(RESUME("other-batch", "--max-iters", "6", "--eval-batches", "sampled", "--eval-iters", "1"));
    assert_int_equal(saved_integer("other-batch/ckpt-6/state.json", "best_iteration"), 6);
    assert_says("other tokens than before");
}

/* As after a kill between two renames, where a file system cannot replace a folder in one step. */
RUN_TEST(best_weights_that_are_gone_are_replaced) {
    assert_done(TRAIN("best-gone", "--max-iters", "4", "--eval-interval", "100", "--eval-iters", "2"));
    set_in_json("best-gone/ckpt-4/state.json", "best_val_loss", json_real(0.001));
    assert_done(RESUME("best-gone", "--max-iters", "5"));
    assert_int_equal(saved_integer("best-gone/ckpt-best/state.json", "iteration"), 4);
    assert_int_equal(files_remove_folder(scratch_path("best-gone/ckpt-best")), 0);
    assert_done(RESUME("best-gone", "--max-iters", "6"));
    assert_int_equal(saved_integer("best-gone/ckpt-best/state.json", "iteration"), 6);
}

/* An evaluation that is made up for changes what the checkpoint says and nothing else in its folder. */
RUN_TEST(made_up_evaluation_leaves_the_checkpoint_alone) {
    assert_done(TRAIN("noted", "--max-iters", "2"));
    scratch_put("noted/ckpt-2/notes.txt", "mine");
    assert_done(RESUME("noted", "--max-iters", "2", "--eval-interval", "2", "--eval-iters", "1"));
    assert_int_equal(saved_integer("noted/ckpt-2/state.json", "evaluated_at"), 2);
    assert_true(has("noted", "ckpt-2/notes.txt"));
    assert_done(TRAIN("noted", "--max-iters", "4", "--init-from", "resume"));
}

UNIT_TEST_MAIN(run_control_begin, scratch_end)
