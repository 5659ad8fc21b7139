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

int settings_fail(const char *program, int status) {
    fprintf(stderr, "%s: %s\n", program, error_text());
    return status;
}
