/* Rows for tables of options (struct option_spec), a line or two for each:
 *
 *     const struct option_spec table[] = {
 *         HEADING("Model"),
 *         INT("n_layer", &settings->n_layer, "4", 1, 1024, "layers, each an attention and an MLP block"),
 *     };
 *
 * `variable` points to what the option sets, and the compiler checks its type. `initial` is the default as text,
 * `low` and `high` are limits (equal: none), `words` those of a choice ("off|layer"), `text` is what --help says.
 * TEXT takes `.may_be_empty = true` behind it. _FOLLOWING is for options
 * whose default the program works out from others by a `rule` that --help shows; `initial` holds until then.
 * PROCESS_ is for options of one process, not of the run: they are not among the settings that a resumed run goes
 * on with. */
#pragma once

#include "runtime/options/options.h"

#define OPTION_ROW(kind, pointer, option, variable, initial, ...)                                                  \
    .type = kind, .name = option, .target = (pointer){variable}, .default_value = initial, .help = __VA_ARGS__

#define HEADING(text) {.type = OPTION_HEADING, .help = text}
#define INT(option, variable, initial, low, high, text)                                                            \
    {OPTION_ROW(OPTION_INT, int64_t *, option, variable, initial, text), .minimum = low, .maximum = high}
#define FLOAT(option, variable, initial, low, high, text)                                                          \
    {OPTION_ROW(OPTION_FLOAT, double *, option, variable, initial, text), .minimum = low, .maximum = high}
#define INT_FOLLOWING(rule, option, variable, initial, low, high, text)                                            \
    {OPTION_ROW(OPTION_INT, int64_t *, option, variable, initial, text), .minimum = low, .maximum = high,          \
     .follows = rule}
#define FLOAT_FOLLOWING(rule, option, variable, initial, low, high, text)                                          \
    {OPTION_ROW(OPTION_FLOAT, double *, option, variable, initial, text), .minimum = low, .maximum = high,         \
     .follows = rule}
#define BOOL(option, variable, initial, ...)                                                                       \
    {OPTION_ROW(OPTION_BOOL, bool *, option, variable, initial, __VA_ARGS__)}
#define TEXT(option, variable, initial, ...)                                                                       \
    {OPTION_ROW(OPTION_TEXT, char **, option, variable, initial, __VA_ARGS__)}
#define TEXTS(option, variable, text)                                                                              \
    {OPTION_ROW(OPTION_TEXTS, struct option_texts *, option, variable, NULL, text)}
#define CHOICE(option, variable, initial, words, text)                                                             \
    {OPTION_ROW(OPTION_CHOICE, int *, option, variable, initial, text), .choices = words}
#define PROCESS_BOOL(option, variable, text)                                                                       \
    {OPTION_ROW(OPTION_BOOL, bool *, option, variable, "false", text), .transient = true}
#define PROCESS_TEXT(option, variable, initial, ...)                                                               \
    {OPTION_ROW(OPTION_TEXT, char **, option, variable, initial, __VA_ARGS__), .transient = true}
