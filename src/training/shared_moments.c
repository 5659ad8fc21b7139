#include "src/training/shared_moments.h"
#include "runtime/system/error.h"
#include <string.h>

static const struct shared_moments *whole(const struct moment_share *share) {
    return (const struct shared_moments *)share; /* its first member */
}

/* The part of [first, first + count) that this rank has the moments of in a bucket; count 0: none. */
static struct exchange_range owned_part(const struct bucket *bucket, uint64_t first, uint64_t count) {
    const uint64_t low = bucket->own.offset > first ? bucket->own.offset : first;
    const uint64_t own_end = bucket->own.offset + bucket->own.count, end = first + count;
    const uint64_t high = own_end < end ? own_end : end;
    return (struct exchange_range){low, high > low ? high - low : 0};
}

/* Elements [first, first + count) of a moment, as far as this rank has them: read to `into`, or written from
 * `from`. */
static int move(const struct buckets *buckets, struct compute *compute, const struct buffer *moments,
                uint64_t first, uint64_t count, float *into, const float *from) {
    int status = 0;
    for (size_t i = 0; i < buckets->count && status == 0; i++) {
        const struct bucket *bucket = &buckets->table[i];
        const struct exchange_range part = owned_part(bucket, first, count);
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
    const struct ranks *ranks = whole(share)->ranks;
    memset(values, 0, count * sizeof *values);
    const int status = move(whole(share)->buckets, compute, moments, first, count, values, NULL);
    if (status) { /* the others expect this rank all the same; rank 0 must not take its part for zeros */
        memset(values, 0xff, count * sizeof *values);
    }
    return ranks_merge(ranks, values, count) || status || find_broken(ranks, values, count) ? -1 : 0;
}

static int write_own(const struct moment_share *share, struct compute *compute, const struct buffer *moments,
                     uint64_t first, uint64_t count, const float *values) {
    return move(whole(share)->buckets, compute, moments, first, count, NULL, values);
}

struct shared_moments shared_moments_of(const struct buckets *buckets, const struct ranks *ranks) {
    return (struct shared_moments){{buckets->moments, read_merged, write_own}, buckets, ranks};
}
