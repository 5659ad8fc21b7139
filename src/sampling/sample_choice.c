#include "src/sampling/sample_choice.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

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

/* ---- heaps of tokens: only those that are wanted are ever sorted */

/* What lies on top of a heap. */
enum order { LIKELIEST_FIRST, LEAST_LIKELY_FIRST };

static bool is_likelier(const float *logits, int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static bool is_before(const float *logits, enum order order, int32_t a, int32_t b) {
    return order == LIKELIEST_FIRST ? is_likelier(logits, a, b) : is_likelier(logits, b, a);
}

static void sift_down(const float *logits, enum order order, int32_t *heap, size_t count, size_t at) {
    const int32_t token = heap[at];
    for (size_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        child += child + 1 < count && is_before(logits, order, heap[child + 1], heap[child]);
        if (!is_before(logits, order, heap[child], token)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = token;
}

static void build_heap(const float *logits, enum order order, int32_t *heap, size_t count) {
    for (size_t i = count / 2; i-- > 0;) {
        sift_down(logits, order, heap, count, i);
    }
}

/* Moves the likeliest of the first `count` to the place behind the others. */
static int32_t pop(const float *logits, int32_t *heap, size_t count) {
    const int32_t top = heap[0];
    heap[0] = heap[count - 1];
    sift_down(logits, LIKELIEST_FIRST, heap, count - 1, 0);
    heap[count - 1] = top;
    return top;
}

/* ---- candidates, in the heap */

/* The `most` likeliest of all tokens, most <= count. Few come after one that they are likelier than. */
static void select_likeliest(const float *logits, size_t count, size_t most, int32_t *heap) {
    for (size_t i = 0; i < most; i++) {
        heap[i] = (int32_t)i;
    }
    build_heap(logits, LEAST_LIKELY_FIRST, heap, most);
    for (size_t i = most; i < count; i++) {
        if (is_likelier(logits, (int32_t)i, heap[0])) {
            heap[0] = (int32_t)i;
            sift_down(logits, LEAST_LIKELY_FIRST, heap, most, 0);
        }
    }
}

/* The tokens that weigh so much. Their number. */
static size_t select_heavy(struct choice_scratch *scratch, double least) {
    size_t found = 0;
    for (size_t i = 0; i < scratch->vocabulary; i++) {
        if (scratch->weights[i] >= least) {
            scratch->heap[found++] = (int32_t)i;
        }
    }
    return found;
}

/* Takes the likeliest of `count` candidates until they have `mass`, at least one. They lie at the end, the
 * likeliest last. Their number; *sum is what they weigh. */
static size_t take(const float *logits, struct choice_scratch *scratch, size_t count, double mass, double *sum) {
    size_t taken = 0;
    *sum = 0.0;
    build_heap(logits, LIKELIEST_FIRST, scratch->heap, count);
    while (taken < count && (taken == 0 || *sum < mass)) {
        *sum += scratch->weights[pop(logits, scratch->heap, count - taken)];
        taken++;
    }
    return taken;
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

/* Weights of `count` tokens relative to the likeliest one's; tokens NULL: of all in their order. Their sum. */
static double weigh(const float *logits, const int32_t *tokens, size_t count, int32_t best, double temperature,
                    double *weights) {
    double total = 0.0;
    for (size_t i = 0; i < count; i++) {
        const size_t token = tokens ? (size_t)tokens[i] : i;
        weights[token] = exp(((double)logits[token] - (double)logits[best]) / temperature);
        total += weights[token];
    }
    return total;
}

/* The token at `target` of the sum of weights; of `count` tokens from the last one on, or, NULL, all in their
 * order. */
static int32_t draw(const double *weights, const int32_t *tokens, size_t count, double target, int32_t otherwise) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        const int32_t token = tokens ? tokens[count - 1 - i] : (int32_t)i;
        sum += weights[token];
        if (sum > target) {
            return token;
        }
    }
    return otherwise; /* rounding only */
}

int sample_choose(const float *logits, const struct choice_settings *settings, double uniform,
                  struct choice_scratch *scratch, int32_t *token) {
    const bool some = settings->top_k > 0 && (uint64_t)settings->top_k < scratch->vocabulary;
    size_t count = some ? (size_t)settings->top_k : scratch->vocabulary;
    int32_t best = 0;
    if (find_likeliest(logits, scratch->vocabulary, &best)) {
        return -1;
    }
    *token = best;
    if (settings->temperature <= 0.0) {
        return 0;
    }
    if (some) {
        select_likeliest(logits, scratch->vocabulary, count, scratch->heap);
    }
    const double total =
        weigh(logits, some ? scratch->heap : NULL, count, best, settings->temperature, scratch->weights);
    if (!some && settings->top_p >= 1.0) {
        *token = draw(scratch->weights, NULL, count, uniform * total, best);
        return 0;
    }
    if (!some) { /* all that are lighter have less than 1 - top_p together: they are not needed */
        count = select_heavy(scratch, (1.0 - settings->top_p) * total / (double)count);
    }
    double sum;
    const size_t kept =
        take(logits, scratch, count, settings->top_p < 1.0 ? settings->top_p * total : HUGE_VAL, &sum);
    *token = draw(scratch->weights, scratch->heap + count - kept, kept, uniform * sum, best);
    return 0;
}
