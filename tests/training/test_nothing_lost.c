/* Nothing is lost: what runs and the other programs leave alone, keep, refuse and go on from when pipes break,
 * folders move, files vanish or change, and when two processes want the same. */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/files/files.h"
#include "tests/support/child.h"
#include "tests/support/corpus.h"
#include "tests/support/runs.h"
#include "tests/support/scratch.h"
#include "tests/support/training.h"
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>

enum { FAILED = 1, WRONG_USAGE = 2, INTERRUPTED = 130 };
enum { PATIENCE_MS = 60000 };

#define EVALUATE(...)                                                                                              \
    CHILD_RUN(HC_PROGRAMS "/hc_eval", "--checkpoint", scratch_path("base/ckpt-2"), "--device", "pocl", __VA_ARGS__)
#define PREPARE(...) CHILD_RUN(HC_PROGRAMS "/hc_prepare", __VA_ARGS__)
#define EXPORT(from, to)                                                                                           \
    CHILD_RUN(HC_PROGRAMS "/hc_export", "--format", "torch", "--checkpoint", scratch_path(from), "--out",          \
              scratch_path(to))
#define ANALYZE(...) CHILD_RUN(HC_PROGRAMS "/hc_analyze", __VA_ARGS__)

/* The folder alone says how the run goes on. */
#define RESUME_ARGUMENTS(run, ...)                                                                                 \
    ((const char *const[]){TRAIN_PROGRAM, "--init-from", "resume", "--out-dir", scratch_path(run), ##__VA_ARGS__,  \
                           NULL})
#define RESUME(run, ...) child_finish(child_start(CHILD_UNLIMITED, RESUME_ARGUMENTS(run, ##__VA_ARGS__)))

/* ---- a run under way, of which there is one at a time */

static pid_t under_way;

static void start_with(const struct child_setup *setup, const char *const *arguments) {
    under_way = child_start_with(setup, arguments);
}

static void start(const char *const *arguments) {
    start_with(&(struct child_setup){0}, arguments);
}

static int finish(void) {
    const pid_t child = under_way;
    under_way = 0;
    return child_finish_within(child, PATIENCE_MS / 1000.0);
}

static int interrupt(void) {
    assert_int_equal(kill(under_way, SIGINT), 0);
    return finish();
}

/* After a test that failed in the middle. */
static int stop_what_is_left(void **state) {
    (void)state;
    if (under_way > 0) {
        kill(under_way, SIGKILL);
        finish();
    }
    return 0;
}

static bool is_running(void) {
    siginfo_t info = {.si_pid = 0};
    return waitid(P_PID, (id_t)under_way, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

static long count_lines(const char *path) {
    size_t bytes;
    char *text = scratch_read(scratch_path(path), &bytes);
    long count = 0;
    for (const char *at = text; at && (at = strchr(at, '\n')); at++) {
        count++;
    }
    free(text);
    return count;
}

typedef long (*progress)(const char *run, long than);

static long newer_checkpoint(const char *run, long than) {
    return newest(run, than + 1);
}

static long more_lines(const char *run, long than) {
    const long count = count_lines(run_path(run, "metrics.jsonl"));
    return count > than ? count : -1;
}

/* Waits for what is more than `than`, and not for a run that has ended. */
static long wait_for(progress find, const char *run, long than) {
    for (int waited = 0; waited < PATIENCE_MS; waited += 5) {
        const bool running = is_running();
        const long found = find(run, than);
        if (found >= 0) {
            return found;
        }
        if (!running) {
            const int status = finish();
            fail_msg("%s ended too early with status %d: %s", run, status, child_message());
        }
        wait_ms(5);
    }
    fail_msg("nothing new of %s after %d ms", run, PATIENCE_MS);
    return -1;
}

static const char *decimal(long number) {
    static char texts[8][24];
    static unsigned next;
    char *text = texts[next++ % 8];
    snprintf(text, sizeof texts[0], "%ld", number);
    return text;
}

static const char *checkpoint(long iteration) {
    static char names[8][32];
    static unsigned next;
    char *name = names[next++ % 8];
    snprintf(name, sizeof names[0], "ckpt-%ld", iteration);
    return name;
}

/* ---- files */

static void copy(const char *from, const char *to) {
    size_t bytes;
    char *text = scratch_read(scratch_path(from), &bytes);
    assert_non_null(text);
    scratch_write(to, text, bytes);
    free(text);
}

/* The corpus again, for tests that change it. */
static void copy_data(const char *to) {
    static const char *const names[] = {"train.bin", "val.bin", "meta.json"};
    assert_int_equal(files_make_folder(scratch_path(to)), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        copy(run_path("data", names[i]), run_path(to, names[i]));
    }
}

static json_t *read_json(const char *path) {
    json_t *json = json_load_file(scratch_path(path), 0, NULL);
    assert_non_null(json);
    return json;
}

/* `target` is as ln has it: relative to the link. */
static void link_to(const char *target, const char *name) {
    assert_int_equal(symlink(target, scratch_path(name)), 0);
}

static void assert_link(const char *name) {
    struct stat status;
    assert_int_equal(lstat(scratch_path(name), &status), 0);
    assert_true(S_ISLNK(status.st_mode));
}

static void remove_checkpoint(const char *run, long iteration) {
    assert_int_equal(files_remove_folder(scratch_path(run_path(run, checkpoint(iteration)))), 0);
}

static void assert_says(const char *text) {
    if (!strstr(child_message(), text)) {
        fail_msg("'%s' is not in: %s", text, child_message());
    }
}

/* Refused as a failure or as wrong usage. */
static void assert_refused(int status, const char *text) {
    if (status != FAILED && status != WRONG_USAGE) {
        fail_msg("exit status %d instead of a refusal: %s", status, child_message());
    }
    assert_says(text);
}

/* ---- 1: files of others */

static void make_old(const char *path) {
    const time_t then = time(NULL) - (time_t)2 * 60 * 60;
    assert_int_equal(utime(scratch_path(path), &(struct utimbuf){.actime = then, .modtime = then}), 0);
}

/* Names like those of leftovers: a folder of somebody's, and what a process of another host may be writing. */
static void leave_others(const char *folder) {
    assert_int_equal(files_make_folder(scratch_path(run_path(folder, ".tmp-mystuff"))), 0);
    scratch_write(run_path(folder, ".tmp-mystuff/thesis"), "mine", 4);
    scratch_write(run_path(folder, ".tmp-old-00000000-1-1"), "theirs", 6);
    make_old(run_path(folder, ".tmp-mystuff/thesis"));
    make_old(run_path(folder, ".tmp-mystuff"));
    make_old(run_path(folder, ".tmp-old-00000000-1-1"));
}

static void assert_others_are_there(const char *folder) {
    assert_true(has(folder, ".tmp-mystuff/thesis"));
    assert_true(has(folder, ".tmp-old-00000000-1-1"));
}

static void evaluation_spares_the_files_of_others(void **state) {
    (void)state;
    leave_others("others-eval");
    assert_done(EVALUATE("--json", scratch_path("others-eval/r.json"), scratch_path("short.txt")));
    assert_true(has("others-eval", "r.json"));
    assert_others_are_there("others-eval");
}

static void run_spares_the_files_of_others(void **state) {
    (void)state;
    leave_others("others-run");
    assert_done(TRAIN("others-run", "--max-iters", "2"));
    assert_others_are_there("others-run");
}

/* ---- 2: links */

static void run_directory_may_be_a_link(void **state) {
    (void)state;
    assert_int_equal(files_make_folder(scratch_path("real-run")), 0);
    link_to("real-run", "link-run");
    assert_done(TRAIN("link-run", "--max-iters", "2"));
    assert_done(RESUME("link-run", "--max-iters", "4"));
    assert_true(has("real-run", "ckpt-4"));
    assert_int_equal(count_lines("real-run/metrics.jsonl"), 4);
    assert_link("link-run");
}

static void token_files_may_go_through_a_link(void **state) {
    (void)state;
    assert_int_equal(files_make_folder(scratch_path("real-data")), 0);
    link_to("real-data", "link-data");
    assert_done(PREPARE("--out", scratch_path("link-data"), scratch_path("text.txt")));
    assert_same_file("real-data/train.bin", "data/train.bin");
    assert_done(PREPARE("--out", scratch_path("link-data"), scratch_path("text.txt"))); /* over the older ones */
    assert_same_file("real-data/train.bin", "data/train.bin");
    assert_int_equal(scratch_entries(scratch_path("real-data")), 3);
    assert_link("link-data");
}

static void evaluation_may_be_written_through_a_link(void **state) {
    (void)state;
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

static void export_may_be_replaced_through_a_link(void **state) {
    (void)state;
    assert_done(EXPORT("base/ckpt-1", "real-export"));
    assert_done(EXPORT("base/ckpt-2", "export-2"));
    link_to("real-export", "link-export");
    assert_done(EXPORT("base/ckpt-2", "link-export"));
    assert_link("link-export");
    assert_same_file("real-export/model.safetensors", "export-2/model.safetensors");
}

static void analysis_may_go_through_a_link(void **state) {
    (void)state;
    assert_int_equal(files_make_folder(scratch_path("real-report")), 0);
    link_to("real-report", "link-report");
    assert_done(ANALYZE("--out", scratch_path("link-report"), scratch_path("base")));
    assert_true(has("real-report", "report.html") && has("real-report", "analysis.json"));
    assert_link("link-report");
}

/* ---- 3: nobody reads what it says */

/* Starts a run whose stderr is a pipe; its reading end. */
static int start_with_pipe(const char *const *arguments) {
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    start_with(&(struct child_setup){.errors_to = ends[1]}, arguments);
    close(ends[1]);
    return ends[0];
}

static void training_outlives_its_pipe(void **state) {
    (void)state;
    close(start_with_pipe(TRAIN_ARGUMENTS("pipe", "--eval-interval", "5", "--eval-iters", "1")));
    assert_done(finish());
    assert_true(has("pipe", "ckpt-20"));
    assert_int_equal(count_lines("pipe/metrics.jsonl"), 20 + 5);
}

static void training_goes_on_where_messages_find_no_room(void **state) {
    (void)state;
    start_with(&(struct child_setup){.errors = "/dev/full"}, TRAIN_ARGUMENTS("mute"));
    assert_done(finish());
    assert_true(has("mute", "ckpt-20"));
}

static void run_whose_reader_died_can_be_interrupted(void **state) {
    (void)state;
    char letter = '\0';
    const int reading =
        start_with_pipe(TRAIN_ARGUMENTS("unread", "--max-iters", "100000", "--checkpoint-interval", "3"));
    while (letter != '\n') {
        assert_int_equal(read(reading, &letter, 1), 1);
    }
    close(reading);
    wait_for(newer_checkpoint, "unread", 0);
    assert_int_equal(interrupt(), INTERRUPTED);
    const long at = newest("unread", 1);
    assert_int_equal(count_lines("unread/metrics.jsonl"), at);
    assert_done(RESUME("unread", "--max-iters", decimal(at + 1)));
}

/* ---- 4: folders that hold something of a run */

/* Moves one thing of a run into a folder of its own, where a new run must not begin. */
static void assert_keeps_runs_out(const char *run, const char *name) {
    char folder[64];
    snprintf(folder, sizeof folder, "only-%s", name);
    assert_int_equal(files_make_folder(scratch_path(folder)), 0);
    assert_int_equal(rename(scratch_path(run_path(run, name)), scratch_path(run_path(folder, name))), 0);
    assert_failed(TRAIN(folder, "--max-iters", "2"), FAILED, "already holds a run");
    assert_int_equal(scratch_entries(scratch_path(folder)), 1);
}

static void what_a_run_left_keeps_others_out(void **state) {
    (void)state;
    assert_done(TRAIN("left", "--max-iters", "4", "--eval-interval", "2", "--eval-iters", "1",
                      "--statistics-interval", "1"));
    assert_keeps_runs_out("left", "ckpt-best");
    assert_keeps_runs_out("left", "metrics.jsonl");
    assert_keeps_runs_out("left", "h_statistics.jsonl");
}

/* As a run leaves them that was killed before its first iteration. */
static void empty_records_are_no_run(void **state) {
    (void)state;
    assert_int_equal(files_make_folder(scratch_path("stillborn")), 0);
    scratch_write("stillborn/metrics.jsonl", "", 0);
    scratch_write("stillborn/h_statistics.jsonl", "", 0);
    assert_done(TRAIN("stillborn", "--max-iters", "2"));
    assert_int_equal(count_lines("stillborn/metrics.jsonl"), 2);
}

static void starting_over_removes_the_earlier_run_and_nothing_else(void **state) {
    (void)state;
    assert_done(TRAIN("again", "--max-iters", "4", "--eval-interval", "2", "--eval-iters", "1", "--tensorboard",
                      "--statistics-interval", "1", "--checkpoint-interval", "2"));
    scratch_write("again/notes.txt", "mine", 4);
    assert_int_equal(scratch_entries(scratch_path("again")), 9); /* two are of TensorBoard */
    assert_failed(RESUME("again", "--start-over"), WRONG_USAGE, "start-over");
    assert_true(has("again", "ckpt-4") && has("again", "ckpt-best"));
    assert_done(TRAIN("again", "--start-over", "--max-iters", "3"));
    assert_done(TRAIN("afresh", "--max-iters", "3"));
    assert_same_metrics("again", "afresh");
    assert_same_checkpoint("again", "afresh", "ckpt-3");
    assert_true(has("again", "notes.txt"));
    assert_int_equal(scratch_entries(scratch_path("again")), 4); /* checkpoint, metrics, settings, notes */
    assert_failed(TRAIN("again", "--max-iters", "3"), FAILED, "already holds a run");
}

/* The checkpoint to begin with is one of those that would be removed: refused, or read before. */
static void starting_over_from_its_own_checkpoint_loses_nothing(void **state) {
    (void)state;
    assert_done(TRAIN("circle", "--max-iters", "3"));
    copy("circle/ckpt-3/model.safetensors", "circle.safetensors");
    const int status =
        TRAIN("circle", "--start-over", "--init-from", scratch_path("circle/ckpt-3"), "--max-iters", "0");
    assert_same_file(status == 0 ? "circle/ckpt-0/model.safetensors" : "circle/ckpt-3/model.safetensors",
                     "circle.safetensors");
}

/* ---- 5: two at once */

/* A pipe that is full, so that a child waits with its first message until it is read. */
static void make_full_pipe(int ends[2]) {
    static const char page[4096];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    const int room = fcntl(ends[1], F_SETPIPE_SZ, sizeof page);
    assert_true(room > 0);
    for (int filled = 0; filled < room; filled += (int)sizeof page) {
        assert_int_equal(write(ends[1], page, sizeof page), sizeof page);
    }
}

/* What a child says from here to its end; `text` is 0 to begin with. */
static void read_all(int reading, char *text, size_t size) {
    size_t used = 0;
    char letter;
    while (read(reading, &letter, 1) == 1) {
        if (letter && used + 1 < size) {
            text[used++] = letter;
        }
    }
    close(reading);
}

static void assert_one_trained(const char *run, const int status[2], const char *const said[2]) {
    const int loser = status[0] == 0 ? 1 : 0;
    const char *text = said[loser];
    if (status[!loser] != 0 || status[loser] != FAILED ||
        (!strstr(text, "another process is writing to") && !strstr(text, "already holds a run"))) {
        fail_msg("%s: status %d and %d: %s\n%s", run, status[0], status[1], said[0], said[1]);
    }
    assert_true(has(run, "ckpt-1"));
    assert_int_equal(count_lines(run_path(run, "metrics.jsonl")), 1);
}

/* The held one waits with its first message until the other one has ended, whatever it has looked at before. */
static void race(int round) {
    static char held_said[10000];
    char run[32];
    int ends[2], status[2];
    pid_t free_one = 0;
    snprintf(run, sizeof run, "race-%d", round);
    make_full_pipe(ends);
    for (int i = 0; i < 2; i++) {
        if (i == round % 2) {
            start_with(&(struct child_setup){.errors_to = ends[1]}, TRAIN_ARGUMENTS(run, "--max-iters", "1"));
        } else {
            free_one = child_start_with(&(struct child_setup){.errors = scratch_path("free-said")},
                                        TRAIN_ARGUMENTS(run, "--max-iters", "1"));
        }
    }
    close(ends[1]);
    status[0] = child_finish_within(free_one, PATIENCE_MS / 1000.0);
    memset(held_said, 0, sizeof held_said);
    read_all(ends[0], held_said, sizeof held_said);
    status[1] = finish();
    size_t bytes;
    char *free_said = scratch_read(scratch_path("free-said"), &bytes);
    assert_non_null(free_said);
    assert_one_trained(run, status, (const char *const[]){free_said, held_said});
    free(free_said);
}

static void of_two_runs_in_a_new_folder_one_trains(void **state) {
    (void)state;
    for (int round = 0; round < 5; round++) {
        race(round);
    }
}

/* ---- 6: settings.conf */

static void assert_has(const char *name, const char *wanted) {
    char *text = scratch_read(scratch_path(name), &(size_t){0});
    if (!text || !strstr(text, wanted)) {
        fail_msg("'%s' is not in %s", wanted, name);
    }
    free(text);
}

#define UNUSUAL "--learning-rate", "3e-3", "--dropout", "0.1", "--weight-decay", "0.3"

static void run_resumes_without_its_settings_file(void **state) {
    (void)state;
    static const char *const runs[] = {"settings-removed", "settings-emptied"};
    assert_done(TRAIN("settings-kept", UNUSUAL, "--max-iters", "20"));
    assert_has("settings-kept/settings.conf", "# Settings of a run of hctrain " HC_VERSION "\n");
    assert_has("settings-kept/ckpt-20/state.json", "\"version\": \"" HC_VERSION "\"");
    for (int i = 0; i < 2; i++) {
        const char *path = scratch_path(run_path(runs[i], "settings.conf"));
        assert_done(TRAIN(runs[i], UNUSUAL, "--max-iters", "10"));
        assert_int_equal(i == 0 ? unlink(path) : truncate(path, 0), 0);
        assert_done(RESUME(runs[i], "--max-iters", "20"));
        assert_same_metrics(runs[i], "settings-kept");
        assert_same_checkpoint(runs[i], "settings-kept", "ckpt-20");
    }
}

/* ---- 7: the folder moves */

static long newer_after_the_move(const char *run, long than) {
    assert_false(files_exist(scratch_path("departing")));
    return newest(run, than + 1);
}

static void run_follows_its_folder(void **state) {
    (void)state;
    start(TRAIN_ARGUMENTS("departing", "--max-iters", "100000", "--checkpoint-interval", "3"));
    wait_for(newer_checkpoint, "departing", 0);
    assert_int_equal(rename(scratch_path("departing"), scratch_path("elsewhere")), 0);
    wait_for(newer_after_the_move, "elsewhere", newest("elsewhere", 0) + 3); /* begun after the move */
    assert_failed(interrupt(), INTERRUPTED, "interrupted");
    assert_false(files_exist(scratch_path("departing")));
    const long at = newest("elsewhere", 1);
    assert_int_equal(count_lines("elsewhere/metrics.jsonl"), at);
    assert_done(RESUME("elsewhere", "--max-iters", decimal(at + 3)));
    assert_done(TRAIN("sedentary", "--max-iters", decimal(at + 3)));
    assert_same_metrics("elsewhere", "sedentary");
    assert_same_checkpoint("elsewhere", "sedentary", checkpoint(at + 3));
}

/* ---- 8, 9: the data */

static void name_of_the_data_may_be_any_bytes(void **state) {
    (void)state;
    copy_data("data-\xff");
    assert_done(TRAIN("oddly-named", "--data-dir", scratch_path("data-\xff"), "--max-iters", "10"));
    assert_done(RESUME("oddly-named", "--max-iters", "20"));
    assert_done(TRAIN("plainly-named"));
    assert_same_metrics("oddly-named", "plainly-named");
    assert_same_checkpoint("oddly-named", "plainly-named", "ckpt-20");
}

/* The same tokens in another order. */
static void turn_round(const char *path) {
    size_t bytes;
    char *data = scratch_read(scratch_path(path), &bytes);
    assert_non_null(data);
    char *turned = malloc(bytes);
    assert_non_null(turned);
    for (size_t i = 0; i < bytes; i += 2) {
        memcpy(turned + i, data + bytes - 2 - i, 2);
    }
    scratch_write(path, turned, bytes);
    free(turned);
    free(data);
}

static void exchanged_data_must_be_accepted(void **state) {
    (void)state;
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

static void data_may_move(void **state) {
    (void)state;
    copy_data("data-here");
    assert_done(TRAIN("data-moved", "--data-dir", scratch_path("data-here"), "--max-iters", "10"));
    assert_int_equal(rename(scratch_path("data-here"), scratch_path("data-there")), 0);
    assert_done(RESUME("data-moved", "--data-dir", scratch_path("data-there"), "--max-iters", "15"));
    assert_done(RESUME("data-moved", "--max-iters", "20"));
    assert_done(TRAIN("data-stayed"));
    assert_same_metrics("data-moved", "data-stayed");
    assert_same_checkpoint("data-moved", "data-stayed", "ckpt-20");
}

/* ---- 10, 11: evaluations */

static long count_evaluations(const char *run, long iteration) {
    json_t *lines = metrics(run), *line;
    size_t index;
    long count = 0;
    json_array_foreach(lines, index, line) {
        count +=
            json_object_get(line, "val_loss") && json_integer_value(json_object_get(line, "iter")) == iteration;
    }
    json_decref(lines);
    return count;
}

static void first_evaluation_outlives_an_interruption(void **state) {
    (void)state;
    assert_done(TRAIN("begun", "--max-iters", "0", "--eval-interval", "5", "--eval-iters", "2"));
    assert_true(has("begun", "ckpt-0"));
    assert_int_equal(count_evaluations("begun", 0), 1);
    assert_done(RESUME("begun", "--max-iters", "10"));
    assert_int_equal(count_evaluations("begun", 0), 1);
    assert_done(TRAIN("not-begun", "--max-iters", "10", "--eval-interval", "5", "--eval-iters", "2"));
    assert_same_metrics("begun", "not-begun");
}

static void last_evaluation_stands_once(void **state) {
    (void)state;
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

/* ---- 12: the data becomes shorter under a run */

static void data_that_becomes_shorter_ends_the_run_with_a_checkpoint(void **state) {
    (void)state;
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
    assert_same_metrics("shortened", "unshortened");
    assert_same_checkpoint("shortened", "unshortened", checkpoint(at + 3));
}

/* No step is made with what was written, so that the run goes on as if nothing had happened once the file is back. Times alone do not
 * matter. */
static void data_that_is_written_over_ends_the_run_with_a_checkpoint(void **state) {
    (void)state;
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
    assert_same_metrics("overwritten", "not-overwritten");
    assert_same_checkpoint("overwritten", "not-overwritten", checkpoint(at + 3));
}

/* ---- 13: results over inputs */

static void assert_not_prepared_over(const char *out, const char *input) {
    assert_refused(PREPARE("--out", scratch_path(out), scratch_path(input)), "input");
    assert_same_file("tokens/train.bin", "data/train.bin");
    assert_int_equal(scratch_entries(scratch_path("tokens")), 1);
}

static void tokens_are_not_prepared_over_their_input(void **state) {
    (void)state;
    assert_int_equal(files_make_folder(scratch_path("tokens")), 0);
    copy("data/train.bin", "tokens/train.bin");
    link_to("tokens/train.bin", "soft-link");
    link_to("tokens", "tokens-link");
    assert_int_equal(link(scratch_path("tokens/train.bin"), scratch_path("hard-link")), 0);
    assert_not_prepared_over("tokens", "tokens/train.bin");
    assert_not_prepared_over("tokens", "soft-link");
    assert_not_prepared_over("tokens", "hard-link");
    assert_not_prepared_over("tokens-link", "tokens/train.bin");
    assert_not_prepared_over("tokens", "tokens-link/train.bin");
}

static void evaluation_is_not_written_over_its_input(void **state) {
    (void)state;
    static const char *const options[] = {"--json", "--per-document"};
    link_to("scored.txt", "scored-link");
    for (int i = 0; i < 2; i++) {
        copy("short.txt", "scored.txt");
        assert_refused(EVALUATE(options[i], scratch_path("scored.txt"), scratch_path("scored.txt")), "scored.txt");
        assert_refused(EVALUATE(options[i], scratch_path("scored-link"), scratch_path("scored.txt")), "scored");
        assert_same_file("scored.txt", "short.txt");
    }
}

/* The checkpoint and the token files are inputs too. */
static void evaluation_is_not_written_over_what_it_scores(void **state) {
    (void)state;
    copy_data("evaluated");
    assert_done(TRAIN("evaluating", "--max-iters", "2"));
    copy("evaluating/ckpt-2/config.json", "config.json");
    assert_refused(CHILD_RUN(HC_PROGRAMS "/hc_eval", "--checkpoint", scratch_path("evaluating/ckpt-2"), "--device",
                             "pocl", "--json", scratch_path("evaluating/ckpt-2/config.json"),
                             scratch_path("short.txt")),
                   "config.json");
    assert_same_file("evaluating/ckpt-2/config.json", "config.json");
    assert_refused(EVALUATE("--data", scratch_path("evaluated"), "--json", scratch_path("evaluated/val.bin")),
                   "val.bin");
    assert_same_file("evaluated/val.bin", "data/val.bin");
}

static void checkpoint_is_not_exported_over_itself(void **state) {
    (void)state;
    struct stat before, after;
    assert_done(EXPORT("base/ckpt-2", "exported"));
    assert_int_equal(stat(scratch_path("exported/model.safetensors"), &before), 0);
    link_to("exported", "exported-link");
    assert_refused(EXPORT("exported", "exported"), "exported");
    assert_refused(EXPORT("exported", "exported-link"), "exported");
    assert_refused(EXPORT("exported-link", "exported"), "exported");
    assert_int_equal(stat(scratch_path("exported/model.safetensors"), &after), 0);
    assert_true(before.st_ino == after.st_ino && before.st_size == after.st_size);
    assert_int_equal(before.st_mtim.tv_sec, after.st_mtim.tv_sec);
    assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
}

/* ---- 15: statistics of a branch that was given up */

static void statistics_of_a_branch_given_up_go(void **state) {
    (void)state;
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

/* ---- 16: how far a run goes */

/* Without its newest checkpoints a run is as if it had been killed after the one before them. */
static void smaller_end_holds_once_a_larger_one_for_good(void **state) {
    (void)state;
    assert_done(TRAIN("goal", "--max-iters", "20", "--checkpoint-interval", "5", "--keep-checkpoints", "9"));
    remove_checkpoint("goal", 20);
    remove_checkpoint("goal", 15);
    remove_checkpoint("goal", 10);
    assert_done(RESUME("goal", "--max-iters", "7"));
    assert_int_equal(newest("goal", 0), 7);
    assert_done(RESUME("goal"));
    assert_int_equal(newest("goal", 0), 20);
    assert_done(RESUME("goal", "--max-iters", "25"));
    remove_checkpoint("goal", 25);
    assert_done(RESUME("goal"));
    assert_int_equal(newest("goal", 0), 25);
}

/* ---- 17: large records */

/* Holes at its end, as a power cut may leave them, make the file large in no time; lines in between them keep what
 * is read at once small. */
static void records_of_more_than_a_gibibyte_are_resumed(void **state) {
    (void)state;
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

/* ---- 18: settings that can be read once */

/* The end of a pipe that has this text, and its name. */
static int open_text(const char *text, char name[32]) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], text, strlen(text)), strlen(text));
    close(ends[1]);
    snprintf(name, 32, "/dev/fd/%d", ends[0]);
    return ends[0];
}

static void settings_may_come_through_a_pipe(void **state) {
    (void)state;
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

/* ---- 20: reports, the best checkpoint, caches */

static void damaged_lines_are_passed_over(void **state) {
    (void)state;
    static const char lines[] = "{\"iter\":0,\"loss\":5.5,\"grad_norm\":1}\n"
                                "{\"iter\":1,\"lo#s\":5.25,\n"
                                "{\"iter\":2,\"loss\":5,\"grad_norm\":1}\n"
                                "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\n"
                                "{\"iter\":3,\"loss\":4.5,\"grad_norm\":1}\n";
    assert_int_equal(files_make_folder(scratch_path("damaged")), 0);
    scratch_write("damaged/metrics.jsonl", lines, sizeof lines - 1);
    assert_done(ANALYZE("--out", scratch_path("damaged-report"), scratch_path("damaged")));
    assert_says("damaged/metrics.jsonl");
    assert_says("passed over");
    assert_says("2 lines");
    json_t *json = read_json("damaged-report/analysis.json"), *expected = json_pack("[i,i,i]", 0, 2, 3);
    const json_t *run = json_array_get(json_object_get(json, "runs"), 0);
    const json_t *steps = json_object_get(json_object_get(run, "record"), "steps");
    assert_true(json_equal(json_object_get(steps, "iter"), expected));
    json_decref(expected);
    json_decref(json);
}

static void names_of_runs_may_be_in_any_language(void **state) {
    (void)state;
    static const char name[] = "прогон-実験", line[] = "{\"iter\":0,\"loss\":5.5,\"grad_norm\":1}\n";
    size_t bytes;
    assert_int_equal(files_make_folder(scratch_path(name)), 0);
    scratch_write(run_path(name, "metrics.jsonl"), line, sizeof line - 1);
    assert_done(ANALYZE("--out", scratch_path("named-report"), scratch_path(name)));
    json_t *json = read_json("named-report/analysis.json");
    const json_t *run = json_array_get(json_object_get(json, "runs"), 0);
    assert_string_equal(json_string_value(json_object_get(run, "name")), name);
    json_decref(json);
    char *page = scratch_read(scratch_path("named-report/report.html"), &bytes);
    assert_non_null(page);
    assert_non_null(strstr(page, name));
    assert_null(strstr(page, "???"));
    free(page);
}

static void weights_that_training_made_worse_are_kept(void **state) {
    (void)state;
    assert_done(TRAIN("worse", "--residual", "rc", "--learning-rate", "10", "--min-lr", "10", "--grad-clip", "0",
                      "--warmup-iters", "0", "--max-iters", "2", "--eval-interval", "1", "--eval-iters", "2"));
    json_t *lines = metrics("worse");
    assert_true(json_number_value(json_object_get(json_array_get(lines, 0), "val_loss")) < 6.0);
    json_decref(lines);
    assert_true(has("worse", "ckpt-best/model.safetensors"));
    json_t *saved = read_json("worse/ckpt-best/state.json");
    assert_int_equal(json_integer_value(json_object_get(saved, "iteration")), 0);
    json_decref(saved);
}

/* Trains, or says which folder it cannot write; `culprit` is a part of that folder's name. */
static void train_with(const char *run, const char *culprit, const char *const *environment) {
    start_with(&(struct child_setup){.environment = environment}, TRAIN_ARGUMENTS(run, "--max-iters", "1"));
    const int status = finish();
    if (strstr(child_message(), "no OpenCL device") || (status != 0 && !strstr(child_message(), culprit))) {
        fail_msg("%s: exit status %d: %s", run, status, child_message());
    }
}

/* Paths below a file: nobody can make them, root included. */
static void caches_that_cannot_be_written_are_no_missing_device(void **state) {
    (void)state;
    char cache[512], home[512], plain_home[512], temporary[512], pocl[512];
    scratch_write("a-file", "", 0);
    assert_int_equal(files_make_folder(scratch_path("a-home")), 0);
    scratch_write("a-home/.cache", "", 0);
    snprintf(cache, sizeof cache, "XDG_CACHE_HOME=%s", scratch_path("a-file/cache"));
    snprintf(home, sizeof home, "HOME=%s", scratch_path("a-file/home"));
    snprintf(plain_home, sizeof plain_home, "HOME=%s", scratch_path("a-home"));
    snprintf(temporary, sizeof temporary, "TMPDIR=%s", scratch_path("a-file/tmp"));
    snprintf(pocl, sizeof pocl, "POCL_CACHE_DIR=%s", scratch_path("a-file/pocl"));
#define TRAIN_WITH(run, culprit, ...) train_with(run, culprit, (const char *const[]){__VA_ARGS__, NULL})
    TRAIN_WITH("no-cache", "a-file", "POCL_CACHE_DIR", cache, home);
    TRAIN_WITH("no-cache-in-home", ".cache", "POCL_CACHE_DIR", "XDG_CACHE_HOME", plain_home);
    TRAIN_WITH("no-cache-to-make", "/proc/nowhere", "POCL_CACHE_DIR", "XDG_CACHE_HOME=/proc/nowhere", home);
    TRAIN_WITH("no-cache-of-pocl", "a-file", pocl, cache, home);
    TRAIN_WITH("no-cache-at-all", "a-file", "POCL_CACHE_DIR", cache, home, temporary);
#undef TRAIN_WITH
}

/* ---- what a review found */

/* What goes wrong with a new run costs the old one nothing. */
static void starting_over_waits_until_all_is_well(void **state) {
    (void)state;
    assert_done(TRAIN("precious", "--max-iters", "2", "--checkpoint-interval", "1"));
    assert_failed(TRAIN("precious", "--start-over", "--init-from", scratch_path("precious/ckpt-2")), 1,
                  "which the new run begins with");
    /* where nothing can be written, messages are lost too */
    assert_int_equal(child_finish(child_start(1, TRAIN_ARGUMENTS("precious", "--start-over"))), 1);
    assert_int_equal(files_make_folder(scratch_path("precious/ckpt-100")), 0);
    scratch_write("precious/ckpt-100/model.pt", "mine", 4);
    assert_failed(TRAIN("precious", "--start-over"), 1, "ckpt-100 is no checkpoint of this program's");
    assert_true(has("precious", "ckpt-1/state.json") && has("precious", "ckpt-2/state.json"));
    assert_true(has("precious", "ckpt-100/model.pt"));
}

static void failing_best_checkpoint_does_not_cost_the_run(void **state) {
    (void)state;
    assert_int_equal(files_make_folder(scratch_path("no-best")), 0);
    assert_done(TRAIN("no-best", "--max-iters", "2"));
    scratch_write("no-best/ckpt-best", "", 0);
    assert_failed(TRAIN("no-best", "--init-from", "resume", "--eval-interval", "4", "--eval-iters", "1",
                        "--checkpoint-interval", "1000"),
                  1, "something of this name that is not a folder");
    assert_true(has("no-best", "ckpt-4/state.json"));
    json_t *saved = read_json("no-best/ckpt-4/state.json");
    assert_int_equal(json_integer_value(json_object_get(saved, "evaluated_at")), -1);
    json_decref(saved);
    assert_int_equal(unlink(scratch_path("no-best/ckpt-best")), 0);
    assert_done(TRAIN("no-best", "--init-from", "resume", "--eval-interval", "4", "--eval-iters", "1"));
    assert_true(has("no-best", "ckpt-best/state.json"));
}

/* The best weights stay when an earlier checkpoint is resumed, which may know of no evaluation; on other data they
 * are the best no more. */
static void best_weights_of_a_later_iteration_stay(void **state) {
    (void)state;
    assert_done(TRAIN("later-best", "--max-iters", "5"));
    assert_done(TRAIN("later-best", "--max-iters", "15", "--init-from", "resume", "--eval-interval", "15",
                      "--eval-iters", "2", "--checkpoint-interval", "1000"));
    assert_int_equal(files_remove_folder(scratch_path("later-best/ckpt-15")), 0);
    assert_done(TRAIN("later-best", "--max-iters", "6", "--init-from", "resume", "--eval-interval", "15",
                      "--eval-iters", "2"));
    json_t *best = read_json("later-best/ckpt-best/state.json"), *saved = read_json("later-best/ckpt-6/state.json");
    assert_int_equal(json_integer_value(json_object_get(best, "iteration")), 15);
    assert_int_equal(json_integer_value(json_object_get(saved, "best_iteration")), 15);
    json_object_set_new(json_object_get(best, "data"), "val", json_string("another"));
    assert_int_equal(json_dump_file(best, scratch_path("later-best/ckpt-best/state.json"), 0), 0);
    assert_int_equal(json_object_set_new(saved, "best_iteration", json_integer(-1)), 0);
    assert_int_equal(json_object_set_new(saved, "best_val_loss", json_null()), 0);
    assert_int_equal(json_dump_file(saved, scratch_path("later-best/ckpt-6/state.json"), 0), 0);
    json_decref(best);
    json_decref(saved);
    assert_done(TRAIN("later-best", "--max-iters", "7", "--init-from", "resume", "--eval-interval", "15",
                      "--eval-iters", "2"));
    best = read_json("later-best/ckpt-best/state.json");
    assert_int_equal(json_integer_value(json_object_get(best, "iteration")), 7);
    json_decref(best);
}

static json_int_t saved_integer(const char *path, const char *name) {
    json_t *saved = read_json(path);
    const json_int_t value = json_integer_value(json_object_get(saved, name));
    json_decref(saved);
    return value;
}

/* Losses on val.bin compare as long as it is the same file. */
static void best_loss_is_that_of_the_validation_data(void **state) {
    (void)state;
    copy_data("half-changing");
    assert_done(TRAIN("half-changed", "--data-dir", scratch_path("half-changing"), "--max-iters", "4",
                      "--eval-interval", "100", "--eval-iters", "2"));
    assert_int_equal(saved_integer("half-changed/ckpt-4/state.json", "best_iteration"), 4);
    turn_round("half-changing/train.bin");
    assert_done(RESUME("half-changed", "--max-iters", "5", "--accept-new-data", "--eval-iters", "0"));
    assert_int_equal(saved_integer("half-changed/ckpt-5/state.json", "best_iteration"), 4);
    turn_round("half-changing/val.bin");
    assert_done(RESUME("half-changed", "--max-iters", "6", "--accept-new-data", "--learning-rate", "0", "--min-lr",
                       "0", "--eval-iters", "2"));
    assert_int_equal(saved_integer("half-changed/ckpt-6/state.json", "best_iteration"), 6);
}

/* As after a kill between two renames, where a file system cannot replace a folder in one step. */
static void best_weights_that_are_gone_are_replaced(void **state) {
    (void)state;
    assert_done(TRAIN("best-gone", "--max-iters", "4", "--eval-interval", "100", "--eval-iters", "2"));
    json_t *saved = read_json("best-gone/ckpt-4/state.json");
    json_object_set_new(saved, "best_val_loss", json_real(0.001));
    assert_int_equal(json_dump_file(saved, scratch_path("best-gone/ckpt-4/state.json"), 0), 0);
    json_decref(saved);
    assert_done(RESUME("best-gone", "--max-iters", "5"));
    assert_int_equal(saved_integer("best-gone/ckpt-best/state.json", "iteration"), 4);
    assert_int_equal(files_remove_folder(scratch_path("best-gone/ckpt-best")), 0);
    assert_done(RESUME("best-gone", "--max-iters", "6"));
    assert_int_equal(saved_integer("best-gone/ckpt-best/state.json", "iteration"), 6);
}

/* An evaluation that is made up for changes what the checkpoint says and nothing else in its folder. */
static void made_up_evaluation_leaves_the_checkpoint_alone(void **state) {
    (void)state;
    assert_done(TRAIN("noted", "--max-iters", "2"));
    scratch_write("noted/ckpt-2/notes.txt", "mine", 4);
    assert_done(
        TRAIN("noted", "--max-iters", "2", "--init-from", "resume", "--eval-interval", "2", "--eval-iters", "1"));
    json_t *saved = read_json("noted/ckpt-2/state.json");
    assert_int_equal(json_integer_value(json_object_get(saved, "evaluated_at")), 2);
    json_decref(saved);
    assert_true(has("noted", "ckpt-2/notes.txt"));
    assert_done(TRAIN("noted", "--max-iters", "4", "--init-from", "resume"));
}

static void checkpoint_of_another_name_is_refused(void **state) {
    (void)state;
    assert_done(TRAIN("misnamed", "--max-iters", "2"));
    assert_int_equal(rename(scratch_path("misnamed/ckpt-2"), scratch_path("misnamed/ckpt-500")), 0);
    assert_failed(TRAIN("misnamed", "--init-from", "resume"), 1, "is of iteration 2");
}

static void run_without_any_settings_is_refused(void **state) {
    (void)state;
    assert_done(TRAIN("unset", "--max-iters", "2"));
    json_t *saved = read_json("unset/ckpt-2/state.json");
    json_object_del(saved, "settings");
    assert_int_equal(json_dump_file(saved, scratch_path("unset/ckpt-2/state.json"), 0), 0);
    json_decref(saved);
    assert_done(TRAIN("unset", "--init-from", "resume", "--max-iters", "2"));
    assert_int_equal(unlink(scratch_path("unset/settings.conf")), 0);
    assert_failed(TRAIN("unset", "--init-from", "resume"), 1, "neither state.json nor settings.conf");
}

/* Address space that is too small for a driver's compiler, which would end the process or hang. */
static void too_little_address_space_is_said(void **state) {
    (void)state;
#ifndef __SANITIZE_ADDRESS__ /* it needs terabytes of it */
    static const char *const limits[] = {"ulimit -v",
                                         "ulimit -d"}; /* of all memory, and of what can be written to */
    for (size_t i = 0; i < 2; i++) {
        char command[600];
        snprintf(command, sizeof command, "%s 600000; exec %s --config %s --data-dir %s --out-dir %s --max-iters 1",
                 limits[i], HC_PROGRAMS "/hc_train", scratch_path("tiny.conf"), scratch_path("data"),
                 scratch_path("cramped"));
        const pid_t child = child_start(CHILD_UNLIMITED, (const char *const[]){"/bin/sh", "-c", command, NULL});
        assert_failed(child_finish_within(child, 60.0), 1, limits[i]);
    }
#endif
}

/* ---- names that lead elsewhere */

/* A copy of a run as backups make it (cp -al): other names of the same files. */
static void copy_by_links(const char *from, const char *to) {
    assert_done(CHILD_RUN("/bin/cp", "-al", scratch_path(from), scratch_path(to)));
}

static void assert_has_text(const char *path, const char *expected) {
    size_t bytes;
    char *text = scratch_read(scratch_path(path), &bytes);
    assert_non_null(text);
    assert_string_equal(text, expected);
    free(text);
}

/* Going on with one of them leaves the other one as it is. */
static void hard_linked_copy_of_a_run_is_its_own(void **state) {
    (void)state;
    static const char *const files[] = {"metrics.jsonl", "h_statistics.jsonl", "settings.conf",
                                        "ckpt-6/state.json"};
    assert_done(TRAIN("linked", "--max-iters", "6", "--checkpoint-interval", "3", "--statistics-interval", "1"));
    assert_int_equal(files_make_folder(scratch_path("linked-before/ckpt-6")), 0);
    for (int i = 0; i < 4; i++) {
        copy(run_path("linked", files[i]), run_path("linked-before", files[i]));
    }
    copy_by_links("linked", "linked-copy");
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
static void links_in_a_run_are_refused(void **state) {
    (void)state;
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
static void linked_checkpoint_is_only_read(void **state) {
    (void)state;
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

/* A text of that name that is no record of a run; but a line that a full disk has torn is one. */
static void texts_named_like_records_are_kept(void **state) {
    (void)state;
    assert_done(TRAIN("texts", "--max-iters", "2"));
    scratch_write("texts/metrics.jsonl", "my notes\nof the run\n", 20);
    assert_failed(RESUME("texts", "--max-iters", "4"), FAILED, "no line of it is of a run");
    assert_has_text("texts/metrics.jsonl", "my notes\nof the run\n");
    scratch_write("texts/metrics.jsonl", "mine", 4);
    assert_failed(RESUME("texts", "--max-iters", "4"), FAILED, "no line of it is of a run");
    scratch_write("texts/metrics.jsonl", "{\"iter\":0,\"lo", 12);
    assert_done(RESUME("texts", "--max-iters", "4"));
    assert_int_equal(count_lines("texts/metrics.jsonl"), 2);
}

/* ---- what else is in folders of checkpoints */

/* They are pruned, left by a run that starts over, and written over. */
static void other_files_outlive_checkpoints(void **state) {
    (void)state;
    assert_done(TRAIN("annotated", "--max-iters", "3", "--checkpoint-interval", "2"));
    scratch_write("annotated/ckpt-2/notes.txt", "mine", 4);
    scratch_write("annotated/ckpt-3/notes.txt", "mine", 4);
    assert_done(RESUME("annotated", "--max-iters", "4", "--keep-checkpoints", "1"));
    assert_int_equal(scratch_entries(scratch_path("annotated/ckpt-2")), 1);
    assert_int_equal(scratch_entries(scratch_path("annotated/ckpt-3")), 1);
    assert_failed(TRAIN("annotated", "--start-over", "--max-iters", "4"), FAILED,
                  "is no checkpoint of this program's");
    assert_int_equal(files_remove(scratch_path("annotated/ckpt-2")), 0);
    assert_int_equal(files_remove(scratch_path("annotated/ckpt-3")), 0);
    scratch_write("annotated/ckpt-4/notes.txt", "mine", 4);
    assert_done(TRAIN("annotated", "--start-over", "--max-iters", "4"));
    assert_done(TRAIN("not-annotated", "--max-iters", "4"));
    assert_has_text("annotated/ckpt-4/notes.txt", "mine");
    assert_same_checkpoint("annotated", "not-annotated", "ckpt-4");
}

/* ---- all of them */

/* Beside the corpus: a run with two checkpoints, and a text that is soon scored. */
static int begin(void **state) {
    if (scratch_begin(state) || corpus_make(HC_PROGRAMS)) {
        return -1;
    }
    scratch_write("short.txt", "the cat sat on a mat and ran\n", 29);
    return TRAIN("base", "--max-iters", "2", "--checkpoint-interval", "1") == 0 ? 0 : -1;
}

#define TEST(name) cmocka_unit_test_teardown(name, stop_what_is_left)

/* The argument is a pattern of names of tests. */
int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        TEST(evaluation_spares_the_files_of_others),
        TEST(run_spares_the_files_of_others),
        TEST(run_directory_may_be_a_link),
        TEST(token_files_may_go_through_a_link),
        TEST(evaluation_may_be_written_through_a_link),
        TEST(export_may_be_replaced_through_a_link),
        TEST(analysis_may_go_through_a_link),
        TEST(training_outlives_its_pipe),
        TEST(training_goes_on_where_messages_find_no_room),
        TEST(run_whose_reader_died_can_be_interrupted),
        TEST(what_a_run_left_keeps_others_out),
        TEST(empty_records_are_no_run),
        TEST(starting_over_removes_the_earlier_run_and_nothing_else),
        TEST(starting_over_from_its_own_checkpoint_loses_nothing),
        TEST(of_two_runs_in_a_new_folder_one_trains),
        TEST(run_resumes_without_its_settings_file),
        TEST(run_follows_its_folder),
        TEST(name_of_the_data_may_be_any_bytes),
        TEST(exchanged_data_must_be_accepted),
        TEST(data_may_move),
        TEST(first_evaluation_outlives_an_interruption),
        TEST(last_evaluation_stands_once),
        TEST(data_that_becomes_shorter_ends_the_run_with_a_checkpoint),
        TEST(data_that_is_written_over_ends_the_run_with_a_checkpoint),
        TEST(tokens_are_not_prepared_over_their_input),
        TEST(evaluation_is_not_written_over_its_input),
        TEST(evaluation_is_not_written_over_what_it_scores),
        TEST(checkpoint_is_not_exported_over_itself),
        TEST(statistics_of_a_branch_given_up_go),
        TEST(smaller_end_holds_once_a_larger_one_for_good),
        TEST(records_of_more_than_a_gibibyte_are_resumed),
        TEST(settings_may_come_through_a_pipe),
        TEST(damaged_lines_are_passed_over),
        TEST(names_of_runs_may_be_in_any_language),
        TEST(weights_that_training_made_worse_are_kept),
        TEST(caches_that_cannot_be_written_are_no_missing_device),
        TEST(starting_over_waits_until_all_is_well),
        TEST(failing_best_checkpoint_does_not_cost_the_run),
        TEST(best_weights_of_a_later_iteration_stay),
        TEST(best_loss_is_that_of_the_validation_data),
        TEST(best_weights_that_are_gone_are_replaced),
        TEST(made_up_evaluation_leaves_the_checkpoint_alone),
        TEST(checkpoint_of_another_name_is_refused),
        TEST(run_without_any_settings_is_refused),
        TEST(too_little_address_space_is_said),
        TEST(hard_linked_copy_of_a_run_is_its_own),
        TEST(links_in_a_run_are_refused),
        TEST(linked_checkpoint_is_only_read),
        TEST(texts_named_like_records_are_kept),
        TEST(other_files_outlive_checkpoints),
    };
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    return cmocka_run_group_tests(tests, begin, scratch_end);
}
