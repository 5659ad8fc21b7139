#include "tests/support/prepared.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "src/text/text_buffer.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <jansson.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static const char *const merges[MERGES] = {" t", "he", " the", " a", "in", "\n\n", "  ", "\xc3\xa4"};

char *prepared_texts[DOCUMENTS];
const char *prepared_vocabulary, *prepared_lines, *prepared_out;

/* ---- what goes in */

static void write_vocabulary(void) {
    FILE *file = fopen(prepared_vocabulary, "w");
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
    static const char words[][10] = {" the",
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
        const char *word = words[random_below(key, i + 1, COUNT(words))];
        text_append(&text, word, strlen(word));
    }
    text_append(&text, "", 1);
    return text.bytes;
}

void prepared_write_lines(const char *path, size_t first, size_t end, bool compressed) {
    gzFile file = gzopen(path, compressed ? "wb" : "wbT");
    assert_non_null(file);
    for (size_t i = first; i < end; i++) {
        json_t *object = json_pack("{s:i, s:s}", "id", (int)i, "text", prepared_texts[i]);
        char *line = json_dumps(object, i % 2 ? JSON_ENSURE_ASCII : JSON_COMPACT);
        gzputs(file, line);
        gzputs(file, i % 50 == 3 ? "\n  \r\n" : "\n");
        free(line);
        json_decref(object);
    }
    assert_int_equal(gzclose(file), Z_OK);
}

void prepared_write_order(const char *path, uint64_t count, uint64_t step) {
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

int prepared_begin(void **state) {
    const int result = scratch_begin(state);
    prepared_vocabulary = scratch_path("vocabulary");
    prepared_lines = scratch_path("lines.jsonl");
    prepared_out = scratch_path("out");
    write_vocabulary();
    for (size_t i = 0; i < DOCUMENTS; i++) {
        prepared_texts[i] = make_text(i);
    }
    prepared_write_lines(prepared_lines, 0, DOCUMENTS, false);
    return result;
}

int prepared_end(void **state) {
    for (size_t i = 0; i < DOCUMENTS; i++) {
        free(prepared_texts[i]);
    }
    return scratch_end(state);
}

struct prepare_settings prepared_settings(const char *const *sources, size_t count) {
    return (struct prepare_settings){.folder = prepared_out,
                                     .sources = sources,
                                     .source_count = count,
                                     .tokenizer = {.kind = TOKENIZER_GPT2, .path = prepared_vocabulary},
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

struct prepare_settings prepared_from(const char *source) {
    static const char *sources[1];
    sources[0] = source;
    return prepared_settings(sources, 1);
}

struct prepare_report prepared_run(const struct prepare_settings *settings) {
    struct prepare_report report;
    require(prepare_run(settings, &report) != PROGRAM_DONE);
    return report;
}

void assert_prepare_fails(const struct prepare_settings *settings, const char *expected) {
    struct prepare_report report;
    assert_int_equal(prepare_run(settings, &report), PROGRAM_FAILED);
    if (!strstr(error_text(), expected)) {
        fail_msg("'%s' does not say '%s'", error_text(), expected);
    }
    assert_false(files_exist(prepared_out));
}

/* ---- what comes out */

const char *prepared_path(const char *name) {
    return scratch_path(scratch_format("out/%s", name));
}

void prepared_remove(void) {
    assert_int_equal(files_remove_folder(prepared_out), 0);
}

void prepared_read(const char *name, struct prepared_documents *documents) {
    size_t bytes;
    unsigned char *data = (unsigned char *)scratch_read(prepared_path(name), &bytes);
    assert_non_null(data);
    *documents = (struct prepared_documents){.tokens = bytes / 2};
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
        assert_true(documents->count < DOCUMENTS);
        documents->texts[documents->count++] = text.bytes;
        text = (struct text_buffer){0};
    }
    assert_int_equal(text.size, 0); /* every document has an end */
    free(data);
}

void prepared_release(struct prepared_documents *documents) {
    for (size_t i = 0; i < documents->count; i++) {
        free(documents->texts[i]);
    }
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void prepared_sort(char **texts, size_t count) {
    qsort(texts, count, sizeof *texts, by_text);
}

void assert_all_documents(size_t held_out) {
    static struct prepared_documents train, val;
    static char *all[DOCUMENTS], *expected[DOCUMENTS];
    prepared_read("train.bin", &train);
    prepared_read("val.bin", &val);
    assert_int_equal(train.count + val.count, DOCUMENTS);
    assert_true(val.count + 1 >= held_out && val.count <= held_out + 1);
    memcpy(all, train.texts, train.count * sizeof *all);
    memcpy(all + train.count, val.texts, val.count * sizeof *all);
    memcpy(expected, prepared_texts, sizeof expected);
    prepared_sort(all, DOCUMENTS);
    prepared_sort(expected, DOCUMENTS);
    for (size_t i = 0; i < DOCUMENTS; i++) {
        assert_string_equal(all[i], expected[i]);
    }
    prepared_release(&train);
    prepared_release(&val);
}

struct prepared_digests prepared_digests(void) {
    struct prepared_digests digests;
    assert_int_equal(checksum_file(prepared_path("train.bin"), digests.train), 0);
    assert_int_equal(checksum_file(prepared_path("val.bin"), digests.val), 0);
    return digests;
}

void assert_same_results(const struct prepared_digests *expected) {
    const struct prepared_digests digests = prepared_digests();
    assert_string_equal(digests.train, expected->train);
    assert_string_equal(digests.val, expected->val);
}
