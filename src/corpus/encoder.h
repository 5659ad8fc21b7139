/* Encodes batches of text as tokens on several cores, while the caller does other work. */
#pragma once

#include "src/corpus/prepare_settings.h"
#include <pthread.h>
#include <stdatomic.h>

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

/* Initialise with zeros. */
struct text_batch {
    struct text_buffer text;
    struct text_piece *pieces; /* [count], owned */
    size_t count, capacity;
    struct token_list tokens;                /* out */
    char *error;                             /* out: why it could not be encoded, with source and line; or NULL */
    struct text_buffer valid, field, prompt; /* scratch memory */
};

/* Appends a piece with its text [piece->bytes]; what is out is not used. */
void text_batch_add(struct text_batch *batch, const struct text_piece *piece, const char *text);

/* Removes all pieces. Frees the memory with `frees_all`, or if it is more than batches usually need. */
void text_batch_clear(struct text_batch *batch, bool frees_all);

/* Initialise the first two with pointers that stay, and the others with zeros. */
struct encoder {
    const struct prepare_settings *settings;
    const struct tokenizer *tokenizer;
    struct text_batch *batches; /* [count] that are encoded now */
    size_t count;
    _Atomic size_t next; /* to be encoded */
    pthread_t *threads;  /* [thread_count], owned */
    int64_t thread_count;
};

/* Begins to encode batches, which belong to the threads until encoder_wait. Each document is ended by the
 * tokenizer's end of text, or, if tokens are bytes, by a blank line; nothing is added to chunks of bytes. Where no
 * thread can be started, it encodes them itself. */
void encoder_start(struct encoder *encoder, struct text_batch *batches, size_t count);

/* Waits until the batches are encoded, or could not be: see their errors. */
void encoder_wait(struct encoder *encoder);
