/* The tables of options as text: --help. */
#include "runtime/files/files.h"
#include "runtime/options/options_internal.h"
#include "runtime/system/array.h"
#include <string.h>

enum { HELP_COLUMNS = 100, HELP_INDENT = 30, LEFT_BYTES = MOST_NAME_BYTES + 16, VALUES_BYTES = 768 };

/* Prints words, breaking lines where they are full and at '\n'; the cursor is at `column`, later lines begin at
 * `indent`. */
static void print_wrapped(const char *text, int column, int indent) {
    while (*text != '\0') {
        const int length = (int)strcspn(text, " \n");
        if (column > indent && column + 1 + length > HELP_COLUMNS) {
            printf("\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            putchar(' ');
            column++;
        }
        column += printf("%.*s", length, text);
        text += length;
        if (*text == '\n' && text[1] != '\0') {
            printf("\n%*s", indent, "");
            column = indent;
        }
        text += strspn(text, " \n");
    }
    putchar('\n');
}

static void print_option(const char *left, const char *text) {
    int column = printf("  %s", left);
    if (column > HELP_INDENT - 2) {
        putchar('\n');
        column = 0;
    }
    printf("%*s", HELP_INDENT - column, "");
    print_wrapped(text, HELP_INDENT, HELP_INDENT);
}

/* The options that every program has beside its table. */
static const struct {
    const char *left, *text;
} general_options[] = {
    {"--config FILE",
     "take settings from lines `name = value` of this file, or of an installed one such as configs/tiny.conf; "
     "names with underscores, # begins a comment; may be given several times, later ones win, the command line "
     "wins over all"},
    {"--help", "print this and exit"},
    {"--version", "print the version and the libraries in use, and exit"},
};

/* All words of a choice. */
static void format_choices(const struct option_spec *spec, char *text, size_t bytes) {
    char word[MOST_NAME_BYTES];
    size_t length = 0;
    for (int place = 0; *options_word(spec->choices, place, word, sizeof word) != '\0'; place++) {
        length += (size_t)snprintf(text + length, bytes - length, "%s%s", place > 0 ? ", " : "", word);
    }
}

/* The values that an option takes and its default, " (1 .. 8; default: 4)"; "" if there is nothing to say. */
static void format_values(const struct option_spec *spec, char text[VALUES_BYTES]) {
    char values[512] = "";
    if (spec->type == OPTION_CHOICE) {
        format_choices(spec, values, sizeof values);
    } else if (spec->type == OPTION_INT || spec->type == OPTION_FLOAT) {
        option_range(spec, values, sizeof values);
    }
    const char *shown = spec->follows != NULL ? spec->follows : spec->default_value;
    if (shown != NULL && *shown != '\0') {
        snprintf(text, VALUES_BYTES, " (%s%sdefault: %s)", values, *values != '\0' ? "; " : "", shown);
    } else {
        snprintf(text, VALUES_BYTES, *values != '\0' ? " (%s)" : "%s", values);
    }
}

/* What is typed: "--[no-]bias", "--n-layer N", "--[no-]qk-norm[=WORD]". */
static void format_left(const struct option_spec *spec, char left[LEFT_BYTES]) {
    /* in the order of enum option_type */
    static const char *const placeholders[] = {"", " N", " X", "", " TEXT", " WORD", " TEXT"};
    char name[MOST_NAME_BYTES];
    option_copy_name(name, sizeof name, spec->name, '_', '-');
    const bool is_switch = option_is_switch(spec);
    snprintf(left, LEFT_BYTES, "--%s%s%s", is_switch ? "[no-]" : "", name,
             is_switch && spec->type == OPTION_CHOICE ? "[=WORD]" : placeholders[spec->type]);
}

static void print_spec(const struct option_spec *spec) {
    char left[LEFT_BYTES], values[VALUES_BYTES], text[2048];
    format_left(spec, left);
    format_values(spec, values);
    snprintf(text, sizeof text, "%s%s", spec->help != NULL ? spec->help : "", values);
    print_option(left, text);
}

static void print_help(const struct option_spec *specs, size_t count, const struct program_info *program) {
    print_wrapped(program->summary, 0, 0);
    printf("\nUsage: %s %s\n", program->name, program->usage);
    if (count > 0 && specs[0].type != OPTION_HEADING) {
        printf("\nOptions:\n");
    }
    for (size_t i = 0; i < count; i++) {
        if (specs[i].type == OPTION_HEADING) {
            printf("\n%s:\n", specs[i].help);
        } else {
            print_spec(&specs[i]);
        }
    }
    printf("\nGeneral:\n");
    for (size_t i = 0; i < COUNT(general_options); i++) {
        print_option(general_options[i].left, general_options[i].text);
    }
    if (program->examples != NULL) {
        const size_t length = strlen(program->examples);
        printf("\nExamples:\n%s%s", program->examples,
               length > 0 && program->examples[length - 1] != '\n' ? "\n" : "");
    }
}

int options_answer(enum options_result asked, const struct option_spec *specs, size_t count,
                   const struct program_info *program) {
    if (asked == OPTIONS_VERSION) {
        printf("%s %s\n", program->name, HC_VERSION);
        return files_flush(stdout, "the version");
    }
    print_help(specs, count, program);
    return files_flush(stdout, "the help text");
}
