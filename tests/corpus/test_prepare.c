/* hc_prepare, run as a program: token files, meta.json, and what is left behind when it fails. */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/files/checksum.h"
#include "runtime/files/files.h"
#include "tests/support/scratch.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_ARGUMENTS = 16, MOST_MESSAGE = 4000 };

static char message[MOST_MESSAGE]; /* stderr of the last run */

/* Starts hc_prepare with stdin from this descriptor; stdout and stderr go to files. */
static pid_t start(int input, uint64_t limit, const char *const *arguments) {
    char *all[MOST_ARGUMENTS] = {(char[]){"hc_prepare"}};
    for (int i = 0; arguments[i] != NULL; i++) {
        all[i + 1] = (char *)(uintptr_t)arguments[i];
    }
    const char *errors = scratch_path("stderr"), *output = scratch_path("stdout");
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const int error_file = open(errors, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(input, STDIN_FILENO);
        dup2(open(output, O_WRONLY | O_CREAT | O_TRUNC, 0666), STDOUT_FILENO);
        dup2(error_file, STDERR_FILENO);
        if (limit != UINT64_MAX) {
            scratch_limit_file_size(limit);
        }
        signal(SIGXFSZ, SIG_DFL);
        signal(SIGINT, SIG_DFL);
        execv(HC_PROGRAMS "/hc_prepare", all);
        _exit(99);
    }
    return child;
}

static int finish(pid_t child) {
    int status = 0;
    size_t bytes;
    assert_int_equal(waitpid(child, &status, 0), child);
    char *text = scratch_read(scratch_path("stderr"), &bytes);
    snprintf(message, sizeof message, "%s", text != NULL ? text : "");
    free(text);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#define RUN(...) finish(start(STDIN_FILENO, UINT64_MAX, (const char *const[]){__VA_ARGS__, NULL}))

static void assert_message(const char *expected) {
    if (strstr(message, expected) == NULL) {
        fail_msg("'%s' is not in '%s'", expected, message);
    }
}

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

/* The tokens of a file, which must be there, as a text. */
static char *read_tokens(const char *path, size_t *count) {
    size_t bytes;
    char *data = scratch_read(path, &bytes);
    *count = 0;
    assert_non_null(data);
    assert_int_equal(bytes % 2, 0);
    *count = bytes / 2;
    for (size_t i = 0; i < *count; i++) {
        assert_int_equal(data[2 * i + 1], 0);
        data[i] = data[2 * i];
    }
    data[*count] = '\0';
    return data;
}

static json_t *read_meta(const char *folder) {
    char path[700];
    snprintf(path, sizeof path, "%s/meta.json", folder);
    json_t *meta = json_load_file(path, 0, NULL);
    assert_non_null(meta);
    return meta;
}

static int64_t meta_integer(const json_t *meta, const char *key) {
    const json_t *value = json_object_get(meta, key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static double meta_real(const json_t *meta, const char *key) {
    const json_t *value = json_object_get(meta, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
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
    char out[600], source[600], fraction_text[32];
    char *text = make_text(bytes, 1);
    const size_t length = strlen(text);
    snprintf(out, sizeof out, "%s", scratch_path("split/out"));
    snprintf(source, sizeof source, "%s", scratch_write("source.txt", text, length));
    snprintf(fraction_text, sizeof fraction_text, "%g", fraction);
    assert_int_equal(RUN("--out", out, "--val-fraction", fraction_text, source), 0);
    assert_string_equal(message, "");
    size_t train_count, val_count;
    char *train = read_tokens(scratch_path("split/out/train.bin"), &train_count);
    char *val = read_tokens(scratch_path("split/out/val.bin"), &val_count);
    assert_int_equal(train_count + val_count, length);
    assert_true(fabs((double)val_count / (double)length - fraction) < tolerance);
    assert_split_of(text, train, val);

    json_t *meta = read_meta(out);
    char digest[CHECKSUM_SIZE];
    assert_int_equal(checksum_memory(text, length, digest), 0);
    assert_int_equal(meta_integer(meta, "vocab_size"), 256);
    assert_string_equal(json_string_value(json_object_get(meta, "tokenizer")), "byte");
    assert_int_equal(meta_integer(meta, "train_tokens"), train_count);
    assert_int_equal(meta_integer(meta, "val_tokens"), val_count);
    assert_true(fabs(meta_real(meta, "held_out_fraction") - (double)val_count / (double)length) < 1e-9);
    assert_true(fabs(meta_real(meta, "unigram_entropy") - entropy_of(train, train_count)) < 1e-8);
    const json_t *first = json_array_get(json_object_get(meta, "sources"), 0);
    assert_string_equal(json_string_value(json_object_get(first, "path")), source);
    assert_int_equal(meta_integer(first, "bytes"), length);
    assert_string_equal(json_string_value(json_object_get(first, "sha256")), digest);
    json_decref(meta);
    assert_int_equal(scratch_entries(out), 3);
    free(train);
    free(val);
    free(text);
}

/* Up to the length of a paragraph, and for large ones where whole chunks are held out, up to one of these. */
static void test_split(void **state) {
    (void)state;
    check_split(5000000, 0.5, 65536 / 5e6);
    check_split(5000000, 0.1, 1e-4);
    check_split(300000, 0.1, 1e-3);
    check_split(5000, 0.1, 0.05);
    check_split(2000000, 0.5, 1e-4);
    check_split(200000, 0.01, 1e-3);
}

/* The share that is held out does not depend on where the seed lets it begin, nor on how the text lies in files; and what is
 * printed is what came out. */
static void test_share(void **state) {
    (void)state;
    char out[600], first[600], second[600], wanted[80];
    char *text = make_text(300000, 7);
    const size_t length = strlen(text);
    snprintf(first, sizeof first, "%s", scratch_write("first.txt", text, 100000));
    snprintf(second, sizeof second, "%s", scratch_write("second.txt", text + 100000, length - 100000));
    snprintf(out, sizeof out, "%s", scratch_path("share"));
    static const char *const seeds[] = {"1", "2", "3", "4", "5", "6", "7", "8"};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        assert_int_equal(RUN("--out", out, "--seed", seeds[i], first, second), 0);
        json_t *meta = read_meta(out);
        assert_float_equal(meta_real(meta, "held_out_fraction"), 0.1, 0.001);
        snprintf(wanted, sizeof wanted, "%" PRId64 " held out (%.3g %% of all; asked for: 10 %%)",
                 meta_integer(meta, "val_tokens"), 100 * meta_real(meta, "held_out_fraction"));
        char *printed = scratch_read(scratch_path("stdout"), &(size_t){0});
        if (!printed || !strstr(printed, wanted) ||
            !strstr(printed, "the loss of a model that knows only how often")) {
            fail_msg("no '%s' in '%s'", wanted, printed ? printed : "");
        }
        free(printed);
        json_decref(meta);
    }
    free(text);
}

/* A compressed source holds more text than bytes, so the whole is not divided by its stored bytes. */
static void test_share_of_compressed_text(void **state) {
    (void)state;
    char out[600], first[600], command[1400];
    char *text = make_text(600000, 7);
    snprintf(first, sizeof first, "%s", scratch_write("plain.txt", text, 100000));
    scratch_write("packed.txt", text + 100000, strlen(text) - 100000);
    snprintf(command, sizeof command, "gzip -f '%s'", scratch_path("packed.txt"));
    assert_int_equal(system(command), 0);
    snprintf(out, sizeof out, "%s", scratch_path("mixed"));
    assert_int_equal(RUN("--out", out, first, scratch_path("packed.txt.gz")), 0);
    json_t *meta = read_meta(out);
    assert_true(meta_real(meta, "held_out_fraction") > 0.06 && meta_real(meta, "held_out_fraction") < 0.14);
    json_decref(meta);
    free(text);
}

static void test_seed_and_repeat(void **state) {
    (void)state;
    char source[600], digests[3][CHECKSUM_SIZE];
    char *text = make_text(400000, 2);
    snprintf(source, sizeof source, "%s", scratch_write("seeded.txt", text, strlen(text)));
    free(text);
    static const char *const seeds[] = {"1", "1", "2"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(RUN("--out", scratch_path("seeded"), "--seed", seeds[i], source), 0);
        assert_int_equal(checksum_file(scratch_path("seeded/val.bin"), digests[i]), 0);
    }
    assert_string_equal(digests[0], digests[1]);
    assert_string_not_equal(digests[0], digests[2]);
}

static void test_several_sources_and_stdin(void **state) {
    (void)state;
    char first[600];
    snprintf(first, sizeof first, "%s", scratch_write("first.txt", "one\ntwo\n", 8));
    const int input = open(scratch_write("input.txt", "three\nfour\n", 11), O_RDONLY);
    assert_true(input >= 0);
    assert_int_equal(finish(start(input, UINT64_MAX,
                                  (const char *const[]){"--val-fraction=0", "--out", scratch_path("several"), first,
                                                        "-", NULL})),
                     0);
    close(input);
    size_t count;
    char *train = read_tokens(scratch_path("several/train.bin"), &count);
    assert_string_equal(train, "one\ntwo\nthree\nfour\n");
    free(train);
    assert_false(files_exist(scratch_path("several/val.bin")));
    json_t *meta = read_meta(scratch_path("several"));
    assert_int_equal(json_array_size(json_object_get(meta, "sources")), 2);
    json_decref(meta);
}

static void test_val_file(void **state) {
    (void)state;
    char train_file[600], val_file[600], empty[600], out[600];
    snprintf(train_file, sizeof train_file, "%s", scratch_write("head.txt", "one\ntwo\n", 8));
    snprintf(val_file, sizeof val_file, "%s", scratch_write("tail.txt", "three\nfour\n", 11));
    snprintf(empty, sizeof empty, "%s", scratch_write("empty.txt", "", 0));
    snprintf(out, sizeof out, "%s", scratch_path("val-file"));
    assert_int_equal(RUN("--out", out, train_file, "--val", empty), 1);
    assert_message("the file to hold out has no text");
    assert_int_equal(RUN("--out", out, empty, "--val", val_file), 1);
    assert_message("the files to train on have no text");
    assert_int_equal(RUN("--out", out, train_file, "--val", train_file, "--order", val_file, "--documents",
                         "files"),
                     2);
    assert_message("--order and --val both say what is held out");
    assert_false(files_exist(out));
    assert_int_equal(RUN("--out", out, train_file, "--val", val_file), 0);
    size_t count;
    char *train = read_tokens(scratch_path("val-file/train.bin"), &count);
    char *val = read_tokens(scratch_path("val-file/val.bin"), &count);
    assert_string_equal(train, "one\ntwo\n");
    assert_string_equal(val, "three\nfour\n");
    free(train);
    free(val);
    json_t *meta = read_meta(out);
    assert_int_equal(meta_integer(meta, "val_tokens"), 11);
    assert_string_equal(json_string_value(json_object_get(meta, "val_source")), val_file);
    json_decref(meta);
}

static void test_pipe(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    const pid_t child =
        start(ends[0], UINT64_MAX, (const char *const[]){"--out", scratch_path("piped"), "-", NULL});
    close(ends[0]);
    char *text = make_text(200000, 3);
    size_t size = strlen(text), written = 0;
    while (written < size) {
        const ssize_t put = write(ends[1], text + written, size - written);
        assert_true(put > 0);
        written += (size_t)put;
    }
    close(ends[1]);
    assert_int_equal(finish(child), 0);
    size_t train_count, val_count;
    char *train = read_tokens(scratch_path("piped/train.bin"), &train_count);
    char *val = read_tokens(scratch_path("piped/val.bin"), &val_count);
    assert_int_equal(train_count + val_count, size);
    assert_true(val_count > size / 25);
    free(train);
    free(val);
    free(text);
}

static void test_all_bytes_without_lines(void **state) {
    (void)state;
    enum { COUNT = 300000 };
    static char bytes[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        bytes[i] = (char)(i * 7 % 256 == '\n' ? 0 : i * 7);
    }
    char source[600];
    snprintf(source, sizeof source, "%s", scratch_write("bytes", bytes, COUNT));
    assert_int_equal(RUN("--out", scratch_path("bytes-out"), source), 0);
    json_t *meta = read_meta(scratch_path("bytes-out"));
    assert_int_equal(meta_integer(meta, "train_tokens") + meta_integer(meta, "val_tokens"), COUNT);
    assert_true(meta_integer(meta, "val_tokens") > 0);
    json_decref(meta);
}

static void test_usage(void **state) {
    (void)state;
    assert_int_equal(RUN("--help"), 0);
    assert_int_equal(RUN("--version"), 0);
    assert_int_equal(RUN("x.txt"), 2);
    assert_message("--out is missing");
    assert_int_equal(RUN("--out", scratch_path("usage")), 2);
    assert_message("no input files");
    assert_int_equal(RUN("--out", scratch_path("usage"), "--val-fraction", "0.9", "x"), 2);
    assert_message("--val-fraction: 0.9 is out of range 0 .. 0.5");
    assert_false(files_exist(scratch_path("usage")));
}

static void test_wrong_inputs(void **state) {
    (void)state;
    char good[600], empty[600], out[600];
    snprintf(good, sizeof good, "%s", scratch_write("good.txt", "a\nb\n", 4));
    snprintf(empty, sizeof empty, "%s", scratch_write("empty.txt", "", 0));
    snprintf(out, sizeof out, "%s", scratch_path("wrong"));
    assert_int_equal(RUN("--out", out, good, scratch_path("missing.txt")), 1);
    assert_message("missing.txt: No such file");
    assert_int_equal(RUN("--out", out, empty), 1);
    assert_message("it is empty");
    assert_int_equal(RUN("--out", out, scratch_path(".")), 1);
    assert_message("it is a folder");
    assert_int_equal(RUN("--out", out, "-", "-"), 1);
    assert_message("once only");
    assert_int_equal(RUN("--out", out, "--val-fraction", "0.01", good), 1);
    assert_message("too few to hold out 1 %");
    assert_int_equal(RUN("--out", good, good), 1);
    assert_message("good.txt: File exists");
    assert_false(files_exist(out));
}

static void test_disk_full(void **state) {
    (void)state;
    char out[600], small[600], large[600];
    char *text = make_text(3000000, 4);
    snprintf(large, sizeof large, "%s", scratch_write("large.txt", text, strlen(text)));
    snprintf(small, sizeof small, "%s", scratch_write("small.txt", text, 5000));
    free(text);
    snprintf(out, sizeof out, "%s", scratch_path("full"));
    const char *const arguments[] = {"--out", out, large, NULL};
    assert_int_equal(finish(start(STDIN_FILENO, 1000000, arguments)), 1);
    assert_message("full/.hc_prepare/train.bin: File too large");
    assert_false(files_exist(out));

    /* An older result stays as it was. */
    char before[CHECKSUM_SIZE], after[CHECKSUM_SIZE];
    assert_int_equal(RUN("--out", out, small), 0);
    assert_int_equal(checksum_file(scratch_path("full/train.bin"), before), 0);
    scratch_write("full/notes.txt", "mine", 4);
    assert_int_equal(finish(start(STDIN_FILENO, 1000000, arguments)), 1);
    assert_int_equal(checksum_file(scratch_path("full/train.bin"), after), 0);
    assert_string_equal(before, after);
    assert_int_equal(scratch_entries(out), 4);

    /* A new result replaces it and leaves other files alone. */
    assert_int_equal(RUN("--out", out, "--val-fraction", "0", large), 0);
    assert_true(files_exist(scratch_path("full/notes.txt")));
    assert_false(files_exist(scratch_path("full/val.bin")));
    assert_int_equal(scratch_entries(out), 3);
}

static void wait_for(const char *path) {
    for (int i = 0; i < 1000 && !files_exist(path); i++) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    assert_true(files_exist(path));
}

static void test_interrupt(void **state) {
    (void)state;
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        int ends[2];
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        const pid_t child =
            start(ends[0], UINT64_MAX, (const char *const[]){"--out", scratch_path("interrupted"), "-", NULL});
        close(ends[0]);
        assert_int_equal(write(ends[1], "some text\n", 10), 10);
        wait_for(scratch_path("interrupted"));
        assert_int_equal(kill(child, signals[i]), 0);
        assert_int_equal(finish(child), 130);
        assert_message("interrupted, nothing written");
        close(ends[1]);
        assert_false(files_exist(scratch_path("interrupted")));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_share_of_compressed_text),
        cmocka_unit_test(test_seed_and_repeat),
        cmocka_unit_test(test_several_sources_and_stdin),
        cmocka_unit_test(test_val_file),
        cmocka_unit_test(test_pipe),
        cmocka_unit_test(test_all_bytes_without_lines),
        cmocka_unit_test(test_usage),
        cmocka_unit_test(test_wrong_inputs),
        cmocka_unit_test(test_disk_full),
        cmocka_unit_test(test_interrupt),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
