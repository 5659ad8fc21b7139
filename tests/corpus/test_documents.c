/* Documents to token files: what comes out is what went in, in the order and split that were asked for, also when
 * the work was cut off and taken up again. */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/files/checksum.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "src/corpus/prepare.h"
#include "src/text/text_buffer.h"
#include "src/text/tokenizer.h"
#include "tests/support/scratch.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

enum { DOCUMENTS = 3000, MERGES = 8, END_OF_TEXT = 256 + MERGES };

static const char *const merges[MERGES] = {" t", "he", " the", " a", "in", "\n\n", "  ", "\xc3\xa4"};

static char *texts[DOCUMENTS];
static char ranks[600], lines[600], out[600];

/* ---- what goes in */

static void write_ranks(void) {
    FILE *file = fopen(ranks, "w");
    assert_non_null(file);
    for (unsigned rank = 0; rank < END_OF_TEXT; rank++) {
        const char byte = (char)rank;
        const char *string = rank < 256 ? &byte : merges[rank - 256];
        unsigned char text[16];
        EVP_EncodeBlock(text, (const unsigned char *)string, rank < 256 ? 1 : (int)strlen(string));
        fprintf(file, "%s %u\n", text, rank);
    }
    assert_int_equal(fclose(file), 0);
}

/* Words, white space of all kinds, characters of one to four bytes; some documents are empty. */
static char *make_text(uint64_t number) {
    static const char *const words[] = {" the",
                                        "the",
                                        " a\n",
                                        "in ",
                                        "\n\n",
                                        "   ",
                                        " 12345",
                                        "!?",
                                        "\t",
                                        "\xc3\xa4",
                                        " \xe6\x97\xa5\xe6\x9c\xac",
                                        "\xf0\x9f\x98\x80",
                                        "\xe3\x80\x80",
                                        "'s",
                                        "\xc2\xa0"};
    const uint64_t key = random_key(number, "text");
    const uint64_t count = number % 100 == 7 ? 0 : random_below(key, 0, 300);
    struct text_buffer text = {0};
    for (uint64_t i = 0; i < count; i++) {
        const char *word = words[random_below(key, i + 1, sizeof words / sizeof *words)];
        text_append(&text, word, strlen(word));
    }
    text_append(&text, "", 1);
    return text.bytes;
}

static void write_lines(const char *path, size_t first, size_t end) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (size_t i = first; i < end; i++) {
        json_t *object = json_pack("{s:i, s:s}", "id", (int)i, "text", texts[i]);
        char *line = json_dumps(object, i % 2 ? JSON_ENSURE_ASCII : JSON_COMPACT);
        fprintf(file, "%s%s\n", line, i % 50 == 3 ? "\n  \r" : "");
        free(line);
        json_decref(object);
    }
    assert_int_equal(fclose(file), 0);
}

static int begin(void **state) {
    const int result = scratch_begin(state);
    snprintf(ranks, sizeof ranks, "%s", scratch_path("ranks"));
    snprintf(lines, sizeof lines, "%s", scratch_path("lines.jsonl"));
    snprintf(out, sizeof out, "%s", scratch_path("out"));
    write_ranks();
    for (size_t i = 0; i < DOCUMENTS; i++) {
        texts[i] = make_text(i);
    }
    write_lines(lines, 0, DOCUMENTS);
    return result;
}

static int end(void **state) {
    for (size_t i = 0; i < DOCUMENTS; i++) {
        free(texts[i]);
    }
    return scratch_end(state);
}

static struct prepare_settings usual(const char *const *sources, size_t count) {
    return (struct prepare_settings){.folder = out,
                                     .sources = sources,
                                     .source_count = count,
                                     .vocabulary = ranks,
                                     .kind = DOCUMENT_JSONL,
                                     .field = "text",
                                     .val_fraction = 0.01,
                                     .seed = 5,
                                     .shuffle = true,
                                     .threads = 3,
                                     .resume = true,
                                     .save_interval = PREPARE_SAVE_INTERVAL,
                                     .pile_bytes = PREPARE_PILE_BYTES,
                                     .stop_descriptor = -1};
}

static struct prepare_report prepare(const struct prepare_settings *settings) {
    struct prepare_report report;
    if (prepare_run(settings, &report) != PREPARE_DONE) {
        fail_msg("%s", error_text());
    }
    return report;
}

static void assert_fails(const struct prepare_settings *settings, const char *expected) {
    struct prepare_report report;
    assert_int_equal(prepare_run(settings, &report), PREPARE_FAILED);
    if (!strstr(error_text(), expected)) {
        fail_msg("'%s' does not say '%s'", error_text(), expected);
    }
    assert_false(files_exist(out));
}

/* ---- what comes out */

static const char *in_out(const char *name) {
    char path[700];
    snprintf(path, sizeof path, "out/%s", name);
    return scratch_path(path);
}

/* The documents of a token file as texts, in order. */
struct decoded {
    char *texts[DOCUMENTS];
    size_t count, tokens;
};

static void decode(const char *name, struct decoded *decoded) {
    size_t bytes;
    unsigned char *data = (unsigned char *)scratch_read(in_out(name), &bytes);
    assert_non_null(data);
    *decoded = (struct decoded){.tokens = bytes / 2};
    struct text_buffer text = {0};
    for (size_t i = 0; i < bytes; i += 2) {
        const unsigned token = data[i] | (unsigned)data[i + 1] << 8;
        const char byte = (char)token;
        assert_true(token <= END_OF_TEXT);
        if (token < END_OF_TEXT) {
            const char *string = token < 256 ? &byte : merges[token - 256];
            text_append(&text, string, token < 256 ? 1 : strlen(string));
            continue;
        }
        text_append(&text, "", 1);
        assert_true(decoded->count < DOCUMENTS);
        decoded->texts[decoded->count++] = text.bytes;
        text = (struct text_buffer){0};
    }
    assert_int_equal(text.size, 0); /* an end after each */
    free(data);
}

static void release(struct decoded *decoded) {
    for (size_t i = 0; i < decoded->count; i++) {
        free(decoded->texts[i]);
    }
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The files have the documents, each once; the number held out is right. */
static void assert_all_documents(size_t held_out) {
    struct decoded train, val;
    decode("train.bin", &train);
    decode("val.bin", &val);
    assert_int_equal(train.count + val.count, DOCUMENTS);
    assert_true(val.count + 1 >= held_out && val.count <= held_out + 1);
    static char *all[DOCUMENTS], *expected[DOCUMENTS];
    memcpy(all, train.texts, train.count * sizeof *all);
    memcpy(all + train.count, val.texts, val.count * sizeof *all);
    memcpy(expected, texts, sizeof expected);
    qsort(all, DOCUMENTS, sizeof *all, by_text);
    qsort(expected, DOCUMENTS, sizeof *expected, by_text);
    for (size_t i = 0; i < DOCUMENTS; i++) {
        assert_string_equal(all[i], expected[i]);
    }
    release(&train);
    release(&val);
}

static void digests(char both[2][CHECKSUM_SIZE]) {
    assert_int_equal(checksum_file(in_out("train.bin"), both[0]), 0);
    assert_int_equal(checksum_file(in_out("val.bin"), both[1]), 0);
}

static void assert_same(char a[2][CHECKSUM_SIZE], char b[2][CHECKSUM_SIZE]) {
    assert_string_equal(a[0], b[0]);
    assert_string_equal(a[1], b[1]);
}

static void remove_out(void) {
    assert_int_equal(files_remove_folder(out), 0);
}

/* ---- tests */

static void test_shuffled(void **state) {
    (void)state;
    const char *const sources[] = {lines};
    struct prepare_settings settings = usual(sources, 1);
    char first[2][CHECKSUM_SIZE], again[2][CHECKSUM_SIZE];
    const struct prepare_report report = prepare(&settings);
    assert_int_equal(report.documents, DOCUMENTS);
    assert_all_documents(DOCUMENTS / 100);
    digests(first);
    /* in another order than before */
    struct decoded train;
    size_t at_home = 0;
    decode("train.bin", &train);
    for (size_t i = 0; i < train.count; i++) {
        at_home += strcmp(train.texts[i], texts[i]) == 0;
    }
    assert_true(at_home < DOCUMENTS / 20);
    assert_int_equal(report.train_tokens, train.tokens);
    release(&train);
    /* whatever the number of threads */
    settings.threads = 1;
    prepare(&settings);
    digests(again);
    assert_same(first, again);
    settings.seed = 6;
    prepare(&settings);
    digests(again);
    assert_string_not_equal(first[0], again[0]);
    assert_all_documents(DOCUMENTS / 100);
    remove_out();
}

static void test_kept_order(void **state) {
    (void)state;
    const char *const sources[] = {lines};
    struct prepare_settings settings = usual(sources, 1);
    settings.shuffle = false;
    settings.val_fraction = 0;
    prepare(&settings);
    struct decoded train;
    decode("train.bin", &train);
    assert_int_equal(train.count, DOCUMENTS);
    for (size_t i = 0; i < DOCUMENTS; i++) {
        assert_string_equal(train.texts[i], texts[i]);
    }
    release(&train);
    assert_false(files_exist(in_out("val.bin")));
    remove_out();
}

/* As test_shuffled, through a pipe: many piles instead of one. */
static void test_standard_input(void **state) {
    (void)state;
    const char *const sources[] = {lines}, *const from_pipe[] = {"-"};
    struct prepare_settings settings = usual(sources, 1);
    char first[2][CHECKSUM_SIZE], again[2][CHECKSUM_SIZE];
    prepare(&settings);
    digests(first);
    const int kept = dup(STDIN_FILENO), file = open(lines, O_RDONLY);
    assert_true(kept >= 0 && file >= 0);
    assert_true(dup2(file, STDIN_FILENO) == STDIN_FILENO);
    settings.sources = from_pipe;
    prepare(&settings);
    digests(again);
    assert_true(dup2(kept, STDIN_FILENO) == STDIN_FILENO);
    close(kept);
    close(file);
    assert_same(first, again);
    remove_out();
}

static void write_order(const char *path, uint64_t count, uint64_t step) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t document = (i * step + 11) % count;
        for (int byte = 0; byte < 8; byte++) {
            fputc((int)(document >> 8 * byte & 255), file);
        }
    }
    assert_int_equal(fclose(file), 0);
}

static void test_listed_order(void **state) {
    (void)state;
    const char *const sources[] = {lines};
    struct prepare_settings settings = usual(sources, 1);
    char order[600];
    enum { STEP = 1009, HELD_OUT = 31 /* ceil(0.0101 DOCUMENTS) */ };
    snprintf(order, sizeof order, "%s", scratch_path("order"));
    write_order(order, DOCUMENTS, STEP);
    settings.order = order;
    settings.val_fraction = 0.0101;
    prepare(&settings);
    struct decoded parts[2];
    decode("val.bin", &parts[0]);
    decode("train.bin", &parts[1]);
    assert_int_equal(parts[0].count, HELD_OUT);
    for (size_t i = 0; i < DOCUMENTS; i++) {
        const char *got = i < HELD_OUT ? parts[0].texts[i] : parts[1].texts[i - HELD_OUT];
        assert_string_equal(got, texts[(i * STEP + 11) % DOCUMENTS]);
    }
    release(&parts[0]);
    release(&parts[1]);
    remove_out();
    write_order(order, DOCUMENTS - 1, 1);
    assert_fails(&settings, "lists 2999 documents, but the input has 3000");
    write_order(order, DOCUMENTS, 3); /* each third, three times */
    assert_fails(&settings, "each number below that stands once");
    assert_int_equal(truncate(order, 100), 0);
    assert_fails(&settings, "should have 8 for each document");
}

/* Several compressed files give what one file gives. */
static void test_several_files(void **state) {
    (void)state;
    char parts[3][600];
    const char *sources[] = {lines, NULL, NULL};
    struct prepare_settings settings = usual(sources, 1);
    char first[2][CHECKSUM_SIZE], again[2][CHECKSUM_SIZE];
    prepare(&settings);
    digests(first);
    for (size_t i = 0; i < 3; i++) {
        size_t bytes;
        snprintf(parts[i], sizeof parts[i], "%s", scratch_path((char[]){'p', (char)('0' + i), '\0'}));
        write_lines(parts[i], DOCUMENTS * i / 3, DOCUMENTS * (i + 1) / 3);
        char *text = scratch_read(parts[i], &bytes);
        gzFile file = gzopen(parts[i], "wb");
        assert_int_equal(gzwrite(file, text, (unsigned)bytes), bytes);
        assert_int_equal(gzclose(file), Z_OK);
        free(text);
        sources[i] = parts[i];
    }
    settings.source_count = 3;
    assert_int_equal(prepare(&settings).documents, DOCUMENTS);
    digests(again);
    assert_same(first, again);
    remove_out();
}

/* A file of several MiB is one document, encoded in parts; its tokens are those of the whole. */
static void test_files(void **state) {
    (void)state;
    struct text_buffer large = {0};
    for (uint64_t i = 0; large.size < 5000000; i++) {
        const char *text = texts[i % DOCUMENTS];
        text_append(&large, text, strlen(text));
    }
    char paths[3][600];
    snprintf(paths[0], sizeof paths[0], "%s", scratch_write("a", "in the", 6));
    snprintf(paths[1], sizeof paths[1], "%s", scratch_write("b", large.bytes, large.size));
    snprintf(paths[2], sizeof paths[2], "%s", scratch_write("c", "", 0));
    const char *const sources[] = {paths[0], paths[1], paths[2]};
    struct prepare_settings settings = usual(sources, 3);
    settings.kind = DOCUMENT_FILES;
    settings.val_fraction = 0;
    settings.shuffle = false;
    prepare(&settings);
    struct tokenizer *tokenizer;
    struct token_list tokens = {0};
    assert_int_equal(tokenizer_open(ranks, &tokenizer), 0);
    struct tokenizer_scratch *scratch = tokenizer_scratch_create();
    assert_int_equal(tokenizer_encode(tokenizer, scratch, "in the", 6, &tokens), 0);
    token_list_append(&tokens, END_OF_TEXT);
    assert_int_equal(tokenizer_encode(tokenizer, scratch, large.bytes, large.size, &tokens), 0);
    token_list_append(&tokens, END_OF_TEXT);
    token_list_append(&tokens, END_OF_TEXT);
    size_t bytes;
    char *train = scratch_read(in_out("train.bin"), &bytes);
    assert_int_equal(bytes, 2 * tokens.count);
    assert_memory_equal(train, tokens.tokens, bytes); /* hosts of these tests are little-endian */
    free(train);
    remove_out();

    /* As running text it is cut into chunks, whose tokens are those of the whole, too. */
    const char *const running[] = {paths[1]};
    settings = usual(running, 1);
    settings.kind = DOCUMENT_CHUNKS;
    settings.val_fraction = 0;
    prepare(&settings);
    train = scratch_read(in_out("train.bin"), &bytes);
    assert_int_equal(bytes, 2 * (tokens.count - 4));
    assert_memory_equal(train, tokens.tokens + 3, bytes);
    free(train);
    settings.val_fraction = 0.1;
    const struct prepare_report report = prepare(&settings);
    assert_int_equal(report.train_tokens + report.val_tokens, tokens.count - 4);
    assert_true(fabs((double)report.val_tokens / (double)tokens.count - 0.1) < 0.02);
    tokenizer_scratch_free(scratch);
    tokenizer_close(tokenizer);
    token_list_free(&tokens);
    text_free(&large);
    remove_out();
}

/* Bytes as tokens: a blank line ends a document. */
static void test_bytes(void **state) {
    (void)state;
    /* a byte order mark, and a number that no machine has */
    static const char two[] =
        "\xef\xbb\xbf{\"id\":123456789012345678901,\"text\":\"one\"}\r\n{\"text\":\"two\\u0000\"}";
    const char *const sources[] = {scratch_write("two.jsonl", two, sizeof two - 1)};
    struct prepare_settings settings = usual(sources, 1);
    settings.vocabulary = NULL;
    settings.val_fraction = 0;
    settings.shuffle = false;
    prepare(&settings);
    static const char expected[] = "one\n\ntwo\0\n\n";
    size_t bytes;
    char *train = scratch_read(in_out("train.bin"), &bytes);
    assert_int_equal(bytes, 2 * (sizeof expected - 1));
    for (size_t i = 0; i < bytes; i++) {
        assert_int_equal(train[i], i % 2 ? 0 : expected[i / 2]);
    }
    free(train);
    remove_out();
}

/* Words longer than a part, of characters of three bytes: cut between two of them. */
static void test_no_white_space(void **state) {
    (void)state;
    enum { CHARACTERS = 3000001 };
    char *text = malloc(3 * CHARACTERS);
    assert_non_null(text);
    for (size_t i = 0; i < CHARACTERS; i++) {
        memcpy(text + 3 * i, "\xe4\xb8\xad", 3);
    }
    const char *const sources[] = {scratch_write("long", text, 3 * CHARACTERS)};
    struct prepare_settings settings = usual(sources, 1);
    settings.val_fraction = 0;
    for (int chunks = 0; chunks < 2; chunks++) {
        settings.kind = chunks ? DOCUMENT_CHUNKS : DOCUMENT_FILES;
        prepare(&settings);
        size_t bytes;
        char *train = scratch_read(in_out("train.bin"), &bytes);
        assert_int_equal(bytes, 2 * (3 * CHARACTERS + 1));
        for (size_t i = 0; i < 3 * CHARACTERS; i++) {
            assert_int_equal((unsigned char)train[2 * i], (unsigned char)text[i]);
        }
        free(train);
        remove_out();
    }
    free(text);
}

static void check_bad(const char *content, size_t bytes, const char *expected) {
    const char *const sources[] = {lines, scratch_write("bad.jsonl", content, bytes)};
    const struct prepare_settings settings = usual(sources, 2);
    assert_fails(&settings, expected);
}

static void test_bad_input(void **state) {
    (void)state;
#define BAD(content, expected) check_bad(content, sizeof(content) - 1, expected)
    BAD("{\"text\":\"a\"}\n\n{\"text\":\"b\"\n", "bad.jsonl:3: not JSON at byte");
    BAD("{\"body\":\"a\", \"url\":\"b\"}\n",
        "bad.jsonl:1: no field 'text'; there is 'body', 'url' (choose with --field)");
    BAD("{\"text\":5}\n", "bad.jsonl:1: field 'text' is not a string");
    BAD("\n\n[\"text\"]\n", "bad.jsonl:3: not a JSON object");
    BAD("{\"text\":\"a\"}\n{\"text\":\"\xff\"}\n", "bad.jsonl:2: not UTF-8 (byte 0xff)");
    BAD("{\"text\":\"\\ud800\"}\n", "bad.jsonl:1: not JSON");
    BAD("{\"text\":\"a\"} x\n", "bad.jsonl:1: not JSON at byte");
    BAD("\x1f\x8b\x08\0\0\0\0\0", "bad.jsonl: its compressed data ends in the middle");
    const char *const text[] = {scratch_write("latin.txt", "one\ntwo \xe4\n", 10)};
    struct prepare_settings settings = usual(text, 1);
    settings.kind = DOCUMENT_FILES;
    assert_fails(&settings, "latin.txt:2: not UTF-8 (byte 0xe4)");
    settings.replace_invalid = true;
    settings.val_fraction = 0;
    prepare(&settings);
    struct decoded train;
    decode("train.bin", &train);
    assert_string_equal(train.texts[0], "one\ntwo \xef\xbf\xbd\n");
    release(&train);
    remove_out();
}

/* ---- work that is cut off */

/* A number of an object in the saved state; 0: there is none. */
static int64_t saved_number(const char *object, const char *name) {
    json_t *saved = json_load_file(in_out(".hc_prepare/state.json"), 0, NULL);
    const int64_t number = json_integer_value(json_object_get(json_object_get(saved, object), name));
    json_decref(saved);
    return number;
}

static bool has_passed(const char *number, int64_t before) {
    return saved_number(strcmp(number, "merged") == 0 ? "spool" : "reader", number) > before;
}

/* Starts the work in a process of its own and kills it as soon as this number has grown in what it saved; true: it
 * was done before. */
static bool run_and_kill_at(const struct prepare_settings *settings, const char *number, int64_t before) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct prepare_report report;
        _exit(prepare_run(settings, &report) == PREPARE_DONE ? 0 : 1);
    }
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (has_passed(number, before)) {
            kill(child, SIGKILL);
            assert_int_equal(waitpid(child, &status, 0), child);
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFEXITED(status);
}

static bool run_and_kill(const struct prepare_settings *settings, int64_t before) {
    return run_and_kill_at(settings, "pieces", before);
}

/* The note of a move that has begun, with the task of what was prepared: that of a run that is stopped at once. */
static bool write_note(const struct prepare_settings *settings) {
    struct prepare_settings stopped = *settings;
    struct prepare_report report;
    char folder[600];
    int ends[2];
    snprintf(folder, sizeof folder, "%s", scratch_path("stopped"));
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "", 1), 1);
    stopped.stop_descriptor = ends[0];
    stopped.folder = folder;
    assert_int_equal(prepare_run(&stopped, &report), PREPARE_STOPPED);
    close(ends[0]);
    close(ends[1]);
    json_t *state = json_load_file(scratch_path("stopped/.hc_prepare/state.json"), 0, NULL);
    json_t *note = json_pack("{s:b, s:O}", "moving", 1, "task", json_object_get(state, "task"));
    const bool written = note && json_dump_file(note, in_out(".hc_prepare/state.json"), 0) == 0;
    json_decref(note);
    json_decref(state);
    assert_int_equal(files_remove_folder(folder), 0);
    return written;
}

static void test_killed(void **state) {
    (void)state;
    const char *const sources[] = {lines};
    struct prepare_settings settings = usual(sources, 1);
    settings.threads = 1;
    settings.save_interval = 0;
    for (int shuffles = 0; shuffles < 2; shuffles++) {
        char whole[2][CHECKSUM_SIZE], again[2][CHECKSUM_SIZE];
        settings.shuffle = shuffles;
        prepare(&settings);
        digests(whole);
        remove_out();
        int kills = 0;
        while (!run_and_kill(&settings, saved_number("reader", "pieces"))) {
            kills++;
            assert_false(files_exist(in_out("train.bin")));
        }
        if (kills == 0) {
            fail_msg("it was never killed in time");
        }
        digests(again);
        assert_same(whole, again);
        assert_false(files_exist(in_out(".hc_prepare")));
        remove_out();
    }
}

/* Also while piles are sorted, of which there are many here. */
static void test_killed_while_sorting(void **state) {
    (void)state;
    const char *const sources[] = {lines};
    struct prepare_settings settings = usual(sources, 1);
    char whole[2][CHECKSUM_SIZE], again[2][CHECKSUM_SIZE];
    prepare(&settings);
    digests(whole);
    remove_out();
    settings.pile_bytes = 20000;
    settings.save_interval = 0;
    int in_sorting = 0;
    for (bool done = false; !done;) {
        const int64_t merged = saved_number("spool", "merged");
        done = run_and_kill_at(&settings, "merged", merged);
        in_sorting += !done && saved_number("spool", "merged") > 0;
    }
    assert_true(in_sorting > 3);
    digests(again);
    assert_same(whole, again);
    remove_out();
}

/* A text of so many lines, at `path` [600]. */
static void write_running_text(char *path, const char *name, unsigned count) {
    snprintf(path, 600, "%s", scratch_path(name));
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (unsigned line = 0; line < count; line++) {
        fprintf(file, "line %u of %s, which has %u\n%s", line, name, count, line % 9 == 0 ? "\n" : "");
    }
    assert_int_equal(fclose(file), 0);
}

/* What is held out of running text goes by how much of it there was before, in the file and in those before it. */
static void test_killed_in_running_text(void **state) {
    (void)state;
    char first[600], second[600];
    const char *const sources[] = {first, second};
    write_running_text(first, "first.txt", 40000);
    write_running_text(second, "second.txt", 300000);
    struct prepare_settings settings = usual(sources, 2);
    char whole[2][CHECKSUM_SIZE], again[2][CHECKSUM_SIZE];
    settings.kind = DOCUMENT_CHUNKS;
    settings.vocabulary = NULL;
    settings.val_fraction = 0.1;
    settings.threads = 1;
    const struct prepare_report report = prepare(&settings);
    const double share = (double)report.val_tokens / (double)(report.train_tokens + report.val_tokens);
    assert_float_equal(share, 0.1, 1e-3);
    digests(whole);
    remove_out();
    settings.save_interval = 0;
    int in_second = 0;
    for (bool done = false; !done;) {
        done = run_and_kill_at(&settings, "documents", saved_number("reader", "documents"));
        in_second += !done && saved_number("reader", "split_held_out") > 0;
    }
    assert_true(in_second > 0);
    digests(again);
    assert_same(whole, again);
    remove_out();
}

/* A file that is held out, and runs that are killed before it, in it and behind it. */
static void test_val_source(void **state) {
    (void)state;
    enum { TRAIN = DOCUMENTS / 10 };
    char train_lines[600], val_lines[600];
    snprintf(train_lines, sizeof train_lines, "%s", scratch_path("train.jsonl"));
    snprintf(val_lines, sizeof val_lines, "%s", scratch_path("val.jsonl"));
    write_lines(train_lines, 0, TRAIN);
    write_lines(val_lines, TRAIN, DOCUMENTS);
    const char *const sources[] = {train_lines, val_lines};
    struct prepare_settings settings = usual(sources, 2);
    struct decoded val;
    char whole[2][CHECKSUM_SIZE], again[2][CHECKSUM_SIZE];
    settings.val_source = true;
    settings.val_fraction = 0;
    prepare(&settings);
    digests(whole);
    assert_all_documents(DOCUMENTS - TRAIN);
    decode("val.bin", &val);
    assert_int_equal(val.count, DOCUMENTS - TRAIN);
    qsort(val.texts, val.count, sizeof *val.texts, by_text);
    static char *expected[DOCUMENTS];
    memcpy(expected, texts + TRAIN, val.count * sizeof *expected);
    qsort(expected, val.count, sizeof *expected, by_text);
    for (size_t i = 0; i < val.count; i++) {
        assert_string_equal(val.texts[i], expected[i]);
    }
    release(&val);
    remove_out();
    settings.pile_bytes = 20000;
    settings.save_interval = 0;
    int in_val = 0, in_sorting = 0;
    for (bool done = false; !done;) {
        const int64_t merged = saved_number("spool", "merged");
        const bool reads_val = saved_number("reader", "held_out_from") > 0;
        done = run_and_kill_at(&settings, reads_val ? "merged" : "held_out_from", reads_val ? merged : 0);
        in_val += !done && saved_number("reader", "held_out_from") == TRAIN && saved_number("spool", "merged") == 0;
        in_sorting += !done && saved_number("spool", "merged") > 0;
    }
    assert_true(in_val > 0 && in_sorting > 0);
    digests(again);
    assert_same(whole, again);
    remove_out();
}

/* What was left by other settings, or for another order, is neither mixed in nor thrown away unasked. */
static void test_left_by_others(void **state) {
    (void)state;
    const char *const sources[] = {lines};
    struct prepare_settings settings = usual(sources, 1), other = settings;
    struct prepare_report report;
    char order[600], first[2][CHECKSUM_SIZE], second[2][CHECKSUM_SIZE];
    settings.save_interval = other.save_interval = 0;
    other.seed++;
    assert_false(run_and_kill(&settings, 0));
    assert_int_equal(prepare_run(&other, &report), PREPARE_FAILED);
    assert_true(report.kept);
    assert_non_null(strstr(error_text(), "has unfinished work of other files or settings: give --no-resume"));
    prepare(&settings);
    digests(first);
    remove_out();
    assert_false(run_and_kill(&settings, 0));
    other.resume = false;
    prepare(&other);
    digests(second);
    assert_string_not_equal(first[0], second[0]);
    remove_out();

    snprintf(order, sizeof order, "%s", scratch_path("order"));
    write_order(order, DOCUMENTS, 7);
    settings.order = order;
    assert_false(run_and_kill(&settings, 0));
    write_order(order, DOCUMENTS, 11);
    assert_int_equal(prepare_run(&settings, &report), PREPARE_FAILED);
    assert_non_null(strstr(error_text(), "of other files or settings"));
    remove_out();
}

/* Results that were complete, but not all in place. */
static void test_cut_off_in_the_move(void **state) {
    (void)state;
    static const char *const names[] = {"train.bin", "val.bin", "meta.json"};
    const char *const sources[] = {lines};
    struct prepare_settings settings = usual(sources, 1);
    char whole[2][CHECKSUM_SIZE], again[2][CHECKSUM_SIZE];
    for (size_t moved = 0; moved <= 3; moved++) {
        const struct prepare_report expected = prepare(&settings);
        digests(whole);
        /* as a process leaves it that was killed after so many moves */
        assert_int_equal(files_make_folder(in_out(".hc_prepare")), 0);
        assert_true(write_note(&settings));
        for (size_t i = moved; i < 3; i++) {
            char work[64];
            snprintf(work, sizeof work, ".hc_prepare/%s", names[i]);
            assert_int_equal(rename(in_out(names[i]), in_out(work)), 0);
        }
        const struct prepare_report report = prepare(&settings);
        assert_int_equal(report.train_tokens, expected.train_tokens);
        assert_int_equal(report.val_tokens, expected.val_tokens);
        assert_int_equal(report.source_bytes, expected.source_bytes);
        digests(again);
        assert_same(whole, again);
        assert_int_equal(scratch_entries(out), 3);
        remove_out();
    }
}

/* A place that is taken: older results stay, and so do the new ones. */
static void test_place_taken(void **state) {
    (void)state;
    const char *const sources[] = {lines};
    struct prepare_settings settings = usual(sources, 1);
    struct prepare_report report;
    prepare(&settings);
    assert_int_equal(unlink(in_out("val.bin")), 0);
    assert_int_equal(files_make_folder(in_out("val.bin")), 0);
    settings.seed++;
    assert_int_equal(prepare_run(&settings, &report), PREPARE_FAILED);
    assert_non_null(strstr(error_text(), "val.bin: it is a folder"));
    assert_true(report.kept);
    assert_true(files_exist(in_out("meta.json")) && files_exist(in_out("train.bin")));
    assert_int_equal(rmdir(in_out("val.bin")), 0);
    prepare(&settings);
    assert_all_documents(DOCUMENTS / 100);
    assert_int_equal(scratch_entries(out), 3);
    remove_out();
}

static void test_stopped(void **state) {
    (void)state;
    const char *const sources[] = {lines};
    struct prepare_settings settings = usual(sources, 1);
    struct prepare_report report;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "", 1), 1);
    settings.stop_descriptor = ends[0];
    assert_int_equal(prepare_run(&settings, &report), PREPARE_STOPPED);
    assert_true(report.kept);
    assert_false(files_exist(in_out("train.bin")));
    settings.stop_descriptor = -1;
    prepare(&settings);
    assert_all_documents(DOCUMENTS / 100);
    close(ends[0]);
    close(ends[1]);
    remove_out();
}

static void test_disk_full(void **state) {
    (void)state;
    const char *const sources[] = {lines};
    const struct prepare_settings settings = usual(sources, 1);
    signal(SIGXFSZ, SIG_IGN);
    scratch_limit_file_size(300000);
    assert_fails(&settings, "File too large");
    scratch_limit_file_size(UINT64_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shuffled),
        cmocka_unit_test(test_kept_order),
        cmocka_unit_test(test_standard_input),
        cmocka_unit_test(test_listed_order),
        cmocka_unit_test(test_several_files),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_no_white_space),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_val_source),
        cmocka_unit_test(test_left_by_others),
        cmocka_unit_test(test_killed_while_sorting),
        cmocka_unit_test(test_killed_in_running_text),
        cmocka_unit_test(test_cut_off_in_the_move),
        cmocka_unit_test(test_place_taken),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_disk_full),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
