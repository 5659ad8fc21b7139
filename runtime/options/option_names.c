#include "runtime/options/options_internal.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_EDITS = 2 /* between a name and its suggestion */ };

/* The options that every program has. */
static const char *const general_names[] = {"config", "help", "version"};

void options_append(struct option_table *table, const struct option_spec *rows, size_t count) {
    if (count > sizeof table->rows / sizeof *rows - table->count) {
        fprintf(stderr, "struct option_table is too small\n");
        abort(); /* whoever adds options sees this at once, whatever the program is asked to do */
    }
    memcpy(table->rows + table->count, rows, count * sizeof *rows);
    table->count += count;
}

struct option_spec *option_find(struct option_spec *specs, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++) {
        if (specs[i].type != OPTION_HEADING &&
            (strcmp(specs[i].name, name) == 0 || (specs[i].former && strcmp(specs[i].former, name) == 0))) {
            return &specs[i];
        }
    }
    return NULL;
}

void option_copy_name(char *copy, size_t bytes, const char *name, char from, char to) {
    snprintf(copy, bytes, "%s", name);
    for (char *at = copy; *at != '\0'; at++) {
        *at = *at == from ? to : *at;
    }
}

/* Whether so many insertions, deletions and replacements of a character, or fewer, make one text the other. */
static bool is_within(int edits, const char *left, const char *right) {
    for (; *left != '\0' && *left == *right; left++) {
        right++;
    }
    if (*left == *right) {
        return true; /* both have ended */
    }
    return edits > 0 && ((*left != '\0' && is_within(edits - 1, left + 1, right)) ||
                         (*right != '\0' && is_within(edits - 1, left, right + 1)) ||
                         (*left != '\0' && *right != '\0' && is_within(edits - 1, left + 1, right + 1)));
}

/* Of a short name something must be left. */
static bool is_near(int edits, const char *candidate, const char *name) {
    return (size_t)edits < strlen(candidate) && is_within(edits, candidate, name);
}

const char *option_nearest(const struct option_spec *specs, size_t count, const char *name, bool general) {
    for (int edits = 0; edits <= MOST_EDITS; edits++) {
        for (size_t i = 0; i < count; i++) {
            if (specs[i].type != OPTION_HEADING && is_near(edits, specs[i].name, name)) {
                return specs[i].name;
            }
        }
        for (size_t i = 0; general && i < sizeof general_names / sizeof *general_names; i++) {
            if (is_near(edits, general_names[i], name)) {
                return general_names[i];
            }
        }
    }
    return NULL;
}
