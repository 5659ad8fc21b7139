/* hc_prepare's work that was interrupted: another run resumes it, and the results are the same. */
#include "runtime/files/checksum.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "src/corpus/prepare.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <inttypes.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { DOCUMENTS = 3000 };

/* Paths: tokens of bytes and of four pairs more; DOCUMENTS as JSON lines; the results. */
static const char *vocabulary, *lines, *out;

static const char *write_vocabulary(void) {
    const char *path = scratch_path("vocabulary");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (unsigned rank = 0; rank < 256 + 4; rank++) {
        const unsigned char string[2] = {rank < 256 ? (unsigned char)rank : 'o', "fn r"[rank % 4]};
        unsigned char text[8];
        EVP_EncodeBlock(text, string, rank < 256 ? 1 : 2);
        fprintf(file, "%s %u\n", text, rank);
    }
    assert_int_equal(fclose(file), 0);
    return path;
}

/* Documents [first, end) of many lengths, some of them empty, as JSON lines; the path. */
static const char *write_lines(const char *name, unsigned first, unsigned end) {
    const char *path = scratch_path(name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (unsigned i = first; i < end; i++) {
        fputs("{\"text\": \"", file);
        for (unsigned word = i * 7919 % 120; word > 0; word--) {
            fprintf(file, "%u of %u ", word, i);
        }
        fputs("\"}\n", file);
    }
    assert_int_equal(fclose(file), 0);
    return path;
}

/* An order file: document (i * step + 11) % DOCUMENTS for each i. */
static const char *write_order(uint64_t step) {
    uint64_t order[DOCUMENTS];
    for (uint64_t i = 0; i < DOCUMENTS; i++) {
        order[i] = (i * step + 11) % DOCUMENTS;
    }
    return scratch_write("order", order, sizeof order);
}

/* The settings that tests begin with: shuffled JSON lines, a hundredth held out. */
static struct prepare_settings settings_of(const char *const *sources, size_t count) {
    return (struct prepare_settings){.folder = out,
                                     .sources = sources,
                                     .source_count = count,
                                     .tokenizer = {.kind = TOKENIZER_GPT2, .path = vocabulary},
                                     .kind = DOCUMENT_JSONL,
                                     .field = "text",
                                     .val_fraction = 0.01,
                                     .seed = 5,
                                     .shuffle = true,
                                     .threads = 3,
                                     .resume = true,
                                     .save_interval = PREPARE_SAVE_INTERVAL,
                                     .bucket_bytes = PREPARE_BUCKET_BYTES,
                                     .stop_descriptor = -1};
}

/* Runs to the end. */
static struct prepare_report run(const struct prepare_settings *settings) {
    struct prepare_report report;
    require(prepare_run(settings, &report) != PROGRAM_DONE);
    return report;
}

static const char *out_path(const char *name) {
    return scratch_path(scratch_format("out/%s", name));
}

static void remove_results(void) {
    require(files_remove_folder(out));
}

/* Checksums of train.bin and val.bin. */
struct digests {
    char train[CHECKSUM_SIZE], val[CHECKSUM_SIZE];
};

static struct digests digests_of_results(void) {
    struct digests digests;
    require(checksum_file(out_path("train.bin"), digests.train));
    require(checksum_file(out_path("val.bin"), digests.val));
    return digests;
}

/* Runs to the end and removes the results. */
static struct digests run_whole(const struct prepare_settings *settings) {
    run(settings);
    const struct digests digests = digests_of_results();
    remove_results();
    return digests;
}

static void assert_same_results(const struct digests *expected) {
    const struct digests digests = digests_of_results();
    assert_string_equal(digests.train, expected->train);
    assert_string_equal(digests.val, expected->val);
}

/* A number of an object in the saved state; 0: there is none. */
static int64_t saved_number(const char *object, const char *name) {
    json_t *saved = json_load_file(out_path(".hc_prepare/state.json"), 0, NULL);
    const int64_t number = json_integer_value(json_object_get(json_object_get(saved, object), name));
    json_decref(saved);
    return number;
}

/* Runs in a process of its own, which is killed as soon as this number has grown in the saved state. True: it was
 * done before. */
static bool run_and_kill(const struct prepare_settings *settings, const char *object, const char *name) {
    const int64_t before = saved_number(object, name);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct prepare_report report;
        _exit(prepare_run(settings, &report) == PROGRAM_DONE ? 0 : 1);
    }
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (saved_number(object, name) > before) {
            kill(child, SIGKILL);
            assert_int_equal(waitpid(child, &status, 0), child);
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFEXITED(status);
}

/* Runs and is asked to stop from the beginning. */
static void run_stopped(struct prepare_settings settings, struct prepare_report *report) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "", 1), 1);
    settings.stop_descriptor = ends[0];
    assert_int_equal(prepare_run(&settings, report), PROGRAM_INTERRUPTED);
    close(ends[0]);
    close(ends[1]);
}

/* Writes the state of a run that was moving its results, of so many shards of both splits: with the task of a run
 * that was stopped at once. */
static void write_moving_state(const struct prepare_settings *settings, int train_shards, int val_shards) {
    struct prepare_settings stopped = *settings;
    struct prepare_report report;
    const char *folder = scratch_path("stopped");
    stopped.folder = folder;
    run_stopped(stopped, &report);
    json_t *state = json_load_file(scratch_path("stopped/.hc_prepare/state.json"), 0, NULL);
    json_t *moving =
        json_pack("{s:b, s:O, s:I, s:i, s:i}", "moving", 1, "task", json_object_get(state, "task"), "shard_tokens",
                  (json_int_t)settings->shard_tokens, "train_shards", train_shards, "val_shards", val_shards);
    assert_int_equal(json_dump_file(moving, out_path(".hc_prepare/state.json"), 0), 0);
    json_decref(moving);
    json_decref(state);
    assert_int_equal(files_remove_folder(folder), 0);
}

/* A saved state whose members have other types is not read as one that lacks them. */
UNIT_TEST(test_state_of_other_types) {
    struct prepare_settings settings = settings_of(&lines, 1);
    struct prepare_report report;
    run_stopped(settings, &report);
    const char *path = out_path(".hc_prepare/state.json");
    json_t *saved = json_load_file(path, 0, NULL);
    assert_int_equal(json_object_set_new(json_object_get(saved, "reader"), "documents", json_string("3")), 0);
    assert_int_equal(json_dump_file(saved, path, 0), 0);
    assert_int_equal(prepare_run(&settings, &report), PROGRAM_FAILED);
    assert_error_text("is damaged (Expected integer, got string): start again with --no-resume");
    assert_int_equal(json_object_set_new(saved, "moving", json_string("true")), 0);
    assert_int_equal(json_dump_file(saved, path, 0), 0);
    json_decref(saved);
    assert_int_equal(prepare_run(&settings, &report), PROGRAM_FAILED);
    assert_error_text("'moving' is \"true\": it must be true or false");
    settings.resume = false;
    run(&settings);
    remove_results();
}

UNIT_TEST(test_killed) {
    struct prepare_settings settings = settings_of(&lines, 1);
    settings.threads = 1;
    settings.save_interval = 0;
    settings.shuffle = false; /* test_killed_while_sorting shuffles */
    const struct digests whole = run_whole(&settings);
    int kills = 0;
    for (; !run_and_kill(&settings, "reader", "pieces"); kills++) {
        assert_false(files_exist(out_path("train.bin")));
    }
    assert_true(kills > 0);
    assert_same_results(&whole);
    assert_false(files_exist(out_path(".hc_prepare")));
    remove_results();
}

/* Kills while the second source is read and while buckets are sorted, of which there are many. */
UNIT_TEST(test_killed_while_sorting) {
    enum { FIRST = DOCUMENTS / 10 };
    const char *const sources[] = {write_lines("first.jsonl", 0, FIRST),
                                   write_lines("second.jsonl", FIRST, DOCUMENTS)};
    for (int val_source = 0; val_source < 2; val_source++) {
        struct prepare_settings settings = settings_of(sources, 2);
        settings.val_source = val_source;
        settings.val_fraction = val_source ? 0 : 0.01;
        const struct digests whole = run_whole(&settings);
        settings.bucket_bytes = 20000;
        settings.save_interval = 0;
        int in_second = 0, in_sorting = 0;
        for (bool done = false; !done;) {
            const bool in_first = saved_number("reader", "documents") < FIRST;
            done = run_and_kill(&settings, in_first ? "reader" : "writer", in_first ? "documents" : "sorted");
            in_second +=
                !done && saved_number("reader", "documents") == FIRST && saved_number("writer", "sorted") == 0;
            in_sorting += !done && saved_number("writer", "sorted") > 0;
        }
        assert_true(in_second > 0 && in_sorting > 3);
        assert_same_results(&whole);
        remove_results();
    }
}

/* A text of so many lines; its path. */
static const char *write_running_text(const char *name, unsigned count) {
    const char *path = scratch_path(name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (unsigned line = 0; line < count; line++) {
        fprintf(file, "line %u of %s, which has %u\n%s", line, name, count, line % 9 == 0 ? "\n" : "");
    }
    assert_int_equal(fclose(file), 0);
    return path;
}

/* The split of running text depends on how much text was before, in the file and in those before it. */
UNIT_TEST(test_killed_in_running_text) {
    const char *const sources[] = {write_running_text("first.txt", 40000),
                                   write_running_text("second.txt", 300000)};
    struct prepare_settings settings = settings_of(sources, 2);
    settings.kind = DOCUMENT_CHUNKS;
    settings.tokenizer = (struct tokenizer_source){.kind = TOKENIZER_BYTE};
    settings.val_fraction = 0.1;
    settings.threads = 1;
    const struct prepare_report report = run(&settings);
    const double share = (double)report.val_tokens / (double)(report.train_tokens + report.val_tokens);
    assert_float_equal(share, 0.1, 1e-3);
    const struct digests whole = digests_of_results();
    remove_results();
    settings.save_interval = 0;
    int in_second = 0;
    while (!run_and_kill(&settings, "reader", "documents")) {
        in_second += saved_number("reader", "split_held_out") > 0;
    }
    assert_true(in_second > 0);
    assert_same_results(&whole);
    remove_results();
}

static void assert_other_work_is_kept(const struct prepare_settings *other) {
    struct prepare_report report;
    assert_int_equal(prepare_run(other, &report), PROGRAM_FAILED);
    assert_true(report.kept && !report.resumes);
    assert_error_text("has unfinished work of other files or settings: give --no-resume");
}

/* Unfinished work of other settings, or for another order, is neither used nor discarded unless asked for. */
UNIT_TEST(test_left_by_others) {
    struct prepare_settings settings = settings_of(&lines, 1), other;
    settings.save_interval = 0;
    other = settings;
    other.seed++;
    assert_false(run_and_kill(&settings, "reader", "pieces"));
    assert_other_work_is_kept(&other);
    run(&settings);
    const struct digests first = digests_of_results();
    remove_results();
    assert_false(run_and_kill(&settings, "reader", "pieces"));
    other.resume = false;
    run(&other);
    assert_string_not_equal(first.train, digests_of_results().train);
    remove_results();

    settings.order = write_order(7);
    assert_false(run_and_kill(&settings, "reader", "pieces"));
    write_order(11);
    assert_other_work_is_kept(&settings);
    remove_results();
}

/* Complete results of which only some are in place. */
UNIT_TEST(test_killed_in_the_move) {
    static const char *const names[] = {"train.bin", "val.bin", "meta.json"};
    const struct prepare_settings settings = settings_of(&lines, 1);
    for (size_t moved = 0; moved <= 3; moved++) {
        const struct prepare_report expected = run(&settings);
        const struct digests whole = digests_of_results();
        assert_int_equal(files_make_folder(out_path(".hc_prepare")), 0);
        write_moving_state(&settings, 0, 0);
        for (size_t i = moved; i < 3; i++) {
            const char *work = scratch_format(".hc_prepare/%s", names[i]);
            assert_int_equal(rename(out_path(names[i]), out_path(work)), 0);
        }
        const struct prepare_report report = run(&settings);
        assert_int_equal(report.train_tokens, expected.train_tokens);
        assert_int_equal(report.val_tokens, expected.val_tokens);
        assert_int_equal(report.source_bytes, expected.source_bytes);
        assert_same_results(&whole);
        assert_int_equal(scratch_entries(out), 3);
        remove_results();
    }
}

/* If a result cannot be moved into place, older results stay, and so do the new ones. */
UNIT_TEST(test_place_taken) {
    struct prepare_settings settings = settings_of(&lines, 1);
    struct prepare_report report;
    const struct digests whole = run_whole(&settings);
    settings.seed--;
    run(&settings);
    assert_int_equal(unlink(out_path("val.bin")), 0);
    assert_int_equal(files_make_folder(out_path("val.bin")), 0);
    settings.seed++;
    assert_int_equal(prepare_run(&settings, &report), PROGRAM_FAILED);
    assert_error_text("val.bin: it is a folder");
    assert_true(report.resumes);
    assert_true(files_exist(out_path("meta.json")) && files_exist(out_path("train.bin")));
    assert_int_equal(rmdir(out_path("val.bin")), 0);
    run(&settings);
    assert_same_results(&whole);
    assert_int_equal(scratch_entries(out), 3);
    remove_results();
}

/* More shards than can be read are refused when their number is known. The work is kept for larger ones, which a
 * folder that is in the place of a shard, or a request to stop, keeps from being finished. Shards that an earlier
 * process left there are gone. */
UNIT_TEST(test_shards) {
    struct prepare_settings settings = settings_of(&lines, 1);
    struct prepare_report report;
    run(&settings);
    const uint64_t tokens = run(&settings).train_tokens;
    settings.shard_tokens = 1;
    assert_int_equal(prepare_run(&settings, &report), PROGRAM_FAILED);
    assert_error_text("tokens of train are");
    assert_error_text(
        scratch_format("and at most 4096 can be read: give --shards %" PRIu64 " or more", (tokens + 4095) / 4096));
    assert_true(report.kept && !report.resumes);
    assert_int_equal(saved_number("reader", "documents"), DOCUMENTS);
    settings.shard_tokens = (int64_t)tokens / 2;
    run_stopped(settings, &report);
    assert_true(report.resumes && files_exist(out_path("train.bin")));
    assert_int_equal(files_write(out_path(".hc_prepare/corpus_train_000000.bin"), "half", 4), 0);
    assert_int_equal(files_write(out_path(".hc_prepare/corpus_train_000009.bin"), "smaller", 7), 0);
    assert_int_equal(files_make_folder(out_path("corpus_train_000001.bin")), 0);
    assert_int_equal(prepare_run(&settings, &report), PROGRAM_FAILED);
    assert_false(files_exist(out_path(".hc_prepare/corpus_train_000009.bin")));
    assert_error_text("corpus_train_000001.bin: it is a folder");
    assert_true(report.kept && files_exist(out_path("train.bin")));
    assert_int_equal(rmdir(out_path("corpus_train_000001.bin")), 0);
    assert_int_equal(run(&settings).train_tokens, tokens);
    assert_false(files_exist(out_path("train.bin")) || files_exist(out_path(".hc_prepare")));
    assert_int_equal(scratch_entries(out), 5 - (int)(tokens % 2 == 0)); /* 2 or 3 shards, val, meta.json */
    remove_results();
}

/* Complete shards of which only the first is in place: another process moves the rest, and then does its own work
 * if it is to write something else. */
UNIT_TEST(test_shards_killed_in_the_move) {
    static const char *const names[] = {"corpus_train_000001.bin", "corpus_val_000000.bin", "meta.json"};
    struct prepare_settings settings = settings_of(&lines, 1);
    for (int other = 0; other < 2; other++) {
        settings.shard_tokens = 1200000;
        const struct prepare_report expected = run(&settings);
        assert_in_range(expected.train_tokens, 1200001, 2400000);
        assert_int_equal(files_make_folder(out_path(".hc_prepare")), 0);
        write_moving_state(&settings, 2, 1);
        for (size_t i = 0; i < COUNT(names); i++) {
            const char *work = scratch_format(".hc_prepare/%s", names[i]);
            assert_int_equal(rename(out_path(names[i]), out_path(work)), 0);
        }
        settings.shard_tokens = other ? 0 : settings.shard_tokens;
        assert_int_equal(run(&settings).train_tokens, expected.train_tokens);
        assert_true(files_exist(out_path(other ? "train.bin" : "corpus_train_000001.bin")));
        assert_int_equal(scratch_entries(out), other ? 3 : 4);
        remove_results();
    }
}

/* Work that was saved before a line that is wrong stays, but is not said to be resumed. */
UNIT_TEST(test_wrong_line) {
    size_t bytes;
    char *text = scratch_text(lines, &bytes);
    text[bytes - 2] = 'x'; /* instead of the last brace */
    const char *wrong = scratch_write("wrong.jsonl", text, bytes);
    const char *const sources[] = {lines, lines, lines, wrong};
    struct prepare_settings settings = settings_of(sources, 4);
    struct prepare_report report;
    settings.save_interval = 0;
    assert_int_equal(prepare_run(&settings, &report), PROGRAM_FAILED);
    assert_error_text("wrong.jsonl");
    assert_true(report.kept && !report.resumes);
    remove_results();
}

static int begin(void **state) {
    const int status = scratch_begin(state);
    vocabulary = write_vocabulary();
    lines = write_lines("lines.jsonl", 0, DOCUMENTS);
    out = scratch_path("out");
    return status;
}

UNIT_TEST_MAIN(begin, scratch_end)
