/* The tables of options as manual pages and as completion for bash: what packages install. */
#include "runtime/options/options_internal.h"
#include <string.h>

/* ---- manual page, in roff's macros "man" */

/* Hyphens that are typed are \-, or they could be printed as others; a line that begins with a point or an apostrophe would be a
 * command. */
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
    char left[OPTION_LEFT_BYTES], values[OPTION_VALUES_BYTES];
    option_left(spec, left);
    option_values(spec, values);
    print_roff_line(".TP\n.B ", left);
    print_roff(spec->help != NULL ? spec->help : "");
    print_roff_line("", values);
}

/* What `apropos` shows: the first sentence up to its point, bracket or colon. */
static void print_first_words(const char *text) {
    static const char *const ends[] = {". ", " (", ": ", "\n"};
    char words[256];
    size_t length = strlen(text);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
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
    for (size_t i = 0; i < GENERAL_OPTIONS; i++) {
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

/* All words of a choice, with spaces between. */
static void print_choices(const struct option_spec *spec) {
    char word[MOST_NAME_BYTES];
    for (int place = 0; *options_word(spec->choices, place, word, sizeof word) != '\0'; place++) {
        printf("%s%s", place > 0 ? " " : "", word);
    }
}

/* After an option that takes a word, its words; after one that takes a text, files, since most are; after a number nothing. */
static void print_bash(const struct option_spec *specs, size_t count, const struct program_info *program) {
    printf("# Completion of %s's options, for bash.\n_%s() {\n    local now=${COMP_WORDS[COMP_CWORD]} "
           "before=${COMP_WORDS[COMP_CWORD-1]}\n"
           "    COMPREPLY=()\n    case $before in\n",
           program->name, program->name);
    for (size_t i = 0; i < count; i++) {
        if (specs[i].type == OPTION_CHOICE) {
            print_word(&specs[i], "    --");
            printf(") mapfile -t COMPREPLY < <(compgen -W '");
            print_choices(&specs[i]);
            printf("' -- \"$now\"); return ;;\n");
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
        if (specs[i].type == OPTION_BOOL) {
            print_word(&specs[i], " --no-");
        }
    }
    printf("' -- \"$now\")\n    else\n        mapfile -t COMPREPLY < <(compgen -f -- \"$now\")\n    fi\n}\n"
           "complete -o filenames -F _%s %s\n",
           program->name, program->name);
}

/* ---- */

/* From OPTIONS_MAN on, in the order of enum options_result. */
static const struct page {
    const char *word;
    void (*print)(const struct option_spec *specs, size_t count, const struct program_info *program);
} pages[] = {{"man", print_man}, {"bash", print_bash}};

bool option_page_named(const char *word, enum options_result *page) {
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        if (strcmp(word, pages[i].word) == 0) {
            *page = (enum options_result)(OPTIONS_MAN + i);
            return true;
        }
    }
    return false;
}

void option_page_print(enum options_result page, const struct option_spec *specs, size_t count,
                       const struct program_info *program) {
    pages[page - OPTIONS_MAN].print(specs, count, program);
}
