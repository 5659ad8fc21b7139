/* Any bytes as a config file. What is accepted must read back as the same settings after options_write. */
#include "runtime/options/options.h"
#include "tests/fuzz/fuzz_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct settings {
    int64_t n_layer;
    double learning_rate;
    bool bias;
    char *out_dir, *residual;
};

enum { SPEC_COUNT = 6 };

static const struct program_info program = {.name = "fuzz", .summary = "", .usage = ""};

/* Parses a config file into the settings. */
static enum options_result parse(const char *path, struct settings *settings,
                                 struct option_spec specs[SPEC_COUNT]) {
    const struct option_spec all[SPEC_COUNT] = {
        {.type = OPTION_HEADING, .help = "Model"},
        {.type = OPTION_INT,
         .name = "n_layer",
         .target = &settings->n_layer,
         .default_value = "12",
         .minimum = 1,
         .maximum = 1000},
        {.type = OPTION_FLOAT,
         .name = "learning_rate",
         .target = &settings->learning_rate,
         .default_value = "6e-4"},
        {.type = OPTION_BOOL, .name = "bias", .target = &settings->bias, .default_value = "true"},
        {.type = OPTION_TEXT, .name = "out_dir", .target = &settings->out_dir},
        {.type = OPTION_CHOICE,
         .name = "residual",
         .target = &settings->residual,
         .default_value = "rc",
         .choices = "rc|hc|mhc|mhc_lite"},
    };
    memcpy(specs, all, sizeof all);
    char *arguments[] = {(char *)(uintptr_t) "fuzz", (char *)(uintptr_t) "--config", (char *)(uintptr_t)path, NULL};
    int first_free;
    return options_parse(specs, SPEC_COUNT, &program, 3, arguments, &first_free);
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
        check(parse(fuzz_file((const uint8_t *)text, bytes), &again, again_specs) == OPTIONS_OK, "parsing");
        check(again.n_layer == settings->n_layer && again.learning_rate == settings->learning_rate &&
                  again.bias == settings->bias,
              "numbers");
        check((again.out_dir == NULL) == (settings->out_dir == NULL) &&
                  (again.out_dir == NULL || strcmp(again.out_dir, settings->out_dir) == 0) &&
                  strcmp(again.residual, settings->residual) == 0,
              "texts");
        options_free(again_specs, SPEC_COUNT);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct settings settings = {0};
    struct option_spec specs[SPEC_COUNT];
    if (parse(fuzz_file(data, bytes), &settings, specs) == OPTIONS_OK) {
        check_read_back(&settings, specs);
    }
    options_free(specs, SPEC_COUNT);
    return 0;
}
