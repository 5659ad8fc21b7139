/* The data of a run (--data-dir): a folder of token files, train.bin and val.bin or llm.c's shards of both, with
 * meta.json; or a mixture of such folders, of which each sequence takes one by its share. */
#pragma once

#include "runtime/files/token_file.h"
#include "runtime/ranks/ranks.h"
#include <stdbool.h>
#include <stddef.h>

enum { TRAINING_DATA_MOST = 256 }; /* folders */

struct data_folder {
    char *path;
    double share; /* of the sequences; all add up to 1 */
    struct token_file *train, *val;
};

struct vocabulary {
    int64_t size;         /* of meta.json, else of llm.c's shards, else 0 */
    char tokenizer[16];   /* "byte", "gpt2", "file", "" if not known */
    char *tokenizer_json; /* owned; the tokenizer.json if the tokenizer is "file", else NULL */
    size_t tokenizer_json_bytes;
};

struct training_data {
    struct data_folder *folders; /* [count], at least 1 */
    size_t count;
    struct vocabulary vocabulary; /* of all folders */
};

/* Opens "FOLDER", or "FOLDER:WEIGHT,FOLDER:WEIGHT,..." if nothing has that name. Shares follow from the weights,
 * and all folders must have one vocabulary. val stays NULL if it is not needed. An error says what is missing and
 * how to prepare it; then nothing is left open. */
int training_data_open(const char *text, bool needs_val, struct training_data *data);

/* Returns the vocabulary of a model of these tokens: for GPT-2's tokens and those of a tokenizer.json it is rounded
 * up to a multiple of 64 (50257 become 50304, as nanoGPT has it), since GEMMs are faster in round sizes. 0: it is
 * not known. */
int64_t vocabulary_of_model(const struct vocabulary *vocabulary);

/* Sets *size to the same without opening tokens, which may be missing: of the first folder's meta.json, or without
 * one of the header of a shard. If it is not known, that is an error if it is needed, and 0 if not. */
int training_data_read_vocabulary(const char *text, bool is_needed, int64_t *size);

/* The error of data whose vocabulary is needed and not known. Returns -1. */
int training_data_fail_without_vocabulary(const char *text);

/* Compares the data of all ranks: folders, shares, and of each file the size and the content of up to 64 MiB, whose
 * tokens must be below vocab_size. Sets the digests of the training and of the validation files ("" without any):
 * that of a single file, or in a mixture of all files and of the shares, with which losses change. Collective: a
 * difference is an error on all ranks. */
int training_data_compare(const struct training_data *data, struct ranks *ranks, int64_t vocab_size,
                          char train_digest[CHECKSUM_SIZE], char val_digest[CHECKSUM_SIZE]);

/* An error if the content of a file has changed since it was opened (token_file_check). */
int training_data_check(const struct training_data *data);

/* Frees everything; also of data of zeros. */
void training_data_close(struct training_data *data);
