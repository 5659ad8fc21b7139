#include "src/training/train_options.h"
#include "src/training/same_job.h"
#include <stdio.h>
#include <string.h>

#define INT(option, variable, initial, low, high, text)                                                            \
    {                                                                                                              \
        .type = OPTION_INT, .name = option, .target = &settings->variable, .default_value = initial,               \
        .minimum = low, .maximum = high, .help = text                                                              \
    }
#define PROCESS_BOOL(option, variable, text)                                                                       \
    {                                                                                                              \
        .type = OPTION_BOOL, .name = option, .target = &settings->variable, .default_value = "false",              \
        .help = text, .transient = true                                                                            \
    }
#define BOOL(option, variable, initial, text)                                                                      \
    { .type = OPTION_BOOL, .name = option, .target = &settings->variable, .default_value = initial, .help = text }
#define TEXT(option, variable, initial, text)                                                                      \
    { .type = OPTION_TEXT, .name = option, .target = &settings->variable, .default_value = initial, .help = text }
/* Of this process, not of the run: not among the settings that a resumed run goes on with. */
#define PROCESS_TEXT(option, variable, initial, text)                                                              \
    {                                                                                                              \
        .type = OPTION_TEXT, .name = option, .target = &settings->variable, .default_value = initial,              \
        .help = text, .transient = true                                                                            \
    }
#define CHOICE(option, variable, initial, words, text)                                                             \
    {                                                                                                              \
        .type = OPTION_CHOICE, .name = option, .target = &settings->variable, .default_value = initial,            \
        .choices = words, .help = text                                                                             \
    }
#define FLOAT(option, variable, initial, low, high, text)                                                          \
    {                                                                                                              \
        .type = OPTION_FLOAT, .name = option, .target = &settings->variable, .default_value = initial,             \
        .minimum = low, .maximum = high, .help = text                                                              \
    }
#define HEADING(text)                                                                                              \
    { .type = OPTION_HEADING, .help = text }

size_t train_options(struct train_settings *settings, struct option_spec *specs, size_t room) {
    const struct option_spec table[] = {
        HEADING("Data and results"),
        TEXT("data_dir", data_dir, "data/corpus/gcide",
             "folder with train.bin, val.bin and meta.json (hc_prepare)"),
        PROCESS_TEXT("out_dir", out_dir, "out", "run directory: checkpoints, metrics.jsonl, TensorBoard events"),
        PROCESS_TEXT(
            "init_from", init_from, "scratch",
            "scratch, resume (newest checkpoint and settings in out_dir), or a folder: a checkpoint, or a GPT-2 "
            "as Hugging Face's transformers saves it"),
        PROCESS_BOOL(
            "start_over", start_over,
            "out_dir holds a run: remove what it left there (checkpoints, records; no other files) and begin "
            "anew"),
        PROCESS_BOOL("accept_new_data", accept_new_data,
                     "resume with other token files than those that the run was trained on until now"),
        INT("seed", seed, "1337", 0, 9e15, "of initial weights, batches and dropout"),
        HEADING("Model"),
        CHOICE("residual", residual_name, "shc", "rc|identity|hc|mhc|mhc_lite|shc", "residual connection"),
        INT("n_streams", model.n_streams, "4", 1, RESIDUAL_MAX_STREAMS, "residual streams (rc has one)"),
        CHOICE("stream_reduce", stream_reduce, "norm_sum", "norm_sum|sum_norm",
               "at the top: norm each stream, then sum; or sum, then norm"),
        INT("sinkhorn_iters", model.sinkhorn_iters, "20", 1, 100, "iterations of mhc's normalisation"),
        BOOL("freeze_gamma", model.freeze_gamma, "false",
             "shc: keep the rotation gates gamma_u, gamma_v as they are"),
        INT("n_layer", model.n_layer, "4", 1, 1024, "layers, each an attention and an MLP block"),
        INT("n_head", model.n_head, "4", 1, 1024, "attention heads"),
        INT("n_embd", model.n_embd, "128", 1, 65536, "channels"),
        INT("block_size", model.block_size, "128", 1, 1 << 20, "tokens of context"),
        INT("vocab_size", model.vocab_size, "0", 0, 1 << 24, "tokens of the vocabulary; 0 takes meta.json's"),
        BOOL("bias", model.bias, "false", "biases in layer norms and linear layers"),
        CHOICE("activation", activation, "gelu", "gelu|gelu_tanh",
               "of the MLPs: exact GELU, or its approximation by tanh as in OpenAI's GPT-2"),
        FLOAT("dropout", model.dropout, "0", 0, 0.99, "of embedding, attention and branch outputs"),
        TYPE_OPTION(&settings->dtype),
        CHOICE("recompute", recompute, "off", "off|layer",
               "layer: keep the branches' activations of one layer only, and run each layer forward again in the "
               "backward pass; "
               "the same results with less memory, in about a quarter more time"),
        HEADING("Training"),
        INT("max_iters", max_iters, "1000", 0, 1e12,
            "optimiser steps in all; a resumed run goes on to more when more are given, and stops earlier, for "
            "this "
            "time only, at fewer"),
        INT("batch_size", batch_size, "8", 1, 1 << 20, "sequences in a micro-batch, per rank"),
        INT("gradient_accumulation_steps", gradient_accumulation_steps, "1", 1, 1e6,
            "micro-batches in one optimiser step, over all ranks"),
        OPTIMIZER_OPTIONS(&settings->optimizer),
        HEADING("Evaluation, checkpoints, logs"),
        INT("eval_interval", eval_interval, "250", 1, 1e12, "iterations between evaluations"),
        INT("eval_iters", eval_iters, "20", 0, 1e6, "batches of each split in an evaluation, 0 for none"),
        INT("checkpoint_interval", checkpoint_interval, "250", 1, 1e12, "iterations between checkpoints"),
        INT("keep_checkpoints", keep_checkpoints, "2", 1, 1e6, "newest checkpoints to keep, beside ckpt-best"),
        INT("log_interval", log_interval, "1", 1, 1e9, "iterations between lines of metrics.jsonl"),
        INT("statistics_interval", statistics_interval, "0", 0, 1e12,
            "iterations between lines of h_statistics.jsonl, the observations of H_res; 0 for none"),
        BOOL("tensorboard", tensorboard, "true", "write TensorBoard event files"),
        PROCESS_BOOL("plan_only", plan_only, "print parameters and memory, and stop"),
        HEADING("Data parallel (mpirun -np N)"),
        CHOICE("allreduce_dtype", allreduce_dtype, "fp32", "fp32|bf16",
               "gradients travel between ranks as float, or as bfloat16: half the bytes, less exact"),
        FLOAT("allreduce_bucket", allreduce_bucket, "16", 0.001, 1024,
              "MiB of gradients that are sent together, while the backward pass goes on"),
        BOOL("shard_optimizer", shard_optimizer, "false",
             "each rank keeps and updates its part of the optimiser's moments (ZeRO stage 1)"),
        FLOAT("rank_timeout", rank_timeout, "600", 0, 1e9,
              "seconds without an answer from another rank until the job ends, 0 for never"),
        DEVICE_OPTIONS(&settings->device),
        PROFILE_OPTION(&settings->device),
    };
    const size_t count = sizeof table / sizeof *table;
    memcpy(specs, table, (count < room ? count : room) * sizeof *specs);
    return count;
}

void train_options_apply(struct train_settings *settings, const struct option_spec *specs, size_t count) {
    settings->specs = specs;
    settings->spec_count = count;
    settings->model.residual = residual_find(settings->residual_name);
    settings->model.norm_sum = strcmp(settings->stream_reduce, "norm_sum") == 0;
    settings->model.gelu_tanh = strcmp(settings->activation, "gelu_tanh") == 0;
}

int train_start_ranks(const char *program, struct ranks *ranks) {
    device_prepare_environment();
    if (ranks_start(ranks)) {
        return settings_fail(program, 1);
    }
    if (ranks->index > 0 && !freopen("/dev/null", "w", stdout)) {
        fclose(stdout);
    }
    if (same_job_program(ranks)) {
        ranks_end_others(ranks, program);
        const int status = ranks->index == 0 ? settings_fail(program, 1) : 1;
        ranks_stop(ranks);
        return status;
    }
    return 0;
}
