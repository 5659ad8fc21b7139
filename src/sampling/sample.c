#include "src/sampling/sample.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "runtime/system/random.h"
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void choice_scratch_create(size_t vocabulary, struct choice_scratch *scratch) {
    *scratch = (struct choice_scratch){.vocabulary = vocabulary,
                                       .weights = memory_zeroed(vocabulary, sizeof *scratch->weights),
                                       .heap = memory_zeroed(vocabulary, sizeof *scratch->heap)};
}

void choice_scratch_free(struct choice_scratch *scratch) {
    free(scratch->weights);
    free(scratch->heap);
    *scratch = (struct choice_scratch){0};
}

/* ---- candidates, in scratch->heap: only those that are wanted are ever sorted */

static bool is_likelier(const float *logits, int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static int by_logit(const void *a, const void *b, void *logits) {
    return is_likelier(logits, *(const int32_t *)a, *(const int32_t *)b) ? -1 : 1;
}

/* A token of a heap whose least likely one is on top moves to its place. */
static void sift_down(const float *logits, int32_t *heap, size_t count, size_t at) {
    const int32_t token = heap[at];
    for (size_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        child += child + 1 < count && is_likelier(logits, heap[child], heap[child + 1]);
        if (is_likelier(logits, heap[child], token)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = token;
}

/* The heap [most] has the first tokens, and gets the likeliest of all. Few come after one that they are likelier
 * than. */
static void select_likeliest(const float *logits, size_t count, size_t most, int32_t *heap) {
    for (size_t i = most / 2; i-- > 0;) {
        sift_down(logits, heap, most, i);
    }
    for (size_t i = most; i < count; i++) {
        if (is_likelier(logits, (int32_t)i, heap[0])) {
            heap[0] = (int32_t)i;
            sift_down(logits, heap, most, 0);
        }
    }
}

/* ---- choosing */

static int find_likeliest(const float *logits, size_t count, int32_t *token) {
    size_t best = 0;
    float highest = -HUGE_VALF;
    for (size_t i = 0; i < count; i++) {
        if (!(logits[i] <= FLT_MAX)) {
            return error_set(
                "the logit of token %zu is %s: the model's weights are damaged or its training diverged", i,
                isnan(logits[i]) ? "not a number" : "infinite");
        }
        if (logits[i] > highest) {
            highest = logits[i];
            best = i;
        }
    }
    *token = (int32_t)best;
    return isinf(highest) ? error_set("no token has a probability: all logits are -infinity") : 0;
}

void sample_penalize(float *logits, const bool *present, size_t vocabulary, double penalty) {
    const float factor = (float)penalty;
    for (size_t i = 0; i < vocabulary; i++) {
        if (present[i]) {
            logits[i] = logits[i] < 0.0f ? logits[i] * factor : logits[i] / factor;
        }
    }
}

/* Finds which tokens stay, and their weights. */
static int filter(const float *logits, const struct choice_settings *settings, struct choice_scratch *scratch) {
    const bool some = settings->top_k > 0 && (uint64_t)settings->top_k < scratch->vocabulary;
    size_t count = some ? (size_t)settings->top_k : scratch->vocabulary;
    int32_t best = 0;
    if (find_likeliest(logits, scratch->vocabulary, &best)) {
        return -1;
    }
    if (settings->temperature <= 0.0) {
        scratch->heap[0] = best;
        scratch->weights[best] = scratch->sum = 1.0;
        scratch->count = 1;
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        scratch->heap[i] = (int32_t)i;
    }
    if (some) {
        select_likeliest(logits, scratch->vocabulary, count, scratch->heap);
    }
    double total = 0.0; /* of weights relative to the likeliest one's */
    for (size_t i = 0; i < count; i++) {
        const int32_t token = scratch->heap[i];
        scratch->weights[token] = exp(((double)logits[token] - (double)logits[best]) / settings->temperature);
        total += scratch->weights[token];
    }
    if (!some && settings->top_p >= 1.0 && settings->min_p <= 0.0) {
        scratch->count = count;
        scratch->sum = total;
        return 0;
    }
    if (!some) { /* all that are lighter have less than 1 - top_p together: they are not needed */
        const double least = fmax((1.0 - settings->top_p) * total / (double)count, settings->min_p);
        count = 0;
        for (size_t i = 0; i < scratch->vocabulary; i++) {
            if (scratch->weights[i] >= least) {
                scratch->heap[count++] = (int32_t)i;
            }
        }
    }
    /* the likeliest stay until they have `mass` or the next weighs less than min_p, and at least one */
    const double mass = settings->top_p < 1.0 ? settings->top_p * total : HUGE_VAL;
    const int32_t *next = scratch->heap;
    qsort_r(scratch->heap, count, sizeof *scratch->heap, by_logit, (void *)(uintptr_t)logits);
    scratch->sum = 0.0;
    do {
        scratch->sum += scratch->weights[*next++];
    } while (next < scratch->heap + count && scratch->sum < mass && scratch->weights[*next] >= settings->min_p);
    scratch->count = (size_t)(next - scratch->heap);
    return 0;
}

int sample_choose(const float *logits, const struct choice_settings *settings, double uniform,
                  struct choice_scratch *scratch, int32_t *token) {
    double sum = 0.0;
    if (filter(logits, settings, scratch)) {
        return -1;
    }
    *token = 0; /* else the last one that has a weight: where rounding leaves a rest */
    for (size_t i = 0; i < scratch->count && sum <= uniform * scratch->sum; i++) {
        const int32_t next = scratch->heap[i];
        sum += scratch->weights[next];
        *token = scratch->weights[next] > 0.0 ? next : *token;
    }
    return 0;
}

/* ---- texts side by side */

/* Texts that are written side by side: all are equally long, row i of each array is about one of them. */
struct sampling {
    struct gpt *gpt;
    const struct sample_settings *settings;
    const struct sample_sink *sink;
    size_t capacity; /* tokens of context at most */
    struct choice_scratch scratch;
    int32_t *contexts; /* [options.batch, capacity] */
    bool *present;     /* [options.batch, settings->vocabulary] the tokens of the prompt and the text */
    int32_t *next;     /* [options.batch] tokens just chosen */
    float *logits;     /* [options.batch, V] after the contexts */
    int64_t *samples;  /* [options.batch] their numbers */
    int64_t rows;      /* not complete yet */
    size_t length;     /* of the contexts */
};

static int32_t *context_of(const struct sampling *sampling, int64_t row) {
    return sampling->contexts + (size_t)row * sampling->capacity;
}

static bool *present_in(const struct sampling *sampling, int64_t row) {
    return sampling->present + (size_t)row * sampling->settings->vocabulary;
}

static float *logits_of(const struct sampling *sampling, int64_t row) {
    return sampling->logits + row * sampling->gpt->config.vocab_size;
}

static int prefill(struct sampling *sampling, int64_t row) {
    return generation_prefill(sampling->gpt, row, context_of(sampling, row), sampling->length,
                              logits_of(sampling, row));
}

static void copy_row(struct sampling *sampling, int64_t from, int64_t to) {
    if (from != to) {
        memcpy(context_of(sampling, to), context_of(sampling, from), sampling->length * sizeof(int32_t));
        memcpy(present_in(sampling, to), present_in(sampling, from),
               sampling->settings->vocabulary * sizeof *sampling->present);
        memcpy(logits_of(sampling, to), logits_of(sampling, from),
               (size_t)sampling->gpt->config.vocab_size * sizeof(float));
        generation_copy(sampling->gpt, from, to);
    }
}

/* The last row takes the place of one that is complete. */
static int end_row(struct sampling *sampling, int64_t row) {
    const int64_t sample = sampling->samples[row], last = --sampling->rows;
    copy_row(sampling, last, row);
    sampling->samples[row] = sampling->samples[last];
    return sampling->sink->end(sampling->sink->context, sample);
}

/* 0, 1 where the text is complete, -1. */
static int choose(struct sampling *sampling, int64_t row, int64_t index) {
    const struct sample_settings *settings = sampling->settings;
    const int64_t sample = sampling->samples[row];
    const uint64_t place = (uint64_t)sample << 32 | (uint64_t)index;
    const double uniform = random_uniform(random_key(settings->seed, "sample"), place);
    int32_t *token = &sampling->next[row];
    float *logits = logits_of(sampling, row);
    if (settings->repetition_penalty < 1.0 || settings->repetition_penalty > 1.0) {
        sample_penalize(logits, present_in(sampling, row), settings->vocabulary, settings->repetition_penalty);
    }
    if (sample_choose(logits, &settings->choice, uniform, &sampling->scratch, token)) {
        return -1;
    }
    for (size_t i = 0; i < settings->end_count; i++) {
        if (settings->ends[i] == *token) {
            return 1;
        }
    }
    present_in(sampling, row)[*token] = true;
    const int answer = sampling->sink->token(sampling->sink->context, sample, *token);
    return answer == 0 && index + 1 == settings->count ? 1 : answer;
}

/* The chosen tokens join the contexts. A full context loses its older half, not one token, since moving by one
 * would move every token to another position, and make what is cached for it worthless. */
static int advance(struct sampling *sampling) {
    const size_t position = sampling->length, kept = sampling->capacity / 2;
    const bool full = position == sampling->capacity;
    sampling->length = (full ? kept : position) + 1;
    for (int64_t row = 0; row < sampling->rows; row++) {
        int32_t *context = context_of(sampling, row);
        if (full) {
            memmove(context, context + position - kept, kept * sizeof *context);
        }
        context[sampling->length - 1] = sampling->next[row];
        if (full && prefill(sampling, row)) {
            return -1;
        }
    }
    return full ? 0
                : generation_step(sampling->gpt, sampling->rows, (int64_t)position, sampling->next,
                                  sampling->logits);
}

/* All rows begin with the prompt, which goes through the model once. */
static int run_batch(struct sampling *sampling, int64_t first, const int32_t *prompt, size_t prompt_count) {
    const struct sample_settings *settings = sampling->settings;
    const int64_t left = settings->samples - first, batch = sampling->gpt->options.batch;
    sampling->rows = left < batch ? left : batch;
    sampling->length = 0;
    for (size_t i = 0; i < prompt_count; i++) { /* as if `advance` had added them one by one */
        sampling->length = (sampling->length == sampling->capacity ? sampling->capacity / 2 : sampling->length) + 1;
    }
    for (int64_t row = 0; row < sampling->rows; row++) {
        sampling->samples[row] = first + row;
    }
    memcpy(sampling->contexts, prompt + prompt_count - sampling->length, sampling->length * sizeof *prompt);
    memset(sampling->present, 0, settings->vocabulary * sizeof *sampling->present);
    for (size_t i = 0; i < prompt_count; i++) {
        if (prompt[i] >= 0 && (size_t)prompt[i] < settings->vocabulary) {
            sampling->present[prompt[i]] = true;
        }
    }
    if (settings->count > 0 && prefill(sampling, 0)) {
        return -1;
    }
    for (int64_t row = 1; row < sampling->rows; row++) {
        copy_row(sampling, 0, row);
    }
    for (int64_t index = 0; index < settings->count && !interrupt_requested(); index++) {
        for (int64_t row = 0; row < sampling->rows;) { /* a token for each; those that are complete with it end */
            const int answer = choose(sampling, row, index);
            if (answer < 0 || (answer > 0 && end_row(sampling, row))) {
                return -1;
            }
            row += answer == 0; /* else the last row is here now */
        }
        if (sampling->rows == 0) {
            return 0;
        }
        if (advance(sampling)) {
            return -1;
        }
    }
    while (sampling->rows > 0) { /* interrupted, or there are no tokens to add */
        if (end_row(sampling, sampling->rows - 1)) {
            return -1;
        }
    }
    return 0;
}

int sample_run(struct gpt *gpt, const struct sample_settings *settings, const int32_t *prompt, size_t prompt_count,
               const struct sample_sink *sink) {
    const size_t rows = (size_t)gpt->options.batch;
    int status = 0;
    if (prompt_count < 1 || settings->vocabulary > (size_t)gpt->config.vocab_size) {
        return error_set(
            "a prompt of %zu tokens, and %zu tokens to choose from: there must be one at least, and at "
            "most the %" PRId64 " of the model",
            prompt_count, settings->vocabulary, gpt->config.vocab_size);
    }
    struct sampling sampling = {
        .gpt = gpt,
        .settings = settings,
        .sink = sink,
        .capacity = (size_t)gpt->options.sequence,
        .contexts = memory_allocate(rows * (size_t)gpt->options.sequence, sizeof *sampling.contexts),
        .present = memory_allocate(rows * settings->vocabulary, sizeof *sampling.present),
        .next = memory_allocate(rows, sizeof *sampling.next),
        .logits = memory_allocate(rows * (size_t)gpt->config.vocab_size, sizeof *sampling.logits),
        .samples = memory_allocate(rows, sizeof *sampling.samples),
    };
    choice_scratch_create(settings->vocabulary, &sampling.scratch);
    for (int64_t first = 0; first < settings->samples && status == 0 && !interrupt_requested();
         first += gpt->options.batch) {
        status = run_batch(&sampling, first, prompt, prompt_count);
    }
    choice_scratch_free(&sampling.scratch);
    free(sampling.contexts);
    free(sampling.present);
    free(sampling.next);
    free(sampling.logits);
    free(sampling.samples);
    return status;
}
