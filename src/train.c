#include "src/train.h"
#include "runtime/error.h"
#include "runtime/files.h"
#include "runtime/gemm.h"
#include "runtime/interrupt.h"
#include "runtime/profiler.h"
#include "runtime/progress.h"
#include "src/checkpoint.h"
#include "src/data_set.h"
#include "src/evaluate.h"
#include "src/run_log.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct trainer {
    struct train_settings *settings;
    struct data_set data;
    struct compute *compute;
    struct gpt gpt;
    struct sampler train, evaluate_train, evaluate_val;
    struct training_state state;
    struct run_log log;
    struct progress progress;
    int32_t *tokens;          /* [2, batch_size, block_size] */
    double gemm_rate;         /* FLOP/s, what mfu is relative to */
    int64_t evaluated_at;     /* iteration of the last evaluation, -1 before */
    int64_t saved_at;         /* iteration of the last checkpoint, -1 before */
    double tokens_per_second; /* smoothed, for the progress line */
    double val_loss;          /* of the last evaluation */
};

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

/* A checkpoint brings its model: settings given beside it must agree. */
static int take_model_of(const char *folder, struct train_settings *settings) {
    struct model_config saved;
    if (model_config_read(folder, &saved)) {
        return -1;
    }
    for (size_t i = 0; i < settings->spec_count; i++) {
        const struct option_spec *spec = &settings->specs[i];
        /* rc has one stream whatever is asked for, and a vocabulary of 0 is whatever there is */
        const bool open = spec->name && ((strcmp(spec->name, "n_streams") == 0 && residual_is_plain(saved.residual)) ||
                                         (strcmp(spec->name, "vocab_size") == 0 && settings->model.vocab_size == 0));
        if (spec->given && !open && !model_config_same(&saved, &settings->model, spec->name)) {
            return error_set("%s was saved with another %s than the one given: leave it out, or start from scratch",
                             folder, spec->name);
        }
    }
    saved.freeze_gamma = settings->model.freeze_gamma;
    saved.dropout = settings->model.dropout;
    settings->model = saved;
    return 0;
}

/* The vocabulary of the data, unless the user or a checkpoint says another. */
static int choose_vocabulary(struct trainer *trainer) {
    struct model_config *model = &trainer->settings->model;
    if (model->vocab_size == 0) {
        model->vocab_size = trainer->data.vocab_size;
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

/* ---- setting up */

static void print_model(const struct trainer *trainer) {
    const struct model_config *model = &trainer->settings->model;
    const struct parameters *parameters = &trainer->gpt.parameters;
    fprintf(stderr, "model    %s", model->residual->name);
    if (!residual_is_plain(model->residual)) {
        fprintf(stderr, " with %" PRId64 " streams", model->n_streams);
    }
    fprintf(stderr,
            ": %" PRId64 " layers, %" PRId64 " heads, %" PRId64 " channels, %" PRId64
            " tokens of context, vocabulary %" PRId64 "\n",
            model->n_layer, model->n_head, model->n_embd, model->block_size, model->vocab_size);
    fprintf(stderr,
            "         %.4g parameters (%" PRIu64 "), of which %.4g auxiliary (%" PRIu64 ") in hyper-connections\n",
            (double)parameters->total, parameters->total, (double)parameters->auxiliary, parameters->auxiliary);
    fprintf(stderr, "memory\n");
    memory_plan_print(&trainer->gpt.plan, stderr);
}

static int open_model(struct trainer *trainer) {
    struct train_settings *settings = trainer->settings;
    const struct gpt_options options = {settings->batch_size, settings->model.block_size, GPT_TRAINING};
    if (settings_open_device(&settings->device, &trainer->compute) ||
        gpt_plan(trainer->compute, &settings->model, &options, &trainer->gpt)) {
        return -1;
    }
    fprintf(stderr, "device   %s (%s), products by %s\n", trainer->compute->device.name,
            trainer->compute->device.platform_name, gemm_name(trainer->compute));
    print_model(trainer);
    if (settings->plan_only) {
        return memory_plan_check(&trainer->gpt.plan, &trainer->compute->device);
    }
    return gpt_create(&trainer->gpt);
}

static int initialise(struct trainer *trainer, const char *folder) {
    struct train_settings *settings = trainer->settings;
    trainer->state =
        (struct training_state){.seed = (uint64_t)settings->seed, .best_val_loss = HUGE_VAL, .best_iteration = -1};
    if (is_scratch(settings)) {
        return parameters_initialise(trainer->compute, &trainer->gpt.parameters, settings->model.n_streams,
                                     (uint64_t)settings->seed);
    }
    if (!is_resume(settings)) {
        return checkpoint_load_weights(folder, &trainer->gpt);
    }
    if (checkpoint_resume(folder, &trainer->gpt, &trainer->state)) {
        return error_prefix("cannot resume from %s", folder);
    }
    if (was_given(settings, "seed") && trainer->state.seed != (uint64_t)settings->seed) {
        return error_set("%s was trained with seed %" PRIu64 ": a resumed run keeps it, leave seed out", folder,
                         trainer->state.seed);
    }
    settings->seed = (int64_t)trainer->state.seed;
    trainer->saved_at = trainer->evaluated_at = trainer->state.iteration;
    return 0;
}

static int open_samplers(struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    const int64_t rows = settings->batch_size, sequence = settings->model.block_size;
    const uint64_t seed = trainer->state.seed;
    const uint32_t vocabulary = (uint32_t)settings->model.vocab_size;
    const char *folder = settings->data_dir;
    if (sampler_create(&trainer->train, trainer->data.train, seed, "train",
                       rows * settings->gradient_accumulation_steps, sequence, vocabulary) ||
        sampler_create(&trainer->evaluate_train, trainer->data.train, seed, "evaluate train", rows, sequence,
                       vocabulary)) {
        return error_prefix("%s/train.bin", folder);
    }
    if (sampler_create(&trainer->evaluate_val, trainer->data.val, seed, "evaluate val", rows, sequence,
                       vocabulary)) {
        return error_prefix("%s/val.bin", folder);
    }
    trainer->tokens = malloc(2 * (size_t)(rows * sequence) * sizeof *trainer->tokens);
    return trainer->tokens ? 0 : error_set("out of memory");
}

/* A run directory holds one run: starting another in it would mix their checkpoints. */
static int check_out_dir(const struct train_settings *settings) {
    if (is_resume(settings) || !files_exist(settings->out_dir)) {
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

/* Started by mpirun, every process would train the same model into the same folder. */
static int check_alone(void) {
    const char *const sizes[] = {getenv("OMPI_COMM_WORLD_SIZE"), getenv("PMI_SIZE")};
    for (size_t i = 0; i < 2; i++) {
        if (sizes[i] && strtol(sizes[i], NULL, 10) > 1) {
            return error_set(
                "started as one of %s ranks, and data-parallel training is not part of this version: start "
                "one process without mpirun",
                sizes[i]);
        }
    }
    return 0;
}

static int set_up(struct trainer *trainer) {
    struct train_settings *settings = trainer->settings;
    char *folder = NULL;
    if (check_alone()) {
        return -1;
    }
    if (is_resume(settings)) {
        folder = checkpoint_newest(settings->out_dir);
    } else if (!is_scratch(settings)) {
        folder = files_path("%s", settings->init_from);
    }
    int status = (!is_scratch(settings) && !folder) || (folder && take_model_of(folder, settings)) ||
                 check_out_dir(settings);
    if (status == 0 && (!settings->plan_only || settings->model.vocab_size == 0)) {
        status = data_set_open(settings->data_dir, &trainer->data) || choose_vocabulary(trainer);
    }
    status = status || model_config_check(&settings->model) || open_model(trainer);
    if (status == 0 && !settings->plan_only) {
        status = initialise(trainer, folder) || open_samplers(trainer) || files_make_folder(settings->out_dir) ||
                 write_settings(settings) ||
                 run_log_open(&trainer->log, settings->out_dir, trainer->state.iteration, settings->tensorboard);
        if (status == 0) {
            files_stage_clean(settings->out_dir);
        }
    }
    free(folder);
    return status ? -1 : 0;
}

static void tear_down(struct trainer *trainer) {
    sampler_release(&trainer->train);
    sampler_release(&trainer->evaluate_train);
    sampler_release(&trainer->evaluate_val);
    free(trainer->tokens);
    gpt_release(&trainer->gpt);
    compute_close(trainer->compute);
    data_set_close(&trainer->data);
}

/* ---- checkpoints and evaluation */

static int save(struct trainer *trainer, const char *name, bool optimizer) {
    const struct checkpoint_content content = {.state = &trainer->state,
                                               .settings = trainer->settings->specs,
                                               .setting_count = trainer->settings->spec_count,
                                               .optimizer = optimizer};
    char *path = files_path("%s/%s", trainer->settings->out_dir, name);
    const int status = path ? checkpoint_save(path, &trainer->gpt, &content) : -1;
    free(path);
    return status;
}

/* A checkpoint of where the run stands, unless there is one; older ones beyond keep_checkpoints go. */
static int save_periodic(struct trainer *trainer) {
    if (trainer->saved_at == trainer->state.iteration) {
        return 0;
    }
    char name[32];
    snprintf(name, sizeof name, "ckpt-%" PRId64, trainer->state.iteration);
    progress_end(&trainer->progress);
    if (save(trainer, name, true)) {
        return -1;
    }
    trainer->saved_at = trainer->state.iteration;
    fprintf(stderr, "saved    %s/%s\n", trainer->settings->out_dir, name);
    return checkpoint_prune(trainer->settings->out_dir, trainer->settings->keep_checkpoints);
}

static int evaluate(struct trainer *trainer) {
    const int64_t iteration = trainer->state.iteration, batches = trainer->settings->eval_iters;
    double train_loss, val_loss;
    if (trainer->evaluated_at == iteration || batches == 0) {
        return 0;
    }
    progress_show(&trainer->progress, "iter", iteration, trainer->settings->max_iters, "evaluating", true);
    if (evaluate_loss(&trainer->gpt, &trainer->evaluate_train, batches, &train_loss) ||
        evaluate_loss(&trainer->gpt, &trainer->evaluate_val, batches, &val_loss)) {
        return -1;
    }
    trainer->evaluated_at = iteration;
    trainer->val_loss = val_loss;
    progress_end(&trainer->progress);
    fprintf(stderr, "iter %-6" PRId64 " validation loss %.4f, training loss %.4f\n", iteration, val_loss,
            train_loss);
    if (run_log_evaluation(&trainer->log, iteration, train_loss, val_loss,
                           progress_clock() - trainer->progress.start)) {
        return -1;
    }
    if (val_loss < trainer->state.best_val_loss) {
        trainer->state.best_val_loss = val_loss;
        trainer->state.best_iteration = iteration;
        return iteration > 0 ? save(trainer, "ckpt-best", false) : 0;
    }
    return 0;
}

/* ---- one iteration */

static int micro_step(struct trainer *trainer, int64_t micro) {
    const struct train_settings *settings = trainer->settings;
    const struct token_shape shape = {settings->batch_size, settings->model.block_size};
    const int64_t iteration = trainer->state.iteration, row = micro * shape.batch;
    int32_t *targets = trainer->tokens + shape.batch * shape.sequence;
    if (sampler_read(&trainer->train, iteration, row, shape.batch, trainer->tokens, targets) ||
        gpt_set_batch(&trainer->gpt, shape, trainer->tokens, targets)) {
        return -1;
    }
    gpt_forward(&trainer->gpt, (struct gpt_pass){.dropout = true,
                                                 .seed = trainer->state.seed,
                                                 .iteration = iteration,
                                                 .first_row = (uint64_t)(row * shape.sequence)});
    gpt_loss(&trainer->gpt, 1.0f / (float)settings->gradient_accumulation_steps, true);
    gpt_backward(&trainer->gpt);
    return compute_check(trainer->compute);
}

static int diverged(struct trainer *trainer, float loss, float norm) {
    const int64_t iteration = trainer->state.iteration;
    if (save_periodic(trainer)) {
        return -1;
    }
    return error_set("the loss is not finite at iteration %" PRId64
                     " (loss %g, gradient norm %g): the weights from "
                     "before it are in %s/ckpt-%" PRId64
                     "; lower learning_rate, lengthen warmup_iters or check the "
                     "data, and go on from there with --init-from",
                     iteration, (double)loss, (double)norm, trainer->settings->out_dir, iteration);
}

/* Forward, backward and optimiser step; *done is false if an interruption came first, which leaves the weights
 * alone. */
static int iterate(struct trainer *trainer, struct step_metrics *metrics, bool *done) {
    const struct train_settings *settings = trainer->settings;
    const double start = progress_clock();
    float loss = 0.0f, norm = 0.0f;
    *done = false;
    gpt_zero(&trainer->gpt);
    for (int64_t micro = 0; micro < settings->gradient_accumulation_steps; micro++) {
        if (interrupt_requested()) {
            return 0;
        }
        if (micro_step(trainer, micro)) {
            return -1;
        }
    }
    optimizer_step(&trainer->gpt, &settings->optimizer, trainer->state.iteration);
    if (gpt_read_results(&trainer->gpt, &loss, &norm) ||
        (trainer->compute->profiler && compute_finish(trainer->compute))) {
        return -1;
    }
    if (!isfinite(loss) || !isfinite(norm)) {
        return diverged(trainer, loss, norm);
    }
    const double tokens = (double)(trainer->train.global_rows * trainer->train.sequence);
    const double seconds = progress_clock() - start;
    trainer->state.tokens += (uint64_t)tokens;
    *metrics = (struct step_metrics){
        .iteration = trainer->state.iteration,
        .loss = (double)loss,
        .rate = optimizer_rate(&settings->optimizer, trainer->state.iteration),
        .gradient_norm = (double)norm,
        .tokens = trainer->state.tokens,
        .tokens_per_second = tokens / seconds,
        .utilisation = tokens / seconds * gpt_flops_per_token(&trainer->gpt) / trainer->gemm_rate,
        .seconds = progress_clock() - trainer->progress.start,
    };
    *done = true;
    return 0;
}

static int report_statistics(struct trainer *trainer, int64_t iteration) {
    struct h_statistics statistics;
    if (residual_is_plain(trainer->settings->model.residual)) {
        return 0;
    }
    if (h_statistics_compute(&trainer->gpt, &statistics)) {
        return error_prefix("H statistics");
    }
    const int status = run_log_statistics(&trainer->log, &statistics, iteration);
    h_statistics_release(&statistics);
    return status;
}

static int report(struct trainer *trainer, const struct step_metrics *metrics) {
    const struct train_settings *settings = trainer->settings;
    const int64_t iteration = metrics->iteration;
    char details[160];
    trainer->tokens_per_second = trainer->tokens_per_second > 0.0
                                     ? 0.9 * trainer->tokens_per_second + 0.1 * metrics->tokens_per_second
                                     : metrics->tokens_per_second;
    snprintf(details, sizeof details, "loss %.4f  grad %.3f  lr %.2e  %.0f tokens/s", metrics->loss,
             metrics->gradient_norm, metrics->rate, trainer->tokens_per_second);
    progress_show(&trainer->progress, "iter", iteration + 1, settings->max_iters, details, false);
    if (iteration % settings->log_interval == 0 && run_log_step(&trainer->log, metrics)) {
        return -1;
    }
    return settings->statistics_interval > 0 && iteration % settings->statistics_interval == 0
               ? report_statistics(trainer, iteration)
               : 0;
}

/* ---- the loop */

static int loop(struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    while (trainer->state.iteration < settings->max_iters) {
        const int64_t iteration = trainer->state.iteration;
        struct step_metrics metrics;
        bool done;
        if (iteration % settings->eval_interval == 0 && evaluate(trainer)) {
            return -1;
        }
        if (iteration > 0 && iteration % settings->checkpoint_interval == 0 && save_periodic(trainer)) {
            return -1;
        }
        if (iterate(trainer, &metrics, &done)) {
            return -1;
        }
        if (!done) {
            return 0;
        }
        if (report(trainer, &metrics)) {
            return -1;
        }
        trainer->state.iteration++;
    }
    return evaluate(trainer) || save_periodic(trainer) ? -1 : 0;
}

static int print_profile(struct trainer *trainer) {
    if (!trainer->compute->profiler || compute_finish(trainer->compute)) {
        return 0;
    }
    char *path = files_path("%s/trace.json", trainer->settings->out_dir);
    profiler_print_table(trainer->compute->profiler, stderr);
    const int status = path ? profiler_write_trace(trainer->compute->profiler, path) : -1;
    if (status == 0) {
        fprintf(stderr, "trace    %s (open it in chrome://tracing or ui.perfetto.dev)\n", path);
    }
    free(path);
    return status;
}

/* The measured rate of products of this model's shape, which mfu refers to. */
static int measure_rate(struct trainer *trainer) {
    const size_t width = (size_t)trainer->settings->model.n_embd, tokens = gpt_tokens(&trainer->gpt);
    if (gemm_measure_rate(trainer->compute, tokens < 1024 ? tokens : 1024, 4 * width, width, &trainer->gemm_rate)) {
        return -1;
    }
    fprintf(stderr, "rate     %.1f GFLOP/s in matrix products of this shape\n", 1e-9 * trainer->gemm_rate);
    return 0;
}

static enum train_result run(struct trainer *trainer) {
    int status = measure_rate(trainer);
    progress_start(&trainer->progress, trainer->state.iteration);
    status = status || loop(trainer);
    progress_end(&trainer->progress);
    if (interrupt_requested() && (status == 0 || strcmp(error_text(), "interrupted") == 0)) {
        if (save_periodic(trainer)) {
            return TRAIN_FAILED;
        }
        return TRAIN_INTERRUPTED;
    }
    return status || print_profile(trainer) ? TRAIN_FAILED : TRAIN_DONE;
}

enum train_result train_run(struct train_settings *settings) {
    struct trainer trainer = {.settings = settings, .evaluated_at = -1, .saved_at = -1};
    enum train_result result = TRAIN_FAILED;
    interrupt_install();
    if (set_up(&trainer) == 0) {
        result = settings->plan_only ? TRAIN_DONE : run(&trainer);
        if (run_log_close(&trainer.log) && result == TRAIN_DONE) {
            result = TRAIN_FAILED;
        }
    }
    tear_down(&trainer);
    return result;
}
