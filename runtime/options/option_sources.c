/* What sets options: command lines and config files, which are also written here. */
#include "runtime/files/files.h"
#include "runtime/options/options_internal.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/utf8.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_CONFIG_BYTES = 1 << 20,
    MOST_EDITS = 2, /* between a name and its suggestion */
};

/* The options that every program has. */
static const char *const general_names[] = {"config", "help", "version"};

/* The characters behind a backslash in quotes, and their meanings. \xHH is any byte. */
static const char escapes[] = "\"\\nrt", meanings[] = "\"\\\n\r\t";

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

/* A name that is no longer than the number of edits is near to nothing. */
static bool is_near(int edits, const char *candidate, const char *name) {
    return (size_t)edits < strlen(candidate) && is_within(edits, candidate, name);
}

/* The known name that is nearest to an unknown one, within two edits; NULL if there is none. `general` includes the
 * names of options that every program has. */
static const char *option_nearest(const struct option_spec *specs, size_t count, const char *name, bool general) {
    for (int edits = 0; edits <= MOST_EDITS; edits++) {
        for (size_t i = 0; i < count; i++) {
            if (specs[i].type != OPTION_HEADING && is_near(edits, specs[i].name, name)) {
                return specs[i].name;
            }
        }
        for (size_t i = 0; general && i < COUNT(general_names); i++) {
            if (is_near(edits, general_names[i], name)) {
                return general_names[i];
            }
        }
    }
    return NULL;
}

/* option_set for the source of this number. */
static int option_give(struct option_spec *spec, const char *value, const char *where, unsigned source) {
    if (spec->type == OPTION_TEXTS && spec->given != source) {
        options_free(spec, 1);
    }
    if (option_set(spec, value, where) != 0) {
        return -1;
    }
    spec->given = source;
    return 0;
}

/* The number of the source that is read next, for option_spec.given: one more than the largest so far. */
static unsigned option_next_source(const struct option_spec *specs, size_t count) {
    unsigned last = 0;
    for (size_t i = 0; i < count; i++) {
        last = specs[i].given > last ? specs[i].given : last;
    }
    return last + 1;
}

/* ---- reading config files */

static char *trim(char *text) {
    static const char blanks[] = " \t\r\v\f";
    text += strspn(text, blanks);
    size_t length = strlen(text);
    while (length > 0 && strchr(blanks, text[length - 1]) != NULL) {
        length--;
    }
    text[length] = '\0';
    return text;
}

/* The byte that the two hexadecimal digits of \xHH stand for; 0: they are not there, or say 00. */
static char unescape_byte(const char *digits) {
    char text[3] = "";
    memcpy(text, digits, strnlen(digits, 2));
    return strspn(text, "0123456789abcdefABCDEF") == 2 ? (char)strtol(text, NULL, 16) : 0;
}

/* Takes the quotes off a value that begins with one, in place: \" \\ \n \r \t \xHH stand for what they do in C.
 * Returns what is wrong with it, NULL if nothing. */
static const char *unquote(char *value) {
    char *to = value;
    const char *from = value + 1;
    for (; *from != '"'; from++) {
        if (*from == '\0') {
            return "the closing quote is missing";
        }
        if (*from != '\\') {
            *to++ = *from;
            continue;
        }
        from++;
        if (*from == 'x' && (*to = unescape_byte(from + 1)) != '\0') {
            to++;
            from += 2;
            continue;
        }
        const char *escape = *from != '\0' ? strchr(escapes, *from) : NULL;
        if (escape == NULL) {
            return "a backslash in quotes needs one of \" \\ n r t after it, or x and two hexadecimal digits";
        }
        *to++ = meanings[escape - escapes];
    }
    from++;
    from += strspn(from, " \t\r\v\f");
    if (*from != '\0' && *from != '#') {
        return "there is text after the closing quote";
    }
    *to = '\0';
    return NULL;
}

/* Applies one line, which it changes. `place` is "FILE:LINE"; `source` is the file's number. */
static int apply_line(struct option_spec *specs, size_t count, unsigned source, char *line, const char *place) {
    line = trim(line);
    if (*line == '\0' || *line == '#') {
        return 0;
    }
    char *equals = strchr(line, '=');
    if (equals == NULL || equals > line + strcspn(line, "#")) {
        return error_set("%s: '%.*s' is not of the form name = value", place, MOST_SHOWN, line);
    }
    *equals = '\0';
    const char *name = trim(line);
    char *value = trim(equals + 1);
    struct option_spec *spec = option_find(specs, count, name);
    if (spec == NULL) {
        const char *nearest = option_nearest(specs, count, name, false);
        return nearest == NULL
                   ? error_set("%s: unknown option '%.*s'", place, MOST_SHOWN, name)
                   : error_set("%s: unknown option '%.*s' (did you mean '%s'?)", place, MOST_SHOWN, name, nearest);
    }
    if (*value == '"') {
        const char *wrong = unquote(value);
        if (wrong != NULL) {
            return error_set("%s: %s: %s", place, name, wrong);
        }
    } else {
        value[strcspn(value, "#")] = '\0';
        value = trim(value);
    }
    char where[512];
    snprintf(where, sizeof where, "%.*s: %s = ", (int)sizeof where - MOST_NAME_BYTES - 8, place, name);
    return option_give(spec, value, where, source);
}

int options_apply_text(struct option_spec *specs, size_t count, const char *name, const char *text, size_t bytes) {
    static const char mark[] = "\xEF\xBB\xBF"; /* U+FEFF, which some editors put before UTF-8 */
    const char *const after = text + bytes;
    const unsigned source = option_next_source(specs, count);
    int result = 0;
    text += bytes >= 3 && memcmp(text, mark, 3) == 0 ? 3 : 0;
    for (size_t number = 1; result == 0 && text < after; number++) {
        const char *newline = memchr(text, '\n', (size_t)(after - text));
        const size_t length = (size_t)((newline != NULL ? newline : after) - text);
        char place[400];
        snprintf(place, sizeof place, "%.360s:%zu", name, number);
        char *line = memory_string_part(text, length); /* to be changed; up to a NUL byte */
        result = strlen(line) != length ? error_set("%s: there is a NUL byte in this line", place)
                                        : apply_line(specs, count, source, line, place);
        free(line);
        text += length + 1;
    }
    return result;
}

/* ---- writing config files */

/* Text that is not UTF-8, such as the names of some files, is written as \xHH, so that settings are always UTF-8.
 * */
static void write_quoted(const char *text, FILE *file) {
    const bool is_text = utf8_prefix(text, strlen(text)) == strlen(text);
    fputc('"', file);
    for (; *text != '\0'; text++) {
        const char *found = strchr(meanings, *text);
        if (found != NULL) {
            fprintf(file, "\\%c", escapes[found - meanings]);
        } else if (!is_text && (unsigned char)*text >= 0x80) {
            fprintf(file, "\\x%02x", (unsigned)(unsigned char)*text);
        } else {
            fputc(*text, file);
        }
    }
    fputc('"', file);
}

/* The shortest decimal number that reads back as the same double. */
static void write_double(double number, FILE *file) {
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, number);
        if (strtod(text, NULL) == number) {
            break;
        }
    }
    fputs(text, file);
}

static void write_spec(const struct option_spec *spec, FILE *file) {
    const char *text = spec->type == OPTION_TEXT ? *(char *const *)spec->target : NULL;
    char word[64];
    if (spec->type == OPTION_TEXTS) { /* a line for each */
        const struct option_texts *list = spec->target;
        for (size_t i = 0; i < list->count; i++) {
            fprintf(file, "%s = ", spec->name);
            write_quoted(list->texts[i], file);
            fputc('\n', file);
        }
        return;
    }
    if (spec->type == OPTION_TEXT && text == NULL) {
        fprintf(file, "# %s is not set\n", spec->name);
        return;
    }
    fprintf(file, "%s = ", spec->name);
    switch (spec->type) {
    case OPTION_INT:
        fprintf(file, "%" PRId64, *(const int64_t *)spec->target);
        break;
    case OPTION_FLOAT:
        write_double(*(const double *)spec->target, file);
        break;
    case OPTION_BOOL:
        fputs(*(const bool *)spec->target ? "true" : "false", file);
        break;
    case OPTION_CHOICE:
        fprintf(file, "\"%s\"", options_word(spec->choices, *(const int *)spec->target, word, sizeof word));
        break;
    default:
        write_quoted(text, file);
        break;
    }
    fputc('\n', file);
}

char *options_text(const struct option_spec *specs, size_t count) {
    char *text;
    size_t bytes;
    FILE *stream = memory_open_stream(&text, &bytes);
    for (size_t i = 0; i < count; i++) {
        if (specs[i].type == OPTION_HEADING) {
            fprintf(stream, "%s# %s\n", i > 0 ? "\n" : "", specs[i].help);
        } else if (!specs[i].transient) {
            write_spec(&specs[i], stream);
        }
    }
    memory_close_stream(stream);
    return text;
}

/* ---- command lines */

struct options_given {
    struct option_spec *specs; /* [spec_count], the table */
    size_t spec_count, count;
    struct item {
        struct option_spec *spec; /* NULL: --config */
        const char *value;        /* what it is set to; the path of a config file */
        char *text;               /* the content of a config file [bytes] */
        size_t bytes;
    } items[];
};

void options_given_free(struct options_given *given) {
    for (size_t i = 0; given != NULL && i < given->count; i++) {
        free(given->items[i].text);
    }
    free(given);
}

static int refuse_name(const struct options_given *line, const char *argument, size_t length) {
    char given[MOST_SHOWN + 1], name[MOST_SHOWN + 1], suggestion[MOST_NAME_BYTES];
    snprintf(given, sizeof given, "%.*s", (int)(length < MOST_SHOWN ? length : MOST_SHOWN), argument + 2);
    option_copy_name(name, sizeof name, given, '-', '_');
    const char *nearest = option_nearest(line->specs, line->spec_count, name, true);
    if (nearest == NULL) {
        return error_set("unknown option '--%s' (--help lists all)", given);
    }
    option_copy_name(suggestion, sizeof suggestion, nearest, '_', '-');
    return error_set("unknown option '--%s' (did you mean '--%s'?)", given, suggestion);
}

/* Notes the option that arguments[0] begins. *used: how many arguments it takes, 1 or 2. */
static enum options_result take_option(struct options_given *line, char *const *arguments, int *used) {
    const char *argument = arguments[0];
    if (argument[1] != '-') {
        return error_set("unknown option '%.*s' (--help lists all)", MOST_SHOWN, argument);
    }
    const size_t length = strcspn(argument + 2, "=");
    const char *value = argument[2 + length] == '=' ? argument + 2 + length + 1 : NULL;
    char given[MOST_NAME_BYTES], name[MOST_NAME_BYTES];
    snprintf(given, sizeof given, "%.*s", length < sizeof given ? (int)length : 0, argument + 2);
    option_copy_name(name, sizeof name, given, '-', '_');
    const bool config = strcmp(name, "config") == 0, help = strcmp(name, "help") == 0;
    const bool asks = help || strcmp(name, "version") == 0;
    struct option_spec *spec = NULL;
    bool negated = false;
    if (!config && !asks) {
        spec = option_find(line->specs, line->spec_count, name);
        negated = spec == NULL && strncmp(name, "no_", 3) == 0;
        if (negated) {
            spec = option_find(line->specs, line->spec_count, name + 3);
        }
        if (spec == NULL || (negated && !option_is_switch(spec))) {
            return refuse_name(line, argument, length);
        }
    }
    if (value != NULL && (asks || negated)) {
        return error_set("%.*s takes no value", (int)length + 2, argument);
    }
    if (asks) {
        return help ? OPTIONS_HELP : OPTIONS_VERSION;
    }
    if (value == NULL && spec != NULL && option_is_switch(spec)) {
        value = negated ? "false" : "true";
    } else if (value == NULL) {
        value = arguments[1];
        *used = 2;
    }
    if (value == NULL) {
        return error_set("%.*s needs a value", MOST_SHOWN, argument);
    }
    line->items[line->count++] = (struct item){.spec = spec, .value = value};
    return OPTIONS_OK;
}

enum options_result options_read(struct option_spec *specs, size_t count, int argc, char **argv, int *first_free,
                                 struct options_given **given) {
    struct options_given *line = *given = memory_zeroed(1, sizeof *line + (size_t)argc * sizeof *line->items);
    line->specs = specs;
    line->spec_count = count;
    enum options_result result = OPTIONS_OK;
    bool ended = false;
    *first_free = 1;
    /* notes all options, and moves them before the other arguments, up to "--" or the end */
    for (int at = 1; result == OPTIONS_OK && !ended && at < argc;) {
        int used = argv[at][0] == '-' && argv[at][1] != '\0';
        ended = strcmp(argv[at], "--") == 0;
        if (used == 0) {
            at++;
        } else if (!ended) {
            result = take_option(line, argv + at, &used);
        }
        for (; result == OPTIONS_OK && used > 0; used--, at++) {
            char *word = argv[at];
            memmove(argv + *first_free + 1, argv + *first_free, (size_t)(at - *first_free) * sizeof *argv);
            argv[(*first_free)++] = word;
        }
    }
    for (size_t i = 0; i < line->count && result == OPTIONS_OK; i++) {
        struct item *item = &line->items[i];
        if (item->spec == NULL &&
            files_read_stream(files_find(item->value).text, MOST_CONFIG_BYTES, &item->text, &item->bytes) != 0) {
            result = error_prefix("--config");
        }
    }
    if (result != OPTIONS_OK) {
        options_given_free(line);
        *given = NULL;
    }
    return result;
}

int options_apply_given(const struct options_given *given) {
    for (size_t i = 0; i < given->count; i++) {
        const struct item *item = &given->items[i];
        if (item->spec == NULL &&
            options_apply_text(given->specs, given->spec_count, item->value, item->text, item->bytes) != 0) {
            return -1;
        }
    }
    const unsigned source = option_next_source(given->specs, given->spec_count);
    for (size_t i = 0; i < given->count; i++) {
        const struct item *item = &given->items[i];
        char name[MOST_NAME_BYTES], where[MOST_NAME_BYTES + 8];
        if (item->spec == NULL) {
            continue;
        }
        option_copy_name(name, sizeof name, item->spec->name, '_', '-');
        snprintf(where, sizeof where, "--%s: ", name);
        if (option_give(item->spec, item->value, where, source) != 0) {
            return -1;
        }
    }
    return 0;
}
