/* Any bytes as a config file and as arguments, a line each. What is accepted must read back as the same settings
 * after they are written. */
#include "runtime/files/files.h"
#include "runtime/options/option_rows.h"
#include "runtime/system/error.h"
#include "tests/fuzz/fuzz_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct settings {
    int64_t n_layer;
    double learning_rate;
    int64_t seed;
    double rate;
    bool bias;
    int residual;
    char *out_dir;
};

enum { SPEC_COUNT = 8, MOST_ARGUMENTS = 16 };

/* Parses a config file and then arguments into the settings; 0 if they are accepted. */
static int parse(const char *path, char **more, int count, struct settings *settings,
                 struct option_spec specs[SPEC_COUNT]) {
    const struct option_spec all[SPEC_COUNT] = {
        HEADING("Model"),
        INT("n_layer", &settings->n_layer, "12", 1, 1000, NULL),
        INT("seed", &settings->seed, "1", 0, 9e18, NULL),
        FLOAT("learning_rate", &settings->learning_rate, "6e-4", 0, 0, NULL),
        FLOAT("rate", &settings->rate, "1", -1e300, 10, NULL),
        BOOL("bias", &settings->bias, "true", NULL),
        TEXT("out_dir", &settings->out_dir, NULL, NULL),
        CHOICE("residual", &settings->residual, "rc", "rc|hc|mhc|mhc_lite", NULL),
    };
    memcpy(specs, all, sizeof all);
    char *arguments[MOST_ARGUMENTS + 4] = {(char *)(uintptr_t)"fuzz", (char *)(uintptr_t)"--config",
                                           (char *)(uintptr_t)path};
    for (int i = 0; i < count; i++) {
        arguments[3 + i] = more[i];
    }
    int first_free;
    struct options_given *given = NULL;
    error_clear();
    int result = options_set_defaults(specs, SPEC_COUNT) != 0 ||
                 options_read(specs, SPEC_COUNT, 3 + count, arguments, &first_free, &given) != OPTIONS_OK ||
                 options_apply_given(given) != 0;
    options_given_free(given);
    return result;
}

static void check_read_back(const struct settings *settings, const struct option_spec *specs) {
    char *text = options_text(specs, SPEC_COUNT);
    fuzz_require(text != NULL, "settings cannot be written");
    const size_t bytes = strlen(text);
    struct settings again = {0};
    struct option_spec again_specs[SPEC_COUNT];
    if (bytes <= 1 << 20) { /* quoting may have made it larger than config files may be */
        fuzz_require(parse(fuzz_file((const uint8_t *)text, bytes), NULL, 0, &again, again_specs) == 0,
                     "settings that were written are refused");
        fuzz_require(again.n_layer == settings->n_layer && again.learning_rate == settings->learning_rate &&
                         again.bias == settings->bias && again.seed == settings->seed &&
                         again.rate == settings->rate,
                     "numbers do not come back");
        fuzz_require((again.out_dir == NULL) == (settings->out_dir == NULL) &&
                         (again.out_dir == NULL || strcmp(again.out_dir, settings->out_dir) == 0) &&
                         again.residual == settings->residual,
                     "texts do not come back");
        options_free(again_specs, SPEC_COUNT);
    }
    free(text);
}

/* The lines of a file, at most so many; ends them in the text, which the caller frees. */
static int split(const char *path, char **text, char *lines[MOST_ARGUMENTS]) {
    size_t bytes;
    int count = 0;
    *text = NULL;
    if (files_read(path, 1 << 16, text, &bytes)) {
        return 0;
    }
    for (char *line = *text; *line && count < MOST_ARGUMENTS;) {
        char *end = line + strcspn(line, "\n");
        lines[count++] = line;
        line = *end ? end + 1 : end;
        *end = '\0';
    }
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char *const names[] = {"options.conf", "arguments", NULL};
    struct settings settings = {0};
    struct option_spec specs[SPEC_COUNT];
    char *text, *lines[MOST_ARGUMENTS] = {NULL};
    const char *folder = fuzz_folder(data, bytes, names);
    const struct path config = path_of("%s/options.conf", folder), path = path_of("%s/arguments", folder);
    const int count = split(path.text, &text, lines);
    if (parse(config.text, lines, count, &settings, specs) == 0) {
        check_read_back(&settings, specs);
    }
    free(text);
    options_free(specs, SPEC_COUNT);
    return 0;
}
