/* Texts from a model, several at a time, token by token. */
#pragma once

#include "src/model/gpt.h"
#include "src/sampling/sample_choice.h"

struct sample_settings {
    struct choice_settings choice;
    int64_t samples;   /* texts */
    int64_t count;     /* new tokens of each, at most */
    size_t vocabulary; /* tokens that may be chosen: all below this one; <= vocab_size */
    int64_t end;       /* the token that ends a text; -1: none */
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
