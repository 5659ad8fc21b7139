#include "runtime/options/options.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_CONFIG_BYTES = 1 << 20,
    MOST_SHOWN = 60,      /* characters of the user's text in an error text */
    MOST_DISTANCE = 2,    /* edits between a name and its suggestion */
    MOST_NAME_BYTES = 64, /* longer names get no suggestion */
};

/* What getopt_long returns: a position in the array of specs from FIRST_SPEC on, or one of these. */
enum { FREE_ARGUMENT = 1, FIRST_WORD = 256, WORD_CONFIG = FIRST_WORD, WORD_HELP, WORD_VERSION, FIRST_SPEC };

static const struct {
    const char *name, *help;
} added_options[] = {
    {"config",
     "take settings from lines `name = value` of this file; names with underscores, # begins a comment; may be "
     "given several times, later ones win, the command line wins over all"},
    {"help", "print this and exit"},
    {"version", "print the version and exit"},
};

enum { ADDED_COUNT = sizeof added_options / sizeof added_options[0] };

/* ---- values */

static void set_text(struct option_spec *spec, char *text) {
    char **target = spec->target;
    free(*target);
    *target = text;
}

static const char *range_text(const struct option_spec *spec, char *text, size_t bytes) {
    /* Limits beyond what the type holds are none. */
    const double huge = spec->type == OPTION_INT ? 9e18 : 1e300;
    const bool low = spec->minimum > -huge, high = spec->maximum < huge;
    if (spec->minimum == spec->maximum || (!low && !high)) {
        text[0] = '\0';
    } else if (!high) {
        snprintf(text, bytes, "at least %.10g", spec->minimum);
    } else if (!low) {
        snprintf(text, bytes, "at most %.10g", spec->maximum);
    } else {
        snprintf(text, bytes, "%.10g .. %.10g", spec->minimum, spec->maximum);
    }
    return text;
}

static int check_number(const struct option_spec *spec, double number, const char *where, const char *value) {
    if (spec->minimum != spec->maximum && (number < spec->minimum || number > spec->maximum)) {
        char range[80];
        return error_set("%s%.*s is out of range %s", where, MOST_SHOWN, value,
                         range_text(spec, range, sizeof range));
    }
    return 0;
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
    if (check_number(spec, (double)number, where, value) != 0) {
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
    if (check_number(spec, number, where, value) != 0) {
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

static bool is_choice(const char *choices, const char *value) {
    const size_t length = strlen(value);
    for (const char *at = choices;; at++) {
        const size_t word = strcspn(at, "|");
        if (word == length && strncmp(at, value, length) == 0) {
            return true;
        }
        at += word;
        if (*at == '\0') {
            return false;
        }
    }
}

static int set_choice(struct option_spec *spec, const char *value, const char *where) {
    if (!is_choice(spec->choices, value)) {
        return error_set("%s'%.*s' is none of %s", where, MOST_SHOWN, value, spec->choices);
    }
    char *text = strdup(value);
    if (text == NULL) {
        return error_set("out of memory");
    }
    set_text(spec, text);
    return 0;
}

/* Sets the variable. `where` begins the error text: "--n-layer: " or "FILE:LINE: n_layer = ". */
static int set_value(struct option_spec *spec, const char *value, const char *where) {
    char *text;
    switch (spec->type) {
    case OPTION_INT:
        return set_int(spec, value, where);
    case OPTION_FLOAT:
        return set_float(spec, value, where);
    case OPTION_BOOL:
        return set_bool(spec, value, where);
    case OPTION_CHOICE:
        return set_choice(spec, value, where);
    case OPTION_TEXT:
        text = strdup(value);
        if (text == NULL) {
            return error_set("out of memory");
        }
        set_text(spec, text);
        return 0;
    case OPTION_HEADING:
        break;
    }
    return error_set("%sthis is no option", where);
}

static bool is_text(const struct option_spec *spec) {
    return spec->type == OPTION_TEXT || spec->type == OPTION_CHOICE;
}

int options_set_defaults(struct option_spec *specs, size_t count) {
    /* All texts first: then options_free finds no garbage, whatever fails. */
    for (size_t i = 0; i < count; i++) {
        specs[i].given = false;
        if (is_text(&specs[i])) {
            *(char **)specs[i].target = NULL;
        }
    }
    for (size_t i = 0; i < count; i++) {
        struct option_spec *spec = &specs[i];
        if (spec->type == OPTION_HEADING || spec->default_value == NULL) {
            continue;
        }
        if (set_value(spec, spec->default_value, "") != 0) {
            return error_prefix("the default of %s", spec->name);
        }
    }
    return 0;
}

void options_free(struct option_spec *specs, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (is_text(&specs[i])) {
            set_text(&specs[i], NULL);
        }
    }
}

/* ---- names */

/* Levenshtein's distance, row by row; more than MOST_DISTANCE for names that are too long to be one of ours. */
static size_t edit_distance(const char *left, const char *right) {
    const size_t rows = strlen(left), columns = strlen(right);
    if (rows > MOST_NAME_BYTES || columns > MOST_NAME_BYTES) {
        return SIZE_MAX;
    }
    size_t row[MOST_NAME_BYTES + 1];
    for (size_t j = 0; j <= columns; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= rows; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= columns; j++) {
            const size_t replaced = diagonal + (left[i - 1] != right[j - 1]);
            const size_t inserted = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = replaced < inserted ? replaced : inserted;
        }
    }
    return row[columns];
}

static void consider_name(const char *candidate, const char *name, const char **nearest, size_t *distance) {
    const size_t found = edit_distance(candidate, name);
    if (found < *distance && found < strlen(candidate)) {
        *distance = found;
        *nearest = candidate;
    }
}

/* The nearest option name within MOST_DISTANCE, NULL if there is none. */
static const char *nearest_name(const struct option_spec *specs, size_t count, const char *name,
                                bool command_line) {
    const char *nearest = NULL;
    size_t distance = MOST_DISTANCE + 1;
    for (size_t i = 0; i < count; i++) {
        if (specs[i].type != OPTION_HEADING) {
            consider_name(specs[i].name, name, &nearest, &distance);
        }
    }
    for (size_t i = 0; command_line && i < ADDED_COUNT; i++) {
        consider_name(added_options[i].name, name, &nearest, &distance);
    }
    return nearest;
}

/* Copies a name with all `from` replaced by `to`. */
static void copy_name(char *copy, size_t bytes, const char *name, char from, char to) {
    snprintf(copy, bytes, "%s", name);
    for (char *at = copy; *at != '\0'; at++) {
        *at = *at == from ? to : *at;
    }
}

/* ---- config files */

static struct option_spec *find_spec(struct option_spec *specs, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++) {
        if (specs[i].type != OPTION_HEADING && strcmp(specs[i].name, name) == 0) {
            return &specs[i];
        }
    }
    return NULL;
}

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
        static const char escapes[] = "\"\\nrt", meanings[] = "\"\\\n\r\t";
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

/* Applies one line, which it changes. `place` is "FILE:LINE". */
static int apply_line(struct option_spec *specs, size_t count, char *line, const char *place) {
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
    struct option_spec *spec = find_spec(specs, count, name);
    if (spec == NULL) {
        const char *near = nearest_name(specs, count, name, false);
        return near == NULL
                   ? error_set("%s: unknown option '%.*s'", place, MOST_SHOWN, name)
                   : error_set("%s: unknown option '%.*s' (did you mean '%s'?)", place, MOST_SHOWN, name, near);
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
    if (set_value(spec, value, where) != 0) {
        return -1;
    }
    spec->given = true;
    return 0;
}

int options_apply_text(struct option_spec *specs, size_t count, const char *name, char *text, size_t bytes) {
    int result = 0;
    size_t number = 1;
    for (char *line = text; result == 0 && line < text + bytes; number++) {
        char *end = memchr(line, '\n', (size_t)(text + bytes - line));
        end = end != NULL ? end : text + bytes;
        *end = '\0';
        char place[400];
        snprintf(place, sizeof place, "%.360s:%zu", name, number);
        result = strlen(line) == (size_t)(end - line) ? apply_line(specs, count, line, place)
                                                      : error_set("%s: there is a NUL byte in this line", place);
        line = end + 1;
    }
    return result;
}

/* ---- help */

enum { HELP_COLUMNS = 100, HELP_INDENT = 30 };

/* Prints words, breaking lines where they are full and at '\n'; the cursor is at `column`, later lines begin at
 * `indent`. */
static void print_wrapped(FILE *file, const char *text, int column, int indent) {
    while (*text != '\0') {
        const int length = (int)strcspn(text, " \n");
        if (column > indent && column + 1 + length > HELP_COLUMNS) {
            fprintf(file, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', file);
            column++;
        }
        column += fprintf(file, "%.*s", length, text);
        text += length;
        if (*text == '\n' && text[1] != '\0') {
            fprintf(file, "\n%*s", indent, "");
            column = indent;
        }
        text += strspn(text, " \n");
    }
    fputc('\n', file);
}

static void print_option(FILE *file, const char *left, const char *text) {
    int column = fprintf(file, "  %s", left);
    if (column > HELP_INDENT - 2) {
        fputc('\n', file);
        column = 0;
    }
    fprintf(file, "%*s", HELP_INDENT - column, "");
    print_wrapped(file, text, HELP_INDENT, HELP_INDENT);
}

/* The values that an option takes and its default, in parentheses; "" if there is nothing to say. */
static void describe_values(const struct option_spec *spec, char *text, size_t bytes) {
    char values[512] = "";
    if (spec->type == OPTION_CHOICE) {
        size_t length = 0;
        for (const char *at = spec->choices; *at != '\0' && length < sizeof values - 3; at++) {
            length += (size_t)snprintf(values + length, 3, "%s", *at == '|' ? ", " : (char[]){*at, '\0'});
        }
    } else if (spec->type == OPTION_INT || spec->type == OPTION_FLOAT) {
        range_text(spec, values, sizeof values);
    }
    const bool has_default = spec->default_value != NULL && *spec->default_value != '\0';
    if (has_default) {
        snprintf(text, bytes, " (%s%sdefault: %s)", values, *values != '\0' ? "; " : "", spec->default_value);
    } else {
        snprintf(text, bytes, *values != '\0' ? " (%s)" : "%s", values);
    }
}

static void print_spec(FILE *file, const struct option_spec *spec) {
    static const char *const placeholders[] = {[OPTION_INT] = " N",
                                               [OPTION_FLOAT] = " X",
                                               [OPTION_BOOL] = "",
                                               [OPTION_TEXT] = " TEXT",
                                               [OPTION_CHOICE] = " WORD"};
    char name[MOST_NAME_BYTES], left[MOST_NAME_BYTES + 16], values[768], text[2048];
    copy_name(name, sizeof name, spec->name, '_', '-');
    snprintf(left, sizeof left, "--%s%s%s", spec->type == OPTION_BOOL ? "[no-]" : "", name,
             placeholders[spec->type]);
    describe_values(spec, values, sizeof values);
    snprintf(text, sizeof text, "%s%s", spec->help != NULL ? spec->help : "", values);
    print_option(file, left, text);
}

static void print_help(FILE *file, const struct option_spec *specs, size_t count,
                       const struct program_info *program) {
    print_wrapped(file, program->summary, 0, 0);
    fprintf(file, "\nUsage: %s %s\n", program->name, program->usage);
    if (count > 0 && specs[0].type != OPTION_HEADING) {
        fprintf(file, "\nOptions:\n");
    }
    for (size_t i = 0; i < count; i++) {
        if (specs[i].type == OPTION_HEADING) {
            fprintf(file, "\n%s:\n", specs[i].help);
        } else {
            print_spec(file, &specs[i]);
        }
    }
    fprintf(file, "\nGeneral:\n");
    print_option(file, "--config FILE", added_options[WORD_CONFIG - FIRST_WORD].help);
    print_option(file, "--help", added_options[WORD_HELP - FIRST_WORD].help);
    print_option(file, "--version", added_options[WORD_VERSION - FIRST_WORD].help);
    if (program->examples != NULL) {
        const size_t length = strlen(program->examples);
        fprintf(file, "\nExamples:\n%s%s", program->examples,
                length > 0 && program->examples[length - 1] != '\n' ? "\n" : "");
    }
}

/* ---- the command line */

/* What the command line says, and the config files that it names, which may be pipes: read once. */
struct options_given {
    struct option *words;               /* getopt's table */
    char (*names)[MOST_NAME_BYTES + 4]; /* that the table points to */
    size_t word_count;
    struct assignment {
        struct option_spec *spec;
        const char *value;
    } * assignments;
    size_t assignment_count;
    struct config {
        const char *path;
        char *text;
        size_t bytes;
    } * configs;
    size_t config_count;
    char **ordered; /* the arguments, options first */
    int option_count, free_count;
    char **free_arguments;
};

void options_given_free(struct options_given *given) {
    if (given == NULL) {
        return;
    }
    for (size_t i = 0; i < given->config_count; i++) {
        free(given->configs[i].text);
    }
    free(given->words);
    free(given->names);
    free(given->assignments);
    free(given->configs);
    free(given->ordered);
    free(given->free_arguments);
    free(given);
}

/* Adds a name in both spellings. */
static void add_word(struct options_given *line, const char *prefix, const char *name, int has_argument,
                     int value) {
    static const char spellings[] = "-_";
    for (int i = 0; i < 2; i++) {
        char whole[MOST_NAME_BYTES + 4];
        char *copy = line->names[line->word_count];
        snprintf(whole, sizeof whole, "%s%.*s", prefix, MOST_NAME_BYTES, name);
        copy_name(copy, sizeof *line->names, whole, spellings[1 - i], spellings[i]);
        line->words[line->word_count++] = (struct option){copy, has_argument, NULL, value};
    }
}

static int command_line_prepare(struct options_given *line, const struct option_spec *specs, size_t count,
                                int argc) {
    const size_t most_words = 2 * (2 * count + ADDED_COUNT);
    const size_t arguments = (size_t)argc + 1;
    line->words = calloc(most_words + 1, sizeof *line->words);
    line->names = calloc(most_words, sizeof *line->names);
    line->assignments = calloc(arguments, sizeof *line->assignments);
    line->configs = calloc(arguments, sizeof *line->configs);
    line->ordered = calloc(arguments, sizeof *line->ordered);
    line->free_arguments = calloc(arguments, sizeof *line->free_arguments);
    if (line->words == NULL || line->names == NULL || line->assignments == NULL || line->configs == NULL ||
        line->ordered == NULL || line->free_arguments == NULL) {
        return error_set("out of memory");
    }
    add_word(line, "", "config", required_argument, WORD_CONFIG);
    add_word(line, "", "help", no_argument, WORD_HELP);
    add_word(line, "", "version", no_argument, WORD_VERSION);
    for (size_t i = 0; i < count; i++) {
        const int value = FIRST_SPEC + 2 * (int)i;
        if (specs[i].type == OPTION_BOOL) {
            add_word(line, "", specs[i].name, optional_argument, value);
            add_word(line, "no_", specs[i].name, no_argument, value + 1);
        } else if (specs[i].type != OPTION_HEADING) {
            add_word(line, "", specs[i].name, required_argument, value);
        }
    }
    return 0;
}

/* Refuses what getopt_long would take as an abbreviation, and unknown names. */
static int check_word(const struct options_given *line, const struct option_spec *specs, size_t count,
                      const char *argument) {
    const size_t length = strcspn(argument + 2, "=");
    for (size_t i = 0; i < line->word_count; i++) {
        if (strncmp(line->words[i].name, argument + 2, length) == 0 && line->words[i].name[length] == '\0') {
            return 0;
        }
    }
    char given[MOST_SHOWN + 1], name[MOST_SHOWN + 1], suggestion[MOST_NAME_BYTES];
    snprintf(given, sizeof given, "%.*s", (int)(length < MOST_SHOWN ? length : MOST_SHOWN), argument + 2);
    copy_name(name, sizeof name, given, '-', '_');
    const char *near = nearest_name(specs, count, name, true);
    if (near == NULL) {
        return error_set("unknown option '--%s' (--help lists all)", given);
    }
    copy_name(suggestion, sizeof suggestion, near, '_', '-');
    return error_set("unknown option '--%s' (did you mean '--%s'?)", given, suggestion);
}

/* Notes one option that getopt_long has found. */
static enum options_result take_word(struct options_given *line, struct option_spec *specs, size_t count,
                                     const struct program_info *program, int word) {
    switch (word) {
    case WORD_HELP:
        print_help(stdout, specs, count, program);
        return files_flush(stdout, "the help text") == 0 ? OPTIONS_DONE : OPTIONS_FAILED;
    case WORD_VERSION:
        printf("%s %s\n", program->name, HC_VERSION);
        return files_flush(stdout, "the version") == 0 ? OPTIONS_DONE : OPTIONS_FAILED;
    case WORD_CONFIG:
        line->configs[line->config_count++] = (struct config){.path = optarg};
        return OPTIONS_OK;
    default:
        break;
    }
    const bool negated = (word - FIRST_SPEC) % 2 != 0;
    struct option_spec *spec = &specs[(word - FIRST_SPEC) / 2];
    const char *value = negated ? "false" : optarg != NULL ? optarg : "true";
    line->assignments[line->assignment_count++] = (struct assignment){spec, value};
    return OPTIONS_OK;
}

/* Goes through the arguments once. getopt_long reports them in order (the "-"), so that optind tells which one is
 * next. */
static enum options_result scan_arguments(struct options_given *line, struct option_spec *specs, size_t count,
                                          const struct program_info *program, int argc, char **argv) {
    optind = 0; /* starts anew, also after an earlier call */
    opterr = 0;
    int next = 1;
    while (next < argc) {
        const char *argument = argv[next];
        const bool is_long = strncmp(argument, "--", 2) == 0 && argument[2] != '\0';
        if (is_long && check_word(line, specs, count, argument) != 0) {
            return OPTIONS_WRONG;
        }
        const int word = getopt_long(argc, argv, "-:", line->words, NULL);
        if (word == FREE_ARGUMENT) {
            line->free_arguments[line->free_count++] = argv[next++];
            continue;
        }
        while (next < optind) {
            line->ordered[line->option_count++] = argv[next++];
        }
        if (word == -1) { /* "--": the rest are no options */
            while (next < argc) {
                line->free_arguments[line->free_count++] = argv[next++];
            }
        } else if (word == ':' || word == '?') {
            error_set(!is_long      ? "unknown option '%.*s' (--help lists all)"
                      : word == ':' ? "%.*s needs a value"
                                    : "%.*s takes no value",
                      is_long && word == '?' ? (int)strcspn(argument, "=") : MOST_SHOWN, argument);
            return OPTIONS_WRONG;
        } else {
            const enum options_result result = take_word(line, specs, count, program, word);
            if (result != OPTIONS_OK) {
                return result;
            }
        }
    }
    return OPTIONS_OK;
}

static int read_configs(struct options_given *line) {
    for (size_t i = 0; i < line->config_count; i++) {
        struct config *config = &line->configs[i];
        if (files_read_stream(config->path, MOST_CONFIG_BYTES, &config->text, &config->bytes) != 0) {
            return error_prefix("--config");
        }
    }
    return 0;
}

enum options_result options_read(struct option_spec *specs, size_t count, const struct program_info *program,
                                 int argc, char **argv, struct options_given **given) {
    struct options_given *line = *given = calloc(1, sizeof **given);
    enum options_result result = OPTIONS_WRONG;
    if (line == NULL) {
        error_set("out of memory");
    } else if (command_line_prepare(line, specs, count, argc) == 0) {
        result = scan_arguments(line, specs, count, program, argc, argv);
        if (result == OPTIONS_OK && read_configs(line) != 0) {
            result = OPTIONS_WRONG;
        }
    }
    if (result != OPTIONS_OK) {
        options_given_free(line);
        *given = NULL;
    }
    return result;
}

/* Lines are changed while they are applied, so that is done to a copy. */
static int apply_config(const struct config *config, struct option_spec *specs, size_t count) {
    char *copy = malloc(config->bytes + 1);
    if (copy == NULL) {
        return error_set("out of memory");
    }
    memcpy(copy, config->text, config->bytes + 1);
    const int result = options_apply_text(specs, count, config->path, copy, config->bytes);
    free(copy);
    return result;
}

int options_apply_given(const struct options_given *given, struct option_spec *specs, size_t count) {
    for (size_t i = 0; i < given->config_count; i++) {
        if (apply_config(&given->configs[i], specs, count) != 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < given->assignment_count; i++) {
        const struct assignment *assignment = &given->assignments[i];
        char name[MOST_NAME_BYTES], where[MOST_NAME_BYTES + 8];
        copy_name(name, sizeof name, assignment->spec->name, '_', '-');
        snprintf(where, sizeof where, "--%s: ", name);
        if (set_value(assignment->spec, assignment->value, where) != 0) {
            return -1;
        }
        assignment->spec->given = true;
    }
    return 0;
}

int options_given_order(const struct options_given *given, char **argv) {
    memcpy(argv + 1, given->ordered, (size_t)given->option_count * sizeof *argv);
    memcpy(argv + 1 + given->option_count, given->free_arguments, (size_t)given->free_count * sizeof *argv);
    return 1 + given->option_count;
}

enum options_result options_parse(struct option_spec *specs, size_t count, const struct program_info *program,
                                  int argc, char **argv, int *first_free) {
    struct options_given *given = NULL;
    *first_free = argc;
    if (options_set_defaults(specs, count) != 0) {
        return OPTIONS_WRONG;
    }
    enum options_result result = options_read(specs, count, program, argc, argv, &given);
    if (result == OPTIONS_OK && options_apply_given(given, specs, count) != 0) {
        result = OPTIONS_WRONG;
    }
    if (result == OPTIONS_OK) {
        *first_free = options_given_order(given, argv);
    }
    options_given_free(given);
    return result;
}

/* ---- writing */

/* What is not UTF-8, such as the names of some files, is written by its bytes: so the settings are always text. */
static void write_quoted(const char *text, FILE *file) {
    static const char special[] = "\"\\\n\r\t", escapes[] = "\"\\nrt";
    const bool is_text = json_file_is_text(text);
    fputc('"', file);
    for (; *text != '\0'; text++) {
        const char *found = strchr(special, *text);
        if (found != NULL) {
            fprintf(file, "\\%c", escapes[found - special]);
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
    if (is_text(spec) && *(char *const *)spec->target == NULL) {
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
    case OPTION_TEXT:
    case OPTION_CHOICE:
        write_quoted(*(char *const *)spec->target, file);
        break;
    case OPTION_HEADING:
        break;
    }
    fputc('\n', file);
}

int options_write(const struct option_spec *specs, size_t count, FILE *file) {
    for (size_t i = 0; i < count; i++) {
        if (specs[i].type == OPTION_HEADING) {
            fprintf(file, "%s# %s\n", i > 0 ? "\n" : "", specs[i].help);
        } else if (!specs[i].transient) {
            write_spec(&specs[i], file);
        }
    }
    return files_flush(file, "the settings");
}
