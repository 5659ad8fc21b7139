/* hc_prepare, run as a program: token files, meta.json, and what is left when it fails. */
#include "runtime/files/checksum.h"
#include "runtime/files/token_shards.h"
#include "tests/support/runs.h"

static const char program[] = HC_PROGRAMS "/hc_prepare";

#define RUN(...) CHILD_RUN_WRITING(scratch_path("stdout"), program, __VA_ARGS__)
#define START(descriptor, ...)                                                                                     \
    child_start_with(&(struct child_setup){.input = descriptor}, (const char *const[]){program, __VA_ARGS__, NULL})

/* Lines of text, about this many bytes, with a blank line every ten; heap memory. */
static char *make_text(size_t bytes, unsigned salt) {
    char *text = malloc(bytes + 64);
    assert_non_null(text);
    size_t size = 0;
    for (unsigned line = 0; size < bytes; line++) {
        size += (size_t)sprintf(text + size, "%s%u line %u of some text\n", line % 10 == 9 ? "\n" : "", salt, line);
    }
    text[size] = '\0';
    return text;
}

/* A file of such lines. */
static const char *write_text(const char *name, size_t bytes, unsigned salt) {
    char *text = make_text(bytes, salt);
    const char *path = scratch_put(name, text);
    free(text);
    return path;
}

/* The tokens of <folder>/<name>.bin, which must be there, as a text. */
static char *read_tokens(const char *folder, const char *name, size_t *count) {
    char *data = scratch_read(scratch_path(scratch_format("%s/%s.bin", folder, name)), count);
    assert_non_null(data);
    assert_int_equal(*count % 2, 0);
    *count /= 2;
    for (size_t i = 0; i < *count; i++) {
        assert_int_equal(data[2 * i + 1], 0);
        data[i] = data[2 * i];
    }
    data[*count] = '\0';
    return data;
}

static void assert_tokens(const char *folder, const char *name, const char *expected) {
    size_t count;
    char *text = read_tokens(folder, name, &count);
    assert_string_equal(text, expected);
    free(text);
}

static json_t *read_meta(const char *folder) {
    return read_json(scratch_format("%s/meta.json", folder));
}

/* Every chunk of the split text is a line's beginning to a line's end: merging by lines gives the text again. */
static void assert_split_of(const char *text, const char *train, const char *val) {
    while (*text != '\0') {
        const size_t length = strcspn(text, "\n") + 1;
        if (strncmp(text, train, length) == 0) {
            train += length;
        } else if (strncmp(text, val, length) == 0) {
            val += length;
        } else {
            fail_msg("%.*s is in neither part at its place", (int)length, text);
        }
        text += length;
    }
    assert_int_equal(*train, '\0');
    assert_int_equal(*val, '\0');
}

static double entropy_of(const char *text, size_t count) {
    double counts[256] = {0}, sum = 0;
    for (size_t i = 0; i < count; i++) {
        counts[(unsigned char)text[i]]++;
    }
    for (int i = 0; i < 256; i++) {
        sum -= counts[i] > 0 ? counts[i] / (double)count * log(counts[i] / (double)count) : 0;
    }
    return sum;
}

static void check_split(size_t bytes, double fraction, double tolerance) {
    char digest[CHECKSUM_SIZE];
    char *text = make_text(bytes, 1);
    const size_t length = strlen(text);
    const char *source = scratch_write("source.txt", text, length);
    const char *fraction_text = scratch_format("%g", fraction);
    assert_done(RUN("--out", scratch_path("split/out"), "--val-fraction", fraction_text, source));
    assert_string_equal(child_message(), "");
    size_t train_count, val_count;
    char *train = read_tokens("split/out", "train", &train_count),
         *val = read_tokens("split/out", "val", &val_count);
    assert_int_equal(train_count + val_count, length);
    assert_float_equal((double)val_count / (double)length, fraction, tolerance);
    assert_split_of(text, train, val);

    json_t *meta = read_meta("split/out");
    checksum_memory(text, length, digest);
    assert_int_equal(number_in(meta, "vocab_size"), 256);
    assert_string_equal(json_string_value(json_object_get(meta, "tokenizer")), "byte");
    assert_int_equal(number_in(meta, "train_tokens"), train_count);
    assert_int_equal(number_in(meta, "val_tokens"), val_count);
    assert_float_equal(number_in(meta, "held_out_fraction"), (double)val_count / (double)length, 1e-9);
    assert_float_equal(number_in(meta, "unigram_entropy"), entropy_of(train, train_count), 1e-8);
    const json_t *first = json_array_get(json_object_get(meta, "sources"), 0);
    assert_string_equal(json_string_value(json_object_get(first, "path")), source);
    assert_int_equal(number_in(first, "bytes"), length);
    assert_string_equal(json_string_value(json_object_get(first, "sha256")), digest);
    json_decref(meta);
    assert_int_equal(scratch_entries(scratch_path("split/out")), 3);
    free(train);
    free(val);
    free(text);
}

/* Up to the length of a paragraph, and for large texts, where whole chunks are held out, up to one chunk. */
UNIT_TEST(test_split) {
    check_split(5000000, 0.5, 65536 / 5e6);
    check_split(5000000, 0.1, 1e-4);
    check_split(300000, 0.1, 1e-3);
    check_split(5000, 0.1, 0.05);
    check_split(2000000, 0.5, 1e-4);
    check_split(200000, 0.01, 1e-3);
}

/* The share that is held out depends neither on the seed, nor on how the text is divided into files, and is
 * printed. The same seed gives the same bytes, another one others. */
UNIT_TEST(test_share_and_seed) {
    char wanted[80], digests[9][CHECKSUM_SIZE];
    char *text = make_text(300000, 7);
    scratch_write("first.txt", text, 100000);
    scratch_write("second.txt", text + 100000, strlen(text) - 100000);
    free(text);
    static const char *const seeds[] = {"1", "2", "3", "4", "5", "6", "7", "8", "1"};
    for (size_t i = 0; i < 9; i++) {
        assert_done(RUN("--out", scratch_path("share"), "--seed", seeds[i], scratch_path("first.txt"),
                        scratch_path("second.txt")));
        assert_int_equal(checksum_file(scratch_path("share/val.bin"), digests[i]), 0);
        json_t *meta = read_meta("share");
        assert_float_equal(number_in(meta, "held_out_fraction"), 0.1, 0.001);
        snprintf(wanted, sizeof wanted, "%.0f held out (%.3g %% of all; asked for: 10 %%)",
                 number_in(meta, "val_tokens"), 100 * number_in(meta, "held_out_fraction"));
        char *printed = scratch_text(scratch_path("stdout"), NULL);
        if (!strstr(printed, wanted) || !strstr(printed, "the loss of a model that knows only how often")) {
            fail_msg("no '%s' in '%s'", wanted, printed);
        }
        json_decref(meta);
    }
    assert_string_equal(digests[0], digests[8]);
    assert_string_not_equal(digests[0], digests[1]);
}

/* A compressed source holds more text than bytes, so its stored bytes are not the size of the text. */
UNIT_TEST(test_share_of_compressed_text) {
    write_text("plain.txt", 100000, 7);
    assert_int_equal(system(scratch_format("gzip -f '%s'", write_text("packed.txt", 500000, 8))), 0);
    assert_done(RUN("--out", scratch_path("mixed"), scratch_path("plain.txt"), scratch_path("packed.txt.gz")));
    json_t *meta = read_meta("mixed");
    assert_float_equal(number_in(meta, "held_out_fraction"), 0.1, 0.04);
    json_decref(meta);
}

UNIT_TEST(test_val_file) {
    const char *head = scratch_put("head.txt", "one\ntwo\n");
    const char *tail = scratch_put("tail.txt", "three\nfour\n"), *empty = scratch_put("empty.txt", "");
    const char *out = scratch_path("val-file");
    assert_failed(RUN("--out", out, head, "--val", empty), 1, "the file to hold out has no text");
    assert_failed(RUN("--out", out, empty, "--val", tail), 1, "the files to train on have no text");
    assert_failed(RUN("--out", out, head, "--val", head, "--order", tail, "--documents", "files"), 2,
                  "--order and --val both say what is held out");
    assert_false(files_exist(out));
    assert_done(RUN("--out", out, head, "--val", tail));
    assert_tokens("val-file", "train", "one\ntwo\n");
    assert_tokens("val-file", "val", "three\nfour\n");
    json_t *meta = read_meta("val-file");
    assert_int_equal(number_in(meta, "val_tokens"), 11);
    assert_string_equal(json_string_value(json_object_get(meta, "val_source")), tail);
    json_decref(meta);
}

/* Standard input may be a pipe, behind a file, too. */
UNIT_TEST(test_pipe) {
    int ends[2];
    const char *first = scratch_put("first.txt", "one\ntwo\n");
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    const pid_t child = START(ends[0], "--val-fraction=0", "--out", scratch_path("piped"), first, "-");
    close(ends[0]);
    char *text = make_text(200000, 3);
    assert_int_equal(files_write_all(ends[1], text, strlen(text)), 0);
    close(ends[1]);
    assert_done(child_finish(child));
    assert_tokens("piped", "train", scratch_format("one\ntwo\n%s", text));
    assert_false(files_exist(scratch_path("piped/val.bin")));
    json_t *meta = read_meta("piped");
    assert_int_equal(json_array_size(json_object_get(meta, "sources")), 2);
    json_decref(meta);
    free(text);
}

/* A part is held out, though nobody knows beforehand how long the text is, and it has no lines to divide it at. */
UNIT_TEST(bytes_without_lines_from_a_pipe_are_divided) {
    enum { COUNT = 300000 };
    static char bytes[COUNT];
    int ends[2];
    for (size_t i = 0; i < COUNT; i++) {
        bytes[i] = (char)(i * 7 % 256 == '\n' ? 0 : i * 7);
    }
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    const pid_t child = START(ends[0], "--out", scratch_path("bytes-out"), "-");
    close(ends[0]);
    assert_int_equal(files_write_all(ends[1], bytes, COUNT), 0);
    close(ends[1]);
    assert_done(child_finish(child));
    json_t *meta = read_meta("bytes-out");
    assert_true(number_in(meta, "val_tokens") > 0.0);
    assert_true(number_in(meta, "train_tokens") + number_in(meta, "val_tokens") == COUNT);
    json_decref(meta);
}

/* The tokens of llm.c's shards "<folder>/corpus_<split>_*.bin", behind one another as in one token file; *count is
 * their number of bytes. All shards have `each` tokens, the last one at most as many. */
static char *join_shards(const char *folder, const char *split, size_t each, size_t *count) {
    char *joined = malloc(1);
    *count = 0;
    for (int i = 0;; i++) {
        const char *path = scratch_path(scratch_format("%s/corpus_%s_%06d.bin", folder, split, i));
        size_t bytes;
        if (!files_exist(path)) {
            return joined;
        }
        assert_int_equal(*count % (2 * each), 0);
        char *shard = scratch_text(path, &bytes);
        const unsigned char *header = (const unsigned char *)shard;
        assert_int_equal(token_load(header, 4), 20240520);
        assert_int_equal(token_load(header + 4, 4), 1);
        assert_int_equal(bytes, 1024 + 2 * token_load(header + 8, 4));
        assert_in_range(token_load(header + 8, 4), 1, each);
        for (int zero = 12; zero < 1024; zero++) {
            assert_int_equal(header[zero], 0);
        }
        joined = realloc(joined, *count + bytes - 1024);
        memcpy(joined + *count, shard + 1024, bytes - 1024);
        *count += bytes - 1024;
    }
}

static void assert_same_tokens(const char *folder, const char *split, size_t each, const char *path) {
    size_t count, wanted;
    char *joined = join_shards(folder, split, each, &count), *whole = scratch_text(path, &wanted);
    assert_int_equal(count, wanted);
    assert_memory_equal(joined, whole, count);
    free(joined);
}

/* Shards have the tokens of train.bin and val.bin. Either kind of results replaces the other. */
UNIT_TEST(test_shards) {
    const char *source = write_text("sharded.txt", 20000, 6), *out = scratch_path("sharded");
    const char *train = scratch_path("whole/train.bin"), *val = scratch_path("whole/val.bin");
    assert_done(RUN("--out", scratch_path("whole"), source));
    assert_done(RUN("--out", out, source));
    assert_done(RUN("--out", out, "--shards", "1000", source));
    json_t *meta = read_meta("sharded");
    assert_int_equal(number_in(meta, "vocab_size"), 256);
    assert_int_equal(number_in(meta, "shard_tokens"), 1000);
    const size_t shards = ((size_t)number_in(meta, "train_tokens") + 999) / 1000 +
                          ((size_t)number_in(meta, "val_tokens") + 999) / 1000;
    json_decref(meta);
    assert_int_equal(scratch_entries(out), shards + 1);
    assert_same_tokens("sharded", "train", 1000, train);
    assert_same_tokens("sharded", "val", 1000, val);
    assert_done(RUN("--out", out, "--shards", "7000", "--val-fraction", "0", source));
    assert_int_equal(scratch_entries(out), 4);
    assert_done(RUN("--out", scratch_path("whole"), "--val-fraction", "0", source));
    assert_same_tokens("sharded", "train", 7000, train);
}

/* Shards of others are not written beside, and a shard is no input of the command that replaces it. */
UNIT_TEST(test_refused_shards) {
    const char *source = write_text("refused.txt", 9000, 6), *out = scratch_path("refused");
    assert_done(RUN("--out", out, "--shards", "5000", source));
    assert_failed(RUN("--out", out, "--shards", "5000", scratch_path("refused/corpus_train_000001.bin")), 1,
                  "refused/corpus_train_000001.bin is an input of this command");
    assert_int_equal(symlink("refused/corpus_val_000000.bin", scratch_path("link.txt")), 0);
    assert_failed(RUN("--out", out, source, scratch_path("link.txt")), 1,
                  "refused/corpus_val_000000.bin is an input of this command");
    assert_int_equal(rename(scratch_path("refused/corpus_train_000001.bin"),
                            scratch_path("refused/corpus_train_00001.bin")),
                     0);
    assert_failed(RUN("--out", out, "--shards", "5000", source), 1,
                  "refused has corpus_train_00001.bin, which would be read as a token shard beside the new ones");
    assert_true(files_exist(scratch_path("refused/corpus_train_000000.bin")));
    assert_failed(RUN("--out", out, source), 1,
                  "refused has corpus_train_00001.bin, which would be read as a token shard beside the new files");
    assert_true(files_exist(scratch_path("refused/corpus_train_000000.bin")));
    assert_false(files_exist(scratch_path("refused/train.bin")));
    scratch_put("refused/corpus_train_00001.bin", "only named as one");
    assert_done(RUN("--out", out, source));
    assert_int_equal(scratch_entries(out), 4);
}

/* What can be resumed by another command only is not promised to the same one. */
UNIT_TEST(test_what_resumes) {
    const char *source = write_text("resumes.txt", 9000, 6), *out = scratch_path("resumes");
    assert_failed(RUN("--out", out, "--shards", "1", source), 1,
                  "give --shards 2 or more\nThe unfinished work is kept; to give up, remove ");
    assert_failed(RUN("--out", out, "--seed", "2", source), 1,
                  "choose another --out\nThe unfinished work is kept; to give up, remove ");
    assert_done(RUN("--out", out, "--shards", "5000", source));
}

UNIT_TEST(test_what_is_refused) {
    const char *good = scratch_put("good.txt", "a\nb\n"), *empty = scratch_put("empty.txt", "");
    const char *out = scratch_path("wrong");
    const struct {
        int status;
        const char *message, *arguments[6];
    } cases[] = {
        {2, "--out is missing", {"x.txt"}},
        {2, "no input files", {"--out", out}},
        {2, "--val-fraction: 0.9 is out of range 0 .. 0.5", {"--out", out, "--val-fraction", "0.9", "x"}},
        {1, "missing.txt: No such file", {"--out", out, good, scratch_path("missing.txt")}},
        {1, "it is empty", {"--out", out, empty}},
        {1, "it is a folder", {"--out", out, scratch_path(".")}},
        {1, "once only", {"--out", out, "-", "-"}},
        {1, "too few to hold out 1 %", {"--out", out, "--val-fraction", "0.01", good}},
        {1, "good.txt: File exists", {"--out", good, good}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *const *given = cases[i].arguments;
        assert_failed(RUN(given[0], given[1], given[2], given[3], given[4]), cases[i].status, cases[i].message);
        assert_false(files_exist(out));
    }
}

UNIT_TEST(test_disk_full) {
    const char *large = write_text("large.txt", 3000000, 4), *small = write_text("small.txt", 5000, 4);
    const char *out = scratch_path("full");
    const char *const arguments[] = {program, "--out", out, large, NULL};
    assert_int_equal(child_finish(child_start(1000000, arguments)), 1);
    assert_says("full/.hc_prepare/train.bin: File too large");
    assert_false(files_exist(out));

    /* An older result stays as it was. */
    char before[CHECKSUM_SIZE], after[CHECKSUM_SIZE];
    assert_done(RUN("--out", out, small));
    assert_int_equal(checksum_file(scratch_path("full/train.bin"), before), 0);
    scratch_put("full/notes.txt", "mine");
    assert_int_equal(child_finish(child_start(1000000, arguments)), 1);
    assert_int_equal(checksum_file(scratch_path("full/train.bin"), after), 0);
    assert_string_equal(before, after);
    assert_int_equal(scratch_entries(out), 4);

    /* A new result replaces it and leaves other files alone. */
    assert_done(RUN("--out", out, "--val-fraction", "0", large));
    assert_true(files_exist(scratch_path("full/notes.txt")));
    assert_false(files_exist(scratch_path("full/val.bin")));
    assert_int_equal(scratch_entries(out), 3);
}

UNIT_TEST(test_interrupt) {
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    const char *out = scratch_path("interrupted");
    for (size_t i = 0; i < COUNT(signals); i++) {
        int ends[2];
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        const pid_t child = START(ends[0], "--out", out, "-");
        close(ends[0]);
        assert_int_equal(write(ends[1], "some text\n", 10), 10);
        for (int waited = 0; waited < 1000 && !files_exist(out); waited++) {
            wait_ms(10);
        }
        assert_int_equal(kill(child, signals[i]), 0);
        assert_int_equal(child_finish(child), 130);
        assert_says("interrupted, nothing written");
        close(ends[1]);
        assert_false(files_exist(out));
    }
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
