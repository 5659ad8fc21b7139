#include "src/settings/settings.h"
#include "runtime/device/device.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include <string.h>

int settings_open_device(const struct device_settings *settings, enum element_type type, unsigned local_rank,
                         struct compute **compute) {
    const struct compute_options options = {
        .device = settings->device,
        .gemm = settings->gemm,
        .operands = type,
        .local_rank = local_rank,
        .profile = settings->profile,
    };
    return gemm_compute_open(compute, &options);
}

enum element_type settings_type(const char *word) {
    return strcmp(word, "bf16") == 0 ? ELEMENT_BF16 : strcmp(word, "fp16") == 0 ? ELEMENT_FP16 : ELEMENT_FP32;
}

enum options_result settings_read(struct option_spec *specs, size_t count, const struct program_info *program,
                                  int argc, char **argv, int *first_free) {
    int first = argc;
    const enum options_result result = options_parse(specs, count, program, argc, argv, &first);
    if (result == OPTIONS_OK && !first_free && first < argc) {
        error_set("unexpected argument '%s'; see %s --help", argv[first], program->name);
        return OPTIONS_WRONG;
    }
    if (first_free) {
        *first_free = first;
    }
    return result;
}

int settings_parse(struct option_spec *specs, size_t count, const struct program_info *program, int argc,
                   char **argv, int *first_free) {
    switch (settings_read(specs, count, program, argc, argv, first_free)) {
    case OPTIONS_OK:
        return 0;
    case OPTIONS_DONE:
        return -1;
    case OPTIONS_FAILED:
        return settings_fail(program->name, 1);
    default:
        return settings_fail(program->name, 2);
    }
}

int settings_fail(const char *program, int status) {
    fprintf(stderr, "%s: %s\n", program, error_text());
    return status;
}
