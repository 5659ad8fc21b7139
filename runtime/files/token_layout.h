/* How a token is stored, and what text is divided into. */
#pragma once

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
