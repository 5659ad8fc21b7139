/* The bytes of one sample's tokens on their way to the reader: the text ends before a stop text, and in text that
 * is to be UTF-8 no character is torn. What may still become part of either is held back. */
#pragma once

#include "src/text/text_buffer.h"
#include <stdbool.h>

/* Begin with the first two set and the rest zero. */
struct sample_text {
    const char *stop; /* NULL or empty: none */
    bool utf8;        /* what is no character becomes U+FFFD; else bytes go through as they are */
    bool stopped;     /* out: the stop text came; what follows is dropped */
    struct text_buffer held;
    struct text_buffer ready; /* to be printed; the reader drops what it took (text_drop) */
};

/* Adds a token's bytes. 0, or -1 when memory runs out. */
int sample_text_add(struct sample_text *text, const char *bytes, size_t count);

/* The sample is over: what was held back is ready. */
int sample_text_end(struct sample_text *text);

void sample_text_free(struct sample_text *text);
