#include "runtime/files/files.h"
#include "runtime/options/options_internal.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_CONFIG_BYTES = 1 << 20 };

struct options_given {
    struct option_spec *specs; /* [spec_count], the table */
    size_t spec_count, count;
    struct item {
        struct option_spec *spec; /* NULL: --config */
        const char *value;        /* what it is set to; the path of a config file */
        char *text;               /* the content of a config file [bytes] */
        size_t bytes;
    } items[];
};

void options_given_free(struct options_given *given) {
    for (size_t i = 0; given != NULL && i < given->count; i++) {
        free(given->items[i].text);
    }
    free(given);
}

static int refuse_name(const struct options_given *line, const char *argument, size_t length) {
    char given[MOST_SHOWN + 1], name[MOST_SHOWN + 1], suggestion[MOST_NAME_BYTES];
    snprintf(given, sizeof given, "%.*s", (int)(length < MOST_SHOWN ? length : MOST_SHOWN), argument + 2);
    option_copy_name(name, sizeof name, given, '-', '_');
    const char *nearest = option_nearest(line->specs, line->spec_count, name, true);
    if (nearest == NULL) {
        return error_set("unknown option '--%s' (--help lists all)", given);
    }
    option_copy_name(suggestion, sizeof suggestion, nearest, '_', '-');
    return error_set("unknown option '--%s' (did you mean '--%s'?)", given, suggestion);
}

/* Notes the option that arguments[0] begins. *used: how many arguments it takes, 1 or 2. */
static enum options_result take_option(struct options_given *line, char *const *arguments, int *used) {
    const char *argument = arguments[0];
    if (argument[1] != '-') {
        return error_set("unknown option '%.*s' (--help lists all)", MOST_SHOWN, argument);
    }
    const size_t length = strcspn(argument + 2, "=");
    const char *value = argument[2 + length] == '=' ? argument + 2 + length + 1 : NULL;
    char given[MOST_NAME_BYTES], name[MOST_NAME_BYTES];
    snprintf(given, sizeof given, "%.*s", length < sizeof given ? (int)length : 0, argument + 2);
    option_copy_name(name, sizeof name, given, '-', '_');
    const bool config = strcmp(name, "config") == 0, help = strcmp(name, "help") == 0;
    const bool asks = help || strcmp(name, "version") == 0;
    struct option_spec *spec = NULL;
    bool negated = false;
    if (!config && !asks) {
        spec = option_find(line->specs, line->spec_count, name);
        negated = spec == NULL && strncmp(name, "no_", 3) == 0;
        if (negated) {
            spec = option_find(line->specs, line->spec_count, name + 3);
        }
        if (spec == NULL || (negated && !option_is_switch(spec))) {
            return refuse_name(line, argument, length);
        }
    }
    if (value != NULL && (asks || negated)) {
        return error_set("%.*s takes no value", (int)length + 2, argument);
    }
    if (asks) {
        return help ? OPTIONS_HELP : OPTIONS_VERSION;
    }
    if (value == NULL && spec != NULL && option_is_switch(spec)) {
        value = negated ? "false" : "true";
    } else if (value == NULL) {
        value = arguments[1];
        *used = 2;
    }
    if (value == NULL) {
        return error_set("%.*s needs a value", MOST_SHOWN, argument);
    }
    line->items[line->count++] = (struct item){.spec = spec, .value = value};
    return OPTIONS_OK;
}

/* Notes all options, and moves them before the other arguments, up to "--" or the end. */
static enum options_result take_all(struct options_given *line, int argc, char **argv, int *first_free) {
    enum options_result result = OPTIONS_OK;
    bool ended = false;
    *first_free = 1;
    for (int at = 1; result == OPTIONS_OK && !ended && at < argc;) {
        int used = argv[at][0] == '-' && argv[at][1] != '\0';
        ended = strcmp(argv[at], "--") == 0;
        if (used == 0) {
            at++;
        } else if (!ended) {
            result = take_option(line, argv + at, &used);
        }
        for (; result == OPTIONS_OK && used > 0; used--, at++) {
            char *word = argv[at];
            memmove(argv + *first_free + 1, argv + *first_free, (size_t)(at - *first_free) * sizeof *argv);
            argv[(*first_free)++] = word;
        }
    }
    return result;
}

enum options_result options_read(struct option_spec *specs, size_t count, int argc, char **argv, int *first_free,
                                 struct options_given **given) {
    struct options_given *line = *given = memory_zeroed(1, sizeof *line + (size_t)argc * sizeof *line->items);
    line->specs = specs;
    line->spec_count = count;
    enum options_result result = take_all(line, argc, argv, first_free);
    for (size_t i = 0; i < line->count && result == OPTIONS_OK; i++) {
        struct item *item = &line->items[i];
        if (item->spec == NULL &&
            files_read_stream(files_find(item->value).text, MOST_CONFIG_BYTES, &item->text, &item->bytes) != 0) {
            result = error_prefix("--config");
        }
    }
    if (result != OPTIONS_OK) {
        options_given_free(line);
        *given = NULL;
    }
    return result;
}

int options_apply_given(const struct options_given *given) {
    for (size_t i = 0; i < given->count; i++) {
        const struct item *item = &given->items[i];
        if (item->spec == NULL &&
            options_apply_text(given->specs, given->spec_count, item->value, item->text, item->bytes) != 0) {
            return -1;
        }
    }
    const unsigned source = option_next_source(given->specs, given->spec_count);
    for (size_t i = 0; i < given->count; i++) {
        const struct item *item = &given->items[i];
        char name[MOST_NAME_BYTES], where[MOST_NAME_BYTES + 8];
        if (item->spec == NULL) {
            continue;
        }
        option_copy_name(name, sizeof name, item->spec->name, '_', '-');
        snprintf(where, sizeof where, "--%s: ", name);
        if (option_give(item->spec, item->value, where, source) != 0) {
            return -1;
        }
    }
    return 0;
}
