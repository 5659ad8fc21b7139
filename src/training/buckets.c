#include "src/training/buckets.h"
#include "runtime/system/error.h"
#include <stdlib.h>
#include <string.h>

#define ALIGNED 64
#define MOST    ((uint64_t)1 << 28) /* elements, see exchange_create */

/* The lowest sublayer with a parameter in the range: its gradients come last. */
static int64_t lowest_sublayer(const struct parameters *parameters, struct exchange_range range) {
    int64_t lowest = INT64_MAX;
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        if (parameter->offset < range.offset + range.count &&
            parameter->offset + parameter->elements > range.offset && parameter->sublayer < lowest) {
            lowest = parameter->sublayer;
        }
    }
    return lowest;
}

/* Cuts [first, end) from its end on: higher sublayers, which are complete first, lie there. */
static void cut(const struct parameters *parameters, struct buckets *buckets, uint64_t first, uint64_t end,
                uint64_t elements) {
    while (end > first) {
        const uint64_t count = end - first < elements ? end - first : elements;
        end -= count;
        const struct exchange_range range = {end, count};
        buckets->table[buckets->count++] =
            (struct bucket){.range = range, .complete_after = lowest_sublayer(parameters, range)};
    }
}

/* Those of one sublayer in the order of the arena, so that the order is total. */
static int by_completion(const void *a, const void *b) {
    const struct bucket *first = a, *second = b;
    if (first->complete_after != second->complete_after) {
        return first->complete_after < second->complete_after ? 1 : -1;
    }
    return first->range.offset < second->range.offset ? -1 : 1;
}

/* Rank 0's parts are the largest, so that buffers of this size do for all. */
static void share(struct buckets *buckets, int count, int index) {
    for (size_t i = 0; i < buckets->count; i++) {
        struct bucket *bucket = &buckets->table[i];
        bucket->own = exchange_part(bucket->range, count, index);
        bucket->moments = buckets->moments;
        buckets->moments += exchange_part(bucket->range, count, 0).count;
        buckets->largest = bucket->range.count > buckets->largest ? bucket->range.count : buckets->largest;
    }
}

int buckets_create(const struct parameters *parameters, uint64_t elements, const struct ranks *ranks,
                   struct buckets *buckets) {
    memset(buckets, 0, sizeof *buckets);
    const uint64_t wanted = elements && elements < MOST ? (elements + ALIGNED - 1) / ALIGNED * ALIGNED : MOST;
    const uint64_t decayed = parameters->decayed, rest = parameters->elements - decayed;
    const uint64_t most = (decayed + wanted - 1) / wanted + (rest + wanted - 1) / wanted;
    buckets->table = calloc(most + 1, sizeof *buckets->table);
    if (!buckets->table) {
        return error_set("out of memory for the buckets of gradients");
    }
    cut(parameters, buckets, 0, decayed, wanted);
    cut(parameters, buckets, decayed, parameters->elements, wanted);
    qsort(buckets->table, buckets->count, sizeof *buckets->table, by_completion);
    share(buckets, ranks->count, ranks->index);
    return 0;
}

void buckets_release(struct buckets *buckets) {
    free(buckets->table);
    memset(buckets, 0, sizeof *buckets);
}
