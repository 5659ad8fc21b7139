/* Text to tokens on several cores: batches of text go in, and come out with their tokens in the same order. One
 * thread fills and takes the batches, others of this module encode them. */
#pragma once

#include "src/corpus/prepare_settings.h"
#include "src/text/text_buffer.h"
#include "src/text/tokenizer.h"

/* A document, or a part of one. */
struct text_piece {
    size_t at, bytes;   /* in the text of its batch */
    uint64_t document;  /* its number, from 0 */
    uint32_t part;      /* of the document, from 0 */
    bool ends;          /* the document */
    bool held_out;      /* where the reader divides the text (struct corpus_status) */
    const char *source; /* name for messages */
    uint64_t line;      /* of the source where it begins, from 1 */
    size_t token_end;   /* out: its tokens end there in those of the batch, and begin where the last ones ended */
};

struct text_batch {
    struct text_buffer text;
    struct text_piece *pieces; /* [count], owned */
    size_t count, capacity;
    struct token_list tokens;
};

/* Appends a piece with its text; `piece` without at, bytes and token_end. */
void text_batch_add(struct text_batch *batch, const struct text_piece *piece, const char *text, size_t bytes);

struct encoder;

/* Settings and tokenizer must stay. Behind a document comes <|endoftext|>, or a blank line where tokens are
 * bytes; but nothing behind chunks of bytes. Either way the caller frees it. */
int encoder_create(const struct prepare_settings *settings, const struct tokenizer *tokenizer,
                   struct encoder **created);
void encoder_free(struct encoder *encoder);

/* The next batch to fill, empty; NULL: all are under way, take one first. */
struct text_batch *encoder_vacant(struct encoder *encoder);

/* Sends off the batch of encoder_vacant. */
void encoder_submit(struct encoder *encoder);

/* The oldest batch that was sent off, with its tokens. 1: here it is, and encoder_release makes it vacant; 0: there is
 * none, or, without `wait`, it is not ready; -1: it could not be encoded, and the error text names source and line. */
int encoder_take(struct encoder *encoder, bool wait, const struct text_batch **batch);
void encoder_release(struct encoder *encoder);
