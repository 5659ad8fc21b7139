/* Divides token files into llm.c's token shards (token_shards.h), for hc_prepare --shards. */
#pragma once

#include "runtime/files/token_shards.h"
#include <stdbool.h>
#include <stdint.h>

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
