/* Settings from tables: command line (GNU long options) and config files (`name = value`) fill the same variables.
 * Rows of tables are written with the macros of option_rows.h; a function may put a table together as well. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum option_type {
    OPTION_HEADING, /* a title in --help; only `help` is used */
    OPTION_INT,     /* int64_t */
    OPTION_FLOAT,   /* double */
    OPTION_BOOL,    /* bool: --bias, --bias=true, --no-bias, bias = false */
    OPTION_TEXT,    /* char *: heap string owned by the settings, freed by options_free */
    OPTION_CHOICE,  /* int: the place of the word in `choices`, from 0, for which callers have an enum. If the first
                     * two words are false and true, it is typed as OPTION_BOOL: --x, --x=word, --no-x */
    OPTION_TEXTS,   /* struct option_texts: may be given several times. What a later source gives replaces what an
                     * earlier one gave */
};

/* The texts of an option that may be given several times. The settings own them, and options_free frees them. */
struct option_texts {
    char **texts; /* [count] */
    size_t count;
};

struct option_spec {
    enum option_type type;
    const char *name;          /* with underscores; the command line also takes hyphens */
    void *target;              /* variable of the type above, set to the default first */
    const char *default_value; /* as text; NULL: text options stay NULL, TEXTS are always so */
    double minimum, maximum;   /* INT and FLOAT, both inclusive; equal: no limits */
    const char *choices;       /* CHOICE: "rc|hc|mhc" */
    const char *help;          /* one line; long ones are wrapped by the printer */
    bool may_be_empty;         /* TEXT: "" is a value, as it always is where it is the default */
    bool transient;            /* of one process only: options_text leaves it out */
    const char *follows;       /* --help's text for a default that depends on other options, or NULL */
    unsigned given; /* out: which source set it, 0 for none. A later one, which wins, has a larger number: config
                                * files in their order, then the command line */
};

/* A table that functions put together from parts. */
struct option_table {
    struct option_spec rows[160];
    size_t count;
};
void options_append(struct option_table *table, const struct option_spec *rows, size_t count);

/* How programs end: their exit statuses. After PROGRAM_FAILED and PROGRAM_WRONG the error text is set. */
enum program_status {
    PROGRAM_DONE,
    PROGRAM_FAILED,
    PROGRAM_WRONG, /* command line or settings */
    PROGRAM_INTERRUPTED = 130,
};

struct program_info {
    const char *name;     /* hc_train */
    const char *summary;  /* what it does, a sentence or more */
    const char *usage;    /* after the name, e.g. "[OPTIONS] FILE..." */
    const char *examples; /* lines shown at the end of --help; may be NULL */
};

/* Sets all targets to their defaults. Texts must be NULL before, or what an earlier call has set, which is freed.
 * Refuses a table in which a name has hyphens instead of underscores, or stands twice. */
int options_set_defaults(struct option_spec *specs, size_t count);

void options_free(struct option_spec *specs, size_t count);

/* The options of a command line and the contents of the config files that it names. Points into specs and argv. */
struct options_given;

enum options_result {
    OPTIONS_OK,
    OPTIONS_HELP,       /* --help and */
    OPTIONS_VERSION,    /* --version are for options_answer */
    OPTIONS_WRONG = -1, /* the error text is set: print it and exit 2 */
};

/* Goes through the command line and reads the config files, once, since they may be pipes. Sets no target and does
 * nothing else that can be seen, so that --help leaves no trace. argv ends with NULL as main's does. *given is NULL
 * unless OPTIONS_OK is returned, and is freed by options_given_free (NULL does nothing).
 *
 * --help, --version and --config are added to the table. Unknown names are wrong, and the message has a near name
 * if there is one. Abbreviations are not taken. Options may stand before and after other arguments; these end up,
 * in order, in argv[*first_free .. argc), behind all options. */
enum options_result options_read(struct option_spec *specs, size_t count, int argc, char **argv, int *first_free,
                                 struct options_given **given);
void options_given_free(struct options_given *given);

/* Sets the targets: by every `--config FILE` in order, then by the command line, which wins wherever it stands. May
 * be repeated. Wrong types and values out of range are errors that name option, file and line. */
int options_apply_given(const struct options_given *given);

/* Sets the targets from the text of a config file; `name` is for messages. A value may be in double quotes, in
 * which \" \\ \n \r \t \xHH have their meaning in C and # begins no comment. */
int options_apply_text(struct option_spec *specs, size_t count, const char *name, const char *text, size_t bytes);

/* Prints to stdout the answer to OPTIONS_HELP or OPTIONS_VERSION. */
int options_answer(enum options_result asked, const struct option_spec *specs, size_t count,
                   const struct program_info *program);

/* All settings but transient ones as the text of a config file that reproduces them: lines `name = value`, with
 * headings as comments. The caller frees it. */
char *options_text(const struct option_spec *specs, size_t count);

/* Sets the variable of a row that is no heading. `where` begins the error text: "--n-layer: " or "FILE:LINE:
 * n_layer = ". */
int option_set(struct option_spec *spec, const char *value, const char *where);

/* Returns whether the variable of a row that is no heading has the row's default. */
bool options_is_default(const struct option_spec *spec);

/* Returns the source that set the option of this name (option_spec.given); 0: none, or there is no such option. */
unsigned options_source(const struct option_spec *specs, size_t count, const char *name);

/* Copies the word at this index of "rc|hc|mhc", or "" beyond the last, to word [bytes]. Returns `word`. */
const char *options_word(const char *choices, int place, char *word, size_t bytes);
