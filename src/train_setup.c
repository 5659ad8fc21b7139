#include "runtime/error.h"
#include "runtime/files.h"
#include "runtime/gemm.h"
#include "runtime/host.h"
#include "src/evaluate.h"
#include "src/same_job.h"
#include "src/train_options.h"
#include "src/trainer.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    if (model_config_read(folder, &saved)) {
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

/* A run directory holds one run: starting another in it would mix their checkpoints. */
static int check_out_dir(const struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    if (!trainer_is_first(trainer) || is_resume(settings) || !files_exist(settings->out_dir)) {
        return 0;
    }
    char *newest = checkpoint_newest(settings->out_dir);
    if (!newest) {
        error_clear();
        return 0;
    }
    error_set(
        "%s already holds a run (%s): continue it with --init-from resume, choose another --out-dir, or remove "
        "it",
        settings->out_dir, newest);
    free(newest);
    return -1;
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
    const struct gpt_options options = train_model_options(settings, trainer->ranks);
    if (model_config_check(&settings->model)) {
        trainer->wrong_usage = true;
        return -1;
    }
    if (settings_open_device(&settings->device, options.type, (unsigned)trainer->ranks->local_index,
                             &trainer->compute) ||
        gpt_plan(trainer->compute, &settings->model, &options, &trainer->gpt)) {
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

static int resume(struct trainer *trainer, const char *folder) {
    struct train_settings *settings = trainer->settings;
    if (checkpoint_resume(folder, &trainer->gpt, &trainer->state)) {
        return error_prefix("cannot resume from %s", folder);
    }
    if (was_given(settings, "seed") && trainer->state.seed != (uint64_t)settings->seed) {
        return error_set("%s was trained with seed %" PRIu64 ": a resumed run keeps it, leave seed out", folder,
                         trainer->state.seed);
    }
    settings->seed = (int64_t)trainer->state.seed;
    trainer->saved_at = trainer->state.iteration;
    trainer->seconds_before = trainer->state.seconds;
    if (trainer->state.iteration >= settings->max_iters) {
        fprintf(trainer->console,
                "%s is at iteration %" PRId64 " and max_iters is %" PRId64 ": give a larger --max-iters to go on\n",
                folder, trainer->state.iteration, settings->max_iters);
    }
    return 0;
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

static int write_settings(const struct train_settings *settings) {
    char *text = NULL, *path = files_path("%s/settings.conf", settings->out_dir);
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

static int open_run_directory(struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    if (!trainer_is_first(trainer)) {
        return 0;
    }
    const struct run_log_options options = {trainer->state.iteration, settings->tensorboard,
                                            settings->statistics_interval > 0};
    if (files_make_folder(settings->out_dir) ||
        (trainer->lock < 0 && files_lock_folder(settings->out_dir, &trainer->lock)) || write_settings(settings) ||
        run_log_open(&trainer->log, settings->out_dir, &options)) {
        return -1;
    }
    files_stage_clean(settings->out_dir);
    return 0;
}

/* ---- all of it */

/* What can be known without a device; *folder is the checkpoint to begin with, NULL for none. */
static int read_inputs(struct trainer *trainer, char **folder) {
    struct train_settings *settings = trainer->settings;
    if (is_resume(settings)) {
        if (trainer_is_first(trainer) && files_lock_folder(settings->out_dir, &trainer->lock)) {
            return -1; /* before its checkpoints are read, which another process may remove */
        }
        *folder = checkpoint_newest(settings->out_dir);
    } else if (!is_scratch(settings)) {
        *folder = files_path("%s", settings->init_from);
    }
    if ((!is_scratch(settings) && !*folder) || (*folder && take_model_of(*folder, settings)) ||
        check_out_dir(trainer) || divide_work(trainer)) {
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
    const int status = initialise(trainer, folder) || open_samplers(trainer) || open_run_directory(trainer) ||
                       data_parallel_create(&trainer->parallel, &trainer->gpt, trainer->ranks);
    return ranks_agree(trainer->ranks, status) || data_parallel_share_weights(&trainer->gpt) ? -1 : 0;
}

int trainer_set_up(struct trainer *trainer) {
    char *folder = NULL;
    trainer->lock = -1;
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
    if (trainer->lock >= 0) {
        close(trainer->lock);
    }
    if (trainer->console && trainer->console != stderr) {
        fclose(trainer->console);
    }
}
