/* Which tokens hc_train's validation loss is of: the same ones for runs with different seeds, all of a split that
 * is small, and those that hc_eval takes; runs saved before the setting existed keep the places that depend on
 * their seed. */
#include "tests/support/runs.h"

static const char eval_program[] = HC_PROGRAMS "/hc_eval";

/* The losses of an evaluation before the first step of a run that begins with one checkpoint's weights. */
struct losses {
    double train, val;
};

static struct losses evaluated(const char *run, const char *seed, const char *iterations, const char *batches) {
    assert_done(TRAIN(run, "--init-from", scratch_path("source/ckpt-2"), "--max-iters", "0", "--seed", seed,
                      "--eval-iters", iterations, "--eval-batches", batches));
    json_t *lines = metrics(run);
    const json_t *line = json_array_get(lines, 0);
    const struct losses losses = {number_in(line, "train_loss"), number_in(line, "val_loss")};
    json_decref(lines);
    assert_true(losses.train > 0.0 && losses.val > 0.0);
    return losses;
}

/* hc_eval's loss of the same weights on val.bin. */
static double scored(const char *iterations, const char *seed) {
    assert_done(CHILD_RUN(eval_program, "--checkpoint", scratch_path("source/ckpt-2"), "--device", "pocl", "--data",
                          scratch_path("data"), "--batch-size", "4", "--eval-iters", iterations, "--seed", seed,
                          "--json", scratch_path("score.json")));
    json_t *score = read_json("score.json");
    const double loss = number_in(score, "loss");
    json_decref(score);
    return loss;
}

static void assert_close(double a, double b) {
    assert_true(fabs(a - b) <= 1e-8 * fabs(b));
}

UNIT_TEST(seeds_are_scored_on_the_same_tokens) {
    const struct losses one = evaluated("sampled-1", "1", "3", "sampled");
    const struct losses two = evaluated("sampled-2", "2", "3", "sampled");
    assert_true(one.val == two.val && one.train == two.train);
    assert_close(one.val, scored("3", "-1"));
    const struct losses whole = evaluated("whole-1", "1", "3", "whole");
    assert_true(whole.val == evaluated("whole-2", "2", "3", "whole").val);
    assert_true(whole.val != one.val && whole.train == one.train);
    assert_close(whole.val, scored("0", "-1"));
}

UNIT_TEST(places_may_depend_on_the_seed) {
    const struct losses one = evaluated("seed-1", "1", "3", "by_seed"),
                        two = evaluated("seed-2", "2", "3", "by_seed");
    assert_true(one.val != two.val && one.train != two.train);
    assert_close(one.val, scored("3", "1"));
    assert_close(two.val, scored("3", "2"));
}

/* val.bin has about 4000 tokens: 8 times 3 batches of 4 x 16 are fewer, 8 times 10 batches are more. */
UNIT_TEST(a_small_split_is_scored_whole) {
    assert_true(evaluated("auto-3", "1", "3", "auto").val == evaluated("fixed-3", "1", "3", "sampled").val);
    assert_true(evaluated("auto-10", "1", "10", "auto").val == evaluated("fixed-10", "1", "10", "whole").val);
    assert_says("of val.bin");
}

/* Removes the line of the setting from a file of settings, or from the text in state.json, where lines end in "\n".
 */
static void forget_setting(const char *name, const char *end) {
    char *text = scratch_text(scratch_path(name), NULL);
    char *line = strstr(text, "eval_batches = "), *next = line ? strstr(line, end) : NULL;
    assert_non_null(next);
    next += strlen(end);
    memmove(line, next, strlen(next) + 1);
    scratch_put(name, text);
}

UNIT_TEST(older_runs_go_on_as_they_were) {
#define OLDER "--seed", "7", "--eval-iters", "3", "--eval-interval", "2", "--eval-batches", "by_seed"
    assert_done(TRAIN("at-once", OLDER, "--max-iters", "4"));
    assert_done(TRAIN("in-parts", OLDER, "--max-iters", "2"));
#undef OLDER
    forget_setting("in-parts/settings.conf", "\n");
    forget_setting("in-parts/ckpt-2/state.json", "\\n");
    assert_done(TRAIN("in-parts", "--init-from", "resume", "--max-iters", "4", "--eval-iters", "3"));
    assert_same_metrics("at-once", "in-parts");
}

/* Losses on other tokens do not compare: the next evaluation makes a new best checkpoint, even with a higher loss.
 */
UNIT_TEST(best_loss_is_of_the_same_tokens) {
    assert_done(TRAIN("best", "--max-iters", "2", "--eval-iters", "3", "--eval-batches", "sampled"));
    set_in_json("best/ckpt-2/state.json", "best_val_loss", json_real(0.001));
    assert_done(TRAIN("best", "--init-from", "resume", "--max-iters", "4", "--eval-iters", "3"));
    json_t *saved = read_json("best/ckpt-4/state.json");
    assert_true(json_number_value(json_object_get(saved, "best_val_loss")) == 0.001);
    json_decref(saved);
    assert_done(
        TRAIN("best", "--init-from", "resume", "--max-iters", "6", "--eval-iters", "3", "--eval-batches", "whole"));
    assert_says("other tokens than before");
    saved = read_json("best/ckpt-6/state.json");
    assert_true(json_number_value(json_object_get(saved, "best_val_loss")) > 1.0);
    assert_int_equal(json_integer_value(json_object_get(saved, "best_iteration")), 6);
    json_decref(saved);
}

static int begin(void **state) {
    return corpus_begin(state) || TRAIN("source", "--max-iters", "2") ? -1 : 0;
}

UNIT_TEST_MAIN(begin, scratch_end)
