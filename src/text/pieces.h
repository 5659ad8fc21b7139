/* What happens to text before byte-pair encoding: Unicode's normalization form C, and the division into pieces by
 * one of a few known regular expressions, each as the tokenizer's file has it and as PCRE2 runs it. The files are
 * written for Oniguruma, whose syntax differs, so other expressions are refused. */
#pragma once

#include "src/text/text_buffer.h"

/* Makes *text [*bytes], which is UTF-8, its normal form as the tokenizers of Hugging Face compute it, from the
 * tables of Unicode 9: in `buffer`, unless it is normal already. */
void text_normalize(const char **text, size_t *bytes, struct text_buffer *buffer);

struct pieces;
struct piece_rule; /* a row of the table */

/* How a tokenizer.json divides text: first by an expression or into single digits, or neither, and then perhaps by
 * GPT-2's expression. */
struct piece_steps {
    const char *expression; /* "": none */
    bool digits, gpt2;
};

/* NULL: no such rule is known. */
const struct piece_rule *pieces_find(const struct piece_steps *steps);

/* The names of all known rules, for messages. */
extern const char pieces_names[];

/* The caller closes *opened, also on failure. */
int pieces_open(const struct piece_rule *rule, struct pieces **opened);
void pieces_close(struct pieces *pieces);

/* Calls `visit` with each piece of the text, which is UTF-8. */
typedef void piece_visit(void *context, const char *piece, size_t bytes);
int pieces_each(const struct pieces *pieces, const char *text, size_t bytes, piece_visit *visit, void *context);

/* Whether the text can be cut before text[at], at > 0, so that no piece is cut: ASCII white space begins there,
 * after a character that is not white space, and does not belong to the piece of that character. The text is UTF-8
 * up to there. */
bool pieces_is_cut(const struct pieces *pieces, const char *text, size_t at);

/* The same for text [bytes] without a place where pieces_is_cut holds: whether a piece ends before text[at],
 * at > 0, since other white space follows, or a sign or a number after a letter. */
bool pieces_is_wide_cut(const char *text, size_t bytes, size_t at);
