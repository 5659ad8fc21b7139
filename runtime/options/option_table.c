/* Tables of options: finding a row by its name, and setting the variable of a row. */
#include "runtime/options/options_internal.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
        if (specs[i].type != OPTION_HEADING && strcmp(specs[i].name, name) == 0) {
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

/* ---- values */

const char *option_range(const struct option_spec *spec, char *text, size_t bytes) {
    /* Limits beyond what the type holds are none. */
    const bool whole = spec->type == OPTION_INT; /* whose values are read in digits only */
    const double huge = whole ? 9e18 : 1e300;
    const bool low = spec->minimum > -huge, high = spec->maximum < huge;
    char least[32], most[32];
    snprintf(least, sizeof least, whole ? "%.0f" : "%.10g", spec->minimum);
    snprintf(most, sizeof most, whole ? "%.0f" : "%.10g", spec->maximum);
    if (spec->minimum == spec->maximum || (!low && !high)) {
        text[0] = '\0';
    } else if (!high) {
        snprintf(text, bytes, "at least %s", least);
    } else if (!low) {
        snprintf(text, bytes, "at most %s", most);
    } else {
        snprintf(text, bytes, "%s .. %s", least, most);
    }
    return text;
}

static int check_range(const struct option_spec *spec, double number, const char *where, const char *value) {
    char range[80];
    return spec->minimum == spec->maximum || (number >= spec->minimum && number <= spec->maximum)
               ? 0
               : error_set("%s%.*s is out of range %s", where, MOST_SHOWN, value,
                           option_range(spec, range, sizeof range));
}

static int set_int(struct option_spec *spec, const char *value, const char *where) {
    const size_t sign = strspn(value, "+-");
    const size_t digits = strspn(value + sign, "0123456789");
    if (sign > 1 || digits == 0 || value[sign + digits] != '\0') {
        return error_set("%s'%.*s' is not a whole number", where, MOST_SHOWN, value);
    }
    errno = 0;
    const int64_t number = strtoll(value, NULL, 10);
    if (errno == ERANGE) {
        return error_set("%s%.*s does not fit 64 bits", where, MOST_SHOWN, value);
    }
    if (check_range(spec, (double)number, where, value) != 0) {
        return -1;
    }
    *(int64_t *)spec->target = number;
    return 0;
}

static int set_float(struct option_spec *spec, const char *value, const char *where) {
    /* strtod would also take blanks in front, hexadecimal numbers, infinities and NaN. Programs do not call
     * setlocale, so the decimal point is a point. */
    char *end = NULL;
    errno = 0;
    const double number = strtod(value, &end);
    if (*value == '\0' || value[strspn(value, "0123456789+-.eE")] != '\0' || *end != '\0') {
        return error_set("%s'%.*s' is not a number", where, MOST_SHOWN, value);
    }
    if (!isfinite(number)) {
        return error_set("%s%.*s is too large a number", where, MOST_SHOWN, value);
    }
    const char first = value[strcspn(value, "123456789eE")];      /* digit that is not 0 */
    if (first >= '1' && first <= '9' && fabs(number) < FLT_MIN) { /* kernels would take it for 0 */
        return error_set("%s%.*s is too small a number: give 0, or at least 1.2e-38", where, MOST_SHOWN, value);
    }
    if (check_range(spec, number, where, value) != 0) {
        return -1;
    }
    *(double *)spec->target = number;
    return 0;
}

static int set_bool(struct option_spec *spec, const char *value, const char *where) {
    const bool yes = strcmp(value, "true") == 0 || strcmp(value, "True") == 0;
    if (!yes && strcmp(value, "false") != 0 && strcmp(value, "False") != 0) {
        return error_set("%s'%.*s' is neither true nor false", where, MOST_SHOWN, value);
    }
    *(bool *)spec->target = yes;
    return 0;
}

const char *options_word(const char *choices, int place, char *word, size_t bytes) {
    for (; place > 0; place--) {
        choices += strcspn(choices, "|");
        choices += *choices == '|';
    }
    snprintf(word, bytes, "%.*s", (int)strcspn(choices, "|"), choices);
    return word;
}

bool option_is_switch(const struct option_spec *spec) {
    static const char words[] = "false|true|";
    return spec->type == OPTION_BOOL ||
           (spec->type == OPTION_CHOICE && strncmp(spec->choices, words, sizeof words - 1) == 0);
}

static int set_choice(struct option_spec *spec, const char *value, const char *where) {
    char word[MOST_NAME_BYTES];
    if (option_is_switch(spec) && (strcmp(value, "True") == 0 || strcmp(value, "False") == 0)) {
        *(int *)spec->target = *value == 'T'; /* as set_bool takes them */
        return 0;
    }
    for (int place = 0; *options_word(spec->choices, place, word, sizeof word) != '\0'; place++) {
        if (strcmp(word, value) == 0) {
            *(int *)spec->target = place;
            return 0;
        }
    }
    return error_set("%s'%.*s' is none of %s", where, MOST_SHOWN, value, spec->choices);
}

/* A copy; NULL: none. */
static int set_text(struct option_spec *spec, const char *value, const char *where) {
    const bool may_be_empty = spec->may_be_empty || (spec->default_value && *spec->default_value == '\0');
    if (value != NULL && *value == '\0' && !may_be_empty) {
        return error_set("%sno text is given: leave it out, or say which", where);
    }
    char **text = spec->target, *old = *text;
    *text = value != NULL ? memory_string(value) : NULL;
    free(old);
    return 0;
}

/* Adds a copy; NULL: removes all. */
static int set_texts(struct option_spec *spec, const char *value, const char *where) {
    (void)where;
    struct option_texts *list = spec->target;
    if (value != NULL) {
        list->texts = memory_resize(list->texts, list->count + 1, sizeof *list->texts);
        list->texts[list->count++] = memory_string(value);
        return 0;
    }
    for (size_t i = 0; i < list->count; i++) {
        free(list->texts[i]);
    }
    free(list->texts);
    *list = (struct option_texts){0};
    return 0;
}

int option_set(struct option_spec *spec, const char *value, const char *where) {
    static int (*const set[])(struct option_spec *spec, const char *value, const char *where) = {
        [OPTION_INT] = set_int,   [OPTION_FLOAT] = set_float,   [OPTION_BOOL] = set_bool,
        [OPTION_TEXT] = set_text, [OPTION_CHOICE] = set_choice, [OPTION_TEXTS] = set_texts,
    };
    return set[spec->type](spec, value, where);
}

bool options_is_default(const struct option_spec *spec) {
    union {
        int64_t integer;
        double number;
        bool truth;
        int word;
        char *text;
        struct option_texts texts;
    } usual = {0};
    struct option_spec now = *spec, before = *spec;
    now.transient = before.transient = false;
    before.target = &usual;
    if (spec->default_value) {
        option_set(&before, spec->default_value, "");
    }
    char *text = options_text(&now, 1), *usual_text = options_text(&before, 1);
    const bool same = strcmp(text, usual_text) == 0;
    free(text);
    free(usual_text);
    options_free(&before, 1);
    return same;
}

unsigned options_source(const struct option_spec *specs, size_t count, const char *name) {
    const struct option_spec *spec = option_find((struct option_spec *)specs, count, name);
    return spec != NULL ? spec->given : 0;
}

int options_set_defaults(struct option_spec *specs, size_t count) {
    options_free(specs, count);
    for (size_t i = 0; i < count; i++) {
        struct option_spec *spec = &specs[i];
        if (spec->type == OPTION_HEADING) {
            continue;
        }
        spec->given = 0;
        if (option_find(specs, i, spec->name)) {
            return error_set("the table of options has '%s' twice", spec->name);
        }
        if (strchr(spec->name, '-') != NULL) {
            return error_set("the table of options has '%s' where names have underscores", spec->name);
        }
        if (spec->default_value != NULL && option_set(spec, spec->default_value, "") != 0) {
            return error_prefix("the default of %s", spec->name);
        }
    }
    return 0;
}

void options_free(struct option_spec *specs, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (specs[i].type == OPTION_TEXT) {
            set_text(&specs[i], NULL, "");
        } else if (specs[i].type == OPTION_TEXTS) {
            set_texts(&specs[i], NULL, "");
        }
    }
}
