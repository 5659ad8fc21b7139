/* The tables of options as text: --help. */
#include "runtime/files/files.h"
#include "runtime/options/options_internal.h"
#include "runtime/system/array.h"
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

/* Prints what is typed, "--[no-]bias", "--n-layer N" or "--[no-]qk-norm[=WORD]", and behind the help text the
 * values that the option takes and its default, " (1 .. 8; default: 4)". */
static void print_spec(const struct option_spec *spec) {
    /* in the order of enum option_type */
    static const char *const placeholders[] = {"", " N", " X", "", " TEXT", " WORD", " TEXT"};
    char name[MOST_NAME_BYTES], left[MOST_NAME_BYTES + 16], values[512] = "", word[MOST_NAME_BYTES], text[2048];
    const bool is_switch = option_is_switch(spec), is_choice = spec->type == OPTION_CHOICE;
    const char *usual = spec->follows != NULL ? spec->follows : spec->default_value;
    option_copy_name(name, sizeof name, spec->name, '_', '-');
    snprintf(left, sizeof left, "--%s%s%s", is_switch ? "[no-]" : "", name,
             is_switch && is_choice ? "[=WORD]" : placeholders[spec->type]);
    if (spec->type == OPTION_INT || spec->type == OPTION_FLOAT) {
        option_range(spec, values, sizeof values);
    }
    for (int place = 0; is_choice && *options_word(spec->choices, place, word, sizeof word) != '\0'; place++) {
        const size_t length = strlen(values);
        snprintf(values + length, sizeof values - length, "%s%s", place > 0 ? ", " : "", word);
    }
    const bool has_values = *values != '\0', has_default = usual != NULL && *usual != '\0';
    snprintf(text, sizeof text, "%s%s%s%s%s%s%s", spec->help != NULL ? spec->help : "",
             has_values || has_default ? " (" : "", values, has_values && has_default ? "; " : "",
             has_default ? "default: " : "", has_default ? usual : "", has_values || has_default ? ")" : "");
    print_option(left, text);
}

int options_answer(enum options_result asked, const struct option_spec *specs, size_t count,
                   const struct program_info *program) {
    if (asked == OPTIONS_VERSION) {
        printf("%s %s\n", program->name, HC_VERSION);
        return files_flush(stdout, "the version");
    }
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
    return files_flush(stdout, "the help text");
}
