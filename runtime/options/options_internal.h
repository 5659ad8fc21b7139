/* What the files of this room share. */
#pragma once

#include "runtime/options/options.h"

enum {
    MOST_SHOWN = 60,      /* characters of the user's text in an error text */
    MOST_NAME_BYTES = 64, /* longer names are none */
};

/* The row of this name, which is spelled as in the table; NULL: there is none. */
struct option_spec *option_find(struct option_spec *specs, size_t count, const char *name);

/* The name that is nearest to one that is none, within a few edits; NULL if there is none. With `general`, names
 * that every program has count too. */
const char *option_nearest(const struct option_spec *specs, size_t count, const char *name, bool general);

/* Copies a name with all `from` replaced by `to`. */
void option_copy_name(char *copy, size_t bytes, const char *name, char from, char to);

/* The number of the source that begins now, for `given`: the one after all that have set something. */
unsigned option_next_source(const struct option_spec *specs, size_t count);

/* Sets the variable of a row that is no heading. `where` begins the error text: "--n-layer: " or "FILE:LINE: n_layer = ". */
int option_set(struct option_spec *spec, const char *value, const char *where);

enum { OPTION_LEFT_BYTES = MOST_NAME_BYTES + 16, OPTION_VALUES_BYTES = 768 };

/* What is typed: "--[no-]bias", "--n-layer N". */
void option_left(const struct option_spec *spec, char left[OPTION_LEFT_BYTES]);

/* The values that an option takes and its default, " (1 .. 8; default: 4)"; "" if there is nothing to say. */
void option_values(const struct option_spec *spec, char text[OPTION_VALUES_BYTES]);

/* What every program has beside its table. */
enum { GENERAL_OPTIONS = 3 };
extern const struct general_option {
    const char *left, *text;
} general_options[GENERAL_OPTIONS];

/* What --help=WORD asks for with "man" or "bash"; false: the word is none of them. */
bool option_page_named(const char *word, enum options_result *page);

/* That page to stdout: a manual page (roff), or a file of completion for bash. */
void option_page_print(enum options_result page, const struct option_spec *specs, size_t count,
                       const struct program_info *program);

/* The limits of a number as text: "1 .. 8", "at least 1", or "" without any. Returns `text`. */
const char *option_range(const struct option_spec *spec, char *text, size_t bytes);
