/* The added tokens of a tokenizer.json, which are found in text before it is divided into pieces: control tokens
 * such as <|im_end|>, and others. Of several that match, the one that begins first counts, then the longest. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct added_token {
    char *content; /* owned; with the final NUL */
    size_t bytes;
    uint32_t token;
    bool special;        /* a control token */
    bool normalized;     /* found in normalized text */
    bool lstrip, rstrip; /* takes the white space before it, behind it */
};

/* Initialise with zeros; add tokens, then call added_tokens_sort. */
struct added_tokens {
    struct added_token *tokens; /* [count], by content */
    size_t count, capacity;
    size_t first[257]; /* where the tokens with this first byte begin */
    bool takes_space;  /* any token has ASCII white space in it, or takes that behind it */
};

/* Takes over `content`. */
void added_tokens_add(struct added_tokens *added, const struct added_token *token);
void added_tokens_free(struct added_tokens *added);

/* Orders the tokens by content. Fails if two have the same. */
int added_tokens_sort(struct added_tokens *added);

/* NULL: none has this content. */
const struct added_token *added_tokens_find(const struct added_tokens *added, const char *content);

/* A token in a text: its bytes [start, end), with the white space that it takes. */
struct added_match {
    const struct added_token *token;
    size_t start, end;
};

/* Finds the first token in text [bytes] from `from` on; false: there is none. Without `special`, control tokens
 * are text. */
bool added_tokens_match(const struct added_tokens *added, const char *text, size_t bytes, size_t from, bool special,
                        struct added_match *match);

/* Whether no token that begins before text[at], at > 0, takes the white space there, whatever follows. */
bool added_tokens_is_cut(const struct added_tokens *added, const char *text, size_t at);
