/* Samples printed one after the other, in the order of their numbers: the first that is not complete as it comes,
 * the others after it. Each is the prompt, its text and a newline; between two there is a line of dashes. */
#pragma once

#include "runtime/options/options.h"
#include "src/sampling/sample.h"
#include "src/text/text_buffer.h"
#include "src/text/tokenizer.h"
#include <stdio.h>

/* ---- the bytes of one sample's tokens */

/* The text ends before the first stop text that is complete in it, of those that are complete with the same byte
 * before the longest, and in text that is to be UTF-8 no character is torn. An end that may still
 * become part of either is held back. Begin with the first two set and the rest zero. */
struct sample_text {
    const struct option_texts *stops; /* NULL: none; empty ones count for nothing */
    bool utf8;                        /* what is no character becomes U+FFFD; else bytes go through as they are */
    bool stopped;                     /* out: a stop text came; what follows is dropped */
    bool complete;                    /* the printer's: there is no more to come */
    struct text_buffer held;
    struct text_buffer ready; /* to be printed; the reader drops what it took (text_drop) */
};

/* Adds a token's bytes. */
void sample_text_add(struct sample_text *text, const char *bytes, size_t count);

/* The sample is over: the end is ready, too. */
void sample_text_end(struct sample_text *text);

void sample_text_free(struct sample_text *text);

/* ---- samples */

struct sample_printer {
    struct sample_sink sink; /* for sample_run; failed writes are its errors */
    FILE *file;
    const struct tokenizer *tokenizer;
    const char *prompt; /* of prompt_bytes */
    size_t prompt_bytes;
    struct sample_text *samples; /* [side_by_side] */
    int64_t side_by_side;
    int64_t current; /* the number of the one that is being printed */
    bool begun;      /* its prompt is printed */
    bool terminal;   /* it must not obey what a model writes */
};

/* side_by_side: how many samples are written at a time (options.batch of sample_run). Text of GPT-2's tokens is
 * printed in whole characters, bytes as they are; to a terminal all text is, with control characters spelt as by
 * message.h. It ends before one of `stops` (NULL: none). All must outlive the printer. */
void sample_printer_create(struct sample_printer *printer, FILE *file, const struct tokenizer *tokenizer,
                           const char *prompt, size_t prompt_bytes, const struct option_texts *stops,
                           int64_t side_by_side);
void sample_printer_release(struct sample_printer *printer);
