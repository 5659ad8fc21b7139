#include "runtime/device/build_log.h"
#include "runtime/system/memory.h"
#include <regex.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char directive[] = "#line 1 \"";

/* A place in a file of the text. */
struct place {
    const char *name; /* not terminated */
    int length;
    unsigned long line;
};

/* Where a line of the whole text is; false: not in a file of it. */
static bool find_place(const char *text, unsigned long line, struct place *place) {
    *place = (struct place){0};
    for (unsigned long at = 1; at <= line && *text != '\0'; at++) {
        place->line++;
        if (strncmp(text, directive, sizeof directive - 1) == 0) {
            place->name = text + sizeof directive - 1;
            place->length = (int)strcspn(place->name, "\"\n");
            place->line = 0;
        }
        text += strcspn(text, "\n");
        text += *text == '\n';
        if (*text == '\0' && at < line) {
            return false;
        }
    }
    return place->name != NULL && place->line > 0;
}

/* Whether a line of the log names a file of the text. */
static bool names_file(const char *text, const char *line) {
    char name[256];
    for (const char *found = strstr(text, directive); found != NULL; found = strstr(found + 1, directive)) {
        if (sscanf(found + sizeof directive - 1, "%255[^\"\n]", name) == 1 && strstr(line, name) != NULL) {
            return true;
        }
    }
    return false;
}

/* How compilers name a place: the second part is the line. */
static const struct {
    const char *pattern, *before,
        *between; /* what is written before file and line: "before NAME between LINE", or the other way */
    bool line_first;
} styles[] = {
    {"([^ \t]+):([0-9]+)(:[0-9]+:)", "", ":", false},
    {"(\\()([0-9]+)(:[0-9]+\\))", "(", ":", false},
    {"(\\<[Ll]ine )([0-9]+)(\\>)", "line ", " of ", true},
};

/* Writes a line with its place, in the first of the styles that it has; true unless it has none. */
static bool write_located(FILE *to, const char *text, const char *line) {
    for (size_t i = 0; i < sizeof styles / sizeof *styles; i++) {
        regex_t compiled;
        regmatch_t found[4];
        struct place place;
        if (regcomp(&compiled, styles[i].pattern, REG_EXTENDED) != 0) {
            return false;
        }
        const bool matches = regexec(&compiled, line, 4, found, 0) == 0;
        regfree(&compiled);
        if (!matches || !find_place(text, strtoul(line + found[2].rm_so, NULL, 10), &place)) {
            continue;
        }
        fprintf(to, "%.*s%s", (int)found[0].rm_so, line, styles[i].before);
        if (styles[i].line_first) {
            fprintf(to, "%lu%s%.*s", place.line, styles[i].between, place.length, place.name);
        } else {
            fprintf(to, "%.*s%s%lu", place.length, place.name, styles[i].between, place.line);
        }
        fputs(line + found[3].rm_so, to);
        return true;
    }
    return false;
}

char *build_log_locate(const char *text, const char *log) {
    char *located, *copy = memory_string(log), *rest = copy;
    size_t bytes;
    FILE *to = memory_open_stream(&located, &bytes);
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (names_file(text, line) || !write_located(to, text, line)) {
            fputs(line, to);
        }
        fputs(rest != NULL ? "\n" : "", to);
    }
    free(copy);
    memory_close_stream(to);
    return located;
}
