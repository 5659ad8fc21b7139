#include "runtime/files/files.h"
#include "runtime/options/options_internal.h"
#include <string.h>

enum { HELP_COLUMNS = 100, HELP_INDENT = 30 };

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

const struct general_option general_options[GENERAL_OPTIONS] = {
    {"--config FILE",
     "take settings from lines `name = value` of this file; names with underscores, # begins a comment; "
     "may be given several times, later ones win, the command line wins over all"},
    {"--help", "print this and exit"},
    {"--version", "print the version and exit"},
};

void option_values(const struct option_spec *spec, char text[OPTION_VALUES_BYTES]) {
    char values[512] = "", word[MOST_NAME_BYTES];
    if (spec->type == OPTION_CHOICE) {
        int length = 0;
        for (int place = 0; *options_word(spec->choices, place, word, sizeof word) != '\0'; place++) {
            length +=
                snprintf(values + length, sizeof values - (size_t)length, "%s%s", place > 0 ? ", " : "", word);
        }
    } else if (spec->type == OPTION_INT || spec->type == OPTION_FLOAT) {
        option_range(spec, values, sizeof values);
    }
    const char *shown = spec->follows != NULL ? spec->follows : spec->default_value;
    if (shown != NULL && *shown != '\0') {
        snprintf(text, OPTION_VALUES_BYTES, " (%s%sdefault: %s)", values, *values != '\0' ? "; " : "", shown);
    } else {
        snprintf(text, OPTION_VALUES_BYTES, *values != '\0' ? " (%s)" : "%s", values);
    }
}

void option_left(const struct option_spec *spec, char left[OPTION_LEFT_BYTES]) {
    /* in the order of enum option_type */
    static const char *const placeholders[] = {"", " N", " X", "", " TEXT", " WORD"};
    char name[MOST_NAME_BYTES];
    option_copy_name(name, sizeof name, spec->name, '_', '-');
    snprintf(left, OPTION_LEFT_BYTES, "--%s%s%s", spec->type == OPTION_BOOL ? "[no-]" : "", name,
             placeholders[spec->type]);
}

static void print_spec(const struct option_spec *spec) {
    char left[OPTION_LEFT_BYTES], values[OPTION_VALUES_BYTES], text[2048];
    option_left(spec, left);
    option_values(spec, values);
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
    for (size_t i = 0; i < GENERAL_OPTIONS; i++) {
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
    if (asked == OPTIONS_HELP) {
        print_help(specs, count, program);
    } else {
        option_page_print(asked, specs, count, program);
    }
    return files_flush(stdout, "the help text");
}
