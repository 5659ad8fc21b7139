#include "runtime/options/options_internal.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/utf8.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What stands in quotes behind a backslash, and what it means; and \xHH, any byte. */
static const char escapes[] = "\"\\nrt", meanings[] = "\"\\\n\r\t";

/* ---- reading */

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

/* ---- writing */

/* What is not UTF-8, such as the names of some files, is written by its bytes: so the settings are always text. */
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
