/* The set-up of a training run: from settings, or from the checkpoint that it resumes, to everything that the loop
 * works with. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "src/checkpoint/weights.h"
#include "src/model/parameters.h"
#include "src/settings/type_choice.h"
#include "src/text/tokenizer.h"
#include "src/training/data_parallel.h"
#include "src/training/trainer.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The failure is one of the command line. */
static int fail_usage(struct trainer *trainer) {
    trainer->wrong_usage = true;
    return -1;
}

/* ---- data and their vocabulary */

/* A model that was trained on one tokenizer's tokens makes no sense of another's. Either may not be known; if both
 * are of a tokenizer.json, it must be the same one. A resumed run goes on with the data that it has, which are
 * compared by their digests. */
static int check_tokenizer(const struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    const struct vocabulary *of_data = &trainer->data.vocabulary;
    const char *of_model = settings->model.tokenizer;
    if (settings->resumes || !*of_data->tokenizer || !*of_model) {
        return 0;
    }
    if (strcmp(of_data->tokenizer, of_model) != 0) {
        return error_set(
            "%s has tokens of \"%s\", the model has tokens of \"%s\": prepare the text with the model's "
            "tokenizer (hc_prepare --tokenizer)",
            settings->data_dir, of_data->tokenizer, of_model);
    }
    const struct path path = path_of("%s/" TOKENIZER_FILE_NAME, settings->init_from);
    if (!of_data->tokenizer_json || !files_exist(path.text)) {
        return 0;
    }
    char *text;
    size_t bytes;
    if (files_read(path.text, TOKENIZER_FILE_MOST_BYTES, &text, &bytes)) {
        return -1;
    }
    const bool same = bytes == of_data->tokenizer_json_bytes && memcmp(text, of_data->tokenizer_json, bytes) == 0;
    free(text);
    return same ? 0
                : error_set("%s/" TOKENIZER_FILE_NAME " and %s are not the same: prepare the text with the model's "
                            "tokenizer (hc_prepare --tokenizer)",
                            settings->data_dir, path.text);
}

/* Opens the data. The model takes their vocabulary if neither the user nor a checkpoint has given one. */
static int open_data(struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    struct model_config *model = &trainer->settings->model;
    const struct vocabulary *data = &trainer->data.vocabulary;
    if (training_data_open(settings->data_dir, settings->eval_iters > 0, &trainer->data) ||
        check_tokenizer(trainer)) {
        return -1;
    }
    model->vocab_size = model->vocab_size ? model->vocab_size : vocabulary_of_model(data);
    if (model->vocab_size == 0) {
        return training_data_fail_without_vocabulary(settings->data_dir);
    }
    if (data->size > model->vocab_size && trainer->initial.files.folder && data->tokenizer_json) {
        PRINT(trainer, /* tokens may have been added after training */
              "warning  the tokenizer has %" PRId64 " tokens, and the model %" PRId64
              " of them: a text with one of the others would end the run\n",
              data->size, model->vocab_size);
    } else if (data->size > model->vocab_size) {
        return error_set("%s has a vocabulary of %" PRId64 " tokens%s, the model one of %" PRId64
                         ": give vocab_size = %" PRId64 " or more",
                         settings->data_dir, data->size,
                         files_exist(path_of("%s/meta.json", settings->data_dir).text)
                             ? ""
                             : " (that of its token shards, unless a meta.json says \"vocab_size\")",
                         model->vocab_size, data->size);
    }
    /* Rows of the token embedding that no token uses cost memory and time: a config file may have another
     * tokenizer's size. */
    if (!trainer->initial.files.folder && data->size > 0 && model->vocab_size > 2 * data->size) {
        PRINT(trainer,
              "warning  vocabulary %" PRId64 ", of which the data use %" PRId64
              ": leave vocab_size out, or prepare the text with another hc_prepare --tokenizer\n",
              model->vocab_size, data->size);
    }
    return *model->tokenizer ? 0 : model_config_set_tokenizer(model, data->tokenizer);
}

/* ---- model and device */

static void print_model(const struct trainer *trainer) {
    const struct model_config *model = &trainer->settings->model;
    const struct parameters *parameters = &trainer->gpt.parameters;
    const uint64_t frozen = frozen_elements(parameters);
    PRINT(trainer, "model    %s, %s, %s, %s, %s, %s of context, vocabulary %" PRId64 "\n", model->residual->name,
          message_count(model->n_streams, "stream").text, message_count(model->n_layer, "layer").text,
          message_count(model->n_head, "head").text, message_count(model->n_embd, "channel").text,
          message_count(model->block_size, "token").text, model->vocab_size);
    PRINT(trainer,
          "         %.4g parameters (%" PRIu64 "), of which %.4g auxiliary (%" PRIu64 ") in hyper-connections\n",
          (double)parameters->total, parameters->total, (double)parameters->auxiliary, parameters->auxiliary);
    if (frozen > 0) {
        PRINT(trainer, "         %.4g frozen (%" PRIu64 "): they keep their values\n", (double)frozen, frozen);
    }
    if (trainer->initial.upcycles) {
        PRINT(trainer,
              "         begins as the plain model in %s: the same function, until training makes the streams "
              "different\n",
              trainer->settings->init_from);
    }
    if (trainer->gpt.options.type != ELEMENT_FP32) {
        PRINT(trainer, "         activations in %s, master weights in %s\n",
              element_name(trainer->gpt.options.type),
              trainer->gpt.options.optimizer.master == ELEMENT_FP32 ? "fp32" : "bf16, small ones in fp32");
    }
    const struct optimizer_settings *optimizer = &trainer->gpt.options.optimizer;
    if (optimizer->moments != ELEMENT_FP32) {
        PRINT(trainer, "         optimizer's states in %s\n", element_name((enum element_type)optimizer->moments));
    }
    if (trainer->gpt.optimizer->matrices) {
        PRINT(trainer, "         optimizer's matrices in %s\n",
              element_name(optimizer_matrix_type(optimizer, trainer->compute, trainer->gpt.options.type)));
    }
    PRINT(trainer, "memory%s\n", trainer->ranks->count > 1 ? "   of each rank" : "");
    memory_plan_print(&trainer->gpt.plan, trainer->console);
}

/* From here on the settings have the types of activations and of the optimizer's matrices that were chosen: a
 * resumed run goes on with these. Collective. */
static int open_device(struct trainer *trainer) {
    struct train_settings *settings = trainer->settings;
    struct type_choice choice;
    settings->device.unverified = settings->plan_only;
    settings->device.model = trainer->fit.model;
    settings->device.dry = trainer->fit.model != NULL;
    struct background_compile *background = &trainer->background;
    *background = (struct background_compile){.specs = settings->specs,
                                              .spec_count = settings->spec_count,
                                              .model = &settings->model,
                                              .option = "--init-from=scratch"};
    snprintf(background->purpose, sizeof background->purpose,
             "training, type %d, optimizer %d, moments %d, master %d, recompute %d", settings->dtype,
             settings->optimizer.optimizer, settings->optimizer.moments, settings->optimizer.master,
             settings->recompute);
    settings->device.background = settings->plan_only || trainer->ranks->count > 1 ? NULL : background;
    if (type_choice_open(&settings->device, settings->dtype, (size_t)settings->model.n_embd, trainer->ranks,
                         &trainer->compute, &choice)) {
        return -1;
    }
    settings->dtype = (int)choice.type;
    if (type_choice_optimizer(trainer->compute, choice.type, trainer->ranks, &settings->optimizer)) {
        return -1;
    }
    if (trainer_is_first(trainer)) {
        type_choice_print_device(&choice, trainer->compute, trainer->console);
    }
    return 0;
}

static int plan_model(struct trainer *trainer) {
    struct train_settings *settings = trainer->settings;
    const struct ranks *ranks = trainer->ranks;
    const struct device *device = &trainer->compute->device;
    if ((settings->fit &&
         fit_choose(&trainer->fit, settings, trainer->ranks, trainer->compute, trainer->console)) ||
        data_parallel_plan(&trainer->parallel, trainer->ranks, settings, trainer->compute, &trainer->gpt)) {
        return -1;
    }
    if (ranks->count > 1) {
        PRINT(trainer, "ranks    %d, hosts %d, micro-batches of each rank %" PRId64 ", CPU cores of rank 0 %u\n",
              ranks->count, ranks->hosts, trainer->micro_steps, host_cores());
    }
    /* Two ranks on one GPU would fight for it. Which GPUs a launcher shows to which rank cannot be known here. */
    if (device->is_gpu && device->gpus > 0 && ranks->local_count > (int)device->gpus) {
        PRINT(trainer,
              "warning  %d ranks on %s see the same GPUs, %u in number: they share them unless the launcher shows "
              "each rank another one\n",
              ranks->local_count, ranks->host, device->gpus);
    }
    print_model(trainer);
    return memory_plan_check(&trainer->gpt.plan, device);
}

/* ---- ckpt-best: the weights with the lowest validation loss of a run. The rule:
 *
 *   written    after an evaluation whose loss is lower than the lowest so far (evaluate in train_loop.c);
 *   kept       when a run is resumed, with the lower one of two losses: of the checkpoint that is resumed, and of a
 *              ckpt-best that a later iteration wrote before the run went back;
 *   forgotten  when a run is resumed and its losses do not compare any more, since val.bin or the tokens of it that
 *              are scored are others, or ckpt-best is gone. Only the number is forgotten: the files stay until the
 *              next evaluation writes new ones. */

static void forget_best(struct training_state *state) {
    state->best_val_loss = HUGE_VAL;
    state->best_iteration = -1;
}

/* Whether a digest, or a description of what is scored, is another one now; "" where there is none. */
static bool has_another(const char *before, const char *now) {
    return *before && *now && strcmp(before, now) != 0;
}

/* Keeps or forgets the best loss by this rule; `before` is the state of the checkpoint that is resumed. Rank 0's
 * folder counts. Collective: all ranks get the same state. */
static int resume_best(struct trainer *trainer, const struct training_state *before) {
    struct training_state *state = &trainer->state;
    const bool other_file = has_another(before->val_digest, state->val_digest);
    const bool other_tokens = before->best_iteration >= 0 && has_another(before->evaluation, state->evaluation);
    if (other_file || other_tokens) {
        forget_best(state);
    }
    if (other_tokens && !other_file) {
        PRINT(trainer, "evaluate other tokens than before: the next evaluation makes a new ckpt-best\n");
    }
    if (trainer_is_first(trainer) && trainer->settings->resumes) {
        const struct path path = path_of("%s/" CHECKPOINT_BEST, trainer->folder.path.text);
        struct training_state best;
        if (!files_exist(path.text)) {
            forget_best(state);
        } else if (checkpoint_read_state(path.text, &best, NULL)) {
            error_clear(); /* it cannot be read, which costs the run nothing */
        } else if (strcmp(best.val_digest, state->val_digest) == 0 && /* older versions wrote no evaluation */
                   (!*best.evaluation || strcmp(best.evaluation, state->evaluation) == 0) &&
                   best.best_iteration > state->iteration && best.best_val_loss < state->best_val_loss) {
            state->best_iteration = best.best_iteration;
            state->best_val_loss = best.best_val_loss;
        }
    }
    return ranks_broadcast(trainer->ranks, state, sizeof *state);
}

/* ---- where the run stands */

static int resume(struct trainer *trainer, const char *folder) {
    struct train_settings *settings = trainer->settings;
    struct training_state *state = &trainer->state;
    if (checkpoint_resume(&trainer->initial.files, trainer_is_first(trainer), &trainer->gpt, state)) {
        return error_prefix("cannot resume from %s", folder);
    }
    if (checkpoint_iteration_of(strrchr(folder, '/') + 1) != state->iteration) {
        return error_set("%s is of iteration %" PRId64 ": give the folder its name back, ckpt-%" PRId64, folder,
                         state->iteration, state->iteration);
    }
    if (train_settings_given(settings, "seed") && state->seed != (uint64_t)settings->seed) {
        return error_set("%s was trained with seed %" PRIu64 ": a resumed run keeps it, leave seed out", folder,
                         state->seed);
    }
    settings->seed = (int64_t)state->seed;
    trainer->saved_at = state->iteration;
    trainer->saved_evaluation = state->evaluated_at;
    trainer->seconds_before = state->seconds;
    if (state->seconds >= settings->stop_seconds) {
        PRINT(trainer, "%s has trained for %.1f s and max_seconds is %g: give a larger --max-seconds to go on\n",
              folder, state->seconds, settings->stop_seconds);
    } else if (settings->stop_seconds < settings->max_seconds) {
        PRINT(trainer, "stops    after %g s this time; max_seconds of the run stays %g\n", settings->stop_seconds,
              settings->max_seconds);
    } else if (state->iteration >= settings->stop_at) {
        PRINT(trainer,
              "%s is at iteration %" PRId64 " and max_iters is %" PRId64 ": give a larger --max-iters to go on\n",
              folder, state->iteration, settings->stop_at);
    } else if (settings->stop_at < settings->max_iters) {
        PRINT(trainer, "stops    at iteration %" PRId64 " this time; max_iters of the run stays %" PRId64 "\n",
              settings->stop_at, settings->max_iters);
    }
    if (settings->extended && settings->optimizer.lr_decay_iters < settings->max_iters) {
        PRINT(trainer,
              "schedule max_iters is %" PRId64 " now, and lr_decay_iters is %" PRId64
              ": from there on the learning rate is min_lr = %g (--lr-decay-iters N changes that)\n",
              settings->max_iters, settings->optimizer.lr_decay_iters, settings->optimizer.min_lr);
    }
    return 0;
}

static int initialise(struct trainer *trainer) {
    struct train_settings *settings = trainer->settings;
    struct initial_model *initial = &trainer->initial;
    trainer->state = (struct training_state){.seed = (uint64_t)settings->seed, .evaluated_at = -1};
    forget_best(&trainer->state);
    if (settings->resumes) {
        return resume(trainer, initial->files.folder);
    }
    struct gpt *gpt = &trainer->gpt;
    const uint64_t seed = (uint64_t)settings->seed;
    if (!initial->files.folder) {
        return parameters_initialise(trainer->compute, &gpt->parameters, &settings->model, seed);
    }
    /* other ranks get the weights of the first */
    return trainer_is_first(trainer) ? model_files_load(&initial->files, seed, gpt) : 0;
}

/* The data must be what the run was trained on, wherever they lie. Without a file its digest is "". */
static int check_same_data(struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    const struct data_folder *data = trainer->data.folders;
    const char *folder = trainer->initial.files.folder;
    const char *what = trainer->data.count > 1 ? "mixture" : "file";
    if (settings->resumes && !*trainer->state.train_digest) {
        PRINT(trainer, "data     not compared: %s is of an older version, which kept no digests\n", folder);
    }
    for (int split = 0; split < 2; split++) {
        const struct token_file *file = split == 0 ? data->train : data->val;
        const char *now = split == 0 ? trainer->train_digest : trainer->val_digest;
        char *before = split == 0 ? trainer->state.train_digest : trainer->state.val_digest;
        const char *name = file && trainer->data.count == 1 ? file->name : settings->data_dir;
        const bool is_another = has_another(before, now);
        if (is_another && !settings->accept_new_data) {
            return error_set(
                "%s is not the %s that %s was trained on: losses would not compare. Put that back, or give "
                "--accept-new-data if the run shall go on with this one",
                name, what, folder);
        }
        if (is_another) {
            PRINT(trainer, "data     %s is another %s than before, as accepted\n", name, what);
        }
        if (*now) {
            memcpy(before, now, CHECKSUM_SIZE);
        }
    }
    return 0;
}

/* ---- batches */

/* A sampler of the training files of all folders. `rows`: sequences of an iteration. */
static int open_mixture(const struct trainer *trainer, struct batch_sampler *sampler, uint64_t seed,
                        const char *purpose, int64_t rows) {
    const struct train_settings *settings = trainer->settings;
    const struct training_data *data = &trainer->data;
    const struct token_shape shape = {settings->batch_size, settings->model.block_size};
    batch_sampler_create(sampler, seed, purpose, shape, rows, (uint32_t)settings->model.vocab_size);
    for (size_t i = 0; i < data->count; i++) {
        if (batch_sampler_add(sampler, data->folders[i].train, data->folders[i].share)) {
            return -1;
        }
    }
    return 0;
}

/* `auto` scores the whole validation split where it has at most this many times the tokens of eval_iters batches.
 */
enum { WHOLE_SPLIT_RATIO = 8 };

/* Decides which tokens evaluations score, and prints it. */
static int open_evaluation(struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    const struct training_data *data = &trainer->data;
    const bool by_seed = settings->eval_batches == EVAL_BATCHES_BY_SEED;
    const uint64_t seed = by_seed ? trainer->state.seed : ESTIMATE_SEED;
    const struct token_shape shape = {settings->batch_size, settings->model.block_size};
    const double sampled = (double)settings->eval_iters * (double)shape.batch * (double)shape.sequence;
    const char *train_name = data->count > 1 ? "the training mixture" : token_file_short_name(data->folders->train);
    size_t whole = 0;
    trainer->estimates = memory_zeroed(data->count, sizeof *trainer->estimates);
    if (open_mixture(trainer, &trainer->estimate_train, seed, ESTIMATE_PURPOSE("train"), shape.batch)) {
        return -1;
    }
    for (size_t i = 0; i < data->count; i++) {
        const struct token_file *file = data->folders[i].val;
        const uint64_t count = file->count;
        const bool is_whole =
            settings->eval_batches == EVAL_BATCHES_WHOLE ||
            (settings->eval_batches == EVAL_BATCHES_AUTO && (double)count <= WHOLE_SPLIT_RATIO * sampled);
        whole += is_whole;
        if (!is_whole) {
            batch_sampler_create(&trainer->estimates[i], seed, ESTIMATE_PURPOSE("val"), shape, shape.batch,
                                 (uint32_t)settings->model.vocab_size);
            if (batch_sampler_add(&trainer->estimates[i], file, 1.0)) {
                return -1;
            }
        }
        PRINT(trainer, "evaluate %.0f of %" PRIu64 " tokens of %s, %.0f of %s, at %s\n",
              is_whole ? (double)count : sampled, count, data->count > 1 ? file->name : token_file_short_name(file),
              sampled, train_name, by_seed ? "places that depend on the seed" : "the same places for every seed");
    }
    /* `auto` scores the shortest folders of a mixture whole, so that their number identifies them */
    snprintf(trainer->state.evaluation, sizeof trainer->state.evaluation,
             "%" PRId64 " batches of %" PRId64 "%s, whole folders %zu", settings->eval_iters, settings->batch_size,
             by_seed ? " by seed" : "", whole);
    if (whole == data->count) {
        snprintf(trainer->state.evaluation, sizeof trainer->state.evaluation, "whole");
    }
    return 0;
}

/* Makes the batches sequential, and prints how many iterations the data suffice for. */
static int open_sequence(struct trainer *trainer) {
    const struct token_file *file = trainer->data.folders->train;
    const struct train_settings *settings = trainer->settings;
    const struct training_state *state = &trainer->state;
    struct batch_sampler *sampler = &trainer->train;
    const uint64_t tokens = (uint64_t)(sampler->global_rows * sampler->shape.sequence);
    if (trainer->data.count > 1) {
        return error_set(
            "train_batches = sequential reads one folder in its order, and data_dir is a mixture: choose "
            "random or documents");
    }
    if (batch_sampler_set_sequential(sampler)) {
        return error_prefix("%s", file->name);
    }
    const bool repeats = !isfinite(settings->stop_seconds) && (uint64_t)settings->stop_at > sampler->pass;
    PRINT(trainer, "batches  in sequence: %" PRIu64 " iterations read %" PRIu64 " of %" PRIu64 " tokens of %s%s\n",
          sampler->pass, sampler->pass * (uint64_t)(sampler->global_rows * sampler->shape.sequence), file->count,
          token_file_short_name(file), repeats ? ", and then begin again" : "");
    if (state->tokens / tokens != (uint64_t)state->iteration || state->tokens % tokens != 0) {
        PRINT(trainer, "warning  iterations had another number of tokens before: in sequence, iteration i takes "
                       "the i-th piece of the data, so that some tokens are read twice or left out\n");
    }
    return 0;
}

/* Makes batches of whole documents, and prints how many sequences these fill, and in how many iterations. */
static int open_documents(struct trainer *trainer) {
    struct batch_sampler *sampler = &trainer->train;
    uint64_t all_empty = 0;
    if (batch_sampler_set_documents(sampler)) {
        return -1;
    }
    for (size_t i = 0; i < sampler->source_count; i++) {
        const struct batch_source *source = &sampler->sources[i];
        const double places = (double)source->window_count * (double)sampler->shape.sequence;
        const uint64_t empty = batch_sampler_count_empty(sampler, i);
        if (empty == source->window_count) {
            return error_set("%s: with block_size = %" PRId64 " all %" PRIu64 " sequences consist of prompts, and "
                             "there is nothing to learn: choose a larger block_size",
                             source->file->name, sampler->shape.sequence, empty);
        }
        PRINT(trainer, "batches  of documents: %zu of %s fill %.1f %% of %" PRIu64 " sequences\n",
              source->file->documents->count, source->file->name, 100.0 * (double)source->file->count / places,
              source->window_count);
        all_empty += empty;
    }
    if (sampler->source_count == 1) {
        PRINT(trainer, "         %.1f iterations read each document once\n",
              (double)sampler->sources->window_count / (double)sampler->global_rows);
    }
    if (all_empty > 0) {
        PRINT(trainer,
              "warning  %" PRIu64 " sequences consist of prompts, from which nothing is learned: choose a larger "
              "block_size\n",
              all_empty);
    }
    return 0;
}

static int open_samplers(struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    const struct training_state *state = &trainer->state;
    const struct training_data *data = &trainer->data;
    const int64_t rows = settings->gradient_accumulation_steps * settings->batch_size;
    for (size_t i = 0; data->count > 1 && i < data->count; i++) {
        PRINT(trainer, "data     %.4g %% of the sequences from %s\n", 100.0 * data->folders[i].share,
              data->folders[i].path);
    }
    if (open_mixture(trainer, &trainer->train, state->seed, "train", rows)) {
        return -1;
    }
    batch_sampler_resume(&trainer->train, state->iteration, state->tokens / (uint64_t)settings->model.block_size);
    if ((settings->train_batches == TRAIN_BATCHES_SEQUENTIAL && open_sequence(trainer)) ||
        (settings->train_batches == TRAIN_BATCHES_DOCUMENTS && open_documents(trainer))) {
        return -1;
    }
    return data->folders->val ? open_evaluation(trainer) : 0;
}

/* ---- the run directory */

/* Takes the run directory if it is there, before anything is read of it: another process may be writing, and would
 * remove checkpoints. It holds one run: starting another in it would mix their checkpoints and records. What it
 * holds is looked at when it is this process's, so that nothing comes between. */
static int lock_out_dir(struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    if (!trainer_is_first(trainer) || settings->plan_only || trainer->folder.descriptor >= 0 ||
        (!settings->resumes && !files_exist(settings->out_dir))) {
        return 0;
    }
    if (run_folder_open(&trainer->folder, settings->out_dir)) {
        return -1;
    }
    return run_folder_check(trainer->folder.path.text, !settings->resumes && !settings->start_over);
}

/* All that could be wrong has been found by now, on all ranks, and when the settings have been written the rest can
 * be: an earlier run may go. The settings begin with the program's version, since another one may have other
 * defaults, and the device's name as comments, of one line each whatever the driver calls it. */
static int open_run_directory(struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    const char *folder = trainer->folder.path.text;
    char head[1024];
    if (!trainer_is_first(trainer)) {
        return 0;
    }
    if (files_make_folder(settings->out_dir) || lock_out_dir(trainer)) {
        return -1;
    }
    message_write(head, sizeof head, "# Settings of a run of hctrain " HC_VERSION "\n" RUN_DEVICE_COMMENT "%s\n\n",
                  trainer->compute->device.name);
    char *options = options_text(settings->specs, settings->spec_count);
    char *text = memory_format("%s%s", head, options);
    const int status = files_write(path_of("%s/" RUN_SETTINGS, folder).text, text, strlen(text));
    free(options);
    free(text);
    if (status || (settings->start_over && run_folder_clear(folder)) ||
        run_log_open(&trainer->log, folder, settings->statistics_interval > 0, &trainer->state)) {
        return -1;
    }
    files_stage_clean(folder);
    return 0;
}

/* ---- all of it */

/* What can be known without a device. */
static int read_inputs(struct trainer *trainer) {
    struct train_settings *settings = trainer->settings;
    const bool resumes = settings->resumes;
    if (settings->start_over && resumes) {
        error_set("--start-over begins a run anew and --init-from resume goes on with it: give one of them");
        return fail_usage(trainer);
    }
    if (!resumes) { /* a resumed run has its schedule already */
        schedule_complete(settings->specs, settings->spec_count, settings->max_iters, &settings->optimizer,
                          trainer->console);
        if (schedule_check(&settings->optimizer)) {
            return fail_usage(trainer);
        }
    }
    if (lock_out_dir(trainer) || initial_model_read(&trainer->initial, settings)) {
        return -1;
    }
    unused_options_print(settings->specs, settings->spec_count, &settings->model, &settings->optimizer, resumes,
                         trainer->console);
    if ((settings->fit && fit_read(settings->fit, &trainer->fit)) ||
        data_parallel_divide(settings->gradient_accumulation_steps, trainer->ranks, &trainer->micro_steps)) {
        return fail_usage(trainer);
    }
    if (settings->model.vocab_size == 0 && open_data(trainer)) {
        return -1;
    }
    if (model_config_check(&settings->model) ||
        frozen_create(&settings->model, &settings->optimizer, true, &trainer->parameters)) {
        return fail_usage(trainer);
    }
    settings->parameters = &trainer->parameters;
    return 0;
}

static int prepare_run(struct trainer *trainer) {
    struct ranks *ranks = trainer->ranks;
    struct train_settings *settings = trainer->settings;
    if (ranks_agree(ranks, trainer->data.folders ? 0 : open_data(trainer))) {
        return -1;
    }
    /* the model was planned before the data said what its tokens are */
    memcpy(trainer->gpt.config.tokenizer, settings->model.tokenizer, sizeof trainer->gpt.config.tokenizer);
    if (training_data_compare(&trainer->data, ranks, settings->model.vocab_size, trainer->train_digest,
                              trainer->val_digest) ||
        initial_model_compare(&trainer->initial, settings, ranks) || same_job_settings(ranks, settings) ||
        (settings->eval_iters > 0 &&
         tokenizer_share_bytes(ranks, &trainer->gpt.config, trainer->data.folders->path,
                               &(struct tokenizer_settings){.tokenizer = "auto"}, &trainer->token_bytes)) ||
        data_parallel_create(&trainer->parallel)) {
        return -1;
    }
    int status = initialise(trainer);
    const struct training_state before = trainer->state;
    status = status || check_same_data(trainer) || open_samplers(trainer);
    if (ranks_agree(ranks, status) || resume_best(trainer, &before) ||
        data_parallel_share_weights(&trainer->gpt, ranks)) {
        return -1;
    }
    return ranks_agree(ranks, open_run_directory(trainer));
}

int trainer_set_up(struct trainer *trainer) {
    FILE *nowhere = trainer_is_first(trainer) ? NULL : fopen("/dev/null", "we");
    trainer->console = nowhere ? nowhere : stderr;
    if (ranks_agree(trainer->ranks, read_inputs(trainer)) || open_device(trainer) ||
        ranks_agree(trainer->ranks, plan_model(trainer))) {
        return -1;
    }
    return trainer->settings->plan_only ? 0 : prepare_run(trainer);
}

void trainer_tear_down(struct trainer *trainer) {
    background_compile_end(&trainer->background, trainer->compute,
                           trainer->state.iteration > trainer->progress.first);
    batch_sampler_release(&trainer->train);
    batch_sampler_release(&trainer->estimate_train);
    for (size_t i = 0; trainer->estimates && i < trainer->data.count; i++) {
        batch_sampler_release(&trainer->estimates[i]);
    }
    free(trainer->estimates);
    free(trainer->token_bytes);
    data_parallel_release(&trainer->parallel);
    gpt_release(&trainer->gpt);
    parameters_release(&trainer->parameters);
    trainer->settings->parameters = NULL;
    compute_close(trainer->compute);
    training_data_close(&trainer->data);
    model_files_close(&trainer->initial.files);
    run_folder_close(&trainer->folder);
    if (trainer->console && trainer->console != stderr) {
        fclose(trainer->console);
    }
}
