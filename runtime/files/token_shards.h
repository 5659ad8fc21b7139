/* How tokens are stored, what text is divided into, and llm.c's token shards. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* A token has 2 bytes, or 4 where the vocabulary needs them. Both are little-endian. */
enum { TOKEN_LEAST_BYTES = 2, TOKEN_MOST_BYTES = 4 };
static inline unsigned token_bytes_for(uint64_t vocab_size) {
    return vocab_size > 65536 ? TOKEN_MOST_BYTES : TOKEN_LEAST_BYTES;
}

static inline uint32_t token_load(const unsigned char *stored, unsigned token_bytes) {
    const uint32_t low = stored[0] | (uint32_t)stored[1] << 8;
    return token_bytes == TOKEN_LEAST_BYTES ? low : low | (uint32_t)stored[2] << 16 | (uint32_t)stored[3] << 24;
}

static inline void token_store(unsigned char *stored, unsigned token_bytes, uint32_t token) {
    for (unsigned i = 0; i < token_bytes; i++) {
        stored[i] = (unsigned char)(token >> 8 * i);
    }
}

/* What a folder's text is divided into, and the words of --split. */
#define SPLIT_WORDS "train|val"
enum token_split { SPLIT_TRAIN, SPLIT_VAL, TOKEN_SPLITS };
static inline const char *token_split_name(int split) {
    return split == SPLIT_VAL ? "val" : "train";
}

/* llm.c's token shards: files with a header of 256 little-endian int32, of which the first three are a magic
 * number, a version and the number of tokens, and then the tokens. Magic 20240520, version 1: GPT-2's in 2 bytes
 * each; magic 20240801, version 7: Llama 3's in 4 bytes each. */
enum { TOKEN_SHARD_HEADER_BYTES = 1024, TOKEN_SHARDS_MOST = 4096 };

struct token_shard_kind {
    uint32_t magic, version;
    unsigned token_bytes;
    uint32_t vocab_size;
    const char *tokenizer; /* as in meta.json; "" where its tokenizer.json is not known */
};

/* Reads the header of the open file `path` of `bytes` bytes. Fails on another magic number or version, no tokens,
 * and a number of tokens that does not fit the size. */
int token_shard_read_header(int descriptor, const char *path, uint64_t bytes, const struct token_shard_kind **kind,
                            uint64_t *count);

/* The kind of a shard by its magic number; NULL, without an error, if it has none or cannot be read. */
const struct token_shard_kind *token_shard_kind(const char *path);

/* Fills the header of a shard of `count` tokens, of 2 or 4 bytes each: 1 to INT32_MAX of them. */
void token_shard_fill_header(unsigned char header[TOKEN_SHARD_HEADER_BYTES], unsigned token_bytes, uint64_t count);

/* The shards of a split, an enum token_split, in a folder: names sorted by bytes. */
struct token_shard_names {
    const char *folder;
    int split;
    char **names;
    size_t count, capacity;
};

/* Lists *train*.bin or *val*.bin, but train.bin, val.bin and hidden files; where a name has both words, the last
 * one decides. None is success; more than TOKEN_SHARDS_MOST is an error. The caller frees. */
int token_shards_list(const char *folder, int split, struct token_shard_names *list);

/* Adds a copy of the name, or NULL, behind the others. */
void token_shards_add(struct token_shard_names *list, const char *name);
void token_shards_free(struct token_shard_names *list);

/* The kind of the first training shard of a folder that has no train.bin; NULL: there is none. */
int token_shards_kind(const char *folder, const struct token_shard_kind **kind);

/* Fails if `output`, which will be written, is a shard of the folder. */
int token_shards_refuse_output(const char *folder, const char *output);
