/* The training loop: micro-steps, optimizer steps, evaluations, checkpoints and what is logged of them. */
#include "runtime/device/profiler.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "src/measuring/batch_sampler.h"
#include "src/measuring/score_windows.h"
#include "src/training/trainer.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- checkpoints and evaluation */

static double seconds_trained(const struct trainer *trainer) {
    return trainer->seconds_before + progress_clock() - trainer->progress.start;
}

/* As ranks_agree, where ranks may have to wait for one that is silent: not for ever. Collective. */
static int any_rank_failed(struct trainer *trainer, int status) {
    double failures = status != 0;
    if (ranks_sum(trainer->ranks, &failures, 1)) {
        return -1;
    }
    return failures > 0.0 ? ranks_agree(trainer->ranks, status) : 0;
}

/* What is written of a checkpoint. */
enum extent {
    EXTENT_WEIGHTS,
    EXTENT_ALL,        /* weights and states */
    EXTENT_EVALUATION, /* into a checkpoint that has the rest: what an evaluation has changed */
};

/* Rank 0 writes while the others hand over their states, and wait: a slow disk is no rank that does not answer. */
static int write_checkpoint(struct trainer *trainer, const char *name, enum extent extent) {
    struct ranks *ranks = trainer->ranks;
    const struct path path = path_of("%s/%s", trainer->folder.path.text, name);
    const bool hands_over = extent == EXTENT_ALL && trainer->settings->shard_optimizer;
    const double timeout = ranks->timeout_seconds;
    int status = 0;
    ranks->timeout_seconds = 0.0;
    if (!trainer_is_first(trainer)) {
        status = hands_over ? checkpoint_hand_over(&trainer->gpt) : 0;
    } else if (extent == EXTENT_EVALUATION) { /* a link leads out of this run, which then evaluates again */
        status = files_is_link(path.text) ? 0 : checkpoint_update(path.text, &trainer->state);
    } else {
        const struct vocabulary *vocabulary = &trainer->data.vocabulary;
        status =
            checkpoint_save(path.text, &trainer->gpt,
                            &(struct checkpoint_content){.state = &trainer->state,
                                                         .settings = trainer->settings->specs,
                                                         .setting_count = trainer->settings->spec_count,
                                                         .optimizer = extent == EXTENT_ALL,
                                                         .files = &trainer->initial.files,
                                                         .tokenizer_json = vocabulary->tokenizer_json,
                                                         .tokenizer_json_bytes = vocabulary->tokenizer_json_bytes});
    }
    if (status == 0 || !hands_over) { /* else the job ends: the others may be anywhere in handing over */
        status = ranks_agree(ranks, status);
    }
    ranks->timeout_seconds = timeout;
    return status;
}

/* Makes a checkpoint of where the run stands, if there is none. Rank 0 writes it, after all ranks have been found
 * to stand at the same place. */
static int save_state(struct trainer *trainer) {
    char name[32];
    const bool saved = trainer->saved_at == trainer->state.iteration;
    if (saved && trainer->saved_evaluation == trainer->state.evaluated_at) {
        return 0;
    }
    trainer->state.seconds = seconds_trained(trainer);
    progress_end(&trainer->progress);
    snprintf(name, sizeof name, "ckpt-%" PRId64, trainer->state.iteration);
    trainer->cannot_save = true;
    if ((!saved && data_parallel_check_weights(&trainer->parallel)) ||
        write_checkpoint(trainer, name, saved ? EXTENT_EVALUATION : EXTENT_ALL)) {
        return -1;
    }
    trainer->cannot_save = false;
    trainer->saved_at = trainer->state.iteration;
    trainer->saved_evaluation = trainer->state.evaluated_at;
    PRINT(trainer, "saved    %s/%s\n", run_folder_name(&trainer->folder), name);
    return 0;
}

/* The same, and older ones beyond keep_checkpoints go. */
static int save_periodic(struct trainer *trainer) {
    if (save_state(trainer)) {
        return -1;
    }
    return trainer_is_first(trainer)
               ? checkpoint_prune(trainer->folder.path.text, trainer->settings->keep_checkpoints)
               : 0;
}

/* Measures both losses; that of validation is the mean of the folders' by their shares. The progress line counts
 * their batches or tokens. Prints them and writes them to the log. */
static int measure_losses(struct trainer *trainer, struct loss_sums *val) {
    const int64_t batches = trainer->settings->eval_iters;
    const struct training_data *data = &trainer->data;
    struct progress progress;
    struct loss_sums train = {0};
    double losses[TRAINING_DATA_MOST] = {0};
    progress_start(&progress, 0);
    progress.silent = trainer->progress.silent;
    if (!progress.terminal) { /* a log gets no more lines than from training alone */
        progress.shown = trainer->progress.shown;
    }
    char task[80];
    progress.task = task;
    snprintf(task, sizeof task, "evaluating %s: ", token_file_short_name(data->folders->train));
    progress_show(&progress, "batches", 0, batches, "");
    int status =
        estimate_loss(&trainer->gpt, trainer->ranks, &trainer->estimate_train, batches, &progress, NULL, &train);
    *val = (struct loss_sums){.targets = 1.0}; /* a mean one, by the shares of the folders */
    for (size_t i = 0; status == 0 && i < data->count; i++) {
        const struct data_folder *folder = &data->folders[i];
        struct batch_sampler *estimate = &trainer->estimates[i];
        struct loss_sums part = {.targets = 1.0};
        snprintf(task, sizeof task, "evaluating %s: ", token_file_short_name(folder->val));
        progress.start = progress_clock();
        status = estimate->source_count > 0 ? estimate_loss(&trainer->gpt, trainer->ranks, estimate, batches,
                                                            &progress, trainer->token_bytes, &part)
                                            : score_split(&trainer->gpt, trainer->ranks, folder->val, &progress,
                                                          trainer->token_bytes, &part);
        losses[i] = part.loss / part.targets;
        val->loss += folder->share * losses[i];
        val->text_loss += folder->share * (part.text_loss / part.targets);
        val->bytes += folder->share * (part.bytes / part.targets);
    }
    progress_end(&progress);
    if (status || any_rank_failed(trainer, training_data_check(data))) {
        return -1;
    }
    const double bits = loss_sums_bits(val);
    char shown[48] = "";
    if (isfinite(bits)) {
        snprintf(shown, sizeof shown, " (%.4f bits per byte)", bits);
    }
    PRINT(trainer, "iter %-6" PRId64 " validation loss %.4f%s, training loss %.4f\n", trainer->state.iteration,
          val->loss, shown, train.loss / train.targets);
    for (size_t i = 0; data->count > 1 && i < data->count; i++) {
        PRINT(trainer, "            validation loss %.4f of %s\n", losses[i], data->folders[i].path);
    }
    return ranks_agree(trainer->ranks,
                       run_log_evaluation(&trainer->log, trainer->state.iteration, train.loss / train.targets,
                                          val->loss, bits, seconds_trained(trainer), losses,
                                          data->count > 1 ? data->count : 0));
}

/* ckpt-best gets the weights if the loss is the lowest so far. */
static int evaluate(struct trainer *trainer) {
    const struct training_state before = trainer->state;
    struct loss_sums val;
    if (trainer->state.evaluated_at == trainer->state.iteration || trainer->settings->eval_iters == 0) {
        return 0;
    }
    if (measure_losses(trainer, &val)) {
        return -1;
    }
    trainer->state.evaluated_at = trainer->state.iteration;
    if (!(val.loss < trainer->state.best_val_loss)) {
        return 0;
    }
    trainer->state.best_val_loss = val.loss;
    trainer->state.best_iteration = trainer->state.iteration;
    if (write_checkpoint(trainer, CHECKPOINT_BEST, EXTENT_WEIGHTS)) {
        trainer->state = before; /* so that a resumed run evaluates again */
        return -1;
    }
    return 0;
}

/* ---- one iteration */

/* Whether h_statistics.jsonl gets a line: every statistics_interval iterations, and at the last one of this process
 * if max_iters ends it. */
static bool is_observed(const struct trainer *trainer, int64_t iteration) {
    const int64_t interval = trainer->settings->statistics_interval;
    return interval > 0 && (iteration % interval == 0 || iteration + 1 == trainer->settings->stop_at);
}

/* Micro-step `micro` of this rank's. Before the last batch of an iteration is used, and gradients go to other
 * ranks, all ranks agree that what they have read is what the run began with: else all stop here, where no weight
 * has seen anything else. Collective. */
static int micro_step(struct trainer *trainer, int64_t micro) {
    struct batch_sampler *sampler = &trainer->train;
    const int64_t iteration = trainer->state.iteration;
    const bool is_last = micro + 1 == trainer->micro_steps;
    /* this rank's place in the global batch: its rows follow those of the ranks before it */
    const int64_t first_row = (trainer->ranks->index * trainer->micro_steps + micro) * sampler->shape.batch;
    int status = batch_sampler_read(sampler, iteration, first_row);
    if (status || is_last) {
        status = training_data_check(&trainer->data) || status;
        if (status) {
            error_prefix("training stops before iteration %" PRId64, iteration);
        }
        if (any_rank_failed(trainer, status)) {
            return -1;
        }
    }
    if (gpt_set_batch(&trainer->gpt, sampler->shape, sampler->x, sampler->y)) {
        return -1;
    }
    const struct gpt_pass pass = {.dropout = true,
                                  .observe = is_observed(trainer, iteration),
                                  .seed = trainer->state.seed,
                                  .iteration = iteration,
                                  .first_row = (uint64_t)(first_row * sampler->shape.sequence)};
    gpt_forward(&trainer->gpt, pass); /* the device computes while the targets of the step are counted */
    return data_parallel_backward(&trainer->parallel, batch_sampler_weight(sampler, iteration), is_last);
}

/* What keeps this rank from going on though its weights are good, such as data or a disk that are gone. The others
 * hear of it with the results of the next step, and all stop where they then stand. */
static void note_failure(struct trainer *trainer, int status) {
    if (status && !*trainer->failure) {
        snprintf(trainer->failure, sizeof trainer->failure, "%s", error_text());
    }
    trainer->some_rank_failed |= status && trainer->ranks->count == 1;
}

/* All ranks have the same loss and norm, so all come here. No checkpoint goes: the last good ones are needed now.
 */
static int diverged(struct trainer *trainer, const struct step_metrics *metrics) {
    const int64_t iteration = trainer->state.iteration;
    note_failure(trainer, run_log_step(&trainer->log, metrics));
    if (save_state(trainer)) {
        return -1;
    }
    return ranks_agree(trainer->ranks,
                       error_set("the %s is not finite at iteration %" PRId64
                                 " (loss %g, gradient norm %g): the weights from before it are in %s/ckpt-%" PRId64
                                 ", older ones beside it; lower learning_rate, lengthen warmup_iters or check the "
                                 "data, and go on from one of them with --init-from",
                                 isfinite(metrics->loss) ? "gradient norm" : "loss", iteration, metrics->loss,
                                 metrics->gradient_norm, run_folder_name(&trainer->folder), iteration));
}

/* Collective: whether all ranks can go on. */
static int check_failure(struct trainer *trainer) {
    return ranks_agree(trainer->ranks, *trainer->failure ? error_set("%s", trainer->failure) : 0);
}

/* Forward, backward and optimizer step; *done is false if an interruption came first, which leaves the weights
 * alone. Several ranks finish the step: they stop together after it. */
static int iterate(struct trainer *trainer, struct step_metrics *metrics, bool *done) {
    const double start = progress_clock();
    const double tokens = (double)(trainer->train.global_rows * trainer->train.shape.sequence);
    const struct train_settings *settings = trainer->settings;
    struct optimizer_settings optimizer = settings->optimizer;
    struct loss_scale *scaling = &trainer->gpt.loss_scale;
    if (settings->max_seconds > 0.0) { /* the schedule is as far as the time */
        optimizer.schedule_now = (double)settings->max_iters * (trainer->seconds / settings->max_seconds);
    }
    *metrics = (struct step_metrics){.iteration = trainer->state.iteration,
                                     .rate = optimizer_rate(&optimizer, trainer->state.iteration),
                                     .loss_scale = scaling->dynamic ? (double)scaling->scale : 0.0};
    *done = false;
    gpt_zero(&trainer->gpt);
    for (int64_t micro = 0; micro < trainer->micro_steps; micro++) {
        if (interrupt_requested() && trainer->ranks->count == 1) {
            trainer->stopping = true;
            return 0;
        }
        if (micro_step(trainer, micro)) {
            return -1;
        }
    }
    float loss = 0.0f, norm = 0.0f;
    if (data_parallel_step(&trainer->parallel, &optimizer, trainer->state.iteration) ||
        gpt_read_results(&trainer->gpt, &loss, &norm)) {
        return -1;
    }
    double sums[4] = {(double)loss, interrupt_requested(), *trainer->failure != '\0',
                      trainer_is_first(trainer) ? seconds_trained(trainer) : 0.0};
    if (ranks_sum(trainer->ranks, sums, 4) || (trainer->compute->profiler && compute_finish(trainer->compute))) {
        return -1;
    }
    trainer->stopping = sums[1] > 0.0;
    trainer->some_rank_failed = sums[2] > 0.0;
    metrics->seconds = trainer->seconds = sums[3];
    metrics->loss = sums[0];
    metrics->gradient_norm = (double)norm;
    metrics->tokens = trainer->state.tokens + (uint64_t)tokens;
    metrics->tokens_per_second = tokens / (progress_clock() - start);
    metrics->utilisation = metrics->tokens_per_second * gpt_flops_per_token(&trainer->gpt) / trainer->gemm_rate;
    const int64_t skipped = scaling->skipped;
    const bool good = isfinite(metrics->loss) && loss_scale_update(scaling, isfinite(metrics->gradient_norm));
    metrics->skipped = scaling->skipped;
    metrics->was_skipped = scaling->skipped > skipped;
    if (!good) {
        return diverged(trainer, metrics);
    }
    if (!batch_sampler_has_targets(&trainer->train)) {
        metrics->loss = NAN;
    }
    trainer->state.tokens = metrics->tokens;
    *done = true;
    return 0;
}

/* An invariant of the variant that is violated is a defect of the program or the machine: reported once, with the
 * place where it is worst. */
static void report_violation(struct trainer *trainer, const struct h_violation *violation, const char *what,
                             const char *place, int64_t iteration) {
    trainer->reported_violations |= violation->invariant;
    progress_end(&trainer->progress);
    PRINT(trainer, "warning  %s of %s are exact with '%s', but one is %.9g in %s at iteration %" PRId64 "\n",
          violation->name, what, trainer->settings->model.residual->name, violation->value, place, iteration);
}

static int report_statistics(struct trainer *trainer, int64_t iteration) {
    const struct residual_variant *residual = trainer->settings->model.residual;
    struct h_measurement statistics;
    struct h_violation violation;
    char place[80];
    if (residual_reads_depth(residual)) { /* without H_res: rank 0 checks the weights over depth of its tokens */
        int status = 0;
        while (trainer_is_first(trainer) &&
               (status = depth_check(&violation, &trainer->gpt, ~trainer->reported_violations)) == 0 &&
               violation.invariant) {
            snprintf(place, sizeof place, "sublayer %zu", violation.sublayer);
            report_violation(trainer, &violation, "weights over depth", place, iteration);
        }
        return status;
    }
    if (!residual_has_matrices(residual)) {
        return 0;
    }
    if (h_measurement_of_pass(&statistics, &trainer->gpt, trainer->ranks)) {
        return error_prefix("H statistics");
    }
    if (trainer_is_first(trainer)) {
        note_failure(trainer, run_log_statistics(&trainer->log, &statistics, iteration));
        while ((violation = h_measurement_check(&statistics, ~trainer->reported_violations)).invariant) {
            snprintf(place, sizeof place, "transformer.h.%zu.%s", violation.sublayer / BRANCHES,
                     branches[violation.sublayer % BRANCHES]->hyper_connection);
            report_violation(trainer, &violation, "H_res", place, iteration);
        }
    }
    h_measurement_end(&statistics);
    return 0;
}

static int report(struct trainer *trainer, const struct step_metrics *metrics) {
    const struct train_settings *settings = trainer->settings;
    const int64_t iteration = metrics->iteration;
    char details[160];
    trainer->tokens_per_second = trainer->tokens_per_second > 0.0
                                     ? 0.9 * trainer->tokens_per_second + 0.1 * metrics->tokens_per_second
                                     : metrics->tokens_per_second;
    /* of a step that was left out: an overflow, which may show as NaN */
    const double norm = isfinite(metrics->gradient_norm) ? (double)metrics->gradient_norm : HUGE_VAL;
    char loss[32] = "no targets";
    if (isfinite(metrics->loss)) {
        snprintf(loss, sizeof loss, "loss %.4f", metrics->loss);
    }
    snprintf(details, sizeof details, "%s  grad %.3f  lr %.2e  %.0f tokens/s", loss, norm, metrics->rate,
             trainer->tokens_per_second);
    if (metrics->skipped > 0) {
        const size_t used = strlen(details);
        snprintf(details + used, sizeof details - used, "  skipped %" PRId64, metrics->skipped);
    }
    const bool timed = trainer->progress.of_seconds;
    char label[48] = "iter";
    if (timed) {
        snprintf(label, sizeof label, "iter %" PRId64 ", second", iteration + 1);
    }
    progress_show(&trainer->progress, label, timed ? (int64_t)trainer->seconds : iteration + 1,
                  timed ? (int64_t)settings->stop_seconds : settings->stop_at, details);
    if (iteration % settings->log_interval == 0 || metrics->was_skipped) {
        note_failure(trainer, run_log_step(&trainer->log, metrics));
    }
    return is_observed(trainer, iteration) ? report_statistics(trainer, iteration) : 0;
}

/* ---- the loop */

static int loop(struct trainer *trainer) {
    const struct train_settings *settings = trainer->settings;
    while (trainer->state.iteration < settings->stop_at && trainer->seconds < settings->stop_seconds &&
           !trainer->stopping) {
        const int64_t iteration = trainer->state.iteration;
        struct step_metrics metrics;
        bool done;
        if (trainer->train.before && (uint64_t)iteration == trainer->train.pass) { /* sequential batches */
            progress_end(&trainer->progress);
            PRINT(trainer, "batches  iteration %" PRId64 " begins again with the first tokens of %s\n", iteration,
                  token_file_short_name(trainer->train.sources->file));
        }
        interrupt_install(); /* again: the compiler in a driver may take signals for itself (LLVM does SIGUSR1) */
        if ((iteration % settings->eval_interval == 0 && evaluate(trainer)) ||
            (iteration > 0 && iteration % settings->checkpoint_interval == 0 && save_periodic(trainer)) ||
            iterate(trainer, &metrics, &done)) {
            return -1;
        }
        if (!done) {
            break;
        }
        trainer->state.iteration++;
        /* unlike devices differ after one step; hours later there would be nothing to save */
        if (iteration == trainer->progress.first && data_parallel_check_weights(&trainer->parallel)) {
            trainer->cannot_save = true;
            return -1;
        }
        if (report(trainer, &metrics) || (trainer->some_rank_failed && check_failure(trainer))) {
            return -1;
        }
    }
    if (!trainer->stopping && (evaluate(trainer) || save_periodic(trainer))) {
        return -1;
    }
    return check_failure(trainer);
}

static int print_profile(struct trainer *trainer) {
    const struct collective_times *times = &trainer->parallel.times;
    const double steps = (double)(trainer->state.iteration - trainer->progress.first);
    if (!trainer->compute->profiler || compute_finish(trainer->compute) || !trainer_is_first(trainer)) {
        return 0;
    }
    profiler_print_table(trainer->compute->profiler, trainer->console);
    if (trainer->parallel.collective && steps > 0.0 && times->active > 0.0) {
        PRINT(
            trainer,
            "exchange %.1f ms a step, %.1f ms of them not hidden behind computation; rank 0 sent %.2f MiB a step, "
            "and moved %.2f MiB in memory\n",
            1e3 * times->active / steps, 1e3 * fmin(times->exposed, times->active) / steps,
            times->sent / steps / 1048576.0, times->moved / steps / 1048576.0);
    }
    if (profiler_write_trace(trainer->compute->profiler,
                             path_of("%s/" RUN_TRACE, trainer->folder.path.text).text)) {
        return -1;
    }
    PRINT(trainer, "trace    %s/" RUN_TRACE " (open it in chrome://tracing or ui.perfetto.dev)\n",
          run_folder_name(&trainer->folder));
    return 0;
}

/* After a failure that left the weights as the last step made them, what the run has reached is not lost. Several
 * ranks save only what they all know to have failed: then they stand at the same place. */
static void save_what_is_left(struct trainer *trainer) {
    struct ranks *ranks = trainer->ranks;
    const bool advanced = trainer->state.iteration > trainer->progress.first;
    if (!advanced || (ranks->count > 1 && !ranks->agreed)) {
        return;
    }
    char *kept = error_keep();
    double unable = trainer->compute->failure || trainer->cannot_save; /* one rank may be without its device */
    ranks->agreed = false; /* it may fail while others are still in it */
    ranks->agreed = ranks_sum(ranks, &unable, 1) == 0;
    trainer->cannot_save = !ranks->agreed || unable > 0.0;
    if (!trainer->cannot_save) {
        ranks->agreed = false; /* rank 0 may fail while the others are still in it */
        const bool saved = save_state(trainer) == 0;
        ranks->agreed |= saved;
        if (!saved) {
            run_folder_explain(&trainer->folder);
            PRINT(trainer, "where the run stands is lost: %s\n", error_text());
        }
    }
    error_restore(kept);
}

static enum program_status run(struct trainer *trainer) {
    int status = data_parallel_measure_rate(&trainer->gpt, trainer->ranks, &trainer->gemm_rate);
    if (status == 0) {
        if (trainer->gpt.options.type != ELEMENT_FP32) {
            PRINT(trainer, "attention on %s\n", trainer->gpt.operations.attention_by);
        }
        PRINT(trainer, "rate     %.1f GFLOP/s in GEMMs of this shape%s\n", 1e-9 * trainer->gemm_rate,
              trainer->ranks->count > 1 ? ", on all ranks together" : "");
    }
    progress_start(&trainer->progress, trainer->state.iteration);
    trainer->progress.silent = !trainer_is_first(trainer);
    trainer->progress.of_seconds = trainer->settings->max_seconds > 0.0;
    trainer->seconds = trainer->state.seconds;
    status = status || loop(trainer);
    progress_end(&trainer->progress);
    const bool interrupted = status ? strcmp(error_text(), "interrupted") == 0 : trainer->stopping;
    if (interrupted) {
        return save_periodic(trainer) ? PROGRAM_FAILED : PROGRAM_INTERRUPTED;
    }
    if (status) {
        save_what_is_left(trainer);
        if ((trainer->compute->failure || trainer->cannot_save) && trainer->saved_at >= 0) {
            PRINT(trainer, "the newest checkpoint is %s/ckpt-%" PRId64 ": --init-from resume goes on from there\n",
                  run_folder_name(&trainer->folder), trainer->saved_at);
        }
        return PROGRAM_FAILED;
    }
    return print_profile(trainer) ? PROGRAM_FAILED : PROGRAM_DONE;
}

enum program_status train_run(struct train_settings *settings, struct ranks *ranks) {
    struct trainer trainer = {.settings = settings, .ranks = ranks, .folder = RUN_FOLDER_CLOSED, .saved_at = -1};
    enum program_status result = PROGRAM_FAILED;
    ranks->timeout_seconds = settings->rank_timeout;
    interrupt_install();
    if (trainer_set_up(&trainer) == 0) {
        result = settings->plan_only ? PROGRAM_DONE : run(&trainer);
        if (run_log_close(&trainer.log) && result == PROGRAM_DONE) {
            result = PROGRAM_FAILED;
        }
    } else if (trainer.wrong_usage) {
        result = PROGRAM_WRONG;
    }
    if (result == PROGRAM_FAILED || result == PROGRAM_WRONG) {
        run_folder_explain(&trainer.folder);
        ranks_end_others(ranks, "hc_train");
    }
    trainer_tear_down(&trainer);
    return result;
}
