/* The log-likelihood of texts under a model, as EleutherAI's lm-evaluation-harness computes it.
 *
 * A document's is a rolling one: it is encoded by itself, follows a prefix token (tokenizer_prefix), and is divided
 * into windows, each token being predicted once. A request is a line of JSON with "context" and "continuation", of
 * which the continuation is predicted behind the context: white space at the context's end belongs to the
 * continuation, the context's tokens are those of the context alone, and the continuation's are what is left of the
 * tokens of both together. Before the context stands the tokenizer's own beginning; an empty one is a prefix token.
 * If both are longer than the model's context, the first tokens are left out.
 *
 * Rank 0 reads and encodes, all ranks score. Memory is bounded by the longest document, not by their number. */
#pragma once

#include "runtime/system/progress.h"
#include "src/evaluation/documents.h"
#include "src/evaluation/perplexity.h"
#include "src/model/gpt.h"
#include "src/text/tokenizer.h"
#include <stdbool.h>

struct scored_document {
    const char *source;          /* the name of its file */
    uint64_t line;               /* of JSON lines; 0 for a text file */
    struct perplexity_sums sums; /* of a request, tokens are the continuation's, and nothing else is counted */
    uint64_t context_tokens;     /* of a request: those that were read before the continuation */
    bool greedy;                 /* of a request: each token of its continuation has the largest logit */
};

struct document_scoring {
    struct gpt *gpt; /* planned with the ranks, and the tokens that the softmax is over */
    struct ranks *ranks;
    struct progress *progress;
    bool requests;                     /* the documents are lines with requests */
    bool replaces;                     /* in requests, half a surrogate pair becomes U+FFFD */
    struct documents *documents;       /* rank 0's, as all below */
    const struct tokenizer *tokenizer; /* the model's */
    /* Told of the documents in their order; -1 with an error text ends it. */
    int (*scored)(void *context, const struct scored_document *document);
    void *context;
};

/* On rank 0 the sums over all documents. Collective. Sums are made in double, in the order of the documents, so
 * that they do not depend on the number of ranks. Fails with "interrupted" on all ranks when one is. */
int score_documents(const struct document_scoring *scoring, struct perplexity_sums *total);

/* The document's n tokens t_1 .. t_n follow the prefix t_0. Windows predict T tokens after T tokens, t_1 .. t_T,
 * t_(T+1) .. t_(2T), ...; the last one predicts what is left. Each reads the T tokens before the last one that it
 * predicts, or all there are. So the last window's predictions have more context than the others', and the first
 * token of every other window has the one before it only. */
struct rolling_window {
    size_t first;  /* it reads t_first .. t_(first + length - 1), to predict each one's successor */
    size_t length; /* 1 .. T */
    size_t scored; /* so many predictions at its end count */
};

/* Windows of n tokens; none for none. */
size_t rolling_windows_count(size_t tokens, size_t context);

/* Window `index` of them. */
struct rolling_window rolling_windows_at(size_t tokens, size_t context, size_t index);
