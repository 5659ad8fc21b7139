/* Settings from tables: command line (GNU long options) and config files (`name = value`) fill the same variables.
 */
#ifndef HC_RUNTIME_OPTIONS_H
#define HC_RUNTIME_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum option_type {
    OPTION_HEADING, /* a title in --help; only `help` is used */
    OPTION_INT,     /* int64_t */
    OPTION_FLOAT,   /* double */
    OPTION_BOOL,    /* bool: --bias, --bias=true, --no-bias, bias = false */
    OPTION_TEXT,    /* char *: heap string owned by the settings, freed by options_free */
    OPTION_CHOICE,  /* as OPTION_TEXT, one of `choices` */
};

struct option_spec {
    enum option_type type;
    const char *name;          /* with underscores; the command line also takes hyphens */
    void *target;              /* variable of the type above, set to the default first */
    const char *default_value; /* as text; NULL: text options stay NULL */
    double minimum, maximum;   /* INT and FLOAT, both inclusive; equal: no limits */
    const char *choices;       /* CHOICE: "rc|hc|mhc" */
    const char *help;          /* one line; long ones are wrapped by the printer */
    bool transient;            /* of one process only: options_write leaves it out */
    bool given;                /* out: set by command line or config file */
};

struct program_info {
    const char *name;     /* hc_train */
    const char *summary;  /* what it does, a sentence or more */
    const char *usage;    /* after the name, e.g. "[OPTIONS] FILE..." */
    const char *examples; /* lines shown at the end of --help; may be NULL */
};

enum options_result {
    OPTIONS_OK,
    OPTIONS_DONE,   /* --help or --version was printed to stdout: exit 0 */
    OPTIONS_FAILED, /* --help or --version could not be printed; error text is set: print it and exit 1 */
    OPTIONS_WRONG,  /* error text is set: print it and exit 2 */
};

/* Applies defaults, then every `--config FILE` in order, then the command line, which wins wherever it stands.
 * --help,
 * --version and --config are added. Unknown names, wrong types, values out of range: OPTIONS_WRONG with a message
 * that names option, file and line, and a near name if there is one. Abbreviations are not taken. Arguments that
 * are not options are left, in order, in argv[*first_free .. argc).
 *
 * In config files a value may stand in double quotes, where \" \\ \n \r \t \xHH mean what they do in C and # begins
 * no comment. Texts that the targets hold before the call are not freed: call options_free first when parsing
 * again. */
enum options_result options_parse(struct option_spec *specs, size_t count, const struct program_info *program,
                                  int argc, char **argv, int *first_free);

/* The steps of options_parse, for programs that put other settings under those that are given:
 *
 *   options_read           goes through the command line and reads the config files, once, since they may be pipes
 *   options_set_defaults   sets all targets to their defaults; texts that they hold are not freed
 *   options_apply_text     applies the lines of a config file, which it changes; `name` is for messages
 *   options_apply_given    applies the config files and then the command line; may be repeated
 *   options_given_order    puts options first into argv; the index of the first argument that is none
 *
 * *given points into argv and specs and is freed by options_given_free (NULL does nothing). */
struct options_given;
enum options_result options_read(struct option_spec *specs, size_t count, const struct program_info *program,
                                 int argc, char **argv, struct options_given **given);
int options_set_defaults(struct option_spec *specs, size_t count);
int options_apply_text(struct option_spec *specs, size_t count, const char *name, char *text, size_t bytes);
int options_apply_given(const struct options_given *given, struct option_spec *specs, size_t count);
int options_given_order(const struct options_given *given, char **argv);
void options_given_free(struct options_given *given);

/* Writes all settings as a config file that reproduces them: `name = value` lines with their headings as comments.
 */
int options_write(const struct option_spec *specs, size_t count, FILE *file);

void options_free(struct option_spec *specs, size_t count);

#endif
