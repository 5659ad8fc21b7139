/* The log-likelihood of texts under a model, as EleutherAI's lm-evaluation-harness computes it.
 *
 * Documents come out of files: text files, each one document, or JSON lines, each line one; perhaps compressed, see
 * runtime/files/input.h. A document's log-likelihood is a rolling one: it is encoded by itself, its n tokens
 * t_1 .. t_n follow a prefix token t_0 (tokenizer_prefix), and each is predicted once. Windows predict T tokens
 * after T tokens, t_1 .. t_T, t_(T+1) .. t_(2T), ...; the last one predicts what is left. Each reads the T tokens
 * before the last one that it predicts, or all there are. So the last window's predictions have more context than
 * the others', and the first token of every other window has the one before it only.
 *
 * A request is a line of JSON with "context" and "continuation", of which the continuation is predicted behind the
 * context: white space at the context's end belongs to the continuation, the context's tokens are those of the
 * context alone, and the continuation's are what is left of the tokens of both together. Before the context stands
 * the tokenizer's own beginning; an empty context is replaced by the prefix token. If both are longer than the
 * model's context, the first tokens are left out.
 *
 * Rank 0 reads and encodes, all ranks score. Memory is bounded by the longest document, not by their number. */
#pragma once

#include "runtime/files/files.h"
#include "runtime/ranks/ranks.h"
#include "runtime/system/progress.h"
#include "src/model/gpt.h"
#include "src/settings/settings.h"
#include "src/text/tokenizer.h"
#include <jansson.h>

/* ---- metrics from log-likelihoods that can be compared between models, also between such of different tokens */

/* Of a document, or of several together. */
struct perplexity_sums {
    uint64_t tokens;
    uint64_t words;        /* see perplexity_words */
    uint64_t bytes;        /* of UTF-8 */
    double log_likelihood; /* natural logarithm */
    uint64_t documents;    /* or requests */
};

/* Words as lm-evaluation-harness counts them, len(re.split(r"\s+", text)) in Python: one more than there are runs
 * of white space, which includes U+001C .. U+001F. So an empty text has one. The text is UTF-8. */
uint64_t perplexity_words(const char *text, size_t bytes);

/* Adds one document's. */
void perplexity_add(struct perplexity_sums *total, const struct perplexity_sums *more);

/* The sums and what follows from them, as numbers with names, which JSON has as keys. */
enum {
    METRIC_TOKENS, /* the first three are integers */
    METRIC_WORDS,
    METRIC_BYTES,
    METRIC_LOG_LIKELIHOOD,
    METRIC_WORD_PERPLEXITY,  /* exp(-log_likelihood / words) */
    METRIC_BYTE_PERPLEXITY,  /* exp(-log_likelihood / bytes) */
    METRIC_BITS_PER_BYTE,    /* -log_likelihood / bytes / log 2 */
    METRIC_TOKEN_PERPLEXITY, /* exp(loss) */
    METRIC_LOSS,             /* -log_likelihood / tokens */
    PERPLEXITY_METRICS
};

struct perplexity_metric {
    const char *name;
    int digits;   /* behind the point, where it is printed */
    double value; /* NaN where there is nothing to divide by, infinity where a number is too large */
};
void perplexity_metrics(const struct perplexity_sums *sums, struct perplexity_metric metrics[PERPLEXITY_METRICS]);

/* Adds them to an object; what is no finite number is null. */
void perplexity_put(const struct perplexity_sums *sums, json_t *object);

/* An error for a loss that is infinite or NaN. */
int perplexity_check_loss(double loss);

/* ---- documents */

/* --documents */
#define DOCUMENTS_WORDS "auto|files|jsonl"
enum documents_word { DOCUMENTS_BY_NAME, DOCUMENTS_FILES, DOCUMENTS_JSONL };

struct documents_settings {
    const char *const *names; /* [count] of files; "-" is standard input */
    size_t count;
    bool requests;     /* they are lines with requests; then `field` and `count_field` are not used */
    int word;          /* enum documents_word */
    char *field;       /* of JSON lines: the one that has the text */
    char *count_field; /* and the one whose words and bytes are counted; NULL: the text */
    int invalid;       /* enum invalid_word: text that is not UTF-8 is an error, or becomes U+FFFD */
    int64_t limit;     /* no more documents than these; 0: all */
};

struct documents;

/* Examines the files, so that a missing one is known at once. The settings must stay. Either way the caller closes
 * it. */
int documents_open(const struct documents_settings *settings, struct documents **opened);
void documents_close(struct documents *documents);

/* On rank 0 the sums over all documents; `lines` gets a line of JSON for each document or request if it is open.
 * gpt is planned with the ranks, and the tokens that the softmax is over; documents, tokenizer (the model's) and
 * lines are rank 0's. Collective. Sums are made in double, in the order of the documents, so that they do not
 * depend on the number of ranks. Fails on all ranks with "interrupted" if one is, and for a document that is
 * unreadable, not UTF-8, not JSON, without the field, or of more than 1 GiB, with its file and line. */
int score_documents(struct gpt *gpt, struct ranks *ranks, struct progress *progress,
                    const struct documents_settings *settings, struct documents *documents,
                    const struct tokenizer *tokenizer, const struct output_file *lines,
                    struct perplexity_sums *total);
