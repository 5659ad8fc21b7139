/* Writes the tokens of documents to train.bin and val.bin. Documents that keep their order are written at once.
 * Others are first written to buckets, files that each hold a range of the order, so that only one bucket is sorted
 * at a time. The files are in a folder of their own, and another process can resume the work. */
#pragma once

#include "runtime/files/token_file.h"
#include "src/corpus/document_order.h"
#include <jansson.h>
#include <stddef.h>

struct token_writer;

/* folder: for the files; the caller makes it. buckets: 0 if documents keep their order. lengths: also write
 * train.documents and val.documents (token_file.h), of documents of one part each. vocab_size: all tokens are
 * below it. saved: NULL, or the result of token_writer_save, after which the files are as they were then. `order`
 * must stay. The caller closes *opened, also on failure. */
int token_writer_open(const char *folder, const struct document_order *order, unsigned buckets, bool lengths,
                      uint32_t vocab_size, const json_t *saved, struct token_writer **opened);
void token_writer_close(struct token_writer *writer);

/* Adds a part of a document, of less than 2^32 tokens. The parts of a document come in order. prompt: so many
 * tokens at its beginning are no targets. */
int token_writer_add(struct token_writer *writer, uint64_t document, uint32_t part, enum token_split split,
                     const uint32_t *tokens, size_t count, uint32_t prompt);

/* Syncs the files. *saved, which the caller releases, describes how to continue from here. */
int token_writer_save(struct token_writer *writer, json_t **saved);

/* After everything was added: sorts the next bucket into train.bin and val.bin. *left is the number of buckets that
 * remain; at 0 the two files are complete. */
int token_writer_sort(struct token_writer *writer, unsigned *left);

/* Removes the buckets that are sorted. Call it only after token_writer_save: a saved state needs the others
 * alone. */
void token_writer_remove_sorted(struct token_writer *writer);

/* What the files hold. */
struct token_counts {
    uint64_t tokens[TOKEN_SPLITS], documents[TOKEN_SPLITS];
    uint64_t *train_values; /* [vocab_size] how often each token is in train.bin */
};

const struct token_counts *token_writer_counts(const struct token_writer *writer);
