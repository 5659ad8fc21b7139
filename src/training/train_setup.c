#include "runtime/files/files.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
#include "src/checkpoint/config_file.h"
#include "src/training/evaluate.h"
#include "src/training/same_job.h"
#include "src/training/train_options.h"
#include "src/training/trainer.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool trainer_is_first(const struct trainer *trainer) {
    return trainer->ranks->index == 0;
}

/* ---- settings */

static bool was_given(const struct train_settings *settings, const char *name) {
    for (size_t i = 0; i < settings->spec_count; i++) {
        if (settings->specs[i].name && strcmp(settings->specs[i].name, name) == 0) {
            return settings->specs[i].given;
        }
    }
    return false;
}

static bool is_scratch(const struct train_settings *settings) {
    return strcmp(settings->init_from, "scratch") == 0;
}

static bool is_resume(const struct train_settings *settings) {
    return strcmp(settings->init_from, "resume") == 0;
}

/* The options' words follow the model, so that the settings that are saved name the one that is trained. */
static int replace_word(char **word, const char *value) {
    char *copy = strdup(value);
    if (!copy) {
        return error_set("out of memory");
    }
    free(*word);
    *word = copy;
    return 0;
}

static int check_same_model(const char *folder, const struct train_settings *settings,
                            const struct model_config *saved) {
    for (size_t i = 0; i < settings->spec_count; i++) {
        const struct option_spec *spec = &settings->specs[i];
        /* a vocabulary of 0 is whatever there is */
        const bool open = spec->name && strcmp(spec->name, "vocab_size") == 0 && settings->model.vocab_size == 0;
        if (spec->given && !open && !model_config_same(saved, &settings->model, spec->name)) {
            return error_set("%s was saved with another %s than the one given: leave it out, or start from scratch",
                             folder, spec->name);
        }
    }
    return 0;
}

/* A checkpoint brings its model: settings given beside it must agree, but the vocabulary of Hugging Face's models
 * may be enlarged. */
static int take_model_of(const char *folder, struct train_settings *settings) {
    struct model_config saved;
    if (config_file_read(folder, &saved)) {
        return -1;
    }
    if (saved.hugging_face_rows > 0 && was_given(settings, "vocab_size") &&
        settings->model.vocab_size > saved.vocab_size) {
        saved.vocab_size = settings->model.vocab_size;
    }
    if (check_same_model(folder, settings, &saved)) {
        return -1;
    }
    saved.freeze_gamma = was_given(settings, "freeze_gamma") ? settings->model.freeze_gamma : saved.freeze_gamma;
    saved.dropout = was_given(settings, "dropout") ? settings->model.dropout : saved.dropout;
    settings->model = saved;
    return replace_word(&settings->residual_name, saved.residual->name) ||
                   replace_word(&settings->stream_reduce, saved.norm_sum ? "norm_sum" : "sum_norm") ||
                   replace_word(&settings->activation, saved.gelu_tanh ? "gelu_tanh" : "gelu")
               ? -1
               : 0;
}

/* GPT-2's 50257 tokens are padded to 50304, as nanoGPT does: products are faster in round sizes. */
static int64_t padded_vocabulary(int64_t tokens) {
    return (tokens + 63) / 64 * 64;
}

/* The vocabulary of the data, unless the user or a checkpoint says another. */
static int choose_vocabulary(struct trainer *trainer) {
    struct model_config *model = &trainer->settings->model;
    if (model->vocab_size == 0) {
        const bool gpt2 = strcmp(trainer->data.tokenizer, "gpt2") == 0;
        model->vocab_size = gpt2 ? padded_vocabulary(trainer->data.vocab_size) : trainer->data.vocab_size;
    }
    if (model->vocab_size == 0) {
        return error_set("%s/meta.json does not exist, so vocab_size is needed (50304 for GPT-2's tokens, 256 for "
                         "bytes)",
                         trainer->settings->data_dir);
    }
    if (trainer->data.vocab_size > model->vocab_size) {
        return error_set("%s has a vocabulary of %" PRId64 " tokens, the model one of %" PRId64
                         ": give vocab_size = %" PRId64 " or more",
                         trainer->settings->data_dir, trainer->data.vocab_size, model->vocab_size,
                         trainer->data.vocab_size);
    }
    if (!*model->tokenizer) {
        memcpy(model->tokenizer, trainer->data.tokenizer, sizeof model->tokenizer);
    }
    return 0;
}

static int open_data(struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    return data_set_open(settings->data_dir, settings->eval_iters > 0, &trainer->data) || choose_vocabulary(trainer)
               ? -1
               : 0;
}

static int divide_work(struct trainer *trainer) {
    trainer->wrong_usage = data_parallel_divide(trainer->settings->gradient_accumulation_steps, trainer->ranks,
                                                &trainer->micro_steps) != 0;
    return trainer->wrong_usage ? -1 : 0;
}

/* A run directory holds one run: starting another in it would mix their checkpoints and records. */
static int check_out_dir(const struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    return is_resume(settings) || settings->start_over ? 0 : run_folder_check_free(trainer->folder.path);
}

/* Takes the run directory if it is there, before anything is read of it: another process may be writing, and would
 * remove checkpoints. What it holds is asked when it is this process's, so that nothing comes between. */
static int take_out_dir(struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    if (!trainer_is_first(trainer) || settings->plan_only || trainer->folder.descriptor >= 0 ||
        (!is_resume(settings) && !files_exist(settings->out_dir))) {
        return 0;
    }
    return run_folder_open(&trainer->folder, settings->out_dir) || check_out_dir(trainer) ? -1 : 0;
}

/* ---- model and device */

static void print_model(const struct trainer *trainer) {
    const struct model_config *model = &trainer->settings->model;
    const struct parameters *parameters = &trainer->gpt.parameters;
    fprintf(trainer->console, "model    %s", model->residual->name);
    if (!residual_is_plain(model->residual)) {
        fprintf(trainer->console, " with %" PRId64 " streams", model->n_streams);
    }
    fprintf(trainer->console,
            ": %" PRId64 " layers, %" PRId64 " heads, %" PRId64 " channels, %" PRId64
            " tokens of context, vocabulary %" PRId64 "\n",
            model->n_layer, model->n_head, model->n_embd, model->block_size, model->vocab_size);
    fprintf(trainer->console,
            "         %.4g parameters (%" PRIu64 "), of which %.4g auxiliary (%" PRIu64 ") in hyper-connections\n",
            (double)parameters->total, parameters->total, (double)parameters->auxiliary, parameters->auxiliary);
    if (trainer->gpt.options.type != ELEMENT_FP32) {
        fprintf(trainer->console, "         activations in %s, master weights and optimiser in fp32\n",
                element_name(trainer->gpt.options.type));
    }
    fprintf(trainer->console, "memory%s\n", trainer->ranks->count > 1 ? "   of each rank" : "");
    memory_plan_print(&trainer->gpt.plan, trainer->console);
}

static void print_ranks(const struct trainer *trainer) {
    const struct ranks *ranks = trainer->ranks;
    if (ranks->count == 1) {
        return;
    }
    fprintf(trainer->console, "ranks    %d on %d host%s, %" PRId64 " micro-batch%s each", ranks->count,
            ranks->hosts, ranks->hosts == 1 ? "" : "s", trainer->micro_steps,
            trainer->micro_steps == 1 ? "" : "es");
    if (trainer->compute->device.is_cpu) {
        fprintf(trainer->console, "; %u core%s for rank 0", host_cores(), host_cores() == 1 ? "" : "s");
    }
    fputc('\n', trainer->console);
}

/* Two ranks on one GPU would fight for it; the user should know. Which GPUs a launcher shows to which rank cannot
 * be told from here. */
static void warn_shared_device(const struct trainer *trainer) {
    const struct compute *compute = trainer->compute;
    const int ranks = trainer->ranks->local_count;
    if (!compute->device.is_gpu || ranks <= (int)compute->device.gpus) {
        return;
    }
    if (compute->device.gpus == 1) {
        fprintf(trainer->console,
                "warning  %d ranks on %s see one GPU: unless the launcher shows each another one, they share it\n",
                ranks, trainer->ranks->host);
    } else {
        fprintf(trainer->console, "warning  %d ranks share %u GPUs on %s\n", ranks, compute->device.gpus,
                trainer->ranks->host);
    }
}

static int plan_model(struct trainer *trainer) {
    struct train_settings *settings = trainer->settings;
    if (model_config_check(&settings->model)) {
        trainer->wrong_usage = true;
        return -1;
    }
    if (settings_open_device(&settings->device, settings_type(settings->dtype),
                             (unsigned)trainer->ranks->local_index, &trainer->compute) ||
        data_parallel_plan_model(&trainer->parallel, trainer->ranks, settings, trainer->compute, &settings->model,
                                 &trainer->gpt)) {
        return -1;
    }
    fprintf(trainer->console, "device   %s (%s), products by %s\n", trainer->compute->device.name,
            trainer->compute->device.platform_name, gemm_description(trainer->compute));
    print_ranks(trainer);
    warn_shared_device(trainer);
    print_model(trainer);
    return memory_plan_check(&trainer->gpt.plan, &trainer->compute->device);
}

/* ---- state, files */

/* One file of the data against the one that the run was trained on. The digest of either is "" where there is none.
 */
static int check_digest(const struct trainer *trainer, const char *folder, const char *name, const char *before,
                        const char *now, bool *changed) {
    if (!*before || !*now || strcmp(before, now) == 0) {
        return 0;
    }
    *changed = true;
    if (!trainer->settings->accept_new_data) {
        return error_set(
            "%s/%s is not the file that %s was trained on: losses would not compare. Put that file back, "
            "or give --accept-new-data if the run shall go on with this one",
            trainer->settings->data_dir, name, folder);
    }
    fprintf(trainer->console, "data     %s/%s is another file than before, as accepted\n",
            trainer->settings->data_dir, name);
    return 0;
}

/* The data must be what the run was trained on, wherever it lies now. With other data the best loss so far says
 * nothing. */
static int take_data(struct trainer *trainer, const char *folder) {
    struct training_state *state = &trainer->state;
    bool changed = false;
    if (check_digest(trainer, folder, "train.bin", state->train_digest, trainer->train_digest, &changed) ||
        check_digest(trainer, folder, "val.bin", state->val_digest, trainer->val_digest, &changed)) {
        return -1;
    }
    if (!*state->train_digest) {
        fprintf(trainer->console, "data     not compared: %s is of an older version, which kept no digests\n",
                folder);
    }
    if (changed) {
        state->best_val_loss = HUGE_VAL;
        state->best_iteration = -1;
    }
    return 0;
}

static void note_digests(struct trainer *trainer) {
    struct training_state *state = &trainer->state;
    memcpy(state->train_digest, trainer->train_digest, sizeof state->train_digest);
    if (*trainer->val_digest) { /* else that of before stays */
        memcpy(state->val_digest, trainer->val_digest, sizeof state->val_digest);
    }
}

/* The weights with the lowest loss may be of a later iteration than the checkpoint that is resumed: those that are
 * to take their place must be better still, on the same data. Rank 0's folder counts, since all ranks must do the
 * same. */
static int take_best(struct trainer *trainer) {
    struct training_state best = {.best_iteration = -1}, *state = &trainer->state;
    if (trainer_is_first(trainer) && is_resume(trainer->settings)) {
        char *path = files_path("%s/" CHECKPOINT_BEST, trainer->folder.path);
        if (!path || checkpoint_read_state(path, &best, NULL)) {
            error_clear(); /* there is none, or none that can be read */
            best.best_iteration = -1;
        }
        free(path);
    }
    if (ranks_broadcast(trainer->ranks, &best, sizeof best)) {
        return -1;
    }
    const bool same_data = strcmp(best.val_digest, state->val_digest) == 0;
    if (same_data && best.best_iteration > state->iteration && best.best_val_loss < state->best_val_loss) {
        state->best_iteration = best.best_iteration;
        state->best_val_loss = best.best_val_loss;
    }
    return 0;
}

static int resume(struct trainer *trainer, const char *folder) {
    struct train_settings *settings = trainer->settings;
    if (checkpoint_resume(folder, &trainer->gpt, &trainer->state)) {
        return error_prefix("cannot resume from %s", folder);
    }
    const int64_t named = checkpoint_iteration_of(strrchr(folder, '/') + 1);
    if (named != trainer->state.iteration) {
        return error_set("%s is of iteration %" PRId64 ": give the folder its name back, ckpt-%" PRId64, folder,
                         trainer->state.iteration, trainer->state.iteration);
    }
    if (was_given(settings, "seed") && trainer->state.seed != (uint64_t)settings->seed) {
        return error_set("%s was trained with seed %" PRIu64 ": a resumed run keeps it, leave seed out", folder,
                         trainer->state.seed);
    }
    settings->seed = (int64_t)trainer->state.seed;
    trainer->saved_at = trainer->state.iteration;
    trainer->saved_evaluation = trainer->state.evaluated_at;
    trainer->seconds_before = trainer->state.seconds;
    if (trainer->state.iteration >= settings->stop_at) {
        fprintf(trainer->console,
                "%s is at iteration %" PRId64 " and max_iters is %" PRId64 ": give a larger --max-iters to go on\n",
                folder, trainer->state.iteration, settings->stop_at);
    } else if (settings->stop_at < settings->max_iters) {
        fprintf(trainer->console,
                "stops    at iteration %" PRId64 " this time; max_iters of the run stays %" PRId64 "\n",
                settings->stop_at, settings->max_iters);
    }
    return take_data(trainer, folder);
}

static int initialise(struct trainer *trainer, const char *folder) {
    struct train_settings *settings = trainer->settings;
    trainer->state = (struct training_state){.seed = (uint64_t)settings->seed,
                                             .best_val_loss = HUGE_VAL,
                                             .best_iteration = -1,
                                             .evaluated_at = -1};
    if (is_scratch(settings)) {
        return parameters_initialise(trainer->compute, &trainer->gpt.parameters, settings->model.n_streams,
                                     (uint64_t)settings->seed);
    }
    return is_resume(settings) ? resume(trainer, folder) : checkpoint_load_weights(folder, &trainer->gpt);
}

static int open_samplers(struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    const int64_t rows = settings->batch_size, sequence = settings->model.block_size;
    const uint64_t seed = trainer->state.seed;
    const uint32_t vocabulary = (uint32_t)settings->model.vocab_size;
    const char *folder = settings->data_dir;
    if (sampler_create(&trainer->train, trainer->data.train, seed, "train",
                       rows * settings->gradient_accumulation_steps, sequence, vocabulary) ||
        sampler_create(&trainer->evaluate_train, trainer->data.train, seed, EVALUATE_PURPOSE("train"), rows,
                       sequence, vocabulary)) {
        return error_prefix("%s/train.bin", folder);
    }
    if (trainer->data.val && sampler_create(&trainer->evaluate_val, trainer->data.val, seed,
                                            EVALUATE_PURPOSE("val"), rows, sequence, vocabulary)) {
        return error_prefix("%s/val.bin", folder);
    }
    trainer->tokens = malloc(2 * (size_t)(rows * sequence) * sizeof *trainer->tokens);
    return trainer->tokens ? 0 : error_set("out of memory");
}

static int write_settings(const struct train_settings *settings, const char *folder) {
    char *text = NULL, *path = files_path("%s/" RUN_SETTINGS, folder);
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    int status = stream && path ? options_write(settings->specs, settings->spec_count, stream) : -1;
    if (stream) {
        fclose(stream);
    }
    status = status ? error_set("out of memory") : files_write(path, text, bytes);
    free(text);
    free(path);
    return status;
}

/* All that could be wrong has been found by now, on all ranks, and when the settings have been written the rest can
 * be: an earlier run may go. */
static int make_out_dir(struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    return files_make_folder(settings->out_dir) || take_out_dir(trainer) ||
                   write_settings(settings, trainer->folder.path) ||
                   (settings->start_over && run_folder_clear(trainer->folder.path))
               ? -1
               : 0;
}

static int open_run_directory(struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    if (!trainer_is_first(trainer)) {
        return 0;
    }
    const struct run_log_options options = {.iteration = trainer->state.iteration,
                                            .evaluated_at = trainer->state.evaluated_at,
                                            .resumed = is_resume(settings),
                                            .tensorboard = settings->tensorboard,
                                            .statistics = settings->statistics_interval > 0};
    if (make_out_dir(trainer) || run_log_open(&trainer->log, trainer->folder.path, &options)) {
        return -1;
    }
    files_stage_clean(trainer->folder.path);
    return 0;
}

/* ---- all of it */

/* The checkpoint to begin with is part of the run that is to go. */
static int check_is_elsewhere(const struct train_settings *settings) {
    char *parent = is_scratch(settings) ? NULL : files_path("%s/..", settings->init_from);
    const bool inside = parent && files_are_same(parent, settings->out_dir);
    free(parent);
    return inside
               ? error_set("--start-over would remove %s, which the new run begins with: choose another --out-dir",
                           settings->init_from)
               : 0;
}

/* The newest checkpoint, now that no other process can change that; its settings have been read already. */
static char *find_resumed(const struct train_settings *settings) {
    char *newest = checkpoint_newest(settings->out_dir);
    if (newest && settings->resumed_from && strcmp(newest, settings->resumed_from) != 0) {
        error_set("another process has just written %s: give the command again", newest);
        free(newest);
        return NULL;
    }
    return newest;
}

/* What can be known without a device; *folder is the checkpoint to begin with, NULL for none. */
static int read_inputs(struct trainer *trainer, char **folder) {
    struct train_settings *settings = trainer->settings;
    if (settings->start_over && is_resume(settings)) {
        trainer->wrong_usage = true;
        return error_set("--start-over begins a run anew and --init-from resume goes on with it: give one of them");
    }
    if (take_out_dir(trainer) || (settings->start_over && check_is_elsewhere(settings))) {
        return -1;
    }
    if (is_resume(settings)) {
        *folder = find_resumed(settings);
    } else if (!is_scratch(settings)) {
        *folder = files_path("%s", settings->init_from);
    }
    if ((!is_scratch(settings) && !*folder) || (*folder && take_model_of(*folder, settings)) ||
        divide_work(trainer)) {
        return -1;
    }
    return settings->model.vocab_size == 0 ? open_data(trainer) : 0;
}

static int prepare_run(struct trainer *trainer, const char *folder) {
    const int opened = ranks_agree(trainer->ranks, trainer->data.train ? 0 : open_data(trainer));
    /* the model was planned before the data said what its tokens are */
    memcpy(trainer->gpt.config.tokenizer, trainer->settings->model.tokenizer, sizeof trainer->gpt.config.tokenizer);
    if (opened || same_job_check(trainer, folder) || data_parallel_create_model(&trainer->gpt, trainer->ranks)) {
        return -1;
    }
    const int status =
        initialise(trainer, folder) || open_samplers(trainer) || data_parallel_create(&trainer->parallel);
    note_digests(trainer);
    return ranks_agree(trainer->ranks, status) || take_best(trainer) ||
                   data_parallel_share_weights(&trainer->gpt, trainer->ranks) ||
                   ranks_agree(trainer->ranks, open_run_directory(trainer))
               ? -1
               : 0;
}

int trainer_set_up(struct trainer *trainer) {
    char *folder = NULL;
    trainer->console = trainer_is_first(trainer) ? stderr : fopen("/dev/null", "we");
    if (!trainer->console) {
        trainer->console = stderr;
    }
    int status = ranks_agree(trainer->ranks, read_inputs(trainer, &folder)) ||
                 ranks_agree(trainer->ranks, plan_model(trainer));
    if (status == 0 && !trainer->settings->plan_only) {
        status = prepare_run(trainer, folder);
    }
    free(folder);
    return status ? -1 : 0;
}

void trainer_tear_down(struct trainer *trainer) {
    sampler_release(&trainer->train);
    sampler_release(&trainer->evaluate_train);
    sampler_release(&trainer->evaluate_val);
    free(trainer->tokens);
    data_parallel_release(&trainer->parallel);
    gpt_release(&trainer->gpt);
    compute_close(trainer->compute);
    data_set_close(&trainer->data);
    run_folder_close(&trainer->folder);
    if (trainer->console && trainer->console != stderr) {
        fclose(trainer->console);
    }
}
