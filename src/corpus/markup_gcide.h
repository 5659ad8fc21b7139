/* Plain English from the dictionary GCIDE (The Collaborative International Dictionary of English) in the form of
 * the dict protocol's database: notices in front, headwords at the beginning of a line followed by their
 * pronunciation between backslashes, etymologies, labels and sources in [brackets], references in {braces}, letters
 * with accents as
 * ['e], text wrapped and indented.
 *
 * Kept are headwords, parts of speech, definitions and quotations: a line for each paragraph, a blank line between
 * entries, runs of blanks as one, ASCII letters for accented ones. */
#ifndef HC_SRC_MARKUP_GCIDE_H
#define HC_SRC_MARKUP_GCIDE_H

#include "src/text/text_buffer.h"
#include <stdbool.h>

/* Begin with all zero. */
struct markup_gcide {
    struct text_buffer line;      /* the beginning of a line that has not ended yet */
    struct text_buffer paragraph; /* its lines so far, joined by blanks */
    bool is_head;                 /* the paragraph begins an entry */
    bool in_entries;              /* past the notices */
    bool wrote_entry;             /* something was written, so that a blank line goes between entries */
};

/* Takes the next bytes and appends what is certain to `out`. Memory stays bounded, lines and paragraphs that are
 * too long are cut. 0, or -1 with an error text when memory runs out. */
int markup_gcide_add(struct markup_gcide *markup, const char *data, size_t bytes, struct text_buffer *out);

/* The end of the input: appends the rest. */
int markup_gcide_finish(struct markup_gcide *markup, struct text_buffer *out);
void markup_gcide_free(struct markup_gcide *markup);

#endif
