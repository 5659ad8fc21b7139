/* What a training run is told: the targets of hc_train's options. */
#ifndef HC_SRC_TRAIN_SETTINGS_H
#define HC_SRC_TRAIN_SETTINGS_H

#include "runtime/options/options.h"
#include "src/model/optimizer.h"
#include "src/settings/settings.h"

struct train_settings {
    struct model_config model; /* residual is set from residual_name */
    char *residual_name, *stream_reduce, *activation;
    struct optimizer_settings optimizer;
    struct device_settings device;
    char *data_dir, *out_dir, *init_from;
    int64_t max_iters, batch_size, gradient_accumulation_steps;
    int64_t eval_interval, eval_iters, log_interval, checkpoint_interval, keep_checkpoints;
    int64_t statistics_interval; /* 0: none */
    int64_t seed;
    char *dtype;                           /* for settings_type */
    char *recompute;                       /* "off" or "layer" */
    char *allreduce_dtype;                 /* "fp32" or "bf16" */
    double allreduce_bucket, rank_timeout; /* MiB, seconds */
    bool shard_optimizer;
    bool tensorboard, plan_only, list_residuals, start_over, accept_new_data;
    char *resumed_from;              /* owned: the checkpoint whose settings these are, NULL without */
    int64_t stop_at;                 /* of this process: max_iters, or less where a resumed run was given less */
    const struct option_spec *specs; /* the table that filled this, for checkpoints and to know what was given */
    size_t spec_count;
};

#endif
