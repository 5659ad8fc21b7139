/* What a run's folder may hold, what runs leave alone there, and who may write to it. */
#include "tests/support/run_control.h"
#include <time.h>
#include <utime.h>

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

RUN_TEST(run_spares_the_files_of_others) {
    leave_others("others-run");
    assert_done(TRAIN("others-run", "--max-iters", "2"));
    assert_others_are_there("others-run");
}

RUN_TEST(evaluation_spares_the_files_of_others) {
    leave_others("others-eval");
    assert_done(EVALUATE("--json", scratch_path("others-eval/r.json"), scratch_path("short.txt")));
    assert_true(has("others-eval", "r.json"));
    assert_others_are_there("others-eval");
}

/* Moves one thing of a run into a folder of its own, where a new run must not begin. */
static void assert_keeps_runs_out(const char *run, const char *name) {
    char folder[64];
    snprintf(folder, sizeof folder, "only-%s", name);
    assert_int_equal(files_make_folder(scratch_path(folder)), 0);
    assert_int_equal(rename(scratch_path(run_path(run, name)), scratch_path(run_path(folder, name))), 0);
    assert_failed(TRAIN(folder, "--max-iters", "2"), FAILED, "already holds a run");
    assert_int_equal(scratch_entries(scratch_path(folder)), 1);
}

RUN_TEST(what_a_run_left_keeps_others_out) {
    assert_done(TRAIN("left", "--max-iters", "4", "--eval-interval", "2", "--eval-iters", "1",
                      "--statistics-interval", "1"));
    assert_keeps_runs_out("left", "ckpt-best");
    assert_keeps_runs_out("left", "metrics.jsonl");
    assert_keeps_runs_out("left", "h_statistics.jsonl");
}

/* As a run leaves them that was killed before its first iteration. */
RUN_TEST(empty_records_are_no_run) {
    assert_int_equal(files_make_folder(scratch_path("stillborn")), 0);
    scratch_write("stillborn/metrics.jsonl", "", 0);
    scratch_write("stillborn/h_statistics.jsonl", "", 0);
    assert_done(TRAIN("stillborn", "--max-iters", "2"));
    assert_int_equal(count_lines("stillborn/metrics.jsonl"), 2);
}

RUN_TEST(starting_over_removes_the_earlier_run_and_nothing_else) {
    assert_done(TRAIN("again", "--max-iters", "4", "--eval-interval", "2", "--eval-iters", "1",
                      "--statistics-interval", "1", "--checkpoint-interval", "2"));
    scratch_write("again/notes.txt", "mine", 4);
    assert_int_equal(scratch_entries(scratch_path("again")), 7);
    assert_failed(RESUME("again", "--start-over"), WRONG_USAGE, "start-over");
    assert_true(has("again", "ckpt-4") && has("again", "ckpt-best"));
    assert_done(TRAIN("again", "--start-over", "--max-iters", "3"));
    assert_done(TRAIN("afresh", "--max-iters", "3"));
    assert_same_run("again", "afresh", "ckpt-3");
    assert_true(has("again", "notes.txt"));
    assert_int_equal(scratch_entries(scratch_path("again")), 4); /* checkpoint, metrics, settings, notes */
    assert_failed(TRAIN("again", "--max-iters", "3"), FAILED, "already holds a run");
}

/* The checkpoint to begin with is one of those that would be removed: refused, or read before. */
RUN_TEST(starting_over_from_its_own_checkpoint_loses_nothing) {
    assert_done(TRAIN("circle", "--max-iters", "3"));
    copy("circle/ckpt-3/model.safetensors", "circle.safetensors");
    const int status =
        TRAIN("circle", "--start-over", "--init-from", scratch_path("circle/ckpt-3"), "--max-iters", "0");
    assert_same_file(status == 0 ? "circle/ckpt-0/model.safetensors" : "circle/ckpt-3/model.safetensors",
                     "circle.safetensors");
}

/* What goes wrong with a new run costs the old one nothing. */
RUN_TEST(starting_over_waits_until_all_is_well) {
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
    status[0] = child_finish_within(free_one, TIMEOUT_SECONDS);
    memset(held_said, 0, sizeof held_said);
    read_all(ends[0], held_said, sizeof held_said);
    status[1] = finish();
    size_t bytes;
    char *free_said = scratch_read(scratch_path("free-said"), &bytes);
    assert_non_null(free_said);
    assert_one_trained(run, status, (const char *const[]){free_said, held_said});
    free(free_said);
}

RUN_TEST(of_two_runs_in_a_new_folder_one_trains) {
    for (int round = 0; round < 5; round++) {
        race(round);
    }
}

static long newer_after_the_move(const char *run, long than) {
    assert_false(files_exist(scratch_path("departing")));
    return newest(run, than + 1);
}

RUN_TEST(run_follows_its_folder) {
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
    assert_same_run("elsewhere", "sedentary", checkpoint(at + 3));
}

/* A text of that name that is no record of a run; but a line that a full disk has torn is one. */
RUN_TEST(texts_named_like_records_are_kept) {
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

/* They are pruned, left by a run that starts over, and written over. */
RUN_TEST(other_files_outlive_checkpoints) {
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

RUN_TEST(checkpoint_of_another_name_is_refused) {
    assert_done(TRAIN("misnamed", "--max-iters", "2"));
    assert_int_equal(rename(scratch_path("misnamed/ckpt-2"), scratch_path("misnamed/ckpt-500")), 0);
    assert_failed(TRAIN("misnamed", "--init-from", "resume"), 1, "is of iteration 2");
}

UNIT_TEST_MAIN(run_control_begin, scratch_end)
