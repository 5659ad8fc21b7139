#include "src/evaluation/score_documents.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "src/measuring/score_windows.h"
#include "src/text/text_buffer.h"
#include <inttypes.h>
#include <stdlib.h>

/* A round ends with the document that reaches one of these. They must not depend on the number of ranks. */
enum { ROUND_TOKENS = 1 << 21, ROUND_DOCUMENTS = 1 << 16 };

/* Documents that are scored together, and what they are read with. */
struct batch {
    const struct document_scoring *scoring;
    uint64_t documents, tokens; /* in the arrays below */
    size_t token_capacity;
    uint64_t *lengths;               /* [ROUND_DOCUMENTS] tokens of each, without its prefix */
    int32_t *ids;                    /* [tokens] each document behind its prefix */
    struct scored_document *results; /* [ROUND_DOCUMENTS] */
    struct loss_window *windows;
    size_t window_count;
    struct token_list list;
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

static int add_document(struct batch *batch, const struct document *document) {
    const struct tokenizer *tokenizer = batch->scoring->tokenizer;
    struct token_list *list = &batch->list;
    list->count = 0;
    if (tokenizer_encode(tokenizer, document->text, document->bytes, list)) {
        return error_prefix("%s", document->source);
    }
    reserve_tokens(batch, list->count + 1);
    batch->ids[batch->tokens++] = (int32_t)tokenizer_prefix(tokenizer);
    for (size_t i = 0; i < list->count; i++) {
        batch->ids[batch->tokens++] = list->tokens[i];
    }
    batch->results[batch->documents] = (struct scored_document){
        document->source,
        document->line,
        {.tokens = list->count,
         .words = perplexity_words(document->counted, document->counted_bytes),
         .bytes = document->counted_bytes},
    };
    batch->lengths[batch->documents++] = list->count;
    return 0;
}

static int read_documents(struct batch *batch) {
    int found = 1;
    while (found == 1 && batch->tokens < ROUND_TOKENS && batch->documents < ROUND_DOCUMENTS) {
        struct document document;
        found = interrupt_requested() ? -1 : documents_next(batch->scoring->documents, &document);
        if (found == 1 && add_document(batch, &document)) {
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
        const size_t length = batch->lengths[i], windows = rolling_windows_count(length, context);
        for (size_t k = 0; k < windows; k++) {
            const struct rolling_window window = rolling_windows_at(length, context, k);
            batch->windows[batch->window_count++] = (struct loss_window){.tokens = ids + window.first,
                                                                         .length = window.length,
                                                                         .scored = window.scored};
        }
        ids += length + 1;
    }
}

/* Each document's windows, in its order. */
static int report(const struct batch *batch, struct perplexity_sums *total) {
    const struct document_scoring *scoring = batch->scoring;
    const struct loss_window *window = batch->windows;
    for (uint64_t i = 0; i < batch->documents; i++) {
        struct scored_document *document = &batch->results[i];
        for (size_t left = rolling_windows_count(batch->lengths[i], context_of(batch)); left > 0; left--) {
            document->sums.log_likelihood -= window++->loss;
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
    free(batch.lengths);
    free(batch.ids);
    free(batch.results);
    free(batch.windows);
    return status;
}
