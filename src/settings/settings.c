#include "src/settings/settings.h"
#include "runtime/gemm/gemm.h"
#include "runtime/options/options.h"

int settings_open_device(const struct device_settings *settings, enum element_type type, unsigned local_rank,
                         struct compute **compute) {
    char gemm[16];
    const struct compute_options options = {
        .device = settings->device,
        .gemm = options_word(GEMM_WORDS, settings->gemm, gemm, sizeof gemm),
        .operands = type,
        .local_rank = local_rank,
        .profile = settings->profile,
        .model = settings->model,
        .record = settings->record,
        .dry = settings->dry,
    };
    return gemm_compute_open(compute, &options);
}
