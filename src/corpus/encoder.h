/* Encodes text as tokens on several cores: batches of text go in, and come out with their tokens in the same order.
 * One thread fills and takes the batches; threads of this file encode them. */
#pragma once

#include "src/corpus/prepare_settings.h"
#include "src/text/tokenizer.h"

/* A document, or a part of one. */
struct text_piece {
    size_t bytes;           /* of the text of its batch, in which pieces follow each other */
    uint64_t document;      /* its number, from 0 */
    uint32_t part;          /* of the document, from 0 */
    bool ends;              /* the document */
    bool held_out;          /* for validation */
    const char *source;     /* name for messages */
    uint64_t line;          /* of the source where the piece begins, from 1 */
    uint32_t prompt_tokens; /* out: so many tokens at its beginning are a prompt, which is no target */
    size_t token_end; /* out: the end of its tokens in those of the batch; they begin where the last piece's end */
};

struct text_batch {
    struct text_buffer text;
    struct text_piece *pieces; /* [count], owned */
    size_t count, capacity;
    struct token_list tokens;
};

/* Appends a piece with its text [piece->bytes]; what is out is not used. */
void text_batch_add(struct text_batch *batch, const struct text_piece *piece, const char *text);

struct encoder;

/* settings and tokenizer must stay. The encoder ends each document with the tokenizer's end of text, or, if tokens
 * are bytes, with a blank line; it adds nothing to chunks of bytes. The caller frees *created, also on failure. */
int encoder_create(const struct prepare_settings *settings, const struct tokenizer *tokenizer,
                   struct encoder **created);
void encoder_free(struct encoder *encoder);

/* The next batch to fill, empty; NULL: all batches are in use, take one first. */
struct text_batch *encoder_vacant(struct encoder *encoder);

/* Hands the batch of encoder_vacant to the threads. */
void encoder_submit(struct encoder *encoder);

/* The oldest batch that was submitted, with its tokens. 1: *batch is valid until encoder_release; 0: there is none,
 * or, without `wait`, it is not ready; -1: it could not be encoded, and the error text names source and line. */
int encoder_take(struct encoder *encoder, bool wait, const struct text_batch **batch);
void encoder_release(struct encoder *encoder);
