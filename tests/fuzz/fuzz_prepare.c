/* Any bytes as what an interrupted hc_prepare left, and as the texts that it was reading: it resumes, to an error
 * or to the end; with some inputs the disk is full. */
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "src/corpus/corpus_reader.h"
#include "src/corpus/token_writer.h"
#include "tests/fuzz/fuzz_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 3, MOST_FILLS = 1000 };

/* Bytes stand for the tokens that an encoder would make of the pieces. */
static int add_pieces(struct token_writer *writer, const struct text_batch *batch) {
    uint32_t tokens[32];
    size_t at = 0;
    for (size_t i = 0; i < batch->count; i++) {
        const struct text_piece *piece = &batch->pieces[i];
        const size_t count = piece->bytes < 32 ? piece->bytes : 32;
        for (size_t j = 0; j < count; j++) {
            tokens[j] = (uint8_t)batch->text.bytes[at + j];
        }
        at += piece->bytes;
        if (token_writer_add(writer, piece->document, piece->part, piece->held_out ? SPLIT_VAL : SPLIT_TRAIN,
                             tokens, count, 0)) {
            return -1;
        }
    }
    return 0;
}

static int read_rest(struct corpus_reader *reader, struct token_writer *writer) {
    struct text_batch batch = {0};
    int more = 1;
    for (int fills = 0; more == 1 && fills < MOST_FILLS; fills++) {
        batch.text.size = batch.count = 0;
        more = corpus_reader_fill(reader, &batch);
        if (more >= 0 && add_pieces(writer, &batch)) {
            more = -1;
        }
    }
    text_free(&batch.text);
    free(batch.pieces);
    return more;
}

static int finish(struct corpus_reader *reader, struct token_writer *writer, uint32_t vocabulary) {
    unsigned left = 1;
    json_t *saved = NULL;
    if (read_rest(reader, writer) || token_writer_save(writer, &saved)) {
        return -1;
    }
    json_decref(saved);
    json_decref(corpus_reader_save(reader));
    for (int sorted = 0; left > 0 && sorted <= BUCKETS; sorted++) {
        if (token_writer_sort(writer, &left)) {
            return -1;
        }
        token_writer_remove_sorted(writer);
    }
    fuzz_require(left == 0, "there are more buckets than there were");
    const struct token_counts *counts = token_writer_counts(writer);
    uint64_t sum = 0;
    for (size_t i = 0; i < vocabulary; i++) {
        sum += counts->train_values[i];
    }
    fuzz_require(sum == counts->tokens[SPLIT_TRAIN], "tokens are not counted right");
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char *const names[] = {"state.json",  "a.txt",     "b.txt",   "bucket-0000", "bucket-0001",
                                        "bucket-0002", "train.bin", "val.bin", NULL};
    const char *folder = fuzz_folder(data, bytes, names);
    const struct path first = path_of("%s/a.txt", folder), second = path_of("%s/b.txt", folder);
    const char *const sources[] = {first.text, second.text};
    const struct prepare_settings settings = {
        .folder = folder,
        .sources = sources,
        .source_count = 2,
        .kind = bytes % 3 == 0   ? DOCUMENT_CHUNKS
                : bytes % 3 == 1 ? DOCUMENT_FILES
                                 : DOCUMENT_JSONL,
        .tokenizer.kind = bytes % 4 > 1 ? TOKENIZER_GPT2 : TOKENIZER_BYTE, /* where text may be cut */
        .val_fraction = 0.25,
        .stop_descriptor = -1,
    };
    static struct tokenizer *tokenizer;
    struct document_order order;
    struct token_writer *writer = NULL;
    const uint32_t vocabulary = bytes % 5 == 4 ? 70000 : 65536; /* tokens of 4 or 2 bytes */
    json_t *state = NULL;
    if (!tokenizer) {
        const struct tokenizer_source gpt2 = {.kind = TOKENIZER_GPT2, .path = fuzz_vocabulary()};
        fuzz_require(tokenizer_open(&gpt2, &tokenizer) == 0, "the small vocabulary is refused");
    }
    error_clear();
    json_file_read(path_of("%s/state.json", folder).text, 1 << 20, &state);
    fuzz_fill_disk(bytes % 7 == 0);
    document_order_begin(&order, 1, settings.val_fraction, NULL);
    struct corpus_reader *reader =
        corpus_reader_open(&settings, tokenizer, &order, 1000, json_object_get(state, "reader"));
    if (token_writer_open(folder, &order, bytes % 2 ? BUCKETS : 0, false, vocabulary,
                          json_object_get(state, "writer"), &writer) ||
        finish(reader, writer, vocabulary)) {
        fuzz_require(*error_text() != '\0', "a failure without a reason");
    }
    corpus_reader_close(reader);
    token_writer_close(writer);
    fuzz_fill_disk(false);
    document_order_end(&order);
    json_decref(state);
    return 0;
}
