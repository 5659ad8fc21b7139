/* hc_train, run as a program: reproducible, resumable, and safe against being stopped at any moment. */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/files.h"
#include "tests/program.h"
#include "tests/scratch.h"
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_ARGUMENTS 60

/* A corpus of words in an order that a small model can learn something of. */
static void make_corpus(void) {
    static const char *const words[] = {"stream ",  "mixes ", "into ",  "another ",
                                        "stream, ", "and ",   "norms ", "stay\n"};
    char text[60000];
    size_t length = 0;
    for (uint32_t i = 1; length + 16 < sizeof text; i = i * 1664525u + 1013904223u) {
        length += (size_t)snprintf(text + length, 16, "%s", words[i >> 29]);
    }
    const char *path = scratch_write("corpus.txt", text, length);
    assert_int_equal(PROGRAM_RUN("hc_prepare", "--out", scratch_path("data"), path), 0);
}

static int begin(void **state) {
    if (scratch_begin(state)) {
        return -1;
    }
    make_corpus();
    return 0;
}

/* The arguments of a small run, with more at the end. out: name in the scratch folder. */
static const char *const *arguments_for(const char *out, const char *const *more) {
    static const char *all[MOST_ARGUMENTS];
    const char *const small[] = {"--device",        "pocl",
                                 "--data-dir",      scratch_path("data"),
                                 "--out-dir",       scratch_path(out),
                                 "--n-layer",       "2",
                                 "--n-head",        "2",
                                 "--n-embd",        "16",
                                 "--block-size",    "16",
                                 "--batch-size",    "4",
                                 "--eval-iters",    "2",
                                 "--warmup-iters",  "3",
                                 "--learning-rate", "3e-3",
                                 "--eval-interval", "5"};
    size_t count = 0;
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        all[count++] = small[i];
    }
    for (; *more; more++) {
        all[count++] = *more;
    }
    all[count] = NULL;
    return all;
}

#define ARGUMENTS(out, ...) arguments_for(out, (const char *const[]){__VA_ARGS__, NULL})
#define TRAIN(out, ...)     program_run(UINT64_MAX, "hc_train", ARGUMENTS(out, __VA_ARGS__))

/* ---- looking at what a run left */

static const char *file_in(const char *out, const char *name) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", out, name);
    return scratch_path(path);
}

static void assert_same_files(const char *a, const char *b) {
    size_t first_bytes, second_bytes;
    char *first = scratch_read(a, &first_bytes), *second = scratch_read(b, &second_bytes);
    assert_non_null(first);
    assert_non_null(second);
    assert_int_equal(first_bytes, second_bytes);
    assert_memory_equal(first, second, first_bytes);
    free(first);
    free(second);
}

/* All numbers of one key in metrics.jsonl, in order. Returns how many. */
static size_t read_metric(const char *out, const char *key, double *values, size_t most) {
    size_t bytes, count = 0;
    char *text = scratch_read(file_in(out, "metrics.jsonl"), &bytes), *rest = NULL;
    assert_non_null(text);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *json = json_loads(line, 0, NULL), *value = json_object_get(json, key);
        assert_non_null(json);
        if (value && count < most) {
            values[count++] = json_number_value(value);
        }
        json_decref(json);
    }
    free(text);
    return count;
}

static void assert_same_metric(const char *a, const char *b, const char *key, size_t expected) {
    double first[100], second[100];
    assert_int_equal(read_metric(a, key, first, 100), expected);
    assert_int_equal(read_metric(b, key, second, 100), expected);
    assert_memory_equal(first, second, expected * sizeof *first);
}

static int64_t newest_checkpoint(const char *out) {
    int64_t newest = -1;
    DIR *folder = opendir(scratch_path(out));
    for (struct dirent *entry = folder ? readdir(folder) : NULL; entry; entry = readdir(folder)) {
        long long iteration;
        char after;
        if (sscanf(entry->d_name, "ckpt-%lld%c", &iteration, &after) == 1) {
            newest = iteration > newest ? iteration : newest;
        }
    }
    if (folder) {
        closedir(folder);
    }
    return newest;
}

static int count_entries(const char *out, const char *prefix) {
    int count = 0;
    DIR *folder = opendir(scratch_path(out));
    assert_non_null(folder);
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    }
    closedir(folder);
    return count;
}

/* ---- reproducible */

static void resuming_is_bit_identical(void **state) {
    (void)state;
#define SETTINGS "--residual", "shc", "--dropout", "0.1", "--gradient-accumulation-steps", "3"
    assert_int_equal(TRAIN("whole", SETTINGS, "--max-iters", "20"), 0);
    assert_int_equal(TRAIN("parts", SETTINGS, "--max-iters", "10"), 0);
    assert_int_equal(TRAIN("parts", SETTINGS, "--max-iters", "20", "--init-from", "resume"), 0);
    assert_same_files(file_in("whole", "ckpt-20/model.safetensors"), file_in("parts", "ckpt-20/model.safetensors"));
    assert_same_files(file_in("whole", "ckpt-20/optimizer.safetensors"),
                      file_in("parts", "ckpt-20/optimizer.safetensors"));
    assert_same_metric("whole", "parts", "loss", 20);
    assert_same_metric("whole", "parts", "grad_norm", 20);
    assert_same_metric("whole", "parts", "val_loss", 5); /* at 0, 5, 10, 15, 20 */
    double losses[20];
    read_metric("whole", "loss", losses, 20);
    assert_true(losses[19] < losses[0] - 0.1); /* it learns */
}

static void resuming_keeps_the_settings_of_the_run(void **state) {
    (void)state;
    assert_int_equal(PROGRAM_RUN("hc_train", "--init-from", "resume", "--out-dir", scratch_path("parts"),
                                 "--max-iters", "22"),
                     0);
    assert_int_equal(TRAIN("whole", SETTINGS, "--max-iters", "22", "--init-from", "resume"), 0);
    assert_same_files(file_in("whole", "ckpt-22/model.safetensors"), file_in("parts", "ckpt-22/model.safetensors"));
}

static void the_same_command_gives_the_same_losses(void **state) {
    (void)state;
    assert_int_equal(TRAIN("once", "--residual", "mhc", "--max-iters", "6"), 0);
    assert_int_equal(TRAIN("twice", "--residual", "mhc", "--max-iters", "6"), 0);
    assert_same_metric("once", "twice", "loss", 6);
    assert_same_files(file_in("once", "ckpt-6/model.safetensors"), file_in("twice", "ckpt-6/model.safetensors"));
}

static void micro_batches_do_not_change_what_is_learned(void **state) {
    (void)state;
    static const char *const splits[3][2] = {{"4", "1"}, {"2", "2"}, {"1", "4"}};
    double losses[3][6];
    for (int i = 0; i < 3; i++) {
        char out[16];
        snprintf(out, sizeof out, "split-%d", i);
        assert_int_equal(TRAIN(out, "--residual", "rc", "--max-iters", "6", "--eval-iters", "0", "--dropout", "0.1",
                               "--batch-size", splits[i][0], "--gradient-accumulation-steps", splits[i][1]),
                         0);
        assert_int_equal(read_metric(out, "loss", losses[i], 6), 6);
        for (int step = 0; step < 6; step++) {
            assert_true(fabs(losses[i][step] / losses[0][step] - 1.0) < 1e-5);
        }
    }
}

/* ---- stopped */

static void wait_milliseconds(long milliseconds) {
    const struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* Until the run has saved this iteration, or ten seconds. */
static void wait_for_checkpoint(const char *out, int64_t iteration) {
    for (int i = 0; i < 1000 && newest_checkpoint(out) < iteration; i++) {
        wait_milliseconds(10);
    }
}

static void killed_at_any_moment_it_resumes(void **state) {
    (void)state;
    for (int trial = 0; trial < 5; trial++) {
        const int64_t before = newest_checkpoint("killed");
        const pid_t child =
            program_start(UINT64_MAX, "hc_train",
                          ARGUMENTS("killed", "--max-iters", "100000", "--checkpoint-interval", "1", "--eval-iters",
                                    "0", "--init-from", trial ? "resume" : "scratch"));
        wait_for_checkpoint("killed", before + 2);
        wait_milliseconds(7 * trial + 3);
        kill(child, SIGKILL);
        assert_int_equal(program_finish(child), 128 + SIGKILL);
        assert_true(newest_checkpoint("killed") > before);
    }
    char last[24];
    snprintf(last, sizeof last, "%lld", (long long)newest_checkpoint("killed") + 1);
    assert_int_equal(TRAIN("killed", "--max-iters", last, "--init-from", "resume"), 0);
    assert_int_equal(count_entries("killed", ".tmp-"), 0);
}

static void interrupted_it_saves_and_resumes(void **state) {
    (void)state;
    const pid_t child =
        program_start(UINT64_MAX, "hc_train",
                      ARGUMENTS("interrupted", "--max-iters", "100000", "--checkpoint-interval", "3"));
    wait_for_checkpoint("interrupted", 3);
    kill(child, SIGINT);
    assert_int_equal(program_finish(child), 130);
    program_expect("--init-from resume");
    const int64_t at = newest_checkpoint("interrupted");
    char next[24];
    snprintf(next, sizeof next, "%lld", (long long)at + 1);
    assert_int_equal(TRAIN("interrupted", "--max-iters", next, "--init-from", "resume"), 0);
    assert_int_equal(newest_checkpoint("interrupted"), at + 1);
}

static void a_full_disk_leaves_the_older_checkpoint(void **state) {
    (void)state;
    assert_int_equal(TRAIN("full", "--max-iters", "2"), 0);
    assert_int_equal(program_run(20000, "hc_train", ARGUMENTS("full", "--max-iters", "4", "--init-from", "resume")),
                     1);
    program_expect("cannot save checkpoint");
    program_expect("File too large");
    program_expect("what was there before is untouched");
    assert_int_equal(newest_checkpoint("full"), 2);
    assert_int_equal(count_entries("full", ".tmp-"), 0);
    assert_int_equal(TRAIN("full", "--max-iters", "4", "--init-from", "resume"), 0);
}

static void a_loss_that_is_not_finite_stops_with_sound_weights(void **state) {
    (void)state;
    size_t bytes;
    assert_int_equal(TRAIN("sound", "--max-iters", "1"), 0);
    char *model = scratch_read(file_in("sound", "ckpt-1/model.safetensors"), &bytes);
    const float not_a_number = NAN;
    memcpy(model + bytes - sizeof not_a_number, &not_a_number, sizeof not_a_number);
    scratch_write("sound/ckpt-1/model.safetensors", model, bytes);
    free(model);
    assert_int_equal(TRAIN("unsound", "--init-from", file_in("sound", "ckpt-1"), "--eval-iters", "0"), 1);
    program_expect("the loss is not finite at iteration 0");
    program_expect("learning_rate");
    assert_int_equal(newest_checkpoint("unsound"), 0);
}

/* ---- checkpoints */

static void only_the_newest_checkpoints_are_kept(void **state) {
    (void)state;
    assert_int_equal(TRAIN("kept", "--max-iters", "6", "--checkpoint-interval", "1", "--keep-checkpoints", "2"), 0);
    assert_int_equal(count_entries("kept", "ckpt-"), 3); /* 5, 6 and best */
    assert_true(files_exist(file_in("kept", "ckpt-5")));
    assert_true(files_exist(file_in("kept", "ckpt-6/state.json")));
    assert_true(files_exist(file_in("kept", "ckpt-best/model.safetensors")));
    assert_false(files_exist(file_in("kept", "ckpt-best/optimizer.safetensors")));
}

static void a_run_can_start_from_a_checkpoint(void **state) {
    (void)state;
    double from_scratch[1], from_weights[1];
    assert_int_equal(TRAIN("started", "--max-iters", "3", "--init-from", file_in("kept", "ckpt-6")), 0);
    read_metric("kept", "loss", from_scratch, 1);
    read_metric("started", "loss", from_weights, 1);
    assert_true(from_weights[0] < from_scratch[0]);
    assert_int_equal(TRAIN("other", "--init-from", file_in("kept", "ckpt-6"), "--residual", "mhc"), 1);
    program_expect("residual");
    assert_int_equal(TRAIN("kept", "--max-iters", "9"), 1); /* another run's folder */
    program_expect("already holds a run");
}

static void statistics_describe_h(void **state) {
    (void)state;
    size_t bytes;
    assert_int_equal(TRAIN("observed", "--max-iters", "4", "--statistics-interval", "2"), 0);
    char *text = scratch_read(file_in("observed", "h_statistics.jsonl"), &bytes);
    assert_non_null(text);
    json_t *json = json_loadb(text, strcspn(text, "\n"), 0, NULL);
    assert_true(fabs(json_number_value(json_object_get(json, "norm_max")) - 1.0) < 1e-5);
    assert_true(fabs(json_number_value(json_object_get(json, "composite_norm_max")) - 1.0) < 1e-5);
    assert_int_equal(json_array_size(json_object_get(json, "stream_cosine")), 4);
    assert_true(fabs(json_number_value(json_array_get(json_object_get(json, "stream_cosine"), 0)) - 1.0) < 1e-5);
    json_decref(json);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resuming_is_bit_identical),
        cmocka_unit_test(resuming_keeps_the_settings_of_the_run),
        cmocka_unit_test(the_same_command_gives_the_same_losses),
        cmocka_unit_test(micro_batches_do_not_change_what_is_learned),
        cmocka_unit_test(killed_at_any_moment_it_resumes),
        cmocka_unit_test(interrupted_it_saves_and_resumes),
        cmocka_unit_test(a_full_disk_leaves_the_older_checkpoint),
        cmocka_unit_test(a_loss_that_is_not_finite_stops_with_sound_weights),
        cmocka_unit_test(only_the_newest_checkpoints_are_kept),
        cmocka_unit_test(a_run_can_start_from_a_checkpoint),
        cmocka_unit_test(statistics_describe_h),
    };
    return cmocka_run_group_tests(tests, begin, scratch_end);
}
