#include "src/training/buckets.h"
#include "runtime/system/error.h"
#include <stdlib.h>
#include <string.h>

#define ALIGNED 64
#define MOST    ((uint64_t)1 << 28) /* elements, see collective_create */

/* The lowest sublayer with a parameter in the range: its gradients come last. */
static int64_t lowest_sublayer(const struct parameters *parameters, struct element_range range) {
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
        const struct element_range range = {end, count};
        buckets->table[buckets->count++] =
            (struct bucket){.range = range,
                            .complete_after = lowest_sublayer(parameters, range),
                            .of_tokens = range.offset < parameters->position_embedding};
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

/* Places for the largest parts do for those of all ranks. */
static void share(struct buckets *buckets, const struct ranks *ranks) {
    for (size_t i = 0; i < buckets->count; i++) {
        struct bucket *bucket = &buckets->table[i];
        bucket->own = ranks_own_part(ranks, bucket->range);
        bucket->moments = buckets->share.elements;
        buckets->share.elements += ranks_largest_part(ranks, bucket->range);
        buckets->largest = bucket->range.count > buckets->largest ? bucket->range.count : buckets->largest;
    }
}

/* ---- moments of own parts (ZeRO stage 1) */

/* The part of [first, first + count) that this rank has the moments of in a bucket; count 0: none. */
static struct element_range owned_part(const struct bucket *bucket, uint64_t first, uint64_t count) {
    const uint64_t low = bucket->own.offset > first ? bucket->own.offset : first;
    const uint64_t own_end = bucket->own.offset + bucket->own.count, end = first + count;
    const uint64_t high = own_end < end ? own_end : end;
    return (struct element_range){low, high > low ? high - low : 0};
}

/* Elements [first, first + count) of a moment, as far as this rank has them: read to `into`, or written from
 * `from`. */
static int move(const struct buckets *buckets, struct compute *compute, const struct buffer *moments,
                uint64_t first, uint64_t count, float *into, const float *from) {
    int status = 0;
    for (size_t i = 0; i < buckets->count && status == 0; i++) {
        const struct bucket *bucket = &buckets->table[i];
        const struct element_range part = owned_part(bucket, first, count);
        const size_t place = (bucket->moments + part.offset - bucket->own.offset) * sizeof(float);
        const size_t bytes = part.count * sizeof(float);
        if (part.count && into) {
            status = buffer_read(compute, moments, place, into + (part.offset - first), bytes);
        } else if (part.count) {
            status = buffer_write(compute, moments, place, from + (part.offset - first), bytes);
        }
    }
    return status;
}

/* On rank 0, after merging: whether a rank had to give up its part. Its bits are a NaN that no arithmetic makes. */
static int find_broken(const struct ranks *ranks, const float *values, uint64_t count) {
    for (uint64_t i = 0; ranks->index == 0 && i < count; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        if (bits == UINT32_MAX) {
            return error_set("another rank cannot read its part of the optimiser's moments");
        }
    }
    return 0;
}

static int read_merged(const struct moment_share *share, struct compute *compute, const struct buffer *moments,
                       uint64_t first, uint64_t count, float *values) {
    const struct buckets *buckets = (const struct buckets *)share;
    memset(values, 0, count * sizeof *values);
    const int status = move(buckets, compute, moments, first, count, values, NULL);
    if (status) { /* the others expect this rank all the same; rank 0 must not take its part for zeros */
        memset(values, 0xff, count * sizeof *values);
    }
    return ranks_merge(buckets->ranks, values, count) || status || find_broken(buckets->ranks, values, count) ? -1
                                                                                                              : 0;
}

static int write_own(const struct moment_share *share, struct compute *compute, const struct buffer *moments,
                     uint64_t first, uint64_t count, const float *values) {
    return move((const struct buckets *)share, compute, moments, first, count, NULL, values);
}

/* ---- all of it */

/* Where the arena's weights of this sublayer and those before it end: those of the embeddings (-1) lie at its beginning. */
static uint64_t end_of(const struct parameters *parameters, int64_t sublayer) {
    uint64_t end = parameters->decayed;
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        if (parameter->sublayer > sublayer && parameter->offset < end) {
            end = parameter->offset;
        }
    }
    return end;
}

int buckets_create(const struct parameters *parameters, uint64_t elements, const struct ranks *ranks,
                   struct buckets *buckets) {
    *buckets = (struct buckets){.share = {.read = read_merged, .write = write_own}, .ranks = ranks};
    const uint64_t wanted = elements && elements < MOST ? (elements + ALIGNED - 1) / ALIGNED * ALIGNED : MOST;
    /* what comes last in a backward pass is by itself, and so is what may come early */
    const uint64_t ends[] = {parameters->position_embedding, end_of(parameters, -1), end_of(parameters, 0),
                             parameters->decayed, parameters->elements};
    const size_t pieces = sizeof ends / sizeof *ends;
    buckets->table = calloc(parameters->elements / wanted + 2 * pieces, sizeof *buckets->table);
    if (!buckets->table) {
        return error_set("out of memory for the buckets of gradients");
    }
    for (size_t i = 0; i < pieces; i++) {
        cut(parameters, buckets, i ? ends[i - 1] : parameters->token_embedding, ends[i], wanted);
    }
    qsort(buckets->table, buckets->count, sizeof *buckets->table, by_completion);
    share(buckets, ranks);
    return 0;
}

void buckets_release(struct buckets *buckets) {
    free(buckets->table);
    memset(buckets, 0, sizeof *buckets);
}
