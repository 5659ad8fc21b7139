#include "src/evaluation/score_documents.h"
#include "runtime/files/input.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "src/measuring/score_windows.h"
#include "src/text/json_lines.h"
#include "src/text/text_buffer.h"
#include <inttypes.h>
#include <stdlib.h>

/* A round ends with the document that reaches one of these. They must not depend on the number of ranks. */
enum { ROUND_TOKENS = 1 << 21, ROUND_DOCUMENTS = 1 << 16 };

/* The tokens of a document without its prefix, or of a request without the first one. */
struct length {
    uint64_t tokens;
    uint64_t scored; /* so many at the end are predicted: all, or those of a continuation */
};

/* Documents that are scored together, and what they are read with. */
struct batch {
    const struct document_scoring *scoring;
    uint64_t documents, tokens; /* in the arrays below */
    size_t token_capacity;
    struct length *lengths;          /* [ROUND_DOCUMENTS] */
    int32_t *ids;                    /* [tokens] each document behind its prefix */
    struct scored_document *results; /* [ROUND_DOCUMENTS] */
    struct loss_window *windows;
    size_t window_count;
    struct token_list list, context_list;
    struct text_buffer text, continuation;
    uint32_t prefix; /* of a request; UINT32_MAX: none */
};

size_t rolling_windows_count(size_t tokens, size_t context) {
    return tokens / context + (tokens % context > 0);
}

struct rolling_window rolling_windows_at(size_t tokens, size_t context, size_t index) {
    const size_t done = index * context;
    const size_t end = tokens - done < context ? tokens : done + context; /* t_end is the last one predicted */
    const size_t length = end < context ? end : context;
    return (struct rolling_window){end - length, length, end - done};
}

static size_t context_of(const struct batch *batch) {
    return (size_t)batch->scoring->gpt->options.sequence;
}

static void reserve_tokens(struct batch *batch, uint64_t more) {
    memory_reserve((void **)&batch->ids, &batch->token_capacity, batch->tokens + more, sizeof *batch->ids);
}

/* ---- rank 0 reads */

static void add_tokens(struct batch *batch, const uint32_t *tokens, size_t count) {
    reserve_tokens(batch, count);
    for (size_t i = 0; i < count; i++) {
        batch->ids[batch->tokens++] = (int32_t)tokens[i];
    }
}

static int add_document(struct batch *batch, const struct document *document) {
    const struct tokenizer *tokenizer = batch->scoring->tokenizer;
    struct token_list *list = &batch->list;
    list->count = 0;
    if (tokenizer_encode(tokenizer, document->text, document->bytes, list)) {
        return error_prefix("%s", document->source);
    }
    const uint32_t prefix = tokenizer_prefix(tokenizer);
    add_tokens(batch, &prefix, 1);
    add_tokens(batch, list->tokens, list->count);
    batch->results[batch->documents] = (struct scored_document){
        .source = document->source,
        .line = document->line,
        .sums = {.tokens = list->count,
                 .words = perplexity_words(document->counted, document->counted_bytes),
                 .bytes = document->counted_bytes},
    };
    batch->lengths[batch->documents++] = (struct length){list->count, list->count};
    return 0;
}

/* Encodes the context, which may be empty, and both texts together: batch->context_list and batch->list. */
static int encode_request(struct batch *batch, const struct document *document) {
    const struct tokenizer *tokenizer = batch->scoring->tokenizer;
    const char *context = document->text, *continuation = document->text;
    size_t bytes = document->bytes, more = document->bytes;
    if (json_lines_field(&context, &bytes, "context", NULL, batch->scoring->replaces, &batch->text) ||
        json_lines_field(&continuation, &more, "continuation", NULL, batch->scoring->replaces,
                         &batch->continuation)) {
        return -1;
    }
    batch->context_list.count = batch->list.count = 0;
    if (tokenizer_encode(tokenizer, context, text_rstrip(context, bytes), &batch->context_list)) {
        return -1;
    }
    const bool is_empty = bytes == 0;
    text_append(&batch->text, continuation, more);
    batch->prefix = is_empty ? tokenizer_prefix(tokenizer) : tokenizer_beginning(tokenizer);
    return tokenizer_encode(tokenizer, batch->text.bytes, batch->text.size, &batch->list);
}

static int add_request(struct batch *batch, const struct document *document) {
    if (encode_request(batch, document)) {
        return -1;
    }
    const struct token_list *before = &batch->context_list, *all = &batch->list;
    const size_t most = context_of(batch) + 1, begins = batch->prefix != UINT32_MAX;
    const size_t context = begins + before->count,
                 scored = all->count > before->count ? all->count - before->count : 0;
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
    add_tokens(batch, &batch->prefix, begins && kept == context ? 1 : 0);
    add_tokens(batch, before->tokens + before->count - (kept < before->count ? kept : before->count),
               kept < before->count ? kept : before->count);
    add_tokens(batch, all->tokens + before->count, scored);
    batch->results[batch->documents] = (struct scored_document){.source = document->source,
                                                                .line = document->line,
                                                                .sums = {.tokens = scored},
                                                                .context_tokens = kept};
    batch->lengths[batch->documents++] = (struct length){kept + scored - 1, scored};
    return 0;
}

static int add(struct batch *batch, const struct document *document) {
    if (!batch->scoring->requests) {
        return add_document(batch, document);
    }
    return add_request(batch, document) ? error_prefix("%s:%" PRIu64, input_name(document->source), document->line)
                                        : 0;
}

static int read_documents(struct batch *batch) {
    int found = 1;
    while (found == 1 && batch->tokens < ROUND_TOKENS && batch->documents < ROUND_DOCUMENTS) {
        struct document document;
        found = interrupt_requested() ? -1 : documents_next(batch->scoring->documents, &document);
        if (found == 1 && add(batch, &document)) {
            found = -1;
        }
    }
    if (found < 0 && interrupt_requested()) {
        return error_set("interrupted");
    }
    return found < 0 ? -1 : 0;
}

/* The next documents to all ranks; none at the end. Collective. */
static int share_documents(struct batch *batch) {
    struct ranks *ranks = batch->scoring->ranks;
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
    const size_t context = context_of(batch);
    const int32_t *ids = batch->ids;
    const size_t most = batch->tokens / context + batch->documents;
    batch->windows = memory_resize(batch->windows, most, sizeof *batch->windows);
    batch->window_count = 0;
    for (uint64_t i = 0; i < batch->documents; i++) {
        const struct length *length = &batch->lengths[i];
        const size_t windows = rolling_windows_count(length->tokens, context);
        for (size_t k = 0; k < windows; k++) {
            const struct rolling_window window = rolling_windows_at(length->tokens, context, k);
            batch->windows[batch->window_count++] =
                (struct loss_window){.tokens = ids + window.first,
                                     .length = window.length,
                                     .scored = window.scored < length->scored ? window.scored : length->scored,
                                     .looks_for_miss = batch->scoring->requests};
        }
        ids += length->tokens + 1;
    }
}

/* Each document's windows, in its order. */
static int report(const struct batch *batch, struct perplexity_sums *total) {
    const struct document_scoring *scoring = batch->scoring;
    const struct loss_window *window = batch->windows;
    for (uint64_t i = 0; i < batch->documents; i++) {
        struct scored_document *document = &batch->results[i];
        document->greedy = true;
        for (size_t left = rolling_windows_count(batch->lengths[i].tokens, context_of(batch)); left > 0; left--) {
            document->sums.log_likelihood -= window->loss;
            document->greedy &= !window++->missed;
        }
        perplexity_add(total, &document->sums);
        if (scoring->scored(scoring->context, document)) {
            return -1;
        }
    }
    return 0;
}

/* Ranks have the same losses, so they agree. */
static int check_losses(const struct batch *batch) {
    for (size_t i = 0; i < batch->window_count; i++) {
        if (perplexity_check_loss(batch->windows[i].loss)) {
            return -1;
        }
    }
    return 0;
}

static int score_all(struct batch *batch, struct perplexity_sums *total) {
    const struct document_scoring *scoring = batch->scoring;
    struct ranks *ranks = batch->scoring->ranks;
    struct score_round round = {.ranks = ranks, .progress = scoring->progress, .label = ""};
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
        if (scoring->documents) {
            round.label = documents_progress(scoring->documents, &round.after, &round.total);
        }
        make_windows(batch);
        if (score_windows(scoring->gpt, batch->windows, batch->window_count, &round) || check_losses(batch) ||
            ranks_agree(ranks, ranks->index == 0 ? report(batch, total) : 0)) {
            return -1;
        }
    }
}

int score_documents(const struct document_scoring *scoring, struct perplexity_sums *total) {
    struct batch batch = {
        .scoring = scoring,
        .lengths = memory_allocate(ROUND_DOCUMENTS, sizeof *batch.lengths),
        .results = memory_allocate(ROUND_DOCUMENTS, sizeof *batch.results),
    };
    *total = (struct perplexity_sums){0};
    const int status = score_all(&batch, total);
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
