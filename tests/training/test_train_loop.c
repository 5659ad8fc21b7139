/* hc_train, run as a program: runs that are repeated, interrupted, killed and resumed, and what they leave. */
#include "runtime/system/random.h"
#include "tests/support/runs.h"
#include <sys/ioctl.h>
#include <time.h>

enum { KILLS = 6, MANY_KILLS = 100 };

/* ---- repeating and resuming */

/* Twice the same, and in two parts; with evaluations, since those must not disturb training. */
static void repeat_and_resume(const char *residual) {
#define MORE                                                                                                       \
    "--residual", residual, "--stream-expand", "scaled", "--seed", "1", "--dropout", "0.1",                        \
        "--gradient-accumulation-steps", "3", "--eval-interval", "5", "--eval-iters", "2"
    const char *first = scratch_format("%s-once", residual), *second = scratch_format("%s-twice", residual),
               *parted = scratch_format("%s-parted", residual);
    assert_done(TRAIN(first, MORE));
    assert_done(TRAIN(second, MORE));
    assert_done(TRAIN(parted, MORE, "--max-iters", "10"));
    assert_done(TRAIN(parted, MORE, "--init-from", "resume"));
#undef MORE
    assert_same_run(first, second, "ckpt-20");
    assert_same_run(first, parted, "ckpt-20");
    json_t *lines = metrics(first);
    assert_int_equal(json_array_size(lines), 20 + 5);
    assert_true(loss_at(lines, 23) < loss_at(lines, 1) - 0.5); /* it learns */
    json_decref(lines);
}

UNIT_TEST(run_is_the_same_twice_and_in_two_parts) {
    repeat_and_resume("mhc");
    if (test_is_whole()) {
        repeat_and_resume("shc");
    }
}

/* Trains in fp16, from iteration 2 on with a scale at which gradients overflow. */
static void train_with_overflow(const char *run) {
    assert_done(TRAIN(run, "--dtype", "fp16", "--max-iters", "2"));
    set_in_json(scratch_format("%s/ckpt-2/state.json", run), "loss_scale.scale", json_real(0x1p+32));
}

/* Steps whose gradients overflow are left out, and the scale falls until one does not; resuming changes nothing. */
UNIT_TEST(fp16_run_leaves_out_steps_that_overflow) {
    train_with_overflow("overflow");
    assert_done(TRAIN("overflow", "--dtype", "fp16", "--init-from", "resume", "--max-iters", "30"));
    train_with_overflow("overflow-in-parts");
    assert_done(TRAIN("overflow-in-parts", "--dtype", "fp16", "--init-from", "resume", "--max-iters", "25"));
    assert_done(TRAIN("overflow-in-parts", "--dtype", "fp16", "--init-from", "resume", "--max-iters", "30",
                      "--log-interval", "1"));
    assert_same_run("overflow", "overflow-in-parts", "ckpt-30");
    json_t *lines = metrics("overflow");
    json_int_t skipped = 0;
    assert_int_equal(json_array_size(lines), 30);
    for (size_t i = 2; i < 30; i++) {
        const json_t *line = json_array_get(lines, i);
        assert_true(json_number_value(json_object_get(line, "loss_scale")) == ldexp(1.0, 32 - (int)skipped));
        skipped += json_is_null(json_object_get(line, "grad_norm"));
        assert_int_equal(json_integer_value(json_object_get(line, "skipped")), skipped);
    }
    assert_true(skipped > 2 && skipped < 25);
    assert_true(json_is_number(json_object_get(json_array_get(lines, 29), "grad_norm")));
    assert_true(loss_at(lines, 29) < loss_at(lines, 2));
    json_decref(lines);
    train_with_overflow("overflow-logged");
    assert_done(TRAIN("overflow-logged", "--dtype", "fp16", "--init-from", "resume", "--max-iters", "30",
                      "--log-interval", "100"));
    lines = metrics("overflow-logged"); /* the two first ones were logged before */
    assert_int_equal(json_array_size(lines), 2 + skipped);
    json_decref(lines);
    set_in_json("overflow/ckpt-30/state.json", "loss_scale.scale", json_real(3.0));
    assert_failed(TRAIN("overflow", "--dtype", "fp16", "--init-from", "resume", "--max-iters", "31"), 1,
                  "state.json: loss_scale is not one");
    set_in_json("overflow-in-parts/ckpt-30/state.json", "loss_scale.skipped", json_integer(31));
    assert_failed(TRAIN("overflow-in-parts", "--dtype", "fp16", "--init-from", "resume", "--max-iters", "31"), 1,
                  "state.json: loss_scale is not one");
}

UNIT_TEST(another_seed_is_another_run) {
    assert_done(TRAIN("seed-1", "--seed", "1", "--max-iters", "2"));
    assert_done(TRAIN("seed-2", "--seed", "2", "--max-iters", "2"));
    json_t *first = metrics("seed-1"), *second = metrics("seed-2");
    assert_false(json_equal(first, second));
    json_decref(first);
    json_decref(second);
}

/* The same global batch in one, two or four micro-batches; with dropout, which depends on a row's place in it. */
UNIT_TEST(split_into_micro_batches_does_not_matter) {
    static const char *const sizes[] = {"4", "2", "1"}, *const steps[] = {"1", "2", "4"};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        const char *run = scratch_format("split-%s", steps[i]);
        assert_done(TRAIN(run, "--batch-size", sizes[i], "--gradient-accumulation-steps", steps[i], "--max-iters",
                          "6", "--dropout", "0.1"));
        assert_near_metrics("split-1", run, 6, 1e-5);
    }
}

/* ---- the learning rate's schedule */

/* Without the --lr-decay-iters of the others. */
#define TRAIN_OPEN(run, ...)                                                                                       \
    CHILD_RUN(TRAIN_PROGRAM, "--config", scratch_path("tiny.conf"), "--data-dir", scratch_path("data"),            \
              "--out-dir", scratch_path(run), ##__VA_ARGS__)

static void assert_rate(const json_t *lines, size_t index, double rate) {
    assert_true(fabs(json_number_value(json_object_get(json_array_get(lines, index), "lr")) - rate) <= 1e-8 * rate);
}

/* What is left open follows, and is said; a resumed run keeps it, with the same command, and where more iterations
 * are given. */
UNIT_TEST(schedule_follows_and_then_stays) {
#define RATE "--learning-rate", "4e-3", "--checkpoint-interval", "6"
    assert_done(TRAIN_OPEN("follows", RATE, "--max-iters", "12"));
    assert_says("schedule min_lr = 0.0004, a tenth of learning_rate\n");
    assert_says("schedule lr_decay_iters = 12, the number of iterations "
                "(replaces lr_decay_iters = 20, which was given before max_iters)\n");
    assert_done(TRAIN_OPEN("in-parts", RATE, "--max-iters", "12"));
    remove_checkpoint("in-parts", 12);
    assert_done(TRAIN_OPEN("in-parts", RATE, "--max-iters", "12", "--init-from", "resume"));
    assert_null(strstr(child_message(), "schedule"));
    assert_same_run("follows", "in-parts", "ckpt-12");
    assert_done(TRAIN_OPEN("in-parts", RATE, "--max-iters", "15", "--init-from", "resume"));
    assert_says("schedule max_iters is 15 now, and lr_decay_iters is 12: ");
#undef RATE
    json_t *lines = metrics("in-parts");
    assert_rate(lines, 0, 4e-3 / 2); /* a tenth of 12 is 1 iteration of warm-up */
    assert_rate(lines, 1, 4e-3);
    assert_rate(lines, 12, 4e-4);
    assert_rate(lines, 14, 4e-4);
    json_decref(lines);
}

/* A schedule that an earlier version saved is gone on with whatever it is. */
UNIT_TEST(schedule_of_an_earlier_version_stays) {
#define SAVED "--lr-decay-iters", "10000", "--warmup-iters", "200", "--min-lr", "6e-5", "--learning-rate", "3e-5"
    assert_failed(TRAIN_OPEN("risen", SAVED, "--max-iters", "4"), 2, "would rise");
    assert_false(files_exist(scratch_path("risen")));
    assert_done(TRAIN_OPEN("risen", SAVED, "--min-lr", "1e-5", "--max-iters", "4"));
    assert_done(CHILD_RUN("/bin/sed", "-i", "s/min_lr = 1e-05/min_lr = 6e-05/", scratch_path("risen/settings.conf"),
                          scratch_path("risen/ckpt-4/state.json")));
    assert_done(TRAIN_OPEN("risen", "--learning-rate", "3e-5", "--max-iters", "6", "--init-from", "resume"));
    json_t *lines = metrics("risen");
    assert_rate(lines, 5, 3e-5 * 6 / 201);
    json_decref(lines);
    char *settings = scratch_text(scratch_path("risen/settings.conf"), NULL);
    assert_non_null(strstr(settings, "min_lr = 6e-05\nwarmup_iters = 200\nlr_decay_iters = 10000\n"));
    assert_done(TRAIN_OPEN("falling", "--max-iters", "2"));
    assert_failed(TRAIN_OPEN("falling", "--max-iters", "4", "--min-lr", "1", "--init-from", "resume"), 2,
                  "would rise");
#undef SAVED
}

/* ---- on a terminal */

/* Runs on a terminal of 80 columns; what it wrote there. */
static const char *train_on_terminal(const char *const *arguments) {
    static char text[65536];
    const struct winsize size = {.ws_row = 24, .ws_col = 80};
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    assert_int_equal(ioctl(terminal, TIOCSWINSZ, &size), 0);
    const int line = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
    const pid_t child = child_start_with(&(struct child_setup){.errors_to = line}, arguments);
    close(line);
    size_t used = 0;
    for (ssize_t got; (got = read(terminal, text + used, sizeof text - 1 - used)) > 0;) { /* an error at the end */
        used += (size_t)got;
    }
    text[used] = '\0';
    close(terminal);
    assert_done(child_finish(child));
    return text;
}

/* Evaluations count their batches, and no line is too long to be written over; lines that stay may be longer. */
UNIT_TEST(progress_fits_a_terminal) {
    static const char erased[] = "\r\033[K";
    const char *text = train_on_terminal(
        TRAIN_ARGUMENTS("terminal", "--max-iters", "2", "--eval-interval", "2", "--eval-iters", "3"));
    assert_non_null(strstr(text, "evaluating train.bin: batches 0/3 ["));
    for (const char *at = text; (at = strstr(at, erased)) != NULL;) {
        at += strlen(erased);
        const size_t length = strcspn(at, "\r\n");
        assert_true(length < 80 || at[length + 1] == '\n');
    }
}

/* ---- interruption and death */

RUN_TEST(killed_run_always_resumes) {
    long at = 0;
    for (uint64_t i = 0; i < (test_is_whole() ? MANY_KILLS : KILLS); i++) {
        start(TRAIN_ARGUMENTS("killed", "--max-iters", "100000", "--checkpoint-interval", "1", "--init-from",
                              i == 0 ? "scratch" : "resume"));
        wait_for(newer_checkpoint, "killed", at);
        wait_ms((long)random_below(random_key(3, "wait"), i, 40));
        send_signal(SIGKILL);
        assert_int_equal(finish(), -SIGKILL);
        at = newest("killed", at + 1);
        assert_true(at > 0);
    }
    assert_done(TRAIN("killed", "--max-iters", decimal(at + 2), "--init-from", "resume"));
    assert_done(TRAIN("unharmed", "--max-iters", decimal(at + 2)));
    assert_same_run("killed", "unharmed", checkpoint(at + 2));
    assert_int_equal(scratch_entries(scratch_path("killed")),
                     4); /* two checkpoints, metrics, settings: no leftovers */
}

/* As by Ctrl-C. */
RUN_TEST(run_that_is_to_end_saves_and_resumes) {
    start(TRAIN_ARGUMENTS("terminated", "--max-iters", "100000", "--checkpoint-interval", "3"));
    wait_for(newer_checkpoint, "terminated", 0);
    send_signal(SIGTERM);
    assert_failed(finish(), INTERRUPTED, "interrupted; go on with --init-from resume");
    const long at = newest("terminated", 1);
    assert_done(TRAIN("terminated", "--max-iters", decimal(at + 3), "--init-from", "resume"));
    assert_true(has("terminated", checkpoint(at + 3)));
}

/* ---- trouble */

/* A copy of a checkpoint's config and weights, in the folder "wrong", whose last weight is this one. */
static void damage_weights(const char *from, float wrong) {
    size_t bytes;
    copy(run_path(from, "config.json"), "wrong/config.json");
    char *weights = scratch_text(scratch_path(run_path(from, "model.safetensors")), &bytes);
    memcpy(weights + bytes - sizeof wrong, &wrong, sizeof wrong); /* of ln_f or the last layer */
    scratch_write("wrong/model.safetensors", weights, bytes);
}

/* A loss of 1e30 is a number, and the square of its gradients is none. */
UNIT_TEST(numbers_that_are_not_finite_stop_the_run) {
    static const struct {
        const char *run, *text;
        float weight;
    } rows[] = {
        {"with-nan", "the loss is not finite at iteration 0", 3e38f},
        {"steep", "the gradient norm is not finite at iteration 0", 1e30f},
        {"of-nan", "wrong/model.safetensors: element ", NAN},
    };
    assert_done(TRAIN("before-nan", "--max-iters", "3"));
    for (size_t i = 0; i < COUNT(rows); i++) {
        damage_weights("before-nan/ckpt-3", rows[i].weight);
        assert_failed(TRAIN(rows[i].run, "--init-from", scratch_path("wrong")), 1, rows[i].text);
    }
    assert_says("is nan: the file is damaged");
    assert_true(has("with-nan", "ckpt-0") && !has("of-nan", "ckpt-0"));
}

/* A run that grows out of range on its own keeps the weights from before, all finite. */
UNIT_TEST(divergence_keeps_the_last_good_weights) {
    const int status = TRAIN("diverging", "--residual", "hc", "--learning-rate", "10", "--grad-clip", "0",
                             "--warmup-iters", "0", "--min-lr", "10", "--weight-decay", "10", "--max-iters", "2000",
                             "--checkpoint-interval", "2", "--keep-checkpoints", "1");
    assert_failed(status, 1, "not finite at iteration");
    const long at = newest("diverging", 0);
    assert_true(at > 0);
    assert_says(scratch_format("at iteration %ld ", at));
    const int checkpoints = at % 2 ? 2 : 1; /* the periodic one before it stays, though one is to be kept */
    assert_int_equal(scratch_entries(scratch_path("diverging")), checkpoints + 2);
    json_t *lines = metrics("diverging");
    const json_t *last = json_array_get(lines, json_array_size(lines) - 1);
    assert_int_equal(json_integer_value(json_object_get(last, "iter")), at);
    assert_true(json_is_null(json_object_get(last, "grad_norm")));
    json_decref(lines);
}

UNIT_TEST(full_disk_leaves_the_older_checkpoint) {
    assert_done(TRAIN("full", "--vocab-size", "4096", "--max-iters", "10"));
    const uint64_t most = 400000; /* weights and what PoCL writes fit, the optimizer's states do not */
    assert_failed(TRAIN_LIMITED(most, "full", "--init-from", "resume"), 1, "cannot save checkpoint");
    assert_says("File too large");
    assert_false(has("full", "ckpt-20"));
    assert_done(TRAIN("full", "--init-from", "resume"));
    assert_done(TRAIN("not-full", "--vocab-size", "4096"));
    assert_same_run("full", "not-full", "ckpt-20");
}

/* ---- checkpoints */

UNIT_TEST(newest_checkpoints_are_kept) {
    assert_done(TRAIN("kept", "--max-iters", "10", "--checkpoint-interval", "2", "--keep-checkpoints", "3"));
    for (int i = 0; i <= 10; i++) {
        assert_int_equal(has("kept", scratch_format("ckpt-%d", i)), i == 6 || i == 8 || i == 10);
    }
}

UNIT_TEST(best_checkpoint_is_that_of_the_lowest_validation_loss) {
    assert_done(TRAIN("best", "--eval-interval", "4", "--eval-iters", "3"));
    json_t *lines = metrics("best"), *line;
    size_t index;
    double lowest = HUGE_VAL;
    json_int_t at = -1;
    json_array_foreach(lines, index, line) {
        const json_t *loss = json_object_get(line, "val_loss");
        if (loss && json_number_value(loss) < lowest) {
            lowest = json_number_value(loss);
            at = json_integer_value(json_object_get(line, "iter"));
        }
    }
    json_t *saved = read_json("best/ckpt-best/state.json");
    assert_true(number_in(saved, "iteration") == (double)at);
    assert_true(fabs(number_in(saved, "best_val_loss") - lowest) < 1e-6);
    assert_true(has("best", "ckpt-best/config.json") && has("best", "ckpt-best/model.safetensors"));
    json_decref(saved);
    json_decref(lines);
}

/* Settings that a run has saved, with which another begins as it did, or is refused. */
#define REPEAT(run, of, ...)                                                                                       \
    CHILD_RUN(TRAIN_PROGRAM, "--config", scratch_path(run_path(of, "settings.conf")), "--out-dir",                 \
              scratch_path(run), ##__VA_ARGS__)

UNIT_TEST(saved_settings_repeat_where_a_run_began) {
    const char *const upcycled[] = {"--residual", "mhc", "--freeze", "wte"};
    assert_done(TRAIN("origin", "--residual", "rc", "--max-iters", "5"));
    assert_done(TRAIN("child", "--init-from", scratch_path("origin/ckpt-5"), upcycled[0], upcycled[1], upcycled[2],
                      upcycled[3], "--max-iters", "2"));
    assert_done(TRAIN("child", "--init-from", "resume", "--max-iters", "4"));
    assert_done(REPEAT("child-again", "child"));
    assert_same_run("child", "child-again", "ckpt-4");
    assert_same_file("child/settings.conf", "child-again/settings.conf"); /* but for out_dir, which is not there */
    assert_done(TRAIN("scratch", "--residual", "rc", "--max-iters", "5"));
    assert_done(REPEAT("child-scratch", "child", "--init-from", "scratch", "--max-iters", "1"));
    assert_done(TRAIN("newer", "--residual", "rc", "--max-iters", "5", "--seed", "3"));
    assert_done(REPEAT("child-newer", "child", "--init-from", scratch_path("newer/ckpt-5")));
    remove_checkpoint("origin", 5);
    assert_failed(REPEAT("child-lost", "child"), 1, "origin/ckpt-5/config.json");
    assert_done(TRAIN("child", "--init-from", "resume", "--max-iters", "5"));
    assert_int_equal(rename(scratch_path("newer/ckpt-5"), scratch_path("origin/ckpt-5")), 0);
    assert_failed(REPEAT("child-other", "child"), 1, "these are other weights than the ones whose checksum is");
    assert_false(files_exist(scratch_path("child-other")));
}

/* Defaults that stand for what the model has. */
UNIT_TEST(defaults_agree_with_any_model) {
    assert_done(TRAIN("grouped", "--residual", "rc", "--n-head", "4", "--n-kv-head", "2", "--head-dim", "4",
                      "--mlp-width", "24", "--norm-eps", "1e-3", "--qkv-bias=true", "--max-iters", "1"));
    assert_done(TRAIN("grouped-on", "--init-from", scratch_path("grouped/ckpt-1"), "--n-head", "4", "--n-kv-head",
                      "0", "--head-dim", "0", "--mlp-width", "0", "--norm-eps", "0", "--qkv-bias=as_bias",
                      "--vocab-size", "0", "--max-iters", "0"));
    assert_same_file("grouped/ckpt-1/config.json", "grouped-on/ckpt-0/config.json");
    assert_failed(TRAIN("grouped-other", "--init-from", scratch_path("grouped/ckpt-1"), "--n-head", "4",
                        "--n-kv-head", "4"),
                  1, "was saved with another n_kv_head");
}

/* The saved settings name the variant that came with the weights, not the default. */
UNIT_TEST(run_that_starts_from_another_variant_resumes) {
    assert_done(TRAIN("source-mhc", "--residual", "mhc", "--stream-reduce", "sum_norm", "--max-iters", "2"));
    assert_done(TRAIN("from-mhc", "--init-from", scratch_path("source-mhc/ckpt-2"), "--max-iters", "2"));
    assert_done(TRAIN("from-mhc", "--init-from", "resume", "--max-iters", "3"));
    assert_true(has("from-mhc", "ckpt-3"));
}

/* Moments from before do not move it either. */
UNIT_TEST(frozen_alpha_res_keeps_its_bits) {
    const char *const options[] = {"--residual", "ohc", "--checkpoint-interval", "4"};
#define OHC options[0], options[1], options[2], options[3]
    assert_done(TRAIN("frozen", OHC, "--max-iters", "4"));
    assert_done(TRAIN("frozen", OHC, "--init-from", "resume", "--freeze-alpha-res", "--max-iters", "8"));
    assert_frozen("frozen/ckpt-4", "frozen/ckpt-8", true);
    assert_done(TRAIN("frozen", OHC, "--init-from", "resume", "--no-freeze-alpha-res", "--max-iters", "12"));
    assert_frozen("frozen/ckpt-8", "frozen/ckpt-12", false);
#undef OHC
}

RUN_TEST(run_directory_has_one_writer) {
    start(TRAIN_ARGUMENTS("locked", "--max-iters", "100000", "--checkpoint-interval", "1"));
    wait_for(newer_checkpoint, "locked", 0);
    assert_failed(TRAIN("locked", "--init-from", "resume", "--max-iters", "100000"), 1,
                  "another process is writing to");
    send_signal(SIGKILL);
    assert_int_equal(finish(), -SIGKILL);
    assert_done(TRAIN("locked", "--init-from", "resume", "--max-iters", "1"));
    assert_says("give a larger --max-iters to go on");
}

/* What a checkpoint says that was saved while an evaluation was interrupted. */
UNIT_TEST(interrupted_evaluation_is_made_up_for) {
    assert_done(TRAIN("unevaluated", "--max-iters", "4", "--eval-interval", "2", "--eval-iters", "1"));
    json_t *saved = read_json("unevaluated/ckpt-4/state.json");
    assert_true(number_in(saved, "evaluated_at") == 4 && number_in(saved, "seconds") > 0.0);
    json_object_set_new(saved, "evaluated_at", json_integer(2));
    assert_int_equal(json_dump_file(saved, scratch_path("unevaluated/ckpt-4/state.json"), 0), 0);
    json_decref(saved);
    const long before = count_lines("unevaluated/metrics.jsonl");
    assert_done(TRAIN("unevaluated", "--init-from", "resume", "--eval-interval", "2", "--eval-iters", "1"));
    /* steps, evaluations at 6, 8 .. 20; that at 4 replaces its line */
    assert_int_equal(count_lines("unevaluated/metrics.jsonl"), before + 16 + 8);
}

UNIT_TEST(settings_that_contradict_the_checkpoint_are_refused) {
    assert_done(TRAIN("settled", "--max-iters", "2", "--residual", "mhc"));
    static const char *const wrong[][2] = {{"--n-streams", "2"},         {"--residual", "shc"},
                                           {"--block-size", "8"},        {"--bias", "--no-profile"},
                                           {"--sinkhorn-iters", "10"},   {"--stream-reduce", "sum_norm"},
                                           {"--stream-expand", "scaled"}};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        assert_failed(TRAIN("settled", "--init-from", "resume", wrong[i][0], wrong[i][1]), 1,
                      "was saved with another");
    }
    assert_failed(TRAIN("settled", "--init-from", "resume", "--seed", "7"), 1, "was trained with seed 1337");
    assert_failed(TRAIN("settled"), 1, "already holds a run");
    assert_failed(TRAIN("nowhere", "--init-from", "resume"), 1, "nowhere");
    assert_false(files_exist(scratch_path("nowhere")));
    assert_done(TRAIN("settled", "--init-from", "resume", "--max-iters", "4", "--residual", "mhc"));
}

/* Every interval, and at the last iteration, where a run is looked at first. */
UNIT_TEST(statistics_are_a_line_each) {
    static const json_int_t iterations[] = {0, 3, 6, 7};
    assert_done(TRAIN("observed", "--max-iters", "8", "--statistics-interval", "3"));
    json_error_t error;
    FILE *file = fopen(scratch_path("observed/h_statistics.jsonl"), "r");
    assert_non_null(file);
    for (size_t i = 0; i < COUNT(iterations); i++) {
        json_t *line = json_loadf(file, JSON_DISABLE_EOF_CHECK, &error);
        assert_int_equal(json_integer_value(json_object_get(line, "iter")), iterations[i]);
        assert_true(fabs(json_number_value(json_object_get(line, "composite_norm_max")) - 1.0) < 1e-5);
        json_decref(line);
    }
    fclose(file);
    assert_int_equal(scratch_entries(scratch_path("observed")), 4);
}

/* The device of the run above, for reports; a resumed run writes it anew. */
UNIT_TEST(settings_name_the_device) {
    char *text = scratch_text(scratch_path("observed/settings.conf"), NULL), *device = strstr(text, "\n# device: ");
    assert_non_null(device);
    assert_true(strlen(device) > sizeof "\n# device: ");
}

/* Layers that run forward again do so to the same bits, dropout and observations included. */
UNIT_TEST(recomputing_changes_nothing) {
    static const char *const variants[] = {"shc", "mudd", "rc", "hc", "gated"};
    for (size_t i = 0; i < (test_is_whole() ? COUNT(variants) : 1); i++) {
        const char *kept = scratch_format("kept-%s", variants[i]);
        const char *again = scratch_format("again-%s", variants[i]);
#define DEEP                                                                                                       \
    "--residual", variants[i], "--n-layer", "3", "--dropout", "0.1", "--gradient-accumulation-steps", "2",         \
        "--statistics-interval", "2", "--eval-interval", "5", "--eval-iters", "2"
        assert_done(TRAIN(kept, DEEP));
        assert_done(TRAIN(again, DEEP, "--recompute", "layer"));
        assert_same_run(kept, again, "ckpt-20");
        if (i == 0 || i == 3) { /* which have matrices */
            assert_same_file(run_path(kept, "h_statistics.jsonl"), run_path(again, "h_statistics.jsonl"));
        }
    }
}

/* The argument is a pattern of names of tests. */
UNIT_TEST_MAIN(corpus_begin, scratch_end)
