/* Byte-pair encoding as in GPT-2 and tiktoken. The vocabulary is a list of byte strings, each with a merge rank. A
 * piece of text begins as single bytes. As long as two neighbours together are in the vocabulary, the pair with the
 * lowest merge rank (the first such pair) is merged. The merge rank is the token. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bpe;

/* Reads a vocabulary file: tiktoken's format (a line is base64, a space, the rank; ranks without gaps, in any
 * order) or GPT-2's vocab.bpe (a line is two strings that merge, in GPT-2's alphabet for bytes). The file must have
 * all 256 single bytes and at most 65535 strings, 2^24 bytes altogether. Errors name the file and the line. The
 * caller closes *opened, also on failure. */
int bpe_open(const char *path, struct bpe **opened);
void bpe_close(struct bpe *bpe);

/* Number of tokens. */
uint32_t bpe_count(const struct bpe *bpe);

/* The token's bytes; token < bpe_count. */
const char *bpe_bytes(const struct bpe *bpe, uint32_t token, size_t *bytes);

/* A growing list of tokens, with the memory that encoding into it takes. Initialise with zeros. */
struct token_list {
    uint32_t *tokens; /* owned */
    size_t count, capacity;
    struct bpe_part *parts; /* scratch memory */
    uint64_t *heap;
    size_t part_capacity, heap_capacity;
};

void token_list_append(struct token_list *list, uint32_t token);
void token_list_free(struct token_list *list);

/* Appends the tokens of a piece of n = 1 to BPE_MOST_BYTES bytes, in O(n log n). */
void bpe_encode(const struct bpe *bpe, const char *piece, size_t bytes, struct token_list *list);
#define BPE_MOST_BYTES INT32_MAX
