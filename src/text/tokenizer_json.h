/* tokenizer.json, the file of a tokenizer as Hugging Face's tokenizers write it: byte-level byte-pair encoding. */
#pragma once

#include "src/text/bpe.h"
#include "src/text/pieces.h"

struct added_token {
    char *content; /* owned; with the final NUL */
    size_t bytes;
    uint32_t token;
    bool special;        /* a control token */
    bool normalized;     /* found in normalized text */
    bool lstrip, rstrip; /* takes the white space before it, behind it */
};

/* Set `tokens` and `count`, the rest zero, then call added_tokens_sort. */
struct added_tokens {
    struct added_token *tokens; /* [count], by content; owned, as each token's content */
    size_t count;
    size_t first[257]; /* where the tokens with this first byte begin */
    bool takes_space;  /* any token has ASCII white space in it, or takes that behind it */
};

enum { ADDED_PASSES = 2 };

/* Initialise with zeros. */
struct tokenizer_json {
    struct bpe *bpe;                         /* all tokens, the added ones, too */
    struct added_tokens added[ADDED_PASSES]; /* found before normalization, and after it */
    uint32_t in_text;                        /* tokens from this number on are added ones, beyond the vocabulary */
    bool nfc;                                /* text is normalized to form C */
    const struct piece_rule *rule;
    uint32_t beginning; /* the token that the post_processor puts before texts; UINT32_MAX: none */
};

/* Reads the file. Fails with an error text that names the file and the place in it if it is another kind of
 * tokenizer (SentencePiece's, Unigram, WordPiece), has an option that is not supported, or contradicts itself.
 * The caller frees what *json holds, also on failure. */
int tokenizer_json_read(const char *path, struct tokenizer_json *json);
void tokenizer_json_free(struct tokenizer_json *json);

/* ---- added tokens, which are found in text before it is divided into pieces: control tokens such as <|im_end|>,
 * and others. Of several that match, the one that begins first counts, then the longest. */

/* Orders the tokens by content. Fails if two have the same, as normalization may make them. */
int added_tokens_sort(struct added_tokens *added);

/* A token in a text. Begin with zeros. */
struct added_match {
    const struct added_token *token;
    size_t start, end; /* of its bytes, with the white space that it takes */
    size_t next;       /* end of its content, where the search goes on: the next token may begin with that space */
};

/* Replaces the match by the next one in text [bytes]; false: there is none. Without `special`, control tokens are
 * text. Matches may overlap: behind a token that takes white space after it, the next one may start before
 * match->end. A match with start == end has lost everything to the one before it, and is no token. */
bool added_tokens_next(const struct added_tokens *added, const char *text, size_t bytes, bool special,
                       struct added_match *match);

/* Whether no token that begins before text[at], at > 0, takes the character there, whatever follows. */
bool added_tokens_is_cut(const struct added_tokens *added, const char *text, size_t at);
