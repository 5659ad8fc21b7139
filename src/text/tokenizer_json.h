/* tokenizer.json, the file of a tokenizer as Hugging Face's tokenizers write it: byte-level byte-pair encoding. */
#pragma once

#include "src/text/added_tokens.h"
#include "src/text/bpe.h"
#include "src/text/pieces.h"

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
