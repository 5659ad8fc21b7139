#include "src/evaluation/eval.h"
#include "runtime/files/files.h"
#include "runtime/files/input.h"
#include "runtime/files/json_file.h"
#include "runtime/files/token_file.h"
#include "runtime/files/token_shards.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/message.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/config_file.h"
#include "src/evaluation/score_documents.h"
#include "src/measuring/batch_sampler.h"
#include "src/measuring/score_windows.h"
#include "src/settings/type_choice.h"
#include "src/training/data_parallel.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct evaluation {
    const struct eval_settings *settings;
    struct ranks *ranks;
    bool is_first; /* of the ranks: it reads documents, writes and prints */
    struct model_files files;
    struct model_config config;
    struct token_file *file;     /* of --data */
    uint16_t *token_bytes;       /* of its tokens, see tokenizer_share_bytes */
    struct tokenizer *tokenizer; /* for documents, as below; rank 0's */
    struct documents *documents;
    struct compute *compute;
    struct type_choice choice; /* of the type of activations */
    struct gpt gpt;
    struct output_file json, per_document; /* rank 0's */
    struct progress progress;
    struct perplexity_sums total; /* the results: of documents and requests; of a split the tokens only */
    struct loss_sums sums;        /* of a split, */
    double loss;                  /* and their mean */
    double seconds;
};

/* ---- before there is a device */

static bool is_standard_output(const char *path) {
    return path && strcmp(path, "-") == 0;
}

static int check_usage(const struct eval_settings *settings) {
    if (!settings->checkpoint) {
        return error_set("--checkpoint is needed; see hc_eval --help");
    }
    if ((settings->data != NULL) == (settings->documents.count > 0)) {
        return error_set("%s: give either --data DIR with token files, or files of documents; see hc_eval --help",
                         settings->data ? "token files and documents at once" : "nothing to score");
    }
    if (is_standard_output(settings->json) && is_standard_output(settings->per_document)) {
        return error_set("--json and --per-document cannot both go to standard output");
    }
    if (settings->data && settings->per_document) {
        return error_set("--per-document is for documents: token files have none");
    }
    if (!settings->data && settings->eval_iters > 0) {
        return error_set("--eval-iters is for token files: give --data DIR, or leave it out");
    }
    if (settings->data && settings->score_padding == SCORE_PADDING_NO) {
        return error_set(
            "--score-padding no is for documents and requests: in the loss of token files all tokens of "
            "the model count, as in training");
    }
    if (!settings->documents.requests) {
        return 0;
    }
    if (settings->data || !settings->per_document) {
        return error_set("--score needs files of requests, and --per-document FILE for their results");
    }
    if (settings->documents.count_field || settings->documents.word == DOCUMENTS_FILES) {
        return error_set("--score reads JSON lines with context and continuation: leave out %s",
                         settings->documents.count_field ? "--count-field" : "--documents");
    }
    return 0;
}

/* Opens a file of results; an error if it would take the place of a file that is read. NULL: not wanted. */
static int open_result(const struct eval_settings *settings, const char *path, struct output_file *file) {
    if (!path) {
        return 0;
    }
    if (files_refuse_members(settings->checkpoint, checkpoint_files, path) ||
        (settings->data && (files_refuse_members(settings->data, token_folder_files, path) ||
                            token_shards_refuse_output(settings->data, path)))) {
        return -1;
    }
    for (size_t i = 0; i < settings->documents.count; i++) {
        if (files_refuse_same(path, settings->documents.names[i])) {
            return -1;
        }
    }
    return output_file_open(file, path);
}

/* Also the files of results, before hours of work for them. */
static int open_files(struct evaluation *evaluation) {
    const struct eval_settings *settings = evaluation->settings;
    const char *json = settings->json, *each = settings->per_document;
    const int status =
        model_files_open(settings->checkpoint, settings->adapter, settings->base, &evaluation->files);
    evaluation->config = evaluation->files.config;
    if (status || (settings->data && token_file_open_split(settings->data, settings->split, &evaluation->file))) {
        return -1;
    }
    if (!evaluation->is_first) {
        return 0;
    }
    if (!settings->data && (documents_open(&settings->documents, &evaluation->documents) ||
                            tokenizer_open_for(&evaluation->config, settings->checkpoint, &settings->tokenizer,
                                               &evaluation->tokenizer))) {
        return -1;
    }
    if (json && each && (strcmp(json, each) == 0 || files_are_same(json, each))) {
        return error_set("--json and --per-document name the same file");
    }
    if (open_result(settings, json, &evaluation->json)) {
        return -1;
    }
    return open_result(settings, each, &evaluation->per_document);
}

static int set_up(struct evaluation *evaluation) {
    const struct eval_settings *settings = evaluation->settings;
    const struct model_config *config = &evaluation->config;
    struct ranks *ranks = evaluation->ranks;
    struct gpt *gpt = &evaluation->gpt;
    char digest[CHECKSUM_SIZE] = "";
    if (ranks_agree(ranks, open_files(evaluation))) {
        return -1;
    }
    int status = checksum_file(path_of("%s/config.json", settings->checkpoint).text, digest);
    if (same_job_digest(ranks, status, digest, "the checkpoint's config.json",
                        "all hosts need the same checkpoint")) {
        return -1;
    }
    if (evaluation->file) {
        status = token_file_examine(evaluation->file, (uint32_t)config->vocab_size, digest);
        if (same_job_digest(ranks, status, digest, "the token file", "all hosts need the same content in --data") ||
            tokenizer_share_bytes(ranks, config, settings->checkpoint, &settings->tokenizer,
                                  &evaluation->token_bytes)) {
            return -1;
        }
    }
    /* How many tokens the softmax is over; 0: all of the model's, padding of the vocabulary included. By default
     * that padding counts which lm-evaluation-harness sees: Hugging Face's folders have it, as do exports of models
     * with a tokenizer.json, and exports of GPT-2's tokens do not. */
    const struct tokenizer *tokenizer = evaluation->tokenizer;
    uint32_t vocabulary = 0;
    if (tokenizer && settings->score_padding != SCORE_PADDING_YES) {
        const bool exported = config->hugging_face_rows > 0 || strcmp(tokenizer_name(tokenizer), "file") == 0;
        vocabulary = settings->score_padding == SCORE_PADDING_AUTO && exported ? 0 : tokenizer_count(tokenizer);
    }
    if (ranks_broadcast(ranks, &vocabulary, sizeof vocabulary) ||
        type_choice_open(&settings->device, settings->dtype, (size_t)config->n_embd, ranks, &evaluation->compute,
                         &evaluation->choice)) {
        return -1;
    }
    const struct gpt_options options = {.batch = settings->batch_size,
                                        .sequence = config->block_size,
                                        .mode = GPT_INFERENCE,
                                        .vocabulary = vocabulary,
                                        .type = evaluation->choice.type,
                                        .optimizer = {.master = settings->master,
                                                      .frozen_weights = settings->frozen_weights}};
    if (ranks_agree(ranks, gpt_plan(evaluation->compute, config, &options, gpt) ||
                               memory_plan_check(&gpt->plan, &evaluation->compute->device))) {
        return -1;
    }
    if (evaluation->is_first) {
        type_choice_print_device(&evaluation->choice, evaluation->compute, stderr);
        message_print(stderr, "model    %s: %s, %" PRId64 " tokens of context", settings->checkpoint,
                      config->residual->name, config->block_size);
        message_print(stderr, ", softmax over %zu of %" PRId64 " tokens\n", gpt->vocabulary, config->vocab_size);
    }
    if (data_parallel_create_model(gpt, ranks) ||
        ranks_agree(ranks, evaluation->is_first ? model_files_load(&evaluation->files, 0, gpt) : 0)) {
        return -1;
    }
    interrupt_install(); /* again: the compiler in a driver may take signals for itself */
    return data_parallel_share_weights(gpt, ranks);
}

/* ---- scoring */

static int score(struct evaluation *evaluation) {
    const struct eval_settings *settings = evaluation->settings;
    struct gpt *gpt = &evaluation->gpt;
    if (!settings->data) {
        return score_documents(gpt, evaluation->ranks, &evaluation->progress, &settings->documents,
                               evaluation->documents, evaluation->tokenizer, &evaluation->per_document,
                               &evaluation->total);
    }
    if (settings->eval_iters == 0) {
        return score_split(gpt, evaluation->ranks, evaluation->file, &evaluation->progress, evaluation->token_bytes,
                           &evaluation->sums);
    }
    const struct token_shape shape = {settings->batch_size, evaluation->config.block_size};
    const uint64_t seed = settings->seed < 0 ? ESTIMATE_SEED : (uint64_t)settings->seed;
    const char *purpose = settings->split == SPLIT_VAL ? ESTIMATE_PURPOSE("val") : ESTIMATE_PURPOSE("train");
    struct batch_sampler sampler;
    batch_sampler_create(&sampler, seed, purpose, shape, shape.batch, (uint32_t)evaluation->config.vocab_size);
    const int status = batch_sampler_add(&sampler, evaluation->file, 1.0) ||
                       estimate_loss(gpt, evaluation->ranks, &sampler, settings->eval_iters, &evaluation->progress,
                                     evaluation->token_bytes, &evaluation->sums);
    batch_sampler_release(&sampler);
    return status ? -1 : 0;
}

/* ---- results */

/* What --json gets. */
static json_t *results_json(const struct evaluation *evaluation) {
    const struct eval_settings *settings = evaluation->settings;
    const struct perplexity_sums *total = &evaluation->total;
    json_t *json =
        json_pack("{s:o, s:s, s:I, s:I, s:f, s:f}", "checkpoint", json_file_name(settings->checkpoint), "dtype",
                  element_name(evaluation->choice.type), "context", (json_int_t)evaluation->config.block_size,
                  "vocabulary", (json_int_t)evaluation->gpt.vocabulary, "seconds", evaluation->seconds,
                  "tokens_per_second", (double)total->tokens / evaluation->seconds);
    if (settings->data) {
        json_object_update_new(json,
                               json_pack("{s:o, s:s, s:I, s:I, s:o, s:o}", "data", json_file_name(settings->data),
                                         "split", token_split_name(settings->split), "eval_iters",
                                         (json_int_t)settings->eval_iters, "tokens", (json_int_t)total->tokens,
                                         "loss", json_file_real(evaluation->loss), "perplexity",
                                         json_file_real(exp(evaluation->loss))));
        if (evaluation->sums.bytes > 0.0) {
            json_object_set_new(json, "bits_per_byte", json_file_real(loss_sums_bits(&evaluation->sums)));
        }
    } else if (settings->documents.requests) {
        json_object_update_new(json,
                               json_pack("{s:I, s:I, s:f}", "requests", (json_int_t)total->documents, "tokens",
                                         (json_int_t)total->tokens, "log_likelihood", total->log_likelihood));
    } else {
        json_object_set_new(json, "documents", json_integer((json_int_t)total->documents));
        perplexity_put(total, json);
    }
    return json;
}

/* Losses are in natural logarithms, whatever the tokens are. */
static void print_metric(const char *name, int digits, double value) {
    const bool loss = strcmp(name, "loss") == 0 && !isnan(value);
    message_print(stdout, "%-18s", loss ? "loss (nats/token)" : name);
    if (isnan(value)) {
        message_print(stdout, "none\n");
    } else {
        message_print(stdout, "%.*f\n", digits, value);
    }
}

static void print_results(const struct evaluation *evaluation) {
    const struct eval_settings *settings = evaluation->settings;
    const struct perplexity_sums *total = &evaluation->total;
    if (settings->data) {
        message_print(stdout, "%-18s%s, ", "split", token_file_short_name(evaluation->file));
        if (settings->eval_iters == 0) {
            message_print(stdout, "%s\n", evaluation->file->shard_count > 1 ? "all shards" : "the whole file");
        } else if (settings->seed < 0) {
            message_print(stdout, "batches at fixed places\n");
        } else {
            message_print(stdout, "batches of seed %" PRId64 "\n", settings->seed);
        }
        print_metric("loss", 6, evaluation->loss);
        print_metric("perplexity", 4, exp(evaluation->loss));
        if (evaluation->sums.bytes > 0.0) {
            print_metric("bits_per_byte", 6, loss_sums_bits(&evaluation->sums));
        }
        print_metric("tokens", 0, (double)total->tokens);
    } else {
        struct perplexity_metric metrics[PERPLEXITY_METRICS];
        perplexity_metrics(total, metrics);
        print_metric(settings->documents.requests ? "requests" : "documents", 0, (double)total->documents);
        for (size_t i = 0; i < PERPLEXITY_METRICS && !settings->documents.requests; i++) {
            print_metric(metrics[i].name, metrics[i].digits, metrics[i].value);
        }
    }
    message_print(stdout, "%-18s%.0f (%.1f s)\n", "tokens/s", (double)total->tokens / evaluation->seconds,
                  evaluation->seconds);
}

static int report(struct evaluation *evaluation) {
    const struct eval_settings *settings = evaluation->settings;
    if (!settings->data && evaluation->total.documents == 0) {
        const size_t count = settings->documents.count;
        const char *name = input_name(settings->documents.names[0]);
        const char *what = settings->documents.requests ? "requests" : "documents";
        return count == 1 ? error_set("%s has no %s: it is empty, or has blank lines only", name, what)
                          : error_set("%s and %zu more files have no %s: they are empty, or have blank lines only",
                                      name, count - 1, what);
    }
    if (output_file_end(&evaluation->per_document, 0)) {
        return -1;
    }
    if (evaluation->json.stream) {
        if (json_file_print_line(results_json(evaluation), evaluation->json.stream, JSON_INDENT(1))) {
            return error_prefix("%s", settings->json);
        }
        if (output_file_end(&evaluation->json, 0)) {
            return -1;
        }
    }
    if (!is_standard_output(settings->json) && !is_standard_output(settings->per_document)) {
        print_results(evaluation);
    }
    return files_flush(stdout, "the results");
}

/* ---- all of it */

enum program_status eval_run(const struct eval_settings *settings, struct ranks *ranks) {
    struct evaluation evaluation = {.settings = settings, .ranks = ranks, .is_first = ranks->index == 0};
    struct progress *progress = &evaluation.progress;
    if (ranks_agree(ranks, check_usage(settings))) {
        return PROGRAM_WRONG;
    }
    interrupt_install();
    int status = set_up(&evaluation);
    progress_start(progress, 0);
    progress->silent = !evaluation.is_first;
    if (status == 0) {
        status = score(&evaluation);
        if (settings->data) {
            evaluation.loss = evaluation.sums.loss / evaluation.sums.targets;
            evaluation.total.tokens = (uint64_t)evaluation.sums.targets;
        }
        status = status || perplexity_check_loss(evaluation.loss);
        progress_end(progress);
        evaluation.seconds = progress_clock() - progress->start;
    }
    if (status == 0) {
        status = ranks_agree(ranks, evaluation.is_first ? report(&evaluation) : 0);
    }
    const bool interrupted = status && strcmp(error_text(), "interrupted") == 0;
    if (status && !interrupted) {
        ranks_end_others(ranks, "hc_eval"); /* before the others are waited for below */
    }
    output_file_end(&evaluation.json, -1);
    output_file_end(&evaluation.per_document, -1);
    gpt_release(&evaluation.gpt);
    model_files_close(&evaluation.files);
    compute_close(evaluation.compute);
    tokenizer_close(evaluation.tokenizer);
    documents_close(evaluation.documents);
    token_file_close(evaluation.file);
    free(evaluation.token_bytes);
    if (status) {
        return interrupted ? PROGRAM_INTERRUPTED : PROGRAM_FAILED;
    }
    return PROGRAM_DONE;
}
