/* Functions that the files of runtime/options share. */
#pragma once

#include "runtime/options/options.h"

enum {
    MOST_SHOWN = 60,      /* characters of the user's text in an error text */
    MOST_NAME_BYTES = 64, /* longer names are none */
};

/* The row with this name, spelled as in the table; NULL if there is none. */
struct option_spec *option_find(struct option_spec *specs, size_t count, const char *name);

/* Whether it is typed as an option of yes or no: --x, --no-x, or with a value --x=VALUE. */
bool option_is_switch(const struct option_spec *spec);

/* The known name that is nearest to an unknown one, within two edits; NULL if there is none. `general` includes the
 * names of options that every program has. */
const char *option_nearest(const struct option_spec *specs, size_t count, const char *name, bool general);

/* Copies a name with all `from` replaced by `to`. */
void option_copy_name(char *copy, size_t bytes, const char *name, char from, char to);

/* option_set for the source of this number. */
int option_give(struct option_spec *spec, const char *value, const char *where, unsigned source);

/* The number of the source that is read next, for option_spec.given: one more than the largest so far. */
unsigned option_next_source(const struct option_spec *specs, size_t count);

/* The limits of a number as text: "1 .. 8", "at least 1", or "" without any. Returns `text`. */
const char *option_range(const struct option_spec *spec, char *text, size_t bytes);
