/* A folder of token files: train.bin and val.bin, or llm.c's shards of both, and meta.json with the vocabulary. */
#pragma once

#include "runtime/files/token_file.h"
#include <stdbool.h>

struct data_set {
    struct token_file *train, *val;
    int64_t vocab_size;   /* of meta.json, else of llm.c's shards, else 0 */
    char tokenizer[16];   /* "byte", "gpt2", "file", "" if not known */
    char *tokenizer_json; /* owned; the tokenizer.json if the tokenizer is "file", else NULL */
    size_t tokenizer_json_bytes;
};

/* Reads meta.json alone, or without one the header of a shard: the token files may be missing. Nothing has to be
 * closed. */
int data_set_read_meta(const char *folder, struct data_set *data);

/* The vocabulary of a model of these tokens: meta.json's, for GPT-2's tokens and those of a tokenizer.json rounded
 * up to a multiple of 64 (50257 become 50304, as nanoGPT has it), since GEMMs are faster in round sizes. 0 without
 * a meta.json. */
int64_t data_set_model_vocabulary(const struct data_set *data);

/* The error of a folder without a meta.json whose vocabulary is needed. Returns -1. */
int data_set_fail_without_vocabulary(const char *folder);

/* Fails with what is missing and how to prepare it. val stays NULL unless it is needed. */
int data_set_open(const char *folder, bool needs_val, struct data_set *data);

/* An error if the content of a file has changed since it was opened (token_file_check). */
int data_set_check(const struct data_set *data);

void data_set_close(struct data_set *data);
