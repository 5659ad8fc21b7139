/* Texts from a model, several at a time, token by token. */
#pragma once

#include "src/model/gpt.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- the choice of a token from a model's logits */

/* As transformers defines these settings, in this order: logits / temperature, then the top_k likeliest tokens,
 * then of these the fewest that have top_p of the probability, the likeliest first, then of these the ones that
 * have at least min_p times the probability of the likeliest. One token at least stays. */
struct choice_settings {
    double temperature; /* 0: always the likeliest token */
    int64_t top_k;      /* 0: all tokens */
    double top_p;       /* 0 to 1; 1: all tokens */
    double min_p;       /* 0 to 1; 0: all tokens */
};

/* Scratch for choices among `vocabulary` tokens, and which of them stay. */
struct choice_scratch {
    size_t vocabulary;
    double *weights; /* [vocabulary] probabilities of the tokens that stay, but for a factor */
    int32_t *heap;   /* [vocabulary]; the first `count` are the tokens that stay */
    size_t count;
    double sum; /* of the weights of those that stay */
};

void choice_scratch_create(size_t vocabulary, struct choice_scratch *scratch);
void choice_scratch_free(struct choice_scratch *scratch);

/* transformers' repetition penalty, to be called before a choice: logits of tokens that are present in the text
 * are divided by it if they are positive, else multiplied. logits, present: [vocabulary]. */
void sample_penalize(float *logits, const bool *present, size_t vocabulary, double penalty);

/* Chooses one of the tokens 0 .. scratch->vocabulary - 1 that stay; uniform in [0, 1) decides. Temperature 0
 * leaves the likeliest one. Of equal logits the smaller token counts as likelier. A logit of -infinity is never
 * chosen. Sums are in double. -1 with an error if a logit is NaN or +infinity, or all are -infinity. */
int sample_choose(const float *logits, const struct choice_settings *settings, double uniform,
                  struct choice_scratch *scratch, int32_t *token);

/* ---- texts */

struct sample_settings {
    struct choice_settings choice;
    double repetition_penalty;        /* for tokens of the prompt and of the text so far; 1: none */
    int64_t samples;                  /* texts */
    int64_t count;                    /* new tokens of each, at most */
    size_t vocabulary;                /* tokens that may be chosen: all below this one; <= vocab_size */
    int64_t ends[TOKEN_IDS_MOST + 1]; /* [end_count] tokens that end a text: the model's, and the tokenizer's */
    size_t end_count;
    uint64_t seed;
};

/* Where texts go, which are numbered from 0. The first options.batch of them are written side by side, then as many
 * again, and so on. */
struct sample_sink {
    /* A new token; not called for the one that ends the text. 0: go on; 1: this text is complete; -1: an error,
     * which ends all. */
    int (*token)(void *context, int64_t sample, int32_t token);
    /* The text is complete, or interrupted; those side by side in any order. -1: an error. */
    int (*end)(void *context, int64_t sample);
    void *context;
};

/* Continues the prompt [prompt_count >= 1] settings->samples times. The model is planned with GPT_GENERATION; its
 * options.batch texts are written side by side, and what they are does not depend on that (up to FEW_ROWS of them).
 * The last options.sequence / 2 to options.sequence tokens are the context. Stops early, without error, when the
 * process is interrupted. */
int sample_run(struct gpt *gpt, const struct sample_settings *settings, const int32_t *prompt, size_t prompt_count,
               const struct sample_sink *sink);
