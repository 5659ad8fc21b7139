#include "src/sample.h"
#include "runtime/error.h"
#include "runtime/interrupt.h"
#include "runtime/random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int32_t likeliest(const float *logits, size_t vocabulary) {
    size_t best = 0;
    for (size_t i = 1; i < vocabulary; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return (int32_t)best;
}

/* Larger logits first, then smaller tokens, so that the order is total. */
static int by_logit(const void *a, const void *b, void *context) {
    const float *logits = context;
    const int32_t first = *(const int32_t *)a, second = *(const int32_t *)b;
    if (logits[first] != logits[second]) {
        return logits[first] < logits[second] ? 1 : -1;
    }
    return first - second;
}

int32_t sample_choose(const float *logits, size_t vocabulary, double temperature, int64_t top_k, double uniform,
                      int32_t *order) {
    const int32_t best = likeliest(logits, vocabulary);
    if (temperature <= 0.0) {
        return best;
    }
    for (size_t i = 0; i < vocabulary; i++) {
        order[i] = (int32_t)i;
    }
    size_t kept = vocabulary;
    if (top_k > 0 && (size_t)top_k < vocabulary) {
        qsort_r(order, vocabulary, sizeof *order, by_logit, (void *)(uintptr_t)logits);
        kept = (size_t)top_k;
    }
    double total = 0.0, sum = 0.0;
    for (size_t i = 0; i < kept; i++) {
        total += exp(((double)logits[order[i]] - (double)logits[best]) / temperature);
    }
    for (size_t i = 0; i < kept; i++) {
        sum += exp(((double)logits[order[i]] - (double)logits[best]) / temperature);
        if (sum > uniform * total) {
            return order[i];
        }
    }
    return best;
}

struct sampling {
    int32_t *context; /* [block_size] the last tokens */
    size_t length;
    float *logits;  /* [vocabulary] */
    int32_t *order; /* [vocabulary] */
};

/* A full context loses its older half, not one token: positions are learned, so moving by one would move every
 * token to another position and leave all predictions to the last one. */
static void append(struct sampling *sampling, size_t block_size, int32_t token) {
    if (sampling->length == block_size) {
        const size_t kept = block_size / 2;
        memmove(sampling->context, sampling->context + block_size - kept, kept * sizeof *sampling->context);
        sampling->length = kept;
    }
    sampling->context[sampling->length++] = token;
}

static int next_token(struct gpt *gpt, const struct sample_settings *settings, struct sampling *sampling,
                      int64_t index, int32_t *token) {
    const struct token_shape shape = {1, (int64_t)sampling->length};
    if (gpt_set_batch(gpt, shape, sampling->context, NULL)) {
        return -1;
    }
    gpt_forward(gpt, (struct gpt_pass){.dropout = false});
    if (gpt_read_logits(gpt, sampling->length - 1, 1, sampling->logits)) {
        return -1;
    }
    const double uniform = random_uniform(random_key(settings->seed, "sample"), (uint64_t)index);
    *token = sample_choose(sampling->logits, (size_t)gpt->config.vocab_size, settings->temperature, settings->top_k,
                           uniform, sampling->order);
    return 0;
}

int sample_run(struct gpt *gpt, const struct sample_settings *settings, const int32_t *prompt, size_t prompt_count,
               sample_sink sink, void *context) {
    const size_t block_size = (size_t)gpt->config.block_size, vocabulary = (size_t)gpt->config.vocab_size;
    struct sampling sampling = {.context = malloc(block_size * sizeof(int32_t)),
                                .logits = malloc(vocabulary * sizeof(float)),
                                .order = malloc(vocabulary * sizeof(int32_t))};
    int status = sampling.context && sampling.logits && sampling.order ? 0 : error_set("out of memory");
    for (size_t i = 0; status == 0 && i < prompt_count; i++) {
        append(&sampling, block_size, prompt[i]);
    }
    for (int64_t index = 0; status == 0 && index < settings->count && !interrupt_requested(); index++) {
        int32_t token = 0;
        status = next_token(gpt, settings, &sampling, index, &token);
        if (status == 0) {
            append(&sampling, block_size, token);
            if (sink(token, context)) {
                break;
            }
        }
    }
    free(sampling.context);
    free(sampling.logits);
    free(sampling.order);
    return status;
}
