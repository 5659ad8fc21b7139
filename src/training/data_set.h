/* A folder of token files: train.bin, val.bin, and meta.json with the vocabulary. */
#pragma once

#include "runtime/files/token_file.h"
#include <stdbool.h>

struct data_set {
    struct token_file *train, *val;
    int64_t vocab_size; /* of meta.json, 0 without one */
    char tokenizer[16]; /* "byte", "gpt2", "" if not known */
};

/* Fails with what is missing and how to prepare it. val stays NULL unless it is needed. */
int data_set_open(const char *folder, bool needs_val, struct data_set *data);

/* An error if a file has become shorter since it was opened. */
int data_set_check(const struct data_set *data);

void data_set_close(struct data_set *data);
