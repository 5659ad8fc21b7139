/* Any bytes as a config file. What is accepted must read back as the same settings after options_write. */
#include "runtime/options/option_rows.h"
#include "tests/fuzz/fuzz_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct settings {
    int64_t n_layer;
    double learning_rate;
    bool bias;
    int residual;
    char *out_dir;
};

enum { SPEC_COUNT = 6 };

/* Parses a config file into the settings; 0 if it is accepted. */
static int parse(const char *path, struct settings *settings, struct option_spec specs[SPEC_COUNT]) {
    const struct option_spec all[SPEC_COUNT] = {
        HEADING("Model"),
        INT("n_layer", &settings->n_layer, "12", 1, 1000, NULL),
        FLOAT("learning_rate", &settings->learning_rate, "6e-4", 0, 0, NULL),
        BOOL("bias", &settings->bias, "true", NULL),
        TEXT("out_dir", &settings->out_dir, NULL, NULL),
        CHOICE("residual", &settings->residual, "rc", "rc|hc|mhc|mhc_lite", NULL),
    };
    memcpy(specs, all, sizeof all);
    char *arguments[] = {(char *)(uintptr_t) "fuzz", (char *)(uintptr_t) "--config", (char *)(uintptr_t)path, NULL};
    int first_free;
    struct options_given *given = NULL;
    int result = options_set_defaults(specs, SPEC_COUNT) != 0 ||
                 options_read(specs, SPEC_COUNT, 3, arguments, &first_free, &given) != OPTIONS_OK ||
                 options_apply_given(given) != 0;
    options_given_free(given);
    return result;
}

static void check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "settings do not read back: %s\n", what);
        abort();
    }
}

static void check_read_back(const struct settings *settings, const struct option_spec *specs) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    check(stream != NULL && options_write(specs, SPEC_COUNT, stream) == 0 && fclose(stream) == 0, "writing");
    struct settings again = {0};
    struct option_spec again_specs[SPEC_COUNT];
    if (bytes <= 1 << 20) { /* quoting may have made it larger than config files may be */
        check(parse(fuzz_file((const uint8_t *)text, bytes), &again, again_specs) == 0, "parsing");
        check(again.n_layer == settings->n_layer && again.learning_rate == settings->learning_rate &&
                  again.bias == settings->bias,
              "numbers");
        check((again.out_dir == NULL) == (settings->out_dir == NULL) &&
                  (again.out_dir == NULL || strcmp(again.out_dir, settings->out_dir) == 0) &&
                  again.residual == settings->residual,
              "texts");
        options_free(again_specs, SPEC_COUNT);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct settings settings = {0};
    struct option_spec specs[SPEC_COUNT];
    if (parse(fuzz_file(data, bytes), &settings, specs) == 0) {
        check_read_back(&settings, specs);
    }
    options_free(specs, SPEC_COUNT);
    return 0;
}
