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

/* Copies a name with all `from` replaced by `to`. */
void option_copy_name(char *copy, size_t bytes, const char *name, char from, char to);

/* The limits of a number as text: "1 .. 8", "at least 1", or "" without any. Returns `text`. */
const char *option_range(const struct option_spec *spec, char *text, size_t bytes);
