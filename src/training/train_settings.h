/* The settings of a training run: options of the programs that train, hc_train and hc_bench, and their targets. */
#pragma once

#include "runtime/options/options.h"
#include "runtime/ranks/ranks.h"
#include "src/model/optimizer.h"
#include "src/settings/settings.h"

/* The words of choices, and what they are called here. */
#define EVAL_BATCHES_WORDS "auto|whole|sampled|by_seed"
enum eval_batches_word { EVAL_BATCHES_AUTO, EVAL_BATCHES_WHOLE, EVAL_BATCHES_SAMPLED, EVAL_BATCHES_BY_SEED };
#define TRAIN_BATCHES_WORDS "random|sequential|documents"
enum train_batches_word { TRAIN_BATCHES_RANDOM, TRAIN_BATCHES_SEQUENTIAL, TRAIN_BATCHES_DOCUMENTS };
#define RECOMPUTE_WORDS "off|layer"
enum recompute_word { RECOMPUTE_OFF, RECOMPUTE_LAYER };
#define ALLREDUCE_TYPE_WORDS "fp32|bf16" /* the first of enum element_type */

struct train_settings {
    struct model_config model; /* train_options_apply sets its variant from the next line */
    int residual;              /* number for residual_at */
    struct optimizer_settings optimizer;
    struct device_settings device;
    char *data_dir, *out_dir, *init_from;
    char *adapter, *base, *lora_targets; /* the rest of adapters is in model.lora and optimizer.lora_train */
    char *init_checksum;                 /* of the weights in init_from; NULL: not known, or there are none */
    bool resumes; /* it goes on from its own newest checkpoint; init_from is where the run began */
    int64_t max_iters, batch_size, gradient_accumulation_steps;
    double max_seconds; /* after which the run ends, at any iteration; 0: at max_iters */
    int64_t eval_interval, eval_iters, log_interval, checkpoint_interval, keep_checkpoints;
    int64_t statistics_interval; /* 0: none */
    int64_t seed;
    int dtype;                             /* enum element_type, or TYPE_AUTO until a device is open */
    int allreduce_dtype;                   /* enum element_type */
    int recompute;                         /* enum recompute_word */
    int train_batches;                     /* enum train_batches_word */
    int eval_batches;                      /* enum eval_batches_word */
    double allreduce_bucket, rank_timeout; /* MiB, seconds */
    bool shard_optimizer;
    char *fit; /* memory for which plan_only chooses settings; NULL: those that are given */
    bool plan_only, compile_only, list_residuals, start_over, accept_new_data;
    char *resumed_from;  /* owned: the checkpoint whose settings these are, NULL without */
    int64_t stop_at;     /* of this process: max_iters, or less where a resumed run was given less; or never */
    double stop_seconds; /* the same of max_seconds; HUGE_VAL: never */
    bool extended;       /* a resumed run is given more max_iters or max_seconds than it had */
    const struct option_spec *specs; /* the table that filled this, for checkpoints and to know what was given */
    size_t spec_count;
    const struct parameters *parameters; /* the model's table (gpt_options); NULL: data_parallel_plan builds one */
};

/* Appends the options whose targets are in *settings. */
void train_options(struct train_settings *settings, struct option_table *table);

/* Call after parsing: sets the variant, and the table itself, which must stay as long as the settings. */
void train_options_apply(struct train_settings *settings, const struct option_table *table);

/* Sets the adapter of a model, config->lora, as the options say; its norm and MLP are set. -1 with an error. */
int train_settings_set_adapter(const struct train_settings *settings, struct model_config *config);

/* What --list-residuals asks for, on stdout. */
int train_options_list_residuals(void);

/* Tells whether the command line or a config file sets the option, by its name with underscores. */
static inline bool train_settings_given(const struct train_settings *settings, const char *name) {
    return options_source(settings->specs, settings->spec_count, name) > 0;
}

/* Checks that all ranks have the same settings except paths, devices and what is of one process only. Collective: a
 * difference is an error on all ranks, which names a rank and its host. */
int same_job_settings(struct ranks *ranks, const struct train_settings *settings);

/* ---- a run */

/* After the command line has been applied. With init_from = resume what is given now lies over what the run has in
 * out_dir: over its settings.conf, and below that over the settings in state.json of the newest checkpoint, so
 * that a run goes on as it was even without the former. out_dir is the one that is given now, whatever those say;
 * init_from becomes what the run began with. The learning rate's schedule stays the run's, but for what is given
 * now and does not follow from something given later (settings.h). settings->max_iters becomes the larger of what
 * the run had and what is given. With max_seconds that does, and max_iters of the run grows with it, so that the
 * schedule stays. The caller frees settings->resumed_from. Returns PROGRAM_DONE; PROGRAM_FAILED where the run has
 * no checkpoint that can be read; PROGRAM_WRONG for settings that are wrong. */
enum program_status resumed_settings_apply(struct option_table *table, struct train_settings *settings,
                                           const struct options_given *given);
