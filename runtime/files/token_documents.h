/* The documents of a split of token files: where each begins, and how many of its first tokens are a prompt, that
 * is, no targets of the loss. hc_prepare writes train.documents and val.documents: for each document in order two
 * little-endian uint32, its tokens and how many of them, at its beginning, are a prompt. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { TOKEN_DOCUMENT_BYTES = 8 };

struct token_documents {
    size_t count;
    uint64_t *begins;  /* [count + 1] places of their first tokens in the split; the last: the split's tokens */
    uint64_t *targets; /* [count + 1] how many tokens before each that are no prompt; the last: of all */
};

/* Stores a document as the file has it. */
void token_documents_store(unsigned char bytes[TOKEN_DOCUMENT_BYTES], uint32_t tokens, uint32_t prompt);

/* Reads the file, which must describe exactly `tokens` tokens. Fails with the file's name on one that does not.
 * token_documents_free frees *documents; NULL does nothing. */
int token_documents_read(const char *path, uint64_t tokens, struct token_documents **documents);
void token_documents_free(struct token_documents *documents);

/* The document that a place of the split is in. */
size_t token_documents_find(const struct token_documents *documents, uint64_t place);

/* How many of the tokens [0, place) are no prompt; place is at most the number of tokens. */
uint64_t token_documents_targets(const struct token_documents *documents, uint64_t place);

/* Sets tokens[i] to -1 where token first + i of the split belongs to a prompt. */
void token_documents_mask(const struct token_documents *documents, uint64_t first, uint64_t count, int32_t *tokens);
