#include "src/settings/settings.h"
#include "runtime/device/self_test.h"
#include "runtime/gemm/gemm.h"
#include "runtime/gemm/gemm_verify.h"
#include "runtime/options/option_rows.h"
#include "runtime/system/array.h"
#include "src/settings/compile_ahead.h"

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
    if (gemm_compute_open(compute, &options)) {
        return -1;
    }
    if (settings->ahead) {
        compile_ahead_start(settings->ahead, *compute);
    }
    return 0;
}

/* Of a self-test with this status. */
static int report(const struct compute *compute, enum element_type type, int status) {
    char named[64];
    if (status <= 0) {
        return status;
    }
    snprintf(named, sizeof named, "matrix multiplication by %s", gemm_name(compute));
    return self_test_refuse(compute, named,
                            type == ELEMENT_FP32 ? "another --gemm, " : "another --gemm, --dtype fp32, ");
}

int settings_verify_device(struct compute *compute, enum element_type type) {
    return report(compute, type, compute->verify ? gemm_verify(compute, type) : 0);
}

int settings_verify_symmetric(struct compute *compute, enum element_type type) {
    return report(compute, type, compute->verify ? gemm_verify_symmetric(compute, type) : 0);
}

int settings_open_device(const struct device_settings *settings, enum element_type type, unsigned local_rank,
                         struct compute **compute) {
    return settings_open_unverified(settings, type, local_rank, compute) || settings_verify_device(*compute, type)
               ? -1
               : 0;
}

void settings_optimizer_options(struct optimizer_settings *settings, const char *iterations,
                                struct option_table *table) {
    const struct option_spec shared[] = {
        HEADING("Optimizer"),
        CHOICE("optimizer", &settings->optimizer, optimizer_at(0)->name, optimizer_names(), optimizer_help()),
        FLOAT("learning_rate", &settings->learning_rate, "6e-4", 0, 10, "highest learning rate, after warm-up"),
        FLOAT_FOLLOWING("a tenth of learning_rate", "min_lr", &settings->min_lr, "6e-5", 0, 10,
                        "learning rate at lr_decay_iters and after, not above learning_rate"),
        INT_FOLLOWING("200, or a tenth of lr_decay_iters if that is less", "warmup_iters", &settings->warmup_iters,
                      "200", 0, 1e12, "iterations of linear warm-up"),
        INT_FOLLOWING(iterations, "lr_decay_iters", &settings->lr_decay_iters, "1000", 0, 1e12,
                      "where learning_rate has come down to min_lr"),
        CHOICE("lr_schedule", &settings->lr_schedule, "cosine", LR_SCHEDULE_WORDS,
               "how the rate falls after warm-up: along a cosine; wsd: in a line at the end alone, over "
               "cooldown_fraction of lr_decay_iters; in a line all the way; not at all"),
        FLOAT("cooldown_fraction", &settings->cooldown_fraction, "0.7", 0, 1,
              "wsd: share of lr_decay_iters over which the rate falls"),
        FLOAT("weight_decay", &settings->weight_decay, "0.1", 0, 10, "of Linear, embedding and projection weights"),
        FLOAT("grad_clip", &settings->grad_clip, "1.0", 0, 1e9, "largest global gradient norm, 0 for no clipping"),
        FLOAT("new_learning_rate", &settings->new_learning_rate, "-1", -1, 10,
              "highest learning rate of the parameters that a residual connection adds to a plain model (hc_attn, "
              "hc_mlp, hc_head, mudd), with the same schedule. For a pretrained model it should be above "
              "learning_rate (-1: as of other parameters; 0: they keep their values)"),
        TEXT("freeze", &settings->freeze, "",
             "parameters whose names this regular expression (PCRE2) matches somewhere, such as 'wte|ln_', "
             "keep their values: they are not in the gradient norm, and have no weight decay"),
        CHOICE("moments", &settings->moments, "fp32", KEPT_TYPE_WORDS,
               "type in which the optimizer's states, moments or momentum, are kept. bf16: half the bytes, rounded "
               "up or down "
               "at random so that the mean is right"),
        CHOICE(
            "master", &settings->master, "fp32", KEPT_TYPE_WORDS,
            "type in which embeddings and the weights of Linear layers are kept between steps. bf16, with --dtype "
            "bf16: there is no copy in fp32, which saves 4 bytes for each, and a step rounds them up or down at "
            "random"),
        BOOL("freeze_alpha_res", &settings->freeze_alpha_res, "false",
             "keep alpha_res of hyper-connections as they are, outside the gradient norm"),
    };
    const struct optimizer *optimizer;
    options_append(table, shared, COUNT(shared));
    for (size_t i = 0; (optimizer = optimizer_at(i)); i++) {
        if (optimizer->options) {
            optimizer->options(settings, table);
        }
    }
}
