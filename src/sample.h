/* Text from a model, token by token. */
#ifndef HC_SRC_SAMPLE_H
#define HC_SRC_SAMPLE_H

#include "src/gpt.h"

struct sample_settings {
    double temperature; /* 0: always the likeliest token */
    int64_t top_k;      /* 0: all tokens */
    int64_t count;      /* new tokens */
    uint64_t seed;
};

/* Called with each new token; a non-zero return stops. */
typedef int (*sample_sink)(int32_t token, void *context);

/* Continues prompt [prompt_count >= 1] by up to settings->count tokens, with the last block_size / 2 to block_size
 * tokens as context. The
 * model is planned with batch 1. Stops early, without error, when the process is interrupted or the sink says so.
 */
int sample_run(struct gpt *gpt, const struct sample_settings *settings, const int32_t *prompt, size_t prompt_count,
               sample_sink sink, void *context);

/* Chooses a token from logits [vocabulary]: softmax at this temperature over the top_k largest; uniform in [0, 1)
 * decides. order [vocabulary] is scratch. */
int32_t sample_choose(const float *logits, size_t vocabulary, double temperature, int64_t top_k, double uniform,
                      int32_t *order);

#endif
