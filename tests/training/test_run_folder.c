/* What a run's folder may hold, what runs leave alone there, and who may write to it. */
#include "tests/support/runs.h"
#include <time.h>
#include <utime.h>

#define CHECKPOINT_2 "--checkpoint", "@base/ckpt-2", "--device", "pocl"

static void make_old(const char *path) {
    const time_t then = time(NULL) - (time_t)2 * 60 * 60;
    assert_int_equal(utime(scratch_path(path), &(struct utimbuf){.actime = then, .modtime = then}), 0);
}

/* Names like those of leftovers: a folder of somebody's, and what a process of another host may be writing. */
RUN_TEST(files_of_others_are_spared) {
    static const char *const theirs[] = {".tmp-mystuff/thesis", ".tmp-mystuff", ".tmp-old-00000000-1-1"};
    scratch_put("others/.tmp-mystuff/thesis", "mine");
    scratch_put("others/.tmp-old-00000000-1-1", "theirs");
    for (size_t i = 0; i < COUNT(theirs); i++) {
        make_old(run_path("others", theirs[i]));
    }
    assert_done(TRAIN("others", "--max-iters", "2"));
    assert_done(EVALUATE("--json", scratch_path("others/r.json"), scratch_path("short.txt")));
    for (size_t i = 0; i < COUNT(theirs); i++) {
        assert_true(has("others", theirs[i]));
    }
}

/* Moves one thing of a run into a folder of its own, where a new run must not begin. */
static void assert_keeps_runs_out(const char *run, const char *name) {
    const char *folder = scratch_format("only-%s", name);
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
    scratch_put("stillborn/metrics.jsonl", "");
    scratch_put("stillborn/h_statistics.jsonl", "");
    assert_done(TRAIN("stillborn", "--max-iters", "2"));
    assert_int_equal(count_lines("stillborn/metrics.jsonl"), 2);
}

RUN_TEST(starting_over_removes_the_earlier_run_and_nothing_else) {
    assert_done(TRAIN("again", "--max-iters", "4", "--eval-interval", "2", "--eval-iters", "1",
                      "--statistics-interval", "1", "--checkpoint-interval", "2"));
    scratch_put("again/notes.txt", "mine");
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
    scratch_put("precious/ckpt-100/model.pt", "mine");
    assert_failed(TRAIN("precious", "--start-over"), 1, "ckpt-100 is no checkpoint of this program's");
    assert_true(has("precious", "ckpt-1/state.json") && has("precious", "ckpt-2/state.json"));
    assert_true(has("precious", "ckpt-100/model.pt"));
}

/* Two runs in a new folder. One waits with its first message, for which a full pipe has no room, until the other
 * one has ended, whatever it has looked at before. */
static void race(int round) {
    static const char page[4096];
    char held_said[10000] = "", letter;
    const char *run = scratch_format("race-%d", round);
    int ends[2], status[2];
    pid_t free_one = 0;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    const int room = fcntl(ends[1], F_SETPIPE_SZ, sizeof page);
    assert_true(room > 0);
    for (int filled = 0; filled < room; filled += (int)sizeof page) {
        assert_int_equal(write(ends[1], page, sizeof page), sizeof page);
    }
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
    for (size_t used = 0; read(ends[0], &letter, 1) == 1;) {
        if (letter && used + 1 < sizeof held_said) {
            held_said[used++] = letter;
        }
    }
    close(ends[0]);
    status[1] = finish();
    const int loser = status[0] == 0 ? 1 : 0;
    const char *free_said = scratch_text(scratch_path("free-said"), NULL), *text = loser ? held_said : free_said;
    if (status[!loser] != 0 || status[loser] != FAILED ||
        (!strstr(text, "another process is writing to") && !strstr(text, "already holds a run"))) {
        fail_msg("%s: status %d and %d: %s\n%s", run, status[0], status[1], free_said, held_said);
    }
    assert_true(has(run, "ckpt-1"));
    assert_int_equal(count_lines(run_path(run, "metrics.jsonl")), 1);
}

RUN_TEST(of_two_runs_in_a_new_folder_one_trains) {
    for (int round = 0; round < (test_is_whole() ? 5 : 2); round++) {
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
    scratch_put("texts/metrics.jsonl", "my notes\nof the run\n");
    assert_failed(RESUME("texts", "--max-iters", "4"), FAILED, "no line of it is of a run");
    assert_has_text("texts/metrics.jsonl", "my notes\nof the run\n");
    scratch_put("texts/metrics.jsonl", "mine");
    assert_failed(RESUME("texts", "--max-iters", "4"), FAILED, "no line of it is of a run");
    scratch_put("texts/metrics.jsonl", "{\"iter\":0,\"lo");
    assert_done(RESUME("texts", "--max-iters", "4"));
    assert_int_equal(count_lines("texts/metrics.jsonl"), 2);
}

/* They are pruned, left by a run that starts over, and written over. */
RUN_TEST(other_files_outlive_checkpoints) {
    assert_done(TRAIN("annotated", "--max-iters", "3", "--checkpoint-interval", "2"));
    scratch_put("annotated/ckpt-2/notes.txt", "mine");
    scratch_put("annotated/ckpt-3/notes.txt", "mine");
    assert_done(RESUME("annotated", "--max-iters", "4", "--keep-checkpoints", "1"));
    assert_int_equal(scratch_entries(scratch_path("annotated/ckpt-2")), 1);
    assert_int_equal(scratch_entries(scratch_path("annotated/ckpt-3")), 1);
    assert_failed(TRAIN("annotated", "--start-over", "--max-iters", "4"), FAILED,
                  "is no checkpoint of this program's");
    assert_int_equal(files_remove(scratch_path("annotated/ckpt-2")), 0);
    assert_int_equal(files_remove(scratch_path("annotated/ckpt-3")), 0);
    scratch_put("annotated/ckpt-4/notes.txt", "mine");
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

/* ---- links: outputs go through them, and runs write to nothing that a link in their folder leads to */

static void assert_link(const char *name) {
    struct stat status;
    assert_int_equal(lstat(scratch_path(name), &status), 0);
    assert_true(S_ISLNK(status.st_mode));
}

/* Twice, so that there is something to replace. */
RUN_TEST(results_may_go_through_a_link) {
    static const struct {
        struct command command;
        const char *file; /* of its results */
    } rows[] = {
        {{{"train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir", "@link-0", "--max-iters", "2",
           "--start-over"}},
         "ckpt-2/model.safetensors"},
        {{{"prepare", "--out", "@link-1", "@text.txt"}}, "train.bin"},
        {{{"eval", CHECKPOINT_2, "--json", "@link-2/r.json", "@short.txt"}}, "r.json"},
        {{{"export", "--format", "torch", "--checkpoint", "@base/ckpt-2", "--out", "@link-3"}},
         "model.safetensors"},
        {{{"analyze", "--out", "@link-4", "@base"}}, "report.html"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *folder = scratch_format("real-%zu", i), *name = scratch_format("link-%zu", i);
        assert_int_equal(files_make_folder(scratch_path(folder)), 0);
        link_to(folder, name);
        for (int time = 0; time < 2; time++) {
            assert_done(command_run(&rows[i].command, NULL));
            assert_true(has(folder, rows[i].file));
        }
        assert_link(name);
    }
    assert_done(RESUME("link-0", "--max-iters", "2"));
}

/* Going on with one of them leaves the other one as it is. */
RUN_TEST(hard_linked_copy_of_a_run_is_its_own) {
    static const char *const files[] = {"metrics.jsonl", "h_statistics.jsonl", "settings.conf",
                                        "ckpt-6/state.json"};
    assert_done(TRAIN("linked", "--max-iters", "6", "--checkpoint-interval", "3", "--statistics-interval", "1"));
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
        scratch_put("thesis", "# 1\n# 2\n");
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

/* ---- no program writes its results over what it reads */

RUN_TEST(results_do_not_replace_inputs) {
    static const struct {
        struct command command;
        const char *words; /* of its message */
    } rows[] = {
        {{{"prepare", "--out", "@tokens", "@tokens/train.bin"}}, "input"},
        {{{"prepare", "--out", "@tokens", "@soft-link"}}, "input"},
        {{{"prepare", "--out", "@tokens", "@hard-link"}}, "input"},
        {{{"prepare", "--out", "@tokens-link", "@tokens/train.bin"}}, "input"},
        {{{"prepare", "--out", "@tokens", "@tokens-link/train.bin"}}, "input"},
        {{{"eval", CHECKPOINT_2, "--json", "@scored.txt", "@scored.txt"}}, "scored.txt"},
        {{{"eval", CHECKPOINT_2, "--json", "@scored-link", "@scored.txt"}}, "scored"},
        {{{"eval", CHECKPOINT_2, "--per-document", "@scored.txt", "@scored.txt"}}, "scored.txt"},
        {{{"eval", CHECKPOINT_2, "--per-document", "@scored-link", "@scored.txt"}}, "scored"},
        {{{"eval", CHECKPOINT_2, "--json", "@base/ckpt-2/config.json", "@short.txt"}}, "config.json"},
        {{{"eval", CHECKPOINT_2, "--json", "@evaluated/val.bin", "--data", "@evaluated"}}, "val.bin"},
        {{{"export", "--format", "torch", "--checkpoint", "@exported", "--out", "@exported"}}, "exported"},
        {{{"export", "--format", "torch", "--checkpoint", "@exported", "--out", "@exported-link"}}, "exported"},
        {{{"export", "--format", "torch", "--checkpoint", "@exported-link", "--out", "@exported"}}, "exported"},
    };
    /* each input, and a file that it stays like */
    static const char *const kept[][2] = {{"tokens/train.bin", "data/train.bin"},
                                          {"scored.txt", "short.txt"},
                                          {"base/ckpt-2/config.json", "config.json"},
                                          {"evaluated/val.bin", "data/val.bin"},
                                          {"exported/model.safetensors", "base/ckpt-2/model.safetensors"}};
    copy("data/train.bin", "tokens/train.bin");
    copy("short.txt", "scored.txt");
    copy("base/ckpt-2/config.json", "config.json");
    copy_data("evaluated");
    assert_done(EXPORT("base/ckpt-2", "exported"));
    link_to("tokens/train.bin", "soft-link");
    link_to("tokens", "tokens-link");
    assert_int_equal(link(scratch_path("tokens/train.bin"), scratch_path("hard-link")), 0);
    link_to("scored.txt", "scored-link");
    link_to("exported", "exported-link");
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_refused(command_run(&rows[i].command, NULL), rows[i].words);
        for (size_t k = 0; k < COUNT(kept); k++) {
            assert_same_file(kept[k][0], kept[k][1]);
        }
    }
    assert_int_equal(scratch_entries(scratch_path("tokens")), 1);
}

UNIT_TEST_MAIN(run_control_begin, scratch_end)
