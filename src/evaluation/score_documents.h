/* The log-likelihood of documents under a model, as EleutherAI's lm-evaluation-harness computes rolling ones: each
 * document is encoded by itself, follows a prefix token (tokenizer_prefix), and is divided into windows, each token
 * being predicted once.
 *
 * Rank 0 reads and encodes, all ranks score. Memory is bounded by the longest document, not by their number. */
#pragma once

#include "runtime/system/progress.h"
#include "src/evaluation/documents.h"
#include "src/evaluation/perplexity.h"
#include "src/model/gpt.h"
#include "src/text/tokenizer.h"

struct scored_document {
    const char *source; /* the name of its file */
    uint64_t line;      /* of JSON lines; 0 for a text file */
    struct perplexity_sums sums;
};

struct document_scoring {
    struct gpt *gpt; /* planned with the ranks, and the tokens that the softmax is over */
    struct ranks *ranks;
    struct progress *progress;
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
