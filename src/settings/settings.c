#include "src/settings/settings.h"
#include "runtime/gemm/gemm.h"
#include "runtime/gemm/gemm_verify.h"
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
        .verify = !settings->unverified && !settings->model && !settings->record && !settings->dry,
        .model = settings->model,
        .record = settings->record,
        .dry = settings->dry,
    };
    if (gemm_compute_open(compute, &options)) {
        return -1;
    }
    if (options.verify && gemm_verify(*compute)) {
        compute_close(*compute);
        *compute = NULL;
        return -1;
    }
    return 0;
}
