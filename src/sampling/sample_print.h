/* Samples printed one after the other, in the order of their numbers: the first that is not complete as it comes,
 * the others when it is their turn. Each is the prompt, its text and a newline; between two there is a line of
 * dashes. */
#pragma once

#include "src/sampling/sample.h"
#include "src/sampling/sample_text.h"
#include "src/text/tokenizer.h"
#include <stdio.h>

struct sample_printer {
    FILE *file;
    const struct tokenizer *tokenizer;
    const char *prompt; /* of prompt_bytes */
    size_t prompt_bytes;
    struct printed_sample *samples; /* [side_by_side] */
    int64_t side_by_side;
    int64_t current; /* the number of the one that is being printed */
    bool begun;      /* its prompt is printed */
    bool terminal;   /* which is not to obey what a model writes */
};

/* side_by_side: how many samples are written at a time (options.batch of sample_run). Text of GPT-2's tokens is
 * printed in whole characters, bytes as they are; to a terminal all text is, with control characters spelt as message.h says. It ends before `stop` (NULL or empty: none). All must outlive the
 * printer. */
int sample_printer_create(struct sample_printer *printer, FILE *file, const struct tokenizer *tokenizer,
                          const char *prompt, size_t prompt_bytes, const char *stop, int64_t side_by_side);
void sample_printer_release(struct sample_printer *printer);

/* What sample_run takes. Failed writes are its errors. */
struct sample_sink sample_printer_sink(struct sample_printer *printer);
