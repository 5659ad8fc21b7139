/* Metrics from log-likelihoods that can be compared between models, also between such of different tokens. */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Of a document, or of several together. */
struct perplexity_sums {
    uint64_t tokens;
    uint64_t words;        /* see perplexity_words */
    uint64_t bytes;        /* of UTF-8 */
    double log_likelihood; /* natural logarithm */
};

/* Words as lm-evaluation-harness counts them, len(re.split(r"\s+", text)) in Python: one more than there are runs
 * of white space, which includes U+001C .. U+001F. So an empty text has one. The text is UTF-8. */
uint64_t perplexity_words(const char *text, size_t bytes);

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
