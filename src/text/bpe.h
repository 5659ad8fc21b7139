/* Byte-pair encoding. The vocabulary is a list of byte strings, the tokens, and of pairs of tokens that merge to a
 * third one, each with a rank. A piece of text begins as single bytes. As long as any two neighbours merge, the
 * pair of the lowest rank (the first such pair) becomes one token. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bpe;

/* Reads a vocabulary file: tiktoken's format (a line is base64, a space, the rank; ranks without gaps, in any
 * order) or GPT-2's vocab.bpe (a line is two strings that merge, in GPT-2's alphabet for bytes). Any two tokens
 * merge whose bytes together are a token, and its number is the rank. The file must have all 256 single bytes.
 * Errors name the file and the line. The caller closes *opened, also on failure. */
int bpe_open(const char *path, struct bpe **opened);
void bpe_close(struct bpe *bpe);

/* Number of tokens. */
uint32_t bpe_count(const struct bpe *bpe);

/* The token's bytes; token < bpe_count. None: no token has this number. */
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

/* Appends the tokens of a piece of n = 1 to BPE_MOST_BYTES bytes, in O(n log n). A byte without a token is left
 * out. */
void bpe_encode(const struct bpe *bpe, const char *piece, size_t bytes, struct token_list *list);
#define BPE_MOST_BYTES INT32_MAX

/* ---- making a vocabulary: add tokens, bpe_index, add merges, bpe_complete. Error texts do not name a file. */

enum { BPE_MOST_TOKENS = 1 << 20, BPE_MOST_TOKEN_BYTES = 1024 };

struct bpe *bpe_create(void);

/* GPT-2's alphabet for bytes: the characters that stand for bytes in vocab.bpe and in tokenizer.json. A byte that
 * prints in Latin-1 stands for itself; the other 68 are the characters from U+0100 on, in their order. The function
 * replaces text [*bytes] of such characters by the bytes, in place. False, with the text as it was, if it has
 * another character. */
bool bpe_decode_alphabet(char *text, size_t *bytes);

/* Fails if the number is taken or not below BPE_MOST_TOKENS, the string is empty or has more than
 * BPE_MOST_TOKEN_BYTES, or all strings together have more than 16 MiB. in_text: a piece of text can become this
 * token. */
int bpe_add_token(struct bpe *bpe, uint64_t token, const char *string, size_t bytes, bool in_text);

/* Fails if two tokens of texts have the same bytes. */
int bpe_index(struct bpe *bpe);

/* The token of texts with these bytes; UINT32_MAX: none. After bpe_index. */
uint32_t bpe_find(const struct bpe *bpe, const char *string, size_t bytes);

/* Two tokens of texts merge; the rank is the number of merges so far, also if they merge already. Fails if their
 * bytes together are no token. */
int bpe_add_merge(struct bpe *bpe, uint32_t left, uint32_t right);

/* whole_pieces: a piece that is a token becomes this token, even if merges lead to others. lacks_bytes: single
 * bytes need not be tokens. Fails if a byte has no token. */
int bpe_complete(struct bpe *bpe, bool whole_pieces, bool lacks_bytes);
