/* The tables of options as text: --help, manual pages, and completion for bash, which packages install. */
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

/* All words of a choice, with this text between two. */
static void format_choices(const struct option_spec *spec, const char *between, char *text, size_t bytes) {
    char word[MOST_NAME_BYTES];
    size_t length = 0;
    for (int place = 0; *options_word(spec->choices, place, word, sizeof word) != '\0'; place++) {
        length += (size_t)snprintf(text + length, bytes - length, "%s%s", place > 0 ? between : "", word);
    }
}

/* The values that an option takes and its default, " (1 .. 8; default: 4)"; "" if there is nothing to say. */
static void format_values(const struct option_spec *spec, char text[VALUES_BYTES]) {
    char values[512] = "";
    if (spec->type == OPTION_CHOICE) {
        format_choices(spec, ", ", values, sizeof values);
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

/* ---- manual page, in roff's macros "man" */

/* Hyphens that are typed are \-, or they could be printed as others; a line that begins with a point or an
 * apostrophe would be a command. */
static void print_roff_text(const char *text, const char *line_end) {
    for (bool begins = true; *text != '\0'; text++) {
        if (begins && (*text == '.' || *text == '\'')) {
            fputs("\\&", stdout);
        }
        begins = *text == '\n';
        if (begins) {
            fputs(line_end, stdout);
        } else if (*text == '-') {
            fputs("\\-", stdout);
        } else if (*text == '\\') {
            fputs("\\e", stdout);
        } else {
            putchar(*text);
        }
    }
}

static void print_roff(const char *text) {
    print_roff_text(text, "\n");
}

static void print_roff_line(const char *macro, const char *text) {
    printf("%s", macro);
    print_roff(text);
    putchar('\n');
}

static void print_man_option(const struct option_spec *spec) {
    char left[LEFT_BYTES], values[VALUES_BYTES];
    format_left(spec, left);
    format_values(spec, values);
    print_roff_line(".TP\n.B ", left);
    print_roff(spec->help != NULL ? spec->help : "");
    print_roff_line("", values);
}

/* What `apropos` shows: the first sentence up to its point, bracket or colon. */
static void print_first_words(const char *text) {
    static const char *const ends[] = {". ", " (", ": ", "\n"};
    char words[256];
    size_t length = strlen(text);
    for (size_t i = 0; i < COUNT(ends); i++) {
        const char *end = strstr(text, ends[i]);
        length = end != NULL && (size_t)(end - text) < length ? (size_t)(end - text) : length;
    }
    length -= length > 0 && text[length - 1] == '.';
    snprintf(words, sizeof words, "%.*s", (int)length, text);
    print_roff(words);
}

static void print_man(const struct option_spec *specs, size_t count, const struct program_info *program) {
    printf(".TH %s 1 \"\" \"hctrain " HC_VERSION "\" \"hctrain\"\n.nh\n.SH NAME\n%s \\- ", program->name,
           program->name);
    print_first_words(program->summary);
    printf("\n.SH SYNOPSIS\n.B %s\n", program->name);
    print_roff_line("", program->usage);
    printf(".SH DESCRIPTION\n");
    print_roff_text(program->summary, "\n.PP\n");
    printf("\n.SH OPTIONS\n");
    for (size_t i = 0; i < count; i++) {
        if (specs[i].type == OPTION_HEADING) {
            print_roff_line(".SS ", specs[i].help);
        } else {
            print_man_option(&specs[i]);
        }
    }
    printf(".SS General\n");
    for (size_t i = 0; i < COUNT(general_options); i++) {
        print_roff_line(".TP\n.B ", general_options[i].left);
        print_roff_line("", general_options[i].text);
    }
    if (program->examples != NULL) {
        printf(".SH EXAMPLES\n.nf\n");
        print_roff(program->examples);
        printf("\n.fi\n");
    }
    printf(".SH EXIT STATUS\n0: done. 1: a failure, which a message names. 2: options or settings that are wrong. "
           "130: interrupted; what was\n"
           "complete is there.\n.SH SEE ALSO\nThe documentation is in share/doc/hctrain of the folder that hctrain "
           "is installed in, as /usr.\n");
}

/* ---- completion */

static void print_word(const struct option_spec *spec, const char *before) {
    char name[MOST_NAME_BYTES];
    option_copy_name(name, sizeof name, spec->name, '_', '-');
    printf("%s%s", before, name);
}

/* After an option that takes a word, its words; after one that takes a text, files, since most are; after a number
 * nothing. */
static void print_bash(const struct option_spec *specs, size_t count, const struct program_info *program) {
    char words[512];
    printf("# Completion of %s's options, for bash.\n_%s() {\n    local now=${COMP_WORDS[COMP_CWORD]} "
           "before=${COMP_WORDS[COMP_CWORD-1]}\n"
           "    COMPREPLY=()\n    case $before in\n",
           program->name, program->name);
    for (size_t i = 0; i < count; i++) {
        if (specs[i].type == OPTION_CHOICE && !option_is_switch(&specs[i])) {
            print_word(&specs[i], "    --");
            format_choices(&specs[i], " ", words, sizeof words);
            printf(") mapfile -t COMPREPLY < <(compgen -W '%s' -- \"$now\"); return ;;\n", words);
        } else if (specs[i].type == OPTION_INT || specs[i].type == OPTION_FLOAT) {
            print_word(&specs[i], "    --");
            printf(") return ;;\n");
        }
    }
    printf("    esac\n    if [[ $now == -* ]]; then\n        mapfile -t COMPREPLY < <(compgen -W '--config --help "
           "--version");
    for (size_t i = 0; i < count; i++) {
        if (specs[i].type != OPTION_HEADING) {
            print_word(&specs[i], " --");
        }
        if (specs[i].type != OPTION_HEADING && option_is_switch(&specs[i])) {
            print_word(&specs[i], " --no-");
        }
    }
    printf("' -- \"$now\")\n    else\n        mapfile -t COMPREPLY < <(compgen -f -- \"$now\")\n    fi\n}\n"
           "complete -o filenames -F _%s %s\n",
           program->name, program->name);
}

/* ---- */

int options_answer(enum options_result asked, const struct option_spec *specs, size_t count,
                   const struct program_info *program) {
    if (asked == OPTIONS_VERSION) {
        printf("%s %s\n", program->name, HC_VERSION);
        return files_flush(stdout, "the version");
    }
    (asked == OPTIONS_HELP ? print_help : asked == OPTIONS_MAN ? print_man : print_bash)(specs, count, program);
    return files_flush(stdout, "the help text");
}
