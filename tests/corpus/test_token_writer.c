/* Token files of 2 and of 4 bytes a token, written in order and through buckets, interrupted or not. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "src/corpus/token_writer.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DOCUMENTS = 40, PARTS = 2, MOST_PART = 20000 /* more than are written at once */, BUCKETS = 5 };

static struct document_order order;

/* Part `part` of a document, which ends with the vocabulary's last token. */
static size_t make_part(uint64_t document, uint32_t part, uint32_t vocab_size, uint32_t tokens[MOST_PART]) {
    const size_t count = document == 3 ? MOST_PART : 1 + (size_t)(document * 7 + part) % 50;
    for (size_t i = 0; i < count; i++) {
        tokens[i] = (uint32_t)((document * 7919 + part * 104729 + i * 31) % (vocab_size - 1));
    }
    tokens[count - 1] = vocab_size - 1;
    return count;
}

static bool is_held_out(uint64_t document) {
    return document % 4 == 1;
}

static void add_documents(struct token_writer *writer, uint64_t first, uint64_t end, uint32_t vocab_size) {
    uint32_t tokens[MOST_PART];
    for (uint64_t document = first; document < end; document++) {
        for (uint32_t part = 0; part < PARTS; part++) {
            const size_t count = make_part(document, part, vocab_size, tokens);
            assert_int_equal(token_writer_add(writer, document, part,
                                              is_held_out(document) ? SPLIT_VAL : SPLIT_TRAIN, tokens, count, 0),
                             0);
        }
    }
}

/* The documents in the order that they have in the files. */
static int by_place(const void *a, const void *b) {
    const uint64_t x = document_order_place(&order, *(const uint64_t *)a);
    const uint64_t y = document_order_place(&order, *(const uint64_t *)b);
    return (x > y) - (x < y);
}

static void check_file(int split, bool sorted, uint32_t vocab_size, unsigned token_bytes) {
    uint64_t documents[DOCUMENTS];
    uint32_t tokens[MOST_PART];
    size_t bytes, at = 0;
    unsigned char *file =
        (unsigned char *)scratch_read(scratch_path(split == SPLIT_VAL ? "writer/val.bin" : "writer/train.bin"),
                                      &bytes);
    for (uint64_t i = 0; i < DOCUMENTS; i++) {
        documents[i] = i;
    }
    if (sorted) {
        qsort(documents, DOCUMENTS, sizeof *documents, by_place);
    }
    for (size_t i = 0; i < DOCUMENTS; i++) {
        for (uint32_t part = 0; part < PARTS && is_held_out(documents[i]) == (split == SPLIT_VAL); part++) {
            const size_t count = make_part(documents[i], part, vocab_size, tokens);
            assert_true((at + count) * token_bytes <= bytes);
            for (size_t j = 0; j < count; j++, at++) {
                assert_int_equal(token_load(file + at * token_bytes, token_bytes), tokens[j]);
            }
        }
    }
    assert_int_equal(at * token_bytes, bytes);
    free(file);
}

static void sort(struct token_writer *writer) {
    for (unsigned left = 1; left > 0;) {
        assert_int_equal(token_writer_sort(writer, &left), 0);
    }
    token_writer_remove_sorted(writer);
}

/* Writes half, is interrupted if `resumes`, and writes the rest. */
static void write_all(unsigned buckets, uint32_t vocab_size, bool resumes) {
    const char *folder = scratch_path("writer");
    struct token_writer *writer;
    json_t *saved = NULL;
    files_remove_folder(folder);
    assert_int_equal(files_make_folder(folder), 0);
    assert_int_equal(token_writer_open(folder, &order, buckets, false, vocab_size, NULL, &writer), 0);
    add_documents(writer, 0, DOCUMENTS / 2, vocab_size);
    if (resumes) {
        assert_int_equal(token_writer_save(writer, &saved), 0);
        add_documents(writer, DOCUMENTS / 2, DOCUMENTS / 2 + 3, vocab_size); /* lost */
        token_writer_close(writer);
        assert_int_equal(token_writer_open(folder, &order, buckets, false, vocab_size, saved, &writer), 0);
        json_decref(saved);
    }
    add_documents(writer, DOCUMENTS / 2, DOCUMENTS, vocab_size);
    sort(writer);
    const struct token_counts *counts = token_writer_counts(writer);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < vocab_size; i++) {
        sum += counts->train_values[i];
    }
    assert_int_equal(sum, counts->tokens[SPLIT_TRAIN]);
    assert_int_equal(counts->train_values[vocab_size - 1], PARTS * (DOCUMENTS - DOCUMENTS / 4));
    token_writer_close(writer);
}

UNIT_TEST(test_sizes) {
    static const struct {
        uint32_t vocab_size;
        unsigned token_bytes;
    } cases[] = {{300, 2}, {65536, 2}, {65537, 4}, {70000, 4}, {151936, 4}};
    assert_int_equal(document_order_begin(&order, 7, 0.25, NULL), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (unsigned kind = 0; kind < 4; kind++) {
            const unsigned buckets = kind % 2 ? BUCKETS : 0;
            write_all(buckets, cases[i].vocab_size, kind >= 2);
            check_file(SPLIT_TRAIN, buckets > 0, cases[i].vocab_size, cases[i].token_bytes);
            check_file(SPLIT_VAL, buckets > 0, cases[i].vocab_size, cases[i].token_bytes);
        }
    }
    document_order_end(&order);
}

/* A file of unfinished work with a token that the vocabulary does not have. */
UNIT_TEST(test_damaged) {
    struct token_writer *writer;
    json_t *saved = json_pack("{s:[i, i], s:i, s:[i, i]}", "bytes", 4, 0, "sorted", 0, "documents", 1, 0);
    assert_int_equal(document_order_begin(&order, 7, 0.25, NULL), 0);
    write_all(0, 70000, false);
    const int truncated = truncate(scratch_path("writer/train.bin"), 0);
    assert_int_equal(truncated, 0);
    scratch_write("writer/train.bin", "\x70\x11\x01\0", 4); /* 70000 */
    assert_error(token_writer_open(scratch_path("writer"), &order, 0, false, 70000, saved, &writer),
                 "is not as it was written: start again with --no-resume");
    token_writer_close(writer);
    assert_int_equal(token_writer_open(scratch_path("writer"), &order, 0, false, 70001, saved, &writer), 0);
    token_writer_close(writer);
    json_decref(saved);
    document_order_end(&order);
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
