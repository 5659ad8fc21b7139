/* Where the tokens of documents go on their way to train.bin and val.bin: straight there, or, to be shuffled, first
 * onto piles, files that each hold a range of the order, so that no more than one has to be sorted at a time. Its
 * files are in a folder of its own, and it can be left and taken up again. */
#pragma once

#include "src/corpus/document_order.h"
#include <jansson.h>
#include <stddef.h>

enum { TOKEN_VALUES = 65536 }; /* that 16 bits have */

/* The parts that documents are divided into. */
enum token_split { TOKENS_TRAIN, TOKENS_VAL, TOKEN_SPLITS };

/* The one of a document by its number. */
enum token_split token_spool_split(const struct document_order *order, uint64_t document);

struct token_spool;

/* folder: for its files; train.bin and val.bin are there at the end. shown: its name in messages. piles: 0 where
 * documents are written as they come. saved: NULL, or what token_spool_save gave, after which the files are as they
 * were then. `shown` and `order` must stay; either way the caller closes it. */
int token_spool_open(const char *folder, const char *shown, const struct document_order *order, unsigned piles,
                     const json_t *saved, struct token_spool **opened);
void token_spool_close(struct token_spool *spool);

/* A part of a document, parts in order. split: where it goes; piles ask the order again when they are sorted. */
int token_spool_add(struct token_spool *spool, uint64_t document, uint32_t part, enum token_split split,
                    const uint16_t *tokens, size_t count);

/* Writes to disk what is not there yet. *saved, the caller's, says how to go on from here. */
int token_spool_save(struct token_spool *spool, json_t **saved);

/* After all has been added: sorts the next pile into train.bin and val.bin. *left is how many there still are; at 0
 * the two files are complete. Documents that are not shuffled have none. */
int token_spool_merge(struct token_spool *spool, unsigned *left);

/* Removes piles that are merged. Only after what token_spool_save gave since then is safe. */
void token_spool_remove_merged(struct token_spool *spool);

/* What is in the files. */
struct token_spool_counts {
    uint64_t tokens[TOKEN_SPLITS], documents[TOKEN_SPLITS];
    uint64_t train_values[TOKEN_VALUES]; /* how often each token is in train.bin */
};

const struct token_spool_counts *token_spool_counts(const struct token_spool *spool);
