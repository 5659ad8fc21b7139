#include "src/evaluation/evaluate_documents.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "src/evaluation/rolling_windows.h"
#include "src/evaluation/window_losses.h"
#include <stdlib.h>
#include <string.h>

/* A round ends with the document that reaches one of these. They must not depend on the number of ranks. */
enum { ROUND_TOKENS = 1 << 21, ROUND_DOCUMENTS = 1 << 16 };

/* Documents that are scored together. */
struct round {
    uint64_t documents, tokens; /* in the arrays below */
    uint64_t token_room;
    uint64_t *lengths;               /* [ROUND_DOCUMENTS] tokens of each, without its prefix */
    int32_t *ids;                    /* [tokens] each document behind its prefix */
    struct scored_document *results; /* [ROUND_DOCUMENTS] */
    struct loss_window *windows;
    size_t window_count;
};

/* What a progress line is made of. */
struct watch {
    struct progress *progress;
    const char *label;
    uint64_t before, after, total; /* of documents_progress: at the round's ends, and in all */
    uint64_t tokens, round_tokens; /* of earlier rounds, and of this one */
};

uint32_t evaluate_documents_prefix(const struct tokenizer *tokenizer) {
    const uint32_t end_of_text = tokenizer_end_of_text(tokenizer);
    return end_of_text == UINT32_MAX ? '\n' : end_of_text;
}

static int round_create(struct round *round) {
    *round = (struct round){.lengths = malloc(ROUND_DOCUMENTS * sizeof *round->lengths),
                            .results = malloc(ROUND_DOCUMENTS * sizeof *round->results)};
    return round->lengths && round->results ? 0 : error_set("out of memory");
}

static void round_release(struct round *round) {
    free(round->lengths);
    free(round->ids);
    free(round->results);
    free(round->windows);
}

static int reserve_tokens(struct round *round, uint64_t more) {
    if (round->token_room - round->tokens >= more) {
        return 0;
    }
    const uint64_t room = round->tokens + more + ROUND_TOKENS;
    int32_t *grown = realloc(round->ids, room * sizeof *grown);
    if (!grown) {
        return error_set("out of memory for %llu tokens", (unsigned long long)room);
    }
    round->ids = grown;
    round->token_room = room;
    return 0;
}

/* ---- rank 0 reads */

struct reader {
    const struct evaluate_documents *evaluation;
    struct tokenizer_scratch *scratch;
    struct token_list list;
};

static int add_document(struct reader *reader, const struct document *document, struct round *round) {
    const struct tokenizer *tokenizer = reader->evaluation->tokenizer;
    struct token_list *list = &reader->list;
    list->count = 0;
    if (tokenizer_encode(tokenizer, reader->scratch, document->text, document->bytes, list)) {
        return error_prefix("%s", document->source);
    }
    if (reserve_tokens(round, list->count + 1)) {
        return -1;
    }
    round->ids[round->tokens++] = (int32_t)evaluate_documents_prefix(tokenizer);
    for (size_t i = 0; i < list->count; i++) {
        round->ids[round->tokens++] = list->tokens[i];
    }
    round->results[round->documents] = (struct scored_document){
        document->source,
        document->line,
        {.tokens = list->count,
         .words = perplexity_words(document->counted, document->counted_bytes),
         .bytes = document->counted_bytes},
    };
    round->lengths[round->documents++] = list->count;
    return 0;
}

static int read_round(struct reader *reader, struct round *round) {
    struct document document;
    int found = 1;
    while (found == 1 && round->tokens < ROUND_TOKENS && round->documents < ROUND_DOCUMENTS) {
        found = interrupt_requested() ? -1 : documents_next(reader->evaluation->documents, &document);
        if (found == 1 && add_document(reader, &document, round)) {
            found = -1;
        }
    }
    if (found < 0 && interrupt_requested()) {
        return error_set("interrupted");
    }
    return found < 0 ? -1 : 0;
}

/* The next documents to all ranks; none at the end. Collective. */
static int share_round(struct reader *reader, struct round *round) {
    struct ranks *ranks = reader->evaluation->ranks;
    round->documents = round->tokens = 0;
    if (ranks_agree(ranks, ranks->index == 0 ? read_round(reader, round) : 0)) {
        return -1;
    }
    uint64_t sizes[2] = {round->documents, round->tokens};
    if (ranks_broadcast(ranks, sizes, sizeof sizes) ||
        ranks_agree(ranks, ranks->index == 0 ? 0 : reserve_tokens(round, sizes[1]))) {
        return -1;
    }
    round->documents = sizes[0];
    round->tokens = sizes[1];
    return ranks_broadcast(ranks, round->lengths, round->documents * sizeof *round->lengths) ||
           ranks_broadcast(ranks, round->ids, round->tokens * sizeof *round->ids);
}

/* ---- all score */

static int make_windows(struct round *round, size_t context) {
    size_t count = 0;
    for (uint64_t i = 0; i < round->documents; i++) {
        count += rolling_windows_count(round->lengths[i], context);
    }
    free(round->windows);
    round->windows = malloc((count + 1) * sizeof *round->windows);
    if (!round->windows) {
        return error_set("out of memory for %zu windows", count);
    }
    const int32_t *ids = round->ids;
    round->window_count = 0;
    for (uint64_t i = 0; i < round->documents; i++) {
        const size_t length = round->lengths[i], windows = rolling_windows_count(length, context);
        for (size_t k = 0; k < windows; k++) {
            const struct rolling_window window = rolling_windows_at(length, context, k);
            round->windows[round->window_count++] =
                (struct loss_window){ids + window.first, window.length, window.scored, 0.0};
        }
        ids += length + 1;
    }
    return 0;
}

static void show(void *context, size_t windows, size_t all) {
    const struct watch *watch = context;
    const double part = all > 0 ? (double)windows / (double)all : 1.0;
    const int64_t done = (int64_t)((double)watch->before + part * (double)(watch->after - watch->before));
    const double seconds = progress_clock() - watch->progress->start;
    char details[64];
    snprintf(details, sizeof details, "%.0f tokens/s",
             ((double)watch->tokens + part * (double)watch->round_tokens) / seconds);
    progress_show(watch->progress, watch->label, done,
                  watch->total > watch->after ? (int64_t)watch->total : (int64_t)watch->after, details, false);
}

/* Each document's windows, in its order. */
static int report_round(const struct evaluate_documents *evaluation, struct round *round,
                        struct perplexity_sums *total) {
    const size_t context = (size_t)evaluation->gpt->options.sequence;
    const struct loss_window *window = round->windows;
    for (uint64_t i = 0; i < round->documents; i++) {
        struct scored_document *document = &round->results[i];
        for (size_t left = rolling_windows_count(round->lengths[i], context); left > 0; left--) {
            document->sums.log_likelihood -= window++->loss;
        }
        perplexity_add(total, &document->sums);
        if (evaluation->scored && evaluation->scored(evaluation->context, document)) {
            return -1;
        }
    }
    return 0;
}

static void watch_round(const struct evaluate_documents *evaluation, const struct round *round,
                        struct watch *watch) {
    watch->before = watch->after;
    watch->tokens += watch->round_tokens;
    watch->round_tokens = round->tokens - round->documents;
    if (evaluation->documents) {
        watch->label = documents_progress(evaluation->documents, &watch->after, &watch->total);
    }
}

static int score_rounds(struct reader *reader, struct round *round, struct perplexity_sums *total) {
    const struct evaluate_documents *evaluation = reader->evaluation;
    struct ranks *ranks = evaluation->ranks;
    struct watch watch = {.progress = evaluation->progress, .label = ""};
    const struct loss_listener listener = {show, &watch};
    for (;;) {
        if (share_round(reader, round)) {
            return -1;
        }
        if (round->documents == 0) {
            return 0;
        }
        watch_round(evaluation, round, &watch);
        if (ranks_agree(ranks, make_windows(round, (size_t)evaluation->gpt->options.sequence)) ||
            window_losses(evaluation->gpt, ranks, round->windows, round->window_count, &listener) ||
            ranks_agree(ranks, ranks->index == 0 ? report_round(evaluation, round, total) : 0)) {
            return -1;
        }
    }
}

int evaluate_documents(const struct evaluate_documents *evaluation, struct perplexity_sums *total) {
    struct round round;
    struct reader reader = {.evaluation = evaluation};
    *total = (struct perplexity_sums){0};
    int status = round_create(&round);
    if (status == 0 && evaluation->tokenizer) {
        reader.scratch = tokenizer_scratch_create(evaluation->tokenizer);
        status = reader.scratch ? 0 : -1;
    }
    status = ranks_agree(evaluation->ranks, status) || score_rounds(&reader, &round, total);
    tokenizer_scratch_free(reader.scratch);
    token_list_free(&reader.list);
    round_release(&round);
    return status ? -1 : 0;
}
