#include "src/training/train_settings.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/checkpoint/checkpoint.h"
#include "src/settings/settings.h"
#include "src/training/run_folder.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void train_options(struct train_settings *settings, struct option_table *table) {
    const struct option_spec first[] = {
        HEADING("Data and results"),
        TEXT("data_dir", &settings->data_dir, "data/corpus/shakespeare",
             "folder with train.bin, val.bin and meta.json (hc_prepare), or with llm.c's token shards; or a "
             "mixture of folders of one vocabulary, FOLDER:WEIGHT,FOLDER:WEIGHT,..., of which each sequence "
             "takes one by the weights"),
        PROCESS_TEXT("out_dir", &settings->out_dir, "out", "run directory: checkpoints and metrics.jsonl"),
        TEXT("init_from", &settings->init_from, "scratch",
             "scratch, resume (newest checkpoint and settings in out_dir), or a folder: a checkpoint, or a "
             "GPT-2, Llama, Qwen2 or Qwen3 as Hugging Face's transformers saves it. A plain model (rc) goes on "
             "with another --residual if one is given, and computes the same function at first"),
        TEXT("init_checksum", &settings->init_checksum, NULL,
             "SHA-256 of the weights that init_from names, as settings.conf of a run has it: other weights are "
             "refused"),
        PROCESS_BOOL("start_over", &settings->start_over,
                     "out_dir holds a run: remove its checkpoints and logs there (no other files) and begin "
                     "anew"),
        PROCESS_BOOL("accept_new_data", &settings->accept_new_data,
                     "resume with other token files than those that the run was trained on until now"),
        INT("seed", &settings->seed, "1337", 0, 9e15, "of initial weights, batches and dropout"),
        HEADING("Model"),
        CHOICE("residual", &settings->residual, "shc", residual_names(), "residual connection"),
        PROCESS_BOOL("list_residuals", &settings->list_residuals, "describe the residual connections, and stop"),
    };
    struct lora_settings *lora = &settings->model.lora;
    const struct option_spec middle[] = {
        HEADING("Adapters (LoRA) for the model that init_from names, whose own weights stay as they are"),
        INT("lora_rank", &lora->rank, "0", 0, LORA_MOST_RANK, "rank r of the adapters of each module; 0: none"),
        FLOAT_FOLLOWING("twice lora_rank", "lora_alpha", &lora->alpha, "0", 0, LORA_MOST_ALPHA,
                        "what adapters add is multiplied by this / lora_rank"),
        TEXT("lora_targets", &settings->lora_targets, LORA_ALL,
             "modules that get an adapter, some of these; of a GPT-2 c_attn, c_fc and c_proj"),
        FLOAT("lora_dropout", &lora->dropout, "0", 0, LORA_MOST_DROPOUT, "of what adapters read"),
        BOOL("lora_rslora", &lora->by_root, "false", "divide lora_alpha by the root of lora_rank instead"),
        TEXT(
            "lora_train", &settings->optimizer.lora_train, "",
            "parameters of the model whose names this regular expression (PCRE2) matches somewhere, such as 'ln_', "
            "are trained beside the adapters. A residual connection that init_from gets always is"),
        TEXT("adapter", &settings->adapter, NULL,
             "folder of an adapter to begin with, as PEFT saves it, or of a run with one"),
        PROCESS_TEXT(
            "base", &settings->base, NULL,
            "folder of the base model, if the run begins or goes on with an adapter and its base model has moved"),
        HEADING("Computing"),
        TYPE_OPTION(&settings->dtype, "auto"),
        CHOICE("recompute", &settings->recompute, "off", RECOMPUTE_WORDS,
               "layer: keep the branches' activations of one layer only, and run each layer forward again in the "
               "backward pass; the same results with less memory, in about a quarter more time"),
        HEADING("Training"),
        INT("max_iters", &settings->max_iters, "1000", 0, 1e12,
            "optimizer steps in all; a resumed run goes on to more when more are given, and stops earlier, for "
            "this time only, at fewer"),
        FLOAT("max_seconds", &settings->max_seconds, "0", 0, 1e9,
              "seconds after which the run ends instead, 0 for none: from the first step on, with evaluations and "
              "checkpoints in between; a resumed run counts on. The learning rate follows the clock: warm-up and "
              "decay take that share of the seconds that they have of max_iters"),
        INT("batch_size", &settings->batch_size, "8", 1, 1 << 20, "sequences in a micro-batch, per rank"),
        INT("gradient_accumulation_steps", &settings->gradient_accumulation_steps, "1", 1, 1e6,
            "micro-batches in one optimizer step, over all ranks"),
        CHOICE("train_batches", &settings->train_batches, "random", TRAIN_BATCHES_WORDS,
               "where sequences are taken from. random: places in the whole data that the seed chooses; "
               "sequential: the data in their order, each token once until they begin again. The end of a file "
               "(train.bin or a token shard) that is too short for an optimizer step is left out. documents: as "
               "many whole documents as fit into a sequence, each once in a pass, in an order that the seed "
               "chooses, of data that were prepared with hc_prepare --prompt-field or --document-lengths"),
    };
    const struct option_spec rest[] = {
        HEADING("Evaluation, checkpoints, logs"),
        INT("eval_interval", &settings->eval_interval, "250", 1, 1e12, "iterations between evaluations"),
        INT("eval_iters", &settings->eval_iters, "20", 0, 1e6,
            "batches of each split in an evaluation, 0 for none"),
        CHOICE("eval_batches", &settings->eval_batches, "auto", EVAL_BATCHES_WORDS,
               "tokens that the validation loss is computed on. auto: all of val.bin if it has at most 8 times the "
               "tokens of eval_iters batches, else as sampled; whole: all of val.bin; sampled: eval_iters batches "
               "at places that are the same for every seed; by_seed: at places that depend on the seed, as in runs "
               "begun before this setting existed"),
        INT("checkpoint_interval", &settings->checkpoint_interval, "250", 1, 1e12,
            "iterations between checkpoints"),
        INT("keep_checkpoints", &settings->keep_checkpoints, "2", 1, 1e6,
            "newest checkpoints to keep, beside ckpt-best"),
        INT("log_interval", &settings->log_interval, "1", 1, 1e9, "iterations between lines of metrics.jsonl"),
        INT("statistics_interval", &settings->statistics_interval, "0", 0, 1e12,
            "iterations between lines of h_statistics.jsonl, the observations of H_res, and at the last; 0 for "
            "none"),
        PROCESS_BOOL("plan_only", &settings->plan_only, "print parameters and memory, and stop"),
        PROCESS_TEXT(
            "fit", &settings->fit, NULL,
            "print the fastest settings that fit into so much memory, such as 16GiB, and stop; 16GiB:a6000 is "
            "for a GPU that is not here (names as of hc_bench --as). It divides a step into other micro-batches, "
            "then sets recompute, and last moments and master, which alone change the results"),
        COMPILE_ONLY_OPTION(&settings->compile_only),
        HEADING("Data parallel (mpirun -np N)"),
        CHOICE("allreduce_dtype", &settings->allreduce_dtype, "fp32", ALLREDUCE_TYPE_WORDS,
               "gradients travel between hosts, and from GPUs and back, as float or as bfloat16: half the bytes, "
               "less exact"),
        FLOAT("allreduce_bucket", &settings->allreduce_bucket, "16", 0.001, 1024,
              "MiB of gradients that are sent together, while the backward pass goes on"),
        BOOL("shard_optimizer", &settings->shard_optimizer, "false",
             "each rank keeps and updates its part of the optimizer's states (ZeRO stage 1)"),
        FLOAT("rank_timeout", &settings->rank_timeout, "600", 0, 1e9,
              "seconds without an answer from another rank until the job ends, 0 for never"),
        DEVICE_OPTIONS(&settings->device),
        PROFILE_OPTION(&settings->device),
    };
    options_append(table, first, COUNT(first));
    struct model_setting model[MODEL_MOST_SETTINGS];
    for (size_t i = 0, count = model_config_settings(&settings->model, model); i < count; i++) {
        options_append(table, &model[i].option, 1);
    }
    options_append(table, middle, COUNT(middle));
    settings_optimizer_options(&settings->optimizer, "max_iters", table);
    options_append(table, rest, COUNT(rest));
}

void train_options_apply(struct train_settings *settings, const struct option_table *table) {
    settings->specs = table->rows;
    settings->spec_count = table->count;
    settings->model.residual = residual_at((size_t)settings->residual);
    settings->plan_only |= settings->fit != NULL;
}

int train_settings_set_adapter(const struct train_settings *settings, struct model_config *config) {
    config->lora = settings->model.lora;
    /* the base's; where there is a folder, what it has decides */
    const bool is_plain = config->lora.rank > 0 && residual_has_frame(config->residual, "plain");
    config->lora.base_has_lambdas = is_plain && config->x0_lambdas;
    config->lora.base_has_value_embeds = is_plain && config->value_embeds;
    config->lora.alpha = config->lora.alpha > 0.0 ? config->lora.alpha : 2.0 * (double)config->lora.rank;
    return config->lora.rank > 0
               ? lora_read_targets(model_config_modules(config), settings->lora_targets, &config->lora.targets)
               : 0;
}

int train_options_list_residuals(void) {
    return residual_list(stdout) ? error_set("cannot write the list") : 0;
}

/* ---- the same on all ranks */

enum { MOST_SHARED_BYTES = 1 << 16 }; /* of settings as text */

/* Compares two texts of settings. The error names the first line that differs. */
static int compare_texts(const char *own, const char *first) {
    size_t at = 0, line = 0;
    for (; own[at] && own[at] == first[at]; at++) {
        line = own[at] == '\n' ? at + 1 : line;
    }
    if (own[at] == first[at]) {
        return 0;
    }
    return error_set("other settings than rank 0: '%.*s' instead of '%.*s'", (int)strcspn(own + line, "\n"),
                     own + line, (int)strcspn(first + line, "\n"), first + line);
}

int same_job_settings(struct ranks *ranks, const struct train_settings *settings) {
    static const char *const local[] = {"data_dir", "init_from", "adapter", "device", "gemm"}; /* may differ */
    static char first[MOST_SHARED_BYTES];
    if (ranks->count == 1) {
        return 0;
    }
    struct option_spec *specs = memory_allocate(settings->spec_count, sizeof *specs);
    memcpy(specs, settings->specs, settings->spec_count * sizeof *specs);
    for (size_t i = 0; i < settings->spec_count; i++) {
        for (size_t k = 0; k < COUNT(local) && specs[i].type != OPTION_HEADING; k++) {
            specs[i].transient |= strcmp(specs[i].name, local[k]) == 0;
        }
    }
    char *saved = options_text(specs, settings->spec_count);
    char *own = memory_format("%smax_iters given now = %" PRId64 "\nmax_seconds given now = %.17g\n", saved,
                              settings->stop_at, settings->stop_seconds);
    snprintf(first, sizeof first, "%s", own);
    const int status = ranks_broadcast(ranks, first, sizeof first) || ranks_agree(ranks, compare_texts(own, first));
    free(specs);
    free(saved);
    free(own);
    return status ? -1 : 0;
}

/* ---- resumed runs */

enum { MOST_SETTINGS_BYTES = 1 << 20 };

/* Those of the checkpoint. Versions before 0.1 left none: then settings.conf must be there. */
static int apply_state(struct option_table *table, const char *folder, bool has_file) {
    struct training_state state;
    char *text = NULL;
    if (checkpoint_read_state(folder, &state, &text)) {
        free(text);
        return error_prefix(
            "cannot resume from %s (the checkpoint before it is resumed when that folder is removed)", folder);
    }
    const int result = *text || has_file
                           ? options_apply_text(table->rows, table->count,
                                                path_of("%s/state.json: settings", folder).text, text, strlen(text))
                           : error_set("neither state.json nor " RUN_SETTINGS " has the run's settings");
    free(text);
    return result ? error_prefix("cannot resume from %s, which another version of hctrain has saved (--init-from "
                                 "with that folder begins a new run with its weights)",
                                 folder)
                  : 0;
}

static void set_stop(struct train_settings *settings) {
    settings->stop_at = settings->max_seconds > 0.0 ? INT64_MAX : settings->max_iters;
    settings->stop_seconds = settings->max_seconds > 0.0 ? settings->max_seconds : HUGE_VAL;
}

/* Stops where is given, but the run's own length becomes no less than it was planned. */
static int extend(const struct option_table *table, struct train_settings *settings, int64_t planned,
                  double planned_seconds) {
    if (settings->max_seconds > 0.0 && planned_seconds <= 0.0) {
        return error_set("the run ends by max_iters: leave max_seconds out");
    }
    if (settings->max_seconds <= 0.0 && planned_seconds > 0.0) {
        return error_set("the run ends by max_seconds = %g: give another number above 0", planned_seconds);
    }
    /* config files may still have the number that the run began with */
    const bool is_given = options_source(table->rows, table->count, "max_iters") >=
                          options_source(table->rows, table->count, "init_from");
    if (planned_seconds > 0.0 && settings->max_iters != planned && is_given) {
        return error_set("the run ends by max_seconds = %g: leave max_iters out", planned_seconds);
    }
    set_stop(settings);
    if (planned_seconds > 0.0) { /* the schedule takes as many seconds as before */
        settings->extended = settings->max_seconds > planned_seconds;
        settings->max_seconds = fmax(settings->max_seconds, planned_seconds);
        settings->max_iters =
            (int64_t)(fmin(1e12, (double)planned * (settings->max_seconds / planned_seconds)) + 0.5);
    } else {
        settings->extended = settings->max_iters > planned;
        settings->max_iters = planned > settings->max_iters ? planned : settings->max_iters;
    }
    return 0;
}

/* Everything once more, with what the run has below what is given. */
static enum program_status apply_all(struct option_table *table, struct train_settings *settings,
                                     const struct options_given *given, const char *out_dir) {
    if (options_set_defaults(table->rows, table->count)) {
        return PROGRAM_WRONG;
    }
    /* What a run had that was saved before these settings existed. */
    settings->dtype = ELEMENT_FP32;
    settings->eval_batches = EVAL_BATCHES_BY_SEED;
    const struct path path = path_of("%s/" RUN_SETTINGS, out_dir);
    settings->resumed_from = checkpoint_newest(out_dir);
    if (!settings->resumed_from || apply_state(table, settings->resumed_from, files_exist(path.text))) {
        return PROGRAM_FAILED;
    }
    const int saved_optimizer = settings->optimizer.optimizer;
    /* settings.conf, which people may have changed, or removed */
    char *text = NULL;
    size_t bytes = 0;
    const int failed =
        files_exist(path.text) && (files_read(path.text, MOST_SETTINGS_BYTES, &text, &bytes) ||
                                   options_apply_text(table->rows, table->count, path.text, text, bytes));
    free(text);
    if (failed) {
        return PROGRAM_WRONG;
    }
    const int64_t planned = settings->max_iters;
    const double planned_seconds = settings->max_seconds;
    const struct optimizer_settings saved = settings->optimizer;
    /* what is given, over what the run has; but where the run began does not change */
    char **const kept[] = {&settings->init_from, &settings->init_checksum, &settings->adapter};
    char *begun[COUNT(kept)];
    for (size_t i = 0; i < COUNT(kept); i++) {
        begun[i] = *kept[i];
        *kept[i] = NULL;
    }
    const int wrong = options_apply_given(given);
    for (size_t i = 0; i < COUNT(kept); i++) {
        free(*kept[i]);
        *kept[i] = begun[i];
    }
    if (wrong) {
        return PROGRAM_WRONG;
    }
    if (saved_optimizer != settings->optimizer.optimizer) {
        error_set(
            "the run has optimizer = %s, whose states are in its checkpoints: begin another run with init_from = "
            "%s for optimizer = %s",
            optimizer_at((size_t)saved_optimizer)->name, settings->resumed_from,
            optimizer_at((size_t)settings->optimizer.optimizer)->name);
        return PROGRAM_WRONG;
    }
    schedule_keep(table->rows, table->count, &saved, &settings->optimizer);
    const bool has_risen = saved.min_lr > saved.learning_rate; /* which may go on */
    if ((!has_risen && schedule_check(&settings->optimizer)) || optimizer_check(&settings->optimizer)) {
        return PROGRAM_WRONG;
    }
    return extend(table, settings, planned, planned_seconds) ? PROGRAM_WRONG : PROGRAM_DONE;
}

enum program_status resumed_settings_apply(struct option_table *table, struct train_settings *settings,
                                           const struct options_given *given) {
    set_stop(settings);
    settings->resumes = strcmp(settings->init_from, "resume") == 0;
    if (!settings->resumes) {
        return PROGRAM_DONE;
    }
    char *out_dir = settings->out_dir; /* it leads to the settings, and stays what it is, whatever they say of it */
    settings->out_dir = NULL;
    const enum program_status result = apply_all(table, settings, given, out_dir);
    free(settings->out_dir);
    settings->out_dir = out_dir;
    return result;
}
