/* How runs go on: with which settings, how far, and with which lines of their records. */
#include "tests/support/runs.h"

#define UNUSUAL "--learning-rate", "3e-3", "--dropout", "0.1", "--weight-decay", "0.3"

static void assert_has(const char *name, const char *wanted) {
    if (!strstr(scratch_text(scratch_path(name), NULL), wanted)) {
        fail_msg("'%s' is not in %s", wanted, name);
    }
}

RUN_TEST(run_resumes_without_its_settings_file) {
    static const char *const runs[] = {"settings-removed", "settings-emptied"};
    assert_done(TRAIN("settings-kept", UNUSUAL, "--max-iters", "20"));
    assert_has("settings-kept/settings.conf", "# Settings of a run of hctrain " HC_VERSION "\n");
    assert_has("settings-kept/ckpt-20/state.json", "\"version\": \"" HC_VERSION "\"");
    for (int i = 0; i < 2; i++) {
        const char *path = scratch_path(run_path(runs[i], "settings.conf"));
        assert_done(TRAIN(runs[i], UNUSUAL, "--max-iters", "10"));
        assert_int_equal(i == 0 ? unlink(path) : truncate(path, 0), 0);
        assert_done(RESUME(runs[i], "--max-iters", "20"));
        assert_same_run(runs[i], "settings-kept", "ckpt-20");
    }
}

RUN_TEST(run_without_any_settings_is_refused) {
    assert_done(TRAIN("unset", "--max-iters", "2"));
    set_in_json("unset/ckpt-2/state.json", "settings", NULL);
    assert_done(TRAIN("unset", "--init-from", "resume", "--max-iters", "2"));
    assert_int_equal(unlink(scratch_path("unset/settings.conf")), 0);
    assert_failed(TRAIN("unset", "--init-from", "resume"), 1, "neither state.json nor settings.conf");
}

/* With the same bits, by Muon with settings of its own. */
RUN_TEST(another_optimizer_is_refused) {
#define MUON                                                                                                       \
    "--optimizer", "muon", "--muon-learning-rate", "0.02", "--muon-scale", "original", "--muon-coefficients",      \
        "2, -1.5, 0.5", "--scalar-learning-rate", "1e-3"
    assert_done(TRAIN("by-muon", MUON, "--max-iters", "6"));
    assert_has("by-muon/settings.conf", "muon_dtype = \"fp32\"\n");
    assert_done(TRAIN("by-muon-parted", MUON, "--max-iters", "3"));
    assert_failed(RESUME("by-muon-parted", "--optimizer", "adamw", "--max-iters", "6"), 2,
                  "the run has optimizer = muon");
    assert_done(RESUME("by-muon-parted", "--max-iters", "6"));
    assert_same_run("by-muon-parted", "by-muon", "ckpt-6");
    /* options of another optimizer do nothing */
    assert_done(TRAIN("by-adamw", "--muon-steps", "2", "--muon-learning-rate", "-0.5", "--muon-coefficients",
                      "9, 0, 0", "--max-iters", "1"));
    assert_failed(TRAIN("by-less", "--optimizer", "muon", "--muon-learning-rate", "-0.02"), 2,
                  "muon_learning_rate = -0.02 is negative");
    assert_failed(TRAIN("by-less", "--new-learning-rate", "-0.5"), 2, "-1 for the rate of other parameters");
    assert_failed(TRAIN("by-two", "--optimizer", "muon", "--muon-coefficients", "2, -1.5"), 2,
                  "three numbers with commas");
    assert_failed(TRAIN("by-growth", "--optimizer", "muon", "--muon-coefficients", "3.4445, 4.7750, 2.0315"), 2,
                  "singular values of a matrix would grow");
    assert_failed(RESUME("by-muon-parted", "--muon-steps", "2", "--muon-coefficients", "9, 0, 0"), 2,
                  "singular values of a matrix would grow");
}

static off_t bytes_of(const char *name) {
    struct stat status;
    assert_int_equal(stat(scratch_path(name), &status), 0);
    return status.st_size;
}

/* Six iterations, and three that go on to six in run "<run>-parted": the same bits. */
#define ASSERT_RESUMED(run, ...)                                                                                   \
    do {                                                                                                           \
        assert_done(TRAIN(run, __VA_ARGS__, "--max-iters", "6"));                                                  \
        assert_done(TRAIN(run "-parted", __VA_ARGS__, "--max-iters", "3"));                                        \
        assert_done(RESUME(run "-parted", "--max-iters", "6"));                                                    \
        assert_same_run(run "-parted", run, "ckpt-6");                                                             \
    } while (0)

/* With the same bits; and a run goes on whose states had another type. */
RUN_TEST(states_of_bf16_are_resumed) {
    ASSERT_RESUMED("bf16", "--moments", "bf16", "--optimizer", "adamw");
    if (test_is_whole()) {
        ASSERT_RESUMED("bf16-muon", "--moments", "bf16", "--optimizer", "muon");
    }
    assert_true(bytes_of("bf16/ckpt-6/optimizer.safetensors") < bytes_of("bf16/ckpt-6/model.safetensors") * 5 / 4);
    assert_done(RESUME("bf16", "--moments", "fp32", "--max-iters", "7"));
    assert_true(bytes_of("bf16/ckpt-7/optimizer.safetensors") > bytes_of("bf16/ckpt-7/model.safetensors") * 7 / 4);
    assert_done(RESUME("bf16", "--moments", "bf16", "--max-iters", "8"));
    assert_has("bf16/settings.conf", "moments = \"bf16\"\n");
}

/* The same of weights; and a run goes on with the numbers that weights of another type had. */
RUN_TEST(weights_of_bf16_are_resumed) {
#define BF16 "--dtype", "bf16", "--master", "bf16", "--moments", "bf16"
    ASSERT_RESUMED("narrow", BF16, "--optimizer", "adamw");
    assert_says("master weights in bf16, small ones in fp32");
    if (test_is_whole()) {
        ASSERT_RESUMED("narrow-muon", BF16, "--optimizer", "muon");
    }
#undef BF16
    assert_done(RESUME("narrow", "--master", "fp32", "--learning-rate", "0", "--min-lr", "0", "--max-iters", "7"));
    assert_same_file("narrow/ckpt-6/model.safetensors", "narrow/ckpt-7/model.safetensors");
    assert_done(RESUME("narrow", "--master", "bf16", "--max-iters", "8"));
    assert_same_file("narrow/ckpt-7/model.safetensors", "narrow/ckpt-8/model.safetensors");
    assert_has("narrow/settings.conf", "master = \"bf16\"\n");
    assert_failed(RESUME("narrow", "--dtype", "fp32"), 1, "master = bf16 needs dtype = bf16, not fp32");
}

/* What is not trained has no states in the file. A run goes on with other parts frozen, or none. */
RUN_TEST(frozen_parts_are_resumed) {
    ASSERT_RESUMED("still", "--optimizer", "adamw", "--freeze", "wte|mlp");
    assert_non_null(strstr(child_message(), "): they keep their values\n"));
    if (test_is_whole()) {
        ASSERT_RESUMED("still-muon", "--optimizer", "muon", "--freeze", "wte|mlp");
    }
    const off_t few = bytes_of("still/ckpt-6/optimizer.safetensors");
    assert_true(few < bytes_of("still/ckpt-6/model.safetensors"));
    assert_done(RESUME("still", "--freeze", "", "--max-iters", "7"));
    assert_true(bytes_of("still/ckpt-7/optimizer.safetensors") > 2 * few);
    assert_done(RESUME("still", "--freeze", "attn", "--max-iters", "8"));
    assert_true(bytes_of("still/ckpt-8/optimizer.safetensors") < bytes_of("still/ckpt-7/optimizer.safetensors"));
}

RUN_TEST(rope_fraction_of_nearly_one_is_refused) {
    assert_failed(TRAIN("turning", "--position", "rope", "--rope-fraction", "0.9999999"), 2, "no whole number");
    assert_failed(TRAIN("turning", "--position", "rope", "--rope-fraction", "0.3"), 2, "no whole number");
}

RUN_TEST(first_evaluation_outlives_an_interruption) {
    assert_done(TRAIN("begun", "--max-iters", "0", "--eval-interval", "5", "--eval-iters", "2"));
    assert_true(has("begun", "ckpt-0"));
    assert_int_equal(count_evaluations("begun", 0), 1);
    assert_done(RESUME("begun", "--max-iters", "10"));
    assert_int_equal(count_evaluations("begun", 0), 1);
    assert_done(TRAIN("not-begun", "--max-iters", "10", "--eval-interval", "5", "--eval-iters", "2"));
    assert_same_metrics("begun", "not-begun");
}

RUN_TEST(last_evaluation_stands_once) {
    start(TRAIN_ARGUMENTS("ended", "--max-iters", "100000", "--checkpoint-interval", "3", "--eval-interval",
                          "1000000", "--eval-iters", "2"));
    wait_for(newer_checkpoint, "ended", 0);
    assert_failed(interrupt(), INTERRUPTED, "interrupted");
    const long at = newest("ended", 1);
    assert_int_equal(count_evaluations("ended", at), 0);
    for (int i = 0; i < 2; i++) {
        assert_done(RESUME("ended", "--max-iters", decimal(at)));
        assert_int_equal(count_evaluations("ended", at), 1);
    }
    assert_int_equal(count_evaluations("ended", 0), 1);
}

RUN_TEST(statistics_of_a_branch_given_up_go) {
    assert_done(TRAIN("branch", "--max-iters", "10", "--checkpoint-interval", "5", "--statistics-interval", "1"));
    assert_int_equal(count_lines("branch/h_statistics.jsonl"), 10);
    remove_checkpoint("branch", 10);
    assert_done(RESUME("branch", "--max-iters", "7", "--statistics-interval", "0"));
    assert_int_equal(count_lines("branch/h_statistics.jsonl"), 5); /* of iterations 0 to 4 */
    assert_int_equal(count_lines("branch/metrics.jsonl"), 7);
    remove_checkpoint("branch", 7);
    assert_done(RESUME("branch", "--max-iters", "10", "--statistics-interval", "1"));
    assert_done(TRAIN("trunk", "--max-iters", "10", "--statistics-interval", "1"));
    assert_same_file("branch/h_statistics.jsonl", "trunk/h_statistics.jsonl");
}

/* Without its newest checkpoints a run is as if it had been killed after the one before them. */
RUN_TEST(smaller_end_holds_once_a_larger_one_for_good) {
    assert_done(TRAIN("goal", "--max-iters", "20", "--checkpoint-interval", "5", "--keep-checkpoints", "9"));
    remove_checkpoint("goal", 20);
    remove_checkpoint("goal", 15);
    remove_checkpoint("goal", 10);
    assert_done(RESUME("goal", "--max-iters", "7"));
    assert_int_equal(newest("goal", 0), 7);
    assert_done(RESUME("goal"));
    assert_int_equal(newest("goal", 0), 20);
    assert_done(RESUME("goal", "--max-iters", "25", "--muon-steps", "4"));
    assert_says("optimizer muon_steps does nothing with optimizer = adamw");
    assert_null(strstr(child_message(), "muon_momentum"));
    remove_checkpoint("goal", 25);
    assert_done(RESUME("goal"));
    assert_int_equal(newest("goal", 0), 25);
}

/* Holes at its end, as a power cut may leave them, make the file large in no time; lines in between them keep what
 * is read at once small. */
RUN_TEST(records_of_more_than_a_gibibyte_are_resumed) {
    assert_done(TRAIN("large", "--max-iters", "4"));
    const int file = open(scratch_path("large/metrics.jsonl"), O_WRONLY | O_CLOEXEC);
    assert_true(file >= 0);
    for (off_t mebibytes = 1; mebibytes <= 1025; mebibytes++) {
        assert_int_equal(pwrite(file, "\n", 1, mebibytes << 20), 1);
    }
    close(file);
    assert_done(RESUME("large", "--max-iters", "6"));
    assert_done(TRAIN("usual", "--max-iters", "6"));
    assert_same_metrics("large", "usual");
}

/* The end of a pipe that has this text, and its name. */
static int open_text(const char *text, char name[32]) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], text, strlen(text)), strlen(text));
    close(ends[1]);
    snprintf(name, 32, "/dev/fd/%d", ends[0]);
    return ends[0];
}

RUN_TEST(settings_may_come_through_a_pipe) {
    char name[32];
    int reading = open_text("# of a shell's <(...)\nmax_iters = 3\n", name);
    assert_done(TRAIN("piped", "--config", name));
    close(reading);
    assert_int_equal(newest("piped", 0), 3);
    reading = open_text("max_iters = 5\n", name);
    assert_done(RESUME("piped", "--config", name));
    close(reading);
    assert_int_equal(newest("piped", 0), 5);
}

UNIT_TEST_MAIN(run_control_begin, scratch_end)
