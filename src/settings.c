#include "src/settings.h"
#include "runtime/device.h"
#include "runtime/error.h"

int settings_open_device(const struct device_settings *settings, struct compute **compute) {
    const struct compute_options options = {
        .device = settings->device,
        .gemm = settings->gemm,
        .local_rank = device_local_rank(),
        .profile = settings->profile,
    };
    return compute_open(compute, &options);
}

int settings_parse(struct option_spec *specs, size_t count, const struct program_info *program, int argc,
                   char **argv, int *first_free) {
    int first = argc;
    const enum options_result result = options_parse(specs, count, program, argc, argv, &first);
    if (result == OPTIONS_DONE) {
        return -1;
    }
    if (result == OPTIONS_FAILED) {
        return settings_fail(program->name, 1);
    }
    if (result == OPTIONS_WRONG) {
        return settings_fail(program->name, 2);
    }
    if (!first_free && first < argc) {
        error_set("unexpected argument '%s'; see %s --help", argv[first], program->name);
        return settings_fail(program->name, 2);
    }
    if (first_free) {
        *first_free = first;
    }
    return 0;
}

int settings_fail(const char *program, int status) {
    fprintf(stderr, "%s: %s\n", program, error_text());
    return status;
}
