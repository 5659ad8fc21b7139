#include "src/settings/settings.h"
#include "runtime/device/self_test.h"
#include "runtime/gemm/gemm.h"
#include "runtime/gemm/gemm_verify.h"
#include "runtime/options/options.h"

int settings_open_unverified(const struct device_settings *settings, enum element_type type, unsigned local_rank,
                             struct compute **compute) {
    char gemm[16];
    const struct compute_options options = {
        .device = settings->device,
        .gemm = options_word(GEMM_WORDS, settings->gemm, gemm, sizeof gemm),
        .operands = type,
        .local_rank = local_rank,
        .profile = settings->profile,
        .verify = !settings->unverified && !settings->model && !settings->record && !settings->dry,
        .model = settings->model,
        .log_launches = settings->record,
        .dry = settings->dry,
    };
    return gemm_compute_open(compute, &options);
}

int settings_verify_device(struct compute *compute, enum element_type type) {
    char named[64];
    const int status = compute->verify ? gemm_verify(compute, type) : 0;
    if (status <= 0) {
        return status;
    }
    snprintf(named, sizeof named, "matrix multiplication by %s", gemm_name(compute));
    return self_test_refuse(compute, named,
                            type == ELEMENT_FP32 ? "another --gemm, " : "another --gemm, --dtype fp32, ");
}

int settings_open_device(const struct device_settings *settings, enum element_type type, unsigned local_rank,
                         struct compute **compute) {
    if (settings_open_unverified(settings, type, local_rank, compute)) {
        return -1;
    }
    if (settings_verify_device(*compute, type)) {
        compute_close(*compute);
        *compute = NULL;
        return -1;
    }
    return 0;
}
