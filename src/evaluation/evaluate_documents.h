/* The log-likelihood of documents under a model, as lm-evaluation-harness computes rolling ones: each document is
 * encoded by itself, follows a prefix token, and is divided into windows (src/evaluation/rolling_windows.h).
 *
 * Rank 0 reads and encodes, all ranks score. Memory is bounded by the longest document, not by their number. */
#ifndef HC_SRC_EVALUATE_DOCUMENTS_H
#define HC_SRC_EVALUATE_DOCUMENTS_H

#include "runtime/ranks/ranks.h"
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

struct evaluate_documents {
    struct gpt *gpt; /* planned to score the tokenizer's tokens only */
    struct ranks *ranks;
    struct progress *progress;
    struct documents *documents;       /* rank 0's, as all below */
    const struct tokenizer *tokenizer; /* the model's */
    /* Told of the documents in their order; -1 with an error text ends it. May be NULL. */
    int (*scored)(void *context, const struct scored_document *document);
    void *context;
};

/* On rank 0 the sums over all documents. Collective. Sums are made in double, in the order of the
 * documents, so that they do not depend on the number of ranks. Fails with "interrupted" on all ranks when one is.
 */
int evaluate_documents(const struct evaluate_documents *evaluation, struct perplexity_sums *total);

/* What stands before a document: <|endoftext|>, or where there is none (bytes) a newline. */
uint32_t evaluate_documents_prefix(const struct tokenizer *tokenizer);

#endif
