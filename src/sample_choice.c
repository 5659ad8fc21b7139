#include "src/sample_choice.h"
#include "runtime/error.h"
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

int choice_scratch_create(size_t vocabulary, struct choice_scratch *scratch) {
    *scratch = (struct choice_scratch){.vocabulary = vocabulary,
                                       .weights = calloc(vocabulary, sizeof *scratch->weights),
                                       .heap = calloc(vocabulary, sizeof *scratch->heap)};
    if (!scratch->weights || !scratch->heap) {
        choice_scratch_free(scratch);
        return error_set("out of memory");
    }
    return 0;
}

void choice_scratch_free(struct choice_scratch *scratch) {
    free(scratch->weights);
    free(scratch->heap);
    *scratch = (struct choice_scratch){0};
}

/* ---- the likeliest tokens, one after the other, from a heap: only those that are wanted are ever sorted */

static bool is_likelier(const float *logits, int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void sift_down(const float *logits, int32_t *heap, size_t count, size_t at) {
    const int32_t token = heap[at];
    for (size_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        child += child + 1 < count && is_likelier(logits, heap[child + 1], heap[child]);
        if (!is_likelier(logits, heap[child], token)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = token;
}

static void build_heap(const float *logits, int32_t *heap, size_t count) {
    for (size_t i = 0; i < count; i++) {
        heap[i] = (int32_t)i;
    }
    for (size_t i = count / 2; i-- > 0;) {
        sift_down(logits, heap, count, i);
    }
}

/* Moves the likeliest of the first `count` to the place behind the others. */
static int32_t pop(const float *logits, int32_t *heap, size_t count) {
    const int32_t top = heap[0];
    heap[0] = heap[count - 1];
    sift_down(logits, heap, count - 1, 0);
    heap[count - 1] = top;
    return top;
}

/* ---- choosing */

static int find_likeliest(const float *logits, size_t count, int32_t *token) {
    size_t best = 0;
    for (size_t i = 0; i < count; i++) {
        if (isnan(logits[i]) || (isinf(logits[i]) && logits[i] > 0.0f)) {
            return error_set(
                "the logit of token %zu is %s: the model's weights are damaged or its training diverged", i,
                isnan(logits[i]) ? "not a number" : "infinite");
        }
        best = logits[i] > logits[best] ? i : best;
    }
    *token = (int32_t)best;
    return isinf(logits[best]) ? error_set("no token has a probability: all logits are -infinity") : 0;
}

/* The place among weights [count], of which `total` is the sum; order NULL: their own. */
static int32_t draw(const double *weights, const int32_t *order, size_t count, double target, int32_t otherwise) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        const int32_t token = order ? order[count - 1 - i] : (int32_t)i;
        sum += weights[token];
        if (sum > target) {
            return token;
        }
    }
    return otherwise; /* rounding only */
}

/* Pops the `most` likeliest, or fewer that have `mass`; they lie at the end of the heap, the likeliest last. Their
 * number; *sum is what they weigh. */
static size_t take(const float *logits, struct choice_scratch *scratch, size_t most, double mass, double *sum) {
    size_t taken = 0;
    *sum = 0.0;
    while (taken < most && (taken == 0 || *sum < mass)) {
        *sum += scratch->weights[pop(logits, scratch->heap, scratch->vocabulary - taken)];
        taken++;
    }
    return taken;
}

/* Of the `taken` tokens at the end of the heap the fewest that have `mass`; *sum becomes what they weigh. */
static size_t shorten(const struct choice_scratch *scratch, size_t taken, double mass, double *sum) {
    size_t kept = 0;
    *sum = 0.0;
    while (kept < taken && (kept == 0 || *sum < mass)) {
        *sum += scratch->weights[scratch->heap[scratch->vocabulary - 1 - kept]];
        kept++;
    }
    return kept;
}

int sample_choose(const float *logits, const struct choice_settings *settings, double uniform,
                  struct choice_scratch *scratch, int32_t *token) {
    const size_t count = scratch->vocabulary;
    int32_t best = 0;
    if (find_likeliest(logits, count, &best)) {
        return -1;
    }
    *token = best;
    if (settings->temperature <= 0.0) {
        return 0;
    }
    double total = 0.0, sum;
    for (size_t i = 0; i < count; i++) {
        scratch->weights[i] = exp(((double)logits[i] - (double)logits[best]) / settings->temperature);
        total += scratch->weights[i];
    }
    const bool some = settings->top_k > 0 && (uint64_t)settings->top_k < count;
    if (!some && settings->top_p >= 1.0) {
        *token = draw(scratch->weights, NULL, count, uniform * total, best);
        return 0;
    }
    build_heap(logits, scratch->heap, count);
    size_t kept = take(logits, scratch, some ? (size_t)settings->top_k : count,
                       some ? HUGE_VAL : settings->top_p * total, &sum);
    if (some && settings->top_p < 1.0) {
        kept = shorten(scratch, kept, settings->top_p * sum, &sum);
    }
    *token = draw(scratch->weights, scratch->heap + count - kept, kept, uniform * sum, best);
    return 0;
}
