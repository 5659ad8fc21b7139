#include "src/evaluation/score_documents.h"
#include "runtime/files/input.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "runtime/system/utf8.h"
#include "src/measuring/score_windows.h"
#include "src/text/json_lines.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- metrics */

static const double LOG_2 = 0.693147180559945309417;

uint64_t perplexity_words(const char *text, size_t bytes) {
    uint64_t words = 1;
    bool in_space = false;
    for (size_t at = 0, length; at < bytes; at += length) {
        uint32_t character = 0;
        length = utf8_decode(text + at, bytes - at, &character);
        length += length == 0; /* what is no UTF-8 is no white space either */
        const bool space = text_is_space(character);
        words += space && !in_space;
        in_space = space;
    }
    return words;
}

void perplexity_add(struct perplexity_sums *total, const struct perplexity_sums *more) {
    total->tokens += more->tokens;
    total->words += more->words;
    total->bytes += more->bytes;
    total->log_likelihood += more->log_likelihood;
    total->documents++;
}

static double loss_per(const struct perplexity_sums *sums, uint64_t count) {
    return count > 0 ? -sums->log_likelihood / (double)count : (double)NAN;
}

int perplexity_check_loss(double loss) {
    return isfinite(loss)
               ? 0
               : error_set(
                     "the loss is %g: numbers of the model are out of range; take an earlier checkpoint of its "
                     "run, or --dtype fp32",
                     loss);
}

void perplexity_metrics(const struct perplexity_sums *sums, struct perplexity_metric metrics[PERPLEXITY_METRICS]) {
    const double loss = loss_per(sums, sums->tokens), loss_per_byte = loss_per(sums, sums->bytes);
    const struct perplexity_metric all[PERPLEXITY_METRICS] = {
        [METRIC_TOKENS] = {"tokens", 0, (double)sums->tokens},
        [METRIC_WORDS] = {"words", 0, (double)sums->words},
        [METRIC_BYTES] = {"bytes", 0, (double)sums->bytes},
        [METRIC_LOG_LIKELIHOOD] = {"log_likelihood", 4, sums->log_likelihood},
        [METRIC_WORD_PERPLEXITY] = {"word_perplexity", 4, exp(loss_per(sums, sums->words))},
        [METRIC_BYTE_PERPLEXITY] = {"byte_perplexity", 6, exp(loss_per_byte)},
        [METRIC_BITS_PER_BYTE] = {"bits_per_byte", 6, loss_per_byte / LOG_2},
        [METRIC_TOKEN_PERPLEXITY] = {"token_perplexity", 4, exp(loss)},
        [METRIC_LOSS] = {"loss", 6, loss},
    };
    memcpy(metrics, all, sizeof all);
}

void perplexity_put(const struct perplexity_sums *sums, json_t *object) {
    struct perplexity_metric metrics[PERPLEXITY_METRICS];
    perplexity_metrics(sums, metrics);
    for (size_t i = 0; i < PERPLEXITY_METRICS; i++) {
        json_object_set_new(object, metrics[i].name,
                            i <= METRIC_BYTES ? json_integer((json_int_t)metrics[i].value)
                                              : json_file_real(metrics[i].value));
    }
}

/* ---- documents out of files */

struct documents {
    const struct documents_settings *settings;
    enum document_kind kind;
    size_t file;                               /* number of the one that is read */
    struct json_lines lines;                   /* of it; no input: not opened yet */
    struct text_buffer valid, scored, counted; /* the document made UTF-8, and its fields */
    uint64_t given;                            /* documents */
    uint64_t stored, total;                    /* bytes of the files before this one, and of all; 0: not known */
};

struct document {
    const char *source, *text, *counted; /* the name of its file; UTF-8; whose words and bytes are counted */
    size_t bytes, counted_bytes;
    uint64_t line;
};

int documents_open(const struct documents_settings *settings, struct documents **opened) {
    struct documents *documents = *opened = memory_zeroed(1, sizeof *documents);
    bool known = true;
    documents->settings = settings;
    documents->kind = settings->requests || settings->word == DOCUMENTS_JSONL ? DOCUMENT_JSONL : DOCUMENT_FILES;
    if (!settings->requests && settings->word == DOCUMENTS_BY_NAME &&
        document_kind_by_names(settings->names, settings->count, DOCUMENT_FILES, &documents->kind)) {
        return -1;
    }
    for (size_t i = 0; i < settings->count; i++) {
        struct input_status status;
        if (input_examine(settings->names[i], &status)) {
            return -1;
        }
        known = known && status.regular;
        documents->total += status.bytes;
    }
    documents->total = known ? documents->total : 0;
    return 0;
}

/* Closes the current file, if there is one. */
static void close_file(struct documents *documents) {
    input_close(documents->lines.input);
    json_lines_free(&documents->lines);
    documents->lines = (struct json_lines){0};
}

void documents_close(struct documents *documents) {
    if (documents) {
        close_file(documents);
        text_free(&documents->valid);
        text_free(&documents->scored);
        text_free(&documents->counted);
        free(documents);
    }
}

/* The next document, valid until the next call. 1: there is one, 0: there are no more, -1 with an error. */
static int next_document(struct documents *documents, struct document *document) {
    const struct documents_settings *settings = documents->settings;
    const bool whole = documents->kind != DOCUMENT_JSONL, replace = settings->invalid == INVALID_REPLACE;
    struct json_lines *lines = &documents->lines;
    const char *source = NULL, *text;
    size_t bytes;
    int found = 0;
    while (found == 0 && documents->file < settings->count &&
           (settings->limit == 0 || documents->given < (uint64_t)settings->limit)) {
        source = settings->names[documents->file];
        lines->whole = whole;
        if (!lines->input && input_open(source, interrupt_descriptor(), &lines->input)) {
            return -1;
        }
        found = json_lines_next(lines, &text, &bytes);
        if (found == 0) {
            documents->stored += input_stored_bytes(lines->input);
            close_file(documents);
            documents->file++;
        }
    }
    if (found <= 0) {
        return found;
    }
    if (text_require_utf8(&text, &bytes, input_name(source), lines->line, replace, &documents->valid)) {
        return -1;
    }
    documents->given++;
    *document = (struct document){source, text, text, bytes, bytes, whole ? 0 : lines->line};
    if (whole || settings->requests) {
        return 1;
    }
    const char *count_field = settings->count_field;
    if (json_lines_field(&document->text, &document->bytes, settings->field, "--field", replace,
                         &documents->scored) ||
        (count_field && json_lines_field(&document->counted, &document->counted_bytes, count_field, "--count-field",
                                         replace, &documents->counted))) {
        return error_prefix("%s:%" PRIu64, input_name(source), document->line);
    }
    if (!count_field) {
        document->counted = document->text;
        document->counted_bytes = document->bytes;
    }
    return 1;
}

/* ---- rank 0 reads */

/* A round ends with the document that reaches one of these. They must not depend on the number of ranks. */
enum { ROUND_TOKENS = 1 << 21, ROUND_DOCUMENTS = 1 << 16 };

/* The tokens of a document without its prefix, or of a request without the first one. */
struct length {
    uint64_t tokens;
    uint64_t scored; /* so many at the end are predicted: all, or those of a continuation */
};

struct scored_document {
    const char *source;          /* the name of its file */
    uint64_t line;               /* of JSON lines, from 1; 0 for a text file */
    struct perplexity_sums sums; /* of a request, tokens are the continuation's, and nothing else is counted */
    uint64_t context_tokens;     /* of a request: those that were read before the continuation */
    bool greedy;                 /* of a request: each token of its continuation has the largest logit */
};

/* Documents that are scored together, and what they are read with. */
struct batch {
    struct gpt *gpt;
    struct ranks *ranks;
    const struct documents_settings *settings;
    struct documents *documents_read; /* rank 0's, as the tokenizer and `lines` */
    const struct tokenizer *tokenizer;
    const struct output_file *lines;
    size_t context;             /* of the model */
    uint64_t documents, tokens; /* in the arrays below */
    size_t token_capacity;
    struct length *lengths;          /* [ROUND_DOCUMENTS] */
    int32_t *ids;                    /* [tokens] each document behind its prefix */
    struct scored_document *results; /* [ROUND_DOCUMENTS] */
    struct loss_window *windows;
    size_t window_count;
    struct token_list list, context_list;
    struct text_buffer text, continuation;
};

static void reserve_tokens(struct batch *batch, uint64_t more) {
    memory_reserve((void **)&batch->ids, &batch->token_capacity, batch->tokens + more, sizeof *batch->ids);
}

static void add_tokens(struct batch *batch, const uint32_t *tokens, size_t count) {
    reserve_tokens(batch, count);
    for (size_t i = 0; i < count; i++) {
        batch->ids[batch->tokens++] = (int32_t)tokens[i];
    }
}

static int add_document(struct batch *batch, const struct document *document) {
    const struct tokenizer *tokenizer = batch->tokenizer;
    const uint32_t prefix = tokenizer_prefix(tokenizer);
    struct token_list *list = &batch->list;
    list->count = 0;
    if (tokenizer_encode(tokenizer, document->text, document->bytes, list)) {
        return error_prefix("%s", document->source);
    }
    add_tokens(batch, &prefix, 1);
    add_tokens(batch, list->tokens, list->count);
    batch->results[batch->documents].sums =
        (struct perplexity_sums){.tokens = list->count,
                                 .words = perplexity_words(document->counted, document->counted_bytes),
                                 .bytes = document->counted_bytes};
    batch->lengths[batch->documents] = (struct length){list->count, list->count};
    return 0;
}

static int add_request(struct batch *batch, const struct document *document) {
    const struct tokenizer *tokenizer = batch->tokenizer;
    const bool replace = batch->settings->invalid == INVALID_REPLACE;
    struct token_list *before = &batch->context_list,
                      *all = &batch->list; /* of the context, and of both together */
    const char *text = document->text, *continuation = document->text;
    size_t bytes = document->bytes, more = document->bytes;
    before->count = all->count = 0;
    if (json_lines_field(&text, &bytes, "context", NULL, replace, &batch->text) ||
        json_lines_field(&continuation, &more, "continuation", NULL, replace, &batch->continuation) ||
        tokenizer_encode(tokenizer, text, text_rstrip(text, bytes), before)) {
        return -1;
    }
    const uint32_t prefix = bytes == 0 ? tokenizer_prefix(tokenizer) : tokenizer_beginning(tokenizer);
    text_append(&batch->text, continuation, more);
    if (tokenizer_encode(tokenizer, batch->text.bytes, batch->text.size, all)) {
        return -1;
    }
    const size_t most = batch->context + 1, begins = prefix != UINT32_MAX, context = begins + before->count;
    const size_t scored = all->count > before->count ? all->count - before->count : 0;
    if (scored == 0) {
        return error_set("the continuation has no tokens: it is empty, or encoded together with the context's end");
    }
    if (context == 0) {
        return error_set("the context has white space only, which belongs to the continuation");
    }
    if (scored >= most) {
        return error_set("the continuation has %zu tokens, and the model a context of %zu: leave out this request",
                         scored, most - 1);
    }
    const size_t kept = context + scored > most ? most - scored : context; /* of the context */
    const size_t texts = kept < before->count ? kept : before->count;      /* of these, the text's */
    add_tokens(batch, &prefix, kept - texts);
    add_tokens(batch, before->tokens + before->count - texts, texts);
    add_tokens(batch, all->tokens + before->count, scored);
    batch->results[batch->documents].sums = (struct perplexity_sums){.tokens = scored};
    batch->results[batch->documents].context_tokens = kept;
    batch->lengths[batch->documents] = (struct length){kept + scored - 1, scored};
    return 0;
}

static int read_documents(struct batch *batch) {
    const bool requests = batch->settings->requests;
    while (batch->tokens < ROUND_TOKENS && batch->documents < ROUND_DOCUMENTS) {
        struct document document;
        const int found = interrupt_requested() ? -1 : next_document(batch->documents_read, &document);
        if (found < 0 && interrupt_requested()) {
            return error_set("interrupted");
        }
        if (found <= 0) {
            return found;
        }
        batch->results[batch->documents] =
            (struct scored_document){.source = document.source, .line = document.line, .greedy = true};
        if (requests && add_request(batch, &document)) {
            return error_prefix("%s:%" PRIu64, input_name(document.source), document.line);
        }
        if (!requests && add_document(batch, &document)) {
            return -1;
        }
        batch->documents++;
    }
    return 0;
}

/* The next documents to all ranks; none at the end. Collective. */
static int share_documents(struct batch *batch) {
    struct ranks *ranks = batch->ranks;
    batch->documents = batch->tokens = 0;
    if (ranks_agree(ranks, ranks->index == 0 ? read_documents(batch) : 0)) {
        return -1;
    }
    uint64_t sizes[2] = {batch->documents, batch->tokens};
    if (ranks_broadcast(ranks, sizes, sizeof sizes)) {
        return -1;
    }
    if (ranks->index > 0) {
        reserve_tokens(batch, sizes[1]);
    }
    batch->documents = sizes[0];
    batch->tokens = sizes[1];
    return ranks_broadcast(ranks, batch->lengths, batch->documents * sizeof *batch->lengths) ||
           ranks_broadcast(ranks, batch->ids, batch->tokens * sizeof *batch->ids);
}

/* ---- all score */

static void make_windows(struct batch *batch) {
    const size_t context = batch->context, most = batch->tokens / context + batch->documents;
    const int32_t *ids = batch->ids;
    batch->windows = memory_resize(batch->windows, most, sizeof *batch->windows);
    batch->window_count = 0;
    for (uint64_t i = 0; i < batch->documents; i++) {
        const struct length *length = &batch->lengths[i];
        for (size_t done = 0; done < length->tokens; done += context) {
            const size_t left = length->tokens - done, new = left < context ? left : context, end = done + new;
            const size_t read = end < context ? end : context;
            batch->windows[batch->window_count++] =
                (struct loss_window){.tokens = ids + end - read,
                                     .length = read,
                                     .scored = new < length->scored ? new : length->scored,
                                     .looks_for_miss = batch->settings->requests};
        }
        ids += length->tokens + 1;
    }
}

/* Writes a document's or a request's line. */
static int write_line(const struct batch *batch, const struct scored_document *document, uint64_t number) {
    json_t *line =
        json_pack("{s:o, s:I}", "source", json_file_name(document->source), "document", (json_int_t)number);
    if (document->line > 0) {
        json_object_set_new(line, "line", json_integer((json_int_t)document->line));
    }
    if (batch->settings->requests) {
        json_object_update_new(line,
                               json_pack("{s:f, s:b, s:I, s:I}", "log_likelihood", document->sums.log_likelihood,
                                         "greedy", document->greedy, "tokens", (json_int_t)document->sums.tokens,
                                         "context_tokens", (json_int_t)document->context_tokens));
    } else {
        perplexity_put(&document->sums, line);
    }
    return json_file_print_line(line, batch->lines->stream, JSON_COMPACT) ? error_prefix("%s", batch->lines->path)
                                                                          : 0;
}

static int score_all(struct batch *batch, struct progress *progress, struct perplexity_sums *total) {
    const struct documents *documents = batch->documents_read;
    struct ranks *ranks = batch->ranks;
    struct score_round round = {.ranks = ranks, .progress = progress, .label = ""};
    for (;;) {
        if (share_documents(batch)) {
            return -1;
        }
        if (batch->documents == 0) {
            return 0;
        }
        round.before = round.after;
        round.scored += round.tokens;
        round.tokens = batch->tokens - batch->documents;
        if (documents && documents->settings->limit > 0) {
            round.label = "documents";
            round.after = documents->given;
            round.total = (uint64_t)documents->settings->limit;
        } else if (documents) {
            const struct input *input = documents->lines.input;
            round.label = "bytes";
            round.after = documents->stored + (input ? input_stored_bytes(input) : 0);
            round.total = documents->total;
        }
        make_windows(batch);
        if (score_windows(batch->gpt, batch->windows, batch->window_count, &round)) {
            return -1;
        }
        for (size_t i = 0; i < batch->window_count; i++) { /* all ranks have the same losses */
            if (perplexity_check_loss(batch->windows[i].sums.loss)) {
                return -1;
            }
        }
        const struct loss_window *window = batch->windows;
        int status = 0;
        for (uint64_t i = 0; ranks->index == 0 && i < batch->documents && status == 0; i++) {
            struct scored_document *document = &batch->results[i];
            for (size_t done = 0; done < batch->lengths[i].tokens; done += batch->context, window++) {
                document->sums.log_likelihood -= window->sums.loss;
                document->greedy &= !window->missed;
            }
            perplexity_add(total, &document->sums);
            status = batch->lines->stream ? write_line(batch, document, total->documents) : 0;
        }
        if (ranks_agree(ranks, status)) {
            return -1;
        }
    }
}

int score_documents(struct gpt *gpt, struct ranks *ranks, struct progress *progress,
                    const struct documents_settings *settings, struct documents *documents,
                    const struct tokenizer *tokenizer, const struct output_file *lines,
                    struct perplexity_sums *total) {
    struct batch batch = {
        .gpt = gpt,
        .ranks = ranks,
        .settings = settings,
        .documents_read = documents,
        .tokenizer = tokenizer,
        .lines = lines,
        .context = (size_t)gpt->options.sequence,
        .lengths = memory_allocate(ROUND_DOCUMENTS, sizeof *batch.lengths),
        .results = memory_allocate(ROUND_DOCUMENTS, sizeof *batch.results),
    };
    *total = (struct perplexity_sums){0};
    const int status = score_all(&batch, progress, total);
    token_list_free(&batch.list);
    token_list_free(&batch.context_list);
    text_free(&batch.text);
    text_free(&batch.continuation);
    free(batch.lengths);
    free(batch.ids);
    free(batch.results);
    free(batch.windows);
    return status;
}
