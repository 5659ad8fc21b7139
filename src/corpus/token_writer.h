/* Writes the tokens of documents to train.bin and val.bin. Documents that keep their order are written at once.
 * Others are first written to buckets, files that each hold a range of the order, so that only one bucket is sorted
 * at a time. The files are in a folder of their own, and another process can resume the work. */
#pragma once

#include "runtime/files/token_file.h"
#include "runtime/files/token_shards.h"
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

/* ---- llm.c's token shards (token_shards.h), into which hc_prepare --shards divides the files */

/* The name of a shard that hc_prepare writes, by its number from 0: corpus_train_000000.bin. */
struct shard_name {
    char text[48];
};
struct shard_name shard_name(int split, uint64_t number);

/* Writes shard `number` of the split, an enum token_split, whose tokens are in <folder>/train.bin or val.bin, to
 * the same folder, which must not have it yet. It may not be on the disk yet. */
int shard_write(const char *folder, int split, unsigned token_bytes, uint64_t each, uint64_t number);

/* Fails if the file `input` is in the folder under a name that hc_prepare gives to shards, or is a symbolic link to
 * such a file. */
int shard_refuse_input(const char *folder, const char *input);

/* Removes the shards in the folder that hc_prepare has named. */
int shard_remove_all(const char *folder);

/* Fails if the folder has files that would be read as shards, but whose names hc_prepare does not give. Beside
 * train.bin, which is written without has_shards, a file that does not begin as a shard only has such a name. */
int shard_refuse_others(const char *folder, bool has_shards);

/* Adds to the list those shards in the folder that hc_prepare has named, from the number kept[split] on. */
int shard_list_old(const char *folder, const int64_t kept[TOKEN_SPLITS], struct token_shard_names *old);
