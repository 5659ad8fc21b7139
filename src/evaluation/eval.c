#include "src/evaluation/eval.h"
#include "runtime/files/files.h"
#include "runtime/files/input.h"
#include "runtime/files/json_file.h"
#include "runtime/files/token_file.h"
#include "runtime/files/token_shards.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/message.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/weights.h"
#include "src/evaluation/score_documents.h"
#include "src/measuring/score_windows.h"
#include "src/settings/type_choice.h"
#include "src/training/batch_sampler.h"
#include "src/training/data_parallel.h"
#include "src/training/same_job.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct evaluation {
    const struct eval_settings *settings;
    struct ranks *ranks;
    bool is_first; /* of the ranks: it reads documents, writes and prints */
    struct model_config config;
    struct token_file *file;     /* of --data */
    struct tokenizer *tokenizer; /* for documents, as below; rank 0's */
    struct documents *documents;
    struct documents_settings document_settings;
    struct compute *compute;
    struct type_choice choice; /* of the type of activations */
    struct gpt gpt;
    struct output_file json, per_document; /* rank 0's */
    struct progress progress;
    uint64_t document_count;      /* scored so far */
    struct perplexity_sums total; /* the results: of documents and requests; of a split the tokens only */
    double loss;                  /* of a split */
    double seconds;
};

/* Documents, or requests. */
static bool scores_documents(const struct evaluation *evaluation) {
    return evaluation->settings->data == NULL;
}

/* ---- before there is a device */

static bool is_standard_output(const char *path) {
    return path && strcmp(path, "-") == 0;
}

static int check_score_usage(const struct eval_settings *settings) {
    if (!settings->score) {
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
    return check_score_usage(settings);
}

static int open_documents(struct evaluation *evaluation) {
    const struct eval_settings *settings = evaluation->settings;
    evaluation->document_settings = settings->documents;
    if (settings->score) {
        evaluation->document_settings.word = DOCUMENTS_JSONL;
        evaluation->document_settings.field = NULL;
    }
    return documents_open(&evaluation->document_settings, &evaluation->documents) ||
                   tokenizer_open_for(&evaluation->config, settings->checkpoint, &settings->tokenizer,
                                      &evaluation->tokenizer)
               ? -1
               : 0;
}

/* Opens a file of results; an error if it would take the place of a file that is read. NULL: not wanted. */
static int open_result(const struct eval_settings *settings, const char *path, struct output_file *file) {
    int status = path && (files_refuse_members(settings->checkpoint, checkpoint_files, path) ||
                          (settings->data && (files_refuse_members(settings->data, token_folder_files, path) ||
                                              token_shards_refuse_output(settings->data, path))));
    for (size_t i = 0; path && status == 0 && i < settings->documents.count; i++) {
        status = files_refuse_same(path, settings->documents.names[i]);
    }
    return status || (path && output_file_open(file, path)) ? -1 : 0;
}

/* Before hours of work for them. */
static int open_results(struct evaluation *evaluation) {
    const struct eval_settings *settings = evaluation->settings;
    const char *json = settings->json, *each = settings->per_document;
    if (json && each && (strcmp(json, each) == 0 || files_are_same(json, each))) {
        return error_set("--json and --per-document name the same file");
    }
    return open_result(settings, json, &evaluation->json) || open_result(settings, each, &evaluation->per_document)
               ? -1
               : 0;
}

static int open_inputs(struct evaluation *evaluation) {
    const struct eval_settings *settings = evaluation->settings;
    if (config_file_read(settings->checkpoint, &evaluation->config) ||
        (settings->data && token_file_open_split(settings->data, settings->split, &evaluation->file))) {
        return -1;
    }
    if (!evaluation->is_first) {
        return 0;
    }
    return (scores_documents(evaluation) && open_documents(evaluation)) || open_results(evaluation) ? -1 : 0;
}

static int check_same_inputs(struct evaluation *evaluation) {
    char digest[CHECKSUM_SIZE] = "";
    int status = checksum_file(path_of("%s/%s", evaluation->settings->checkpoint, "config.json").text, digest);
    if (same_job_digest(evaluation->ranks, status, digest, "the checkpoint's config.json",
                        "all hosts need the same checkpoint")) {
        return -1;
    }
    if (!evaluation->file) {
        return 0;
    }
    status = token_file_examine(evaluation->file, (uint32_t)evaluation->config.vocab_size, digest);
    return same_job_digest(evaluation->ranks, status, digest, "the token file",
                           "all hosts need the same content in --data");
}

/* ---- the model */

static int plan_model(struct evaluation *evaluation, uint32_t vocabulary) {
    const struct eval_settings *settings = evaluation->settings;
    const struct gpt_options options = {.batch = settings->batch_size,
                                        .sequence = evaluation->config.block_size,
                                        .mode = GPT_INFERENCE,
                                        .vocabulary = vocabulary,
                                        .type = evaluation->choice.type,
                                        .optimizer = {.master = settings->master}};
    return gpt_plan(evaluation->compute, &evaluation->config, &options, &evaluation->gpt) ||
                   memory_plan_check(&evaluation->gpt.plan, &evaluation->compute->device)
               ? -1
               : 0;
}

static void print_model(const struct evaluation *evaluation) {
    const struct model_config *config = &evaluation->config;
    if (!evaluation->is_first) {
        return;
    }
    message_print(stderr, "device   %s (%s), GEMMs by %s\n", evaluation->compute->device.name,
                  evaluation->compute->device.platform_name, gemm_description(evaluation->compute));
    type_choice_print(&evaluation->choice, stderr);
    message_print(stderr, "model    %s: %s, %" PRId64 " tokens of context", evaluation->settings->checkpoint,
                  config->residual->name, config->block_size);
    message_print(stderr, ", softmax over %zu of %" PRId64 " tokens\n", evaluation->gpt.vocabulary,
                  config->vocab_size);
}

/* How many tokens the softmax is over; 0: all of the model's, padding of the vocabulary included. By default that
 * padding counts which lm-evaluation-harness sees: Hugging Face's folders have it, as do exports of models with a
 * tokenizer.json, and exports of GPT-2's tokens do not. */
static uint32_t scored_tokens(const struct evaluation *evaluation) {
    const struct tokenizer *tokenizer = evaluation->tokenizer;
    const int choice = evaluation->settings->score_padding;
    if (!tokenizer || choice == SCORE_PADDING_YES) {
        return 0;
    }
    const bool exported =
        evaluation->config.hugging_face_rows > 0 || strcmp(tokenizer_name(tokenizer), "file") == 0;
    return choice == SCORE_PADDING_AUTO && exported ? 0 : tokenizer_count(tokenizer);
}

static int set_up(struct evaluation *evaluation) {
    const struct eval_settings *settings = evaluation->settings;
    struct ranks *ranks = evaluation->ranks;
    if (ranks_agree(ranks, open_inputs(evaluation)) || check_same_inputs(evaluation)) {
        return -1;
    }
    uint32_t vocabulary = scored_tokens(evaluation);
    if (ranks_broadcast(ranks, &vocabulary, sizeof vocabulary) ||
        type_choice_open(&settings->device, settings->dtype, (size_t)evaluation->config.n_embd, ranks,
                         &evaluation->compute, &evaluation->choice) ||
        ranks_agree(ranks, plan_model(evaluation, vocabulary))) {
        return -1;
    }
    print_model(evaluation);
    if (data_parallel_create_model(&evaluation->gpt, ranks) ||
        ranks_agree(ranks,
                    evaluation->is_first ? checkpoint_load_weights(settings->checkpoint, &evaluation->gpt) : 0)) {
        return -1;
    }
    interrupt_install(); /* again: the compiler in a driver may take signals for itself */
    return data_parallel_share_weights(&evaluation->gpt, ranks);
}

/* ---- results */

/* Takes the results, to which it adds what every evaluation has. */
static int write_json(struct evaluation *evaluation, json_t *results) {
    FILE *stream = evaluation->json.stream;
    json_t *all =
        json_pack("{s:o, s:s, s:I, s:I, s:f, s:f}", "checkpoint", json_file_name(evaluation->settings->checkpoint),
                  "dtype", element_name(evaluation->choice.type), "context",
                  (json_int_t)evaluation->config.block_size, "vocabulary", (json_int_t)evaluation->gpt.vocabulary,
                  "seconds", evaluation->seconds, "tokens_per_second",
                  (double)evaluation->total.tokens / evaluation->seconds);
    json_object_update_new(all, results);
    if (!stream) {
        json_decref(all);
        return 0;
    }
    return json_file_print_line(all, stream, JSON_INDENT(1)) ? error_prefix("%s", evaluation->settings->json)
                                                             : output_file_end(&evaluation->json, 0);
}

static bool prints(const struct evaluation *evaluation) {
    return !is_standard_output(evaluation->settings->json) &&
           !is_standard_output(evaluation->settings->per_document);
}

/* Losses are in natural logarithms, whatever the tokens are. */
static void print_metric(const struct perplexity_metric *metric) {
    const bool loss = strcmp(metric->name, "loss") == 0 && !isnan(metric->value);
    message_print(stdout, "%-18s", loss ? "loss (nats/token)" : metric->name);
    if (isnan(metric->value)) {
        message_print(stdout, "none\n");
    } else {
        message_print(stdout, "%.*f\n", metric->digits == METRIC_COUNT ? 0 : metric->digits, metric->value);
    }
}

static void print_rate(const struct evaluation *evaluation) {
    message_print(stdout, "%-18s%.0f (%.1f s)\n", "tokens/s",
                  (double)evaluation->total.tokens / evaluation->seconds, evaluation->seconds);
}

/* ---- token files */

static int estimate_split(struct evaluation *evaluation) {
    const struct eval_settings *settings = evaluation->settings;
    const struct token_shape shape = {settings->batch_size, evaluation->config.block_size};
    const uint64_t seed = settings->seed < 0 ? ESTIMATE_SEED : (uint64_t)settings->seed;
    const char *purpose = settings->split == SPLIT_VAL ? ESTIMATE_PURPOSE("val") : ESTIMATE_PURPOSE("train");
    struct batch_sampler sampler;
    if (batch_sampler_create(&sampler, evaluation->file, seed, purpose, shape, shape.batch,
                             (uint32_t)evaluation->config.vocab_size)) {
        return error_prefix("%s", token_file_name(evaluation->file));
    }
    const int status = estimate_loss(&evaluation->gpt, evaluation->ranks, &sampler, settings->eval_iters,
                                     &evaluation->progress, &evaluation->total.tokens, &evaluation->loss);
    batch_sampler_release(&sampler);
    return status;
}

static void print_split(const struct evaluation *evaluation) {
    const struct eval_settings *settings = evaluation->settings;
    const bool has_shards = token_file_shards(evaluation->file) > 1;
    message_print(stdout, "%-18s%s, ", "split", token_file_short_name(evaluation->file));
    if (settings->eval_iters == 0) {
        message_print(stdout, "%s\n", has_shards ? "all shards" : "the whole file");
    } else if (settings->seed < 0) {
        message_print(stdout, "batches at fixed places\n");
    } else {
        message_print(stdout, "batches of seed %" PRId64 "\n", settings->seed);
    }
}

static int report_split(struct evaluation *evaluation) {
    const struct eval_settings *settings = evaluation->settings;
    const uint64_t tokens = evaluation->total.tokens;
    const double loss = evaluation->loss;
    const struct perplexity_sums sums = {.tokens = tokens, .log_likelihood = -loss * (double)tokens};
    struct perplexity_metric metrics[PERPLEXITY_METRICS];
    perplexity_metrics(&sums, metrics);
    const double perplexity = metrics[METRIC_TOKEN_PERPLEXITY].value;
    json_t *results =
        json_pack("{s:o, s:s, s:I, s:I, s:o, s:o}", "data", json_file_name(settings->data), "split",
                  token_split_name(settings->split), "eval_iters", (json_int_t)settings->eval_iters, "tokens",
                  (json_int_t)tokens, "loss", json_file_real(loss), "perplexity", json_file_real(perplexity));
    const int status = write_json(evaluation, results);
    if (status == 0 && prints(evaluation)) {
        print_split(evaluation);
        print_metric(&(struct perplexity_metric){"loss", 6, loss});
        print_metric(&(struct perplexity_metric){"perplexity", 4, perplexity});
        print_metric(&metrics[METRIC_TOKENS]);
        print_rate(evaluation);
    }
    return status;
}

/* Nothing was scored. */
static int fail_empty(const struct evaluation *evaluation, const char *what) {
    const struct documents_settings *documents = &evaluation->settings->documents;
    const char *name = input_name(documents->names[0]);
    return documents->count == 1
               ? error_set("%s has no %s: it is empty, or has blank lines only", name, what)
               : error_set("%s and %zu more files have no %s: they are empty, or have blank lines only", name,
                           documents->count - 1, what);
}

/* ---- documents */

/* Counts a document, and writes its line, with the results, which it takes, to --per-document. */
static int write_line(struct evaluation *evaluation, const char *source, uint64_t number, json_t *results) {
    FILE *stream = evaluation->per_document.stream;
    evaluation->document_count++;
    if (!stream) {
        json_decref(results);
        return 0;
    }
    json_t *line = json_pack("{s:o, s:I}", "source", json_file_name(source), "document",
                             (json_int_t)evaluation->document_count);
    if (number > 0) {
        json_object_set_new(line, "line", json_integer((json_int_t)number));
    }
    json_object_update_new(line, results);
    return json_file_print_line(line, stream, JSON_COMPACT) ? error_prefix("%s", evaluation->settings->per_document)
                                                            : 0;
}

static int write_document(void *context, const struct scored_document *document) {
    json_t *results = json_object();
    perplexity_put(&document->sums, results);
    return write_line(context, document->source, document->line, results);
}

static void print_documents(const struct evaluation *evaluation) {
    struct perplexity_metric metrics[PERPLEXITY_METRICS];
    perplexity_metrics(&evaluation->total, metrics);
    message_print(stdout, "%-18s%" PRIu64 "\n", "documents", evaluation->document_count);
    for (size_t i = 0; i < PERPLEXITY_METRICS; i++) {
        print_metric(&metrics[i]);
    }
    print_rate(evaluation);
}

static int report_documents(struct evaluation *evaluation) {
    if (evaluation->document_count == 0) {
        return fail_empty(evaluation, "documents");
    }
    json_t *results = json_pack("{s:I}", "documents", (json_int_t)evaluation->document_count);
    perplexity_put(&evaluation->total, results);
    if (output_file_end(&evaluation->per_document, 0)) {
        json_decref(results);
        return -1;
    }
    const int status = write_json(evaluation, results);
    if (status == 0 && prints(evaluation)) {
        print_documents(evaluation);
    }
    return status;
}

/* ---- requests */

static int write_request(void *context, const struct scored_document *request) {
    return write_line(context, request->source, request->line,
                      json_pack("{s:f, s:b, s:I, s:I}", "log_likelihood", request->sums.log_likelihood, "greedy",
                                request->greedy, "tokens", (json_int_t)request->sums.tokens, "context_tokens",
                                (json_int_t)request->context_tokens));
}

static int report_requests(struct evaluation *evaluation) {
    if (evaluation->document_count == 0) {
        return fail_empty(evaluation, "requests");
    }
    if (output_file_end(&evaluation->per_document, 0)) {
        return -1;
    }
    const int status =
        write_json(evaluation, json_pack("{s:I, s:I, s:f}", "requests", (json_int_t)evaluation->document_count,
                                         "tokens", (json_int_t)evaluation->total.tokens, "log_likelihood",
                                         evaluation->total.log_likelihood));
    if (status == 0 && prints(evaluation)) {
        message_print(stdout, "%-18s%" PRIu64 "\n", "requests", evaluation->document_count);
        print_rate(evaluation);
    }
    return status;
}

/* ---- all of it */

static int score(struct evaluation *evaluation) {
    const struct document_scoring documents = {
        .gpt = &evaluation->gpt,
        .ranks = evaluation->ranks,
        .progress = &evaluation->progress,
        .requests = evaluation->settings->score,
        .replaces = evaluation->settings->documents.invalid == INVALID_REPLACE,
        .documents = evaluation->documents,
        .tokenizer = evaluation->tokenizer,
        .scored = evaluation->settings->score ? write_request : write_document,
        .context = evaluation,
    };
    if (scores_documents(evaluation)) {
        return score_documents(&documents, &evaluation->total);
    }
    return evaluation->settings->eval_iters > 0
               ? estimate_split(evaluation)
               : score_split(&evaluation->gpt, evaluation->ranks, evaluation->file, &evaluation->progress,
                             &evaluation->total.tokens, &evaluation->loss);
}

static int report(struct evaluation *evaluation) {
    if (evaluation->settings->score) {
        return report_requests(evaluation);
    }
    return scores_documents(evaluation) ? report_documents(evaluation) : report_split(evaluation);
}

static int run(struct evaluation *evaluation) {
    const int status = score(evaluation) || perplexity_check_loss(evaluation->loss) ? -1 : 0;
    progress_end(&evaluation->progress);
    evaluation->seconds = progress_clock() - evaluation->progress.start;
    if (status) {
        return -1;
    }
    return ranks_agree(evaluation->ranks, evaluation->is_first ? report(evaluation) : 0);
}

static void tear_down(struct evaluation *evaluation) {
    output_file_end(&evaluation->json, -1);
    output_file_end(&evaluation->per_document, -1);
    gpt_release(&evaluation->gpt);
    compute_close(evaluation->compute);
    tokenizer_close(evaluation->tokenizer);
    documents_close(evaluation->documents);
    token_file_close(evaluation->file);
}

enum program_status eval_run(const struct eval_settings *settings, struct ranks *ranks) {
    struct evaluation evaluation = {.settings = settings, .ranks = ranks, .is_first = ranks->index == 0};
    if (ranks_agree(ranks, check_usage(settings))) {
        return PROGRAM_WRONG;
    }
    interrupt_install();
    int status = set_up(&evaluation);
    progress_start(&evaluation.progress, 0);
    evaluation.progress.silent = !evaluation.is_first;
    status = status || run(&evaluation) ? -1 : 0;
    const bool interrupted = status && strcmp(error_text(), "interrupted") == 0;
    if (status && !interrupted) {
        ranks_end_others(ranks, "hc_eval"); /* before the others are waited for below */
    }
    tear_down(&evaluation);
    return status == 0 ? PROGRAM_DONE : interrupted ? PROGRAM_INTERRUPTED : PROGRAM_FAILED;
}
