/* The choice of a token from a model's logits. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* In this order: logits / temperature, then the top_k likeliest tokens, then of these the fewest that have top_p of
 * the probability, the likeliest first. */
struct choice_settings {
    double temperature; /* 0: always the likeliest token */
    int64_t top_k;      /* 0: all tokens */
    double top_p;       /* 0 to 1; 1: all tokens; at least one token stays */
};

/* Scratch for choices among `vocabulary` tokens. */
struct choice_scratch {
    size_t vocabulary;
    double *weights; /* [vocabulary] */
    int32_t *heap;   /* [vocabulary] */
};

void choice_scratch_create(size_t vocabulary, struct choice_scratch *scratch);
void choice_scratch_free(struct choice_scratch *scratch);

/* Chooses among tokens 0 .. scratch->vocabulary - 1 by their logits; uniform in [0, 1) decides. Of equal logits the
 * smaller token counts as likelier. Sums are in double. A logit of -infinity is never chosen. -1 with an error if a
 * logit is NaN or +infinity, or all are -infinity. */
int sample_choose(const float *logits, const struct choice_settings *settings, double uniform,
                  struct choice_scratch *scratch, int32_t *token);
