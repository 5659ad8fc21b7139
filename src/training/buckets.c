#include "src/training/buckets.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <stdlib.h>
#include <string.h>

#define MOST ((uint64_t)1 << 28) /* elements, see collective_create */

/* Tensors share a bucket only with others of their kind: what may be exchanged early, or comes last, has buckets of
 * its own. */
enum tensor_kind { KIND_TOKENS, KIND_EMBEDDINGS, KIND_FIRST_SUBLAYER, KIND_WEIGHTS, KIND_UNDECAYED };

struct cut {
    struct buckets *buckets;
    uint64_t elements; /* of a bucket, at most */
    bool matrices;     /* as in buckets_create */
};

static enum tensor_kind kind_of(const struct parameter *parameter, const struct parameters *parameters) {
    return !parameter->decayed                                ? KIND_UNDECAYED
           : parameter->offset == parameters->token_embedding ? KIND_TOKENS
           : parameter->sublayer < 0                          ? KIND_EMBEDDINGS
           : parameter->sublayer == 0                         ? KIND_FIRST_SUBLAYER
                                                              : KIND_WEIGHTS;
}

static bool is_apart(const struct cut *cut, const struct parameter *parameter) {
    return cut->matrices && parameter->matrices[0];
}

/* Adds buckets for [first, end): one, or several for a tensor that is larger than `elements`. */
static void add(const struct cut *cut, uint64_t first, uint64_t end, const struct parameter *lowest,
                enum tensor_kind kind) {
    struct buckets *buckets = cut->buckets;
    while (end > first) {
        const uint64_t count = end - first < cut->elements ? end - first : cut->elements;
        end -= count;
        buckets->table = memory_resize(buckets->table, buckets->count + 1, sizeof *buckets->table);
        buckets->table[buckets->count++] = (struct bucket){.range = {end, count},
                                                           .complete_after = lowest->sublayer,
                                                           .of_matrices = is_apart(cut, lowest),
                                                           .of_tokens = kind == KIND_TOKENS};
    }
}

/* Goes through the tensors from the arena's end on: those of higher sublayers, which are complete first, lie there.
 * A bucket begins with a tensor; small leaves of hyper-connections, which lie without gaps, stay together. */
static void cut_arena(const struct parameters *parameters, const struct cut *cut) {
    uint64_t end = parameters->elements; /* of the next bucket */
    for (size_t i = parameters->count; i-- > 0;) {
        const struct parameter *first = &parameters->table[parameters->in_arena[i]];
        const struct parameter *below = i > 0 ? &parameters->table[parameters->in_arena[i - 1]] : NULL;
        const enum tensor_kind kind = kind_of(first, parameters);
        const bool may_end = first->offset % 64 == 0;
        const uint64_t with_below = below ? end - below->offset : 0;
        if (may_end && (!below || kind_of(below, parameters) != kind ||
                        is_apart(cut, below) != is_apart(cut, first) || with_below > cut->elements)) {
            add(cut, first->offset, end, first, kind);
            end = first->offset;
        }
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

/* Space for the largest shard is enough on all ranks. */
static void share(struct buckets *buckets, const struct ranks *ranks) {
    for (size_t i = 0; i < buckets->count; i++) {
        struct bucket *bucket = &buckets->table[i];
        bucket->own = bucket->of_matrices ? bucket->range : ranks_own_shard(ranks, bucket->range);
        const uint64_t kept = bucket->of_matrices ? bucket->range.count : ranks_largest_shard(ranks, bucket->range);
        for (size_t state = 0; state < COUNT(bucket->states_first); state++) {
            bucket->states_first[state] = buckets->share.elements[state];
            buckets->share.elements[state] += bucket->of_matrices && state > 0 ? 0 : kept;
        }
        buckets->largest = bucket->range.count > buckets->largest ? bucket->range.count : buckets->largest;
    }
}

/* ---- states of own shards (ZeRO stage 1) */

/* The range of [first, first + count) in this rank's shard of a bucket; count 0: none. */
static struct element_range owned_shard(const struct bucket *bucket, uint64_t first, uint64_t count) {
    const uint64_t low = bucket->own.offset > first ? bucket->own.offset : first;
    const uint64_t own_end = bucket->own.offset + bucket->own.count, end = first + count;
    const uint64_t high = own_end < end ? own_end : end;
    return (struct element_range){low, high > low ? high - low : 0};
}

/* What belongs to a range of the arena of a state, as far as this rank has it: read to `into`, or written from
 * `from`. */
static int move(const struct buckets *buckets, struct compute *compute, const struct parameters *parameters,
                size_t state, struct element_range range, float *into, const float *from) {
    const struct buffer *buffer = parameters->states[state];
    int status = 0;
    for (size_t i = 0; i < buckets->count && status == 0; i++) {
        const struct bucket *bucket = &buckets->table[i];
        const struct element_range part = owned_shard(bucket, range.offset, range.count);
        const size_t place = (bucket->states_first[state] + part.offset - bucket->own.offset) * sizeof(float);
        const size_t bytes = part.count * sizeof(float), at = part.offset - range.offset;
        if (part.count && into) {
            status = buffer_read(compute, buffer, place, into + at, bytes);
        } else if (part.count) {
            status = buffer_write(compute, buffer, place, from + at, bytes);
        }
    }
    return status;
}

/* On rank 0, after merging: whether a rank had to give up its shard. Its bits are a NaN that no arithmetic makes.
 */
static int find_broken(const struct ranks *ranks, const float *values, uint64_t count) {
    for (uint64_t i = 0; ranks->index == 0 && i < count; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        if (bits == UINT32_MAX) {
            return error_set("another rank cannot read its shard of the optimizer's states");
        }
    }
    return 0;
}

static int read_merged(const struct state_share *share, struct compute *compute,
                       const struct parameters *parameters, size_t state, uint64_t first, uint64_t count,
                       float *values) {
    const struct buckets *buckets = (const struct buckets *)share;
    memset(values, 0, count * sizeof *values);
    const int status =
        move(buckets, compute, parameters, state, (struct element_range){first, count}, values, NULL);
    if (status) { /* the others expect this rank all the same; rank 0 must not take its shard for zeros */
        memset(values, 0xff, count * sizeof *values);
    }
    return ranks_merge(buckets->ranks, values, count, false) || status || find_broken(buckets->ranks, values, count)
               ? -1
               : 0;
}

static int write_own(const struct state_share *share, struct compute *compute, const struct parameters *parameters,
                     size_t state, uint64_t first, uint64_t count, const float *values) {
    return move((const struct buckets *)share, compute, parameters, state, (struct element_range){first, count},
                NULL, values);
}

/* ---- all of it */

void buckets_create(const struct parameters *parameters, uint64_t elements, bool matrices,
                    const struct ranks *ranks, struct buckets *buckets) {
    *buckets = (struct buckets){.share = {.read = read_merged, .write = write_own}, .ranks = ranks};
    const uint64_t most = elements && elements < MOST ? (elements + 63) / 64 * 64 : MOST;
    cut_arena(parameters, &(struct cut){buckets, most, matrices});
    qsort(buckets->table, buckets->count, sizeof *buckets->table, by_completion);
    share(buckets, ranks);
}

void buckets_release(struct buckets *buckets) {
    free(buckets->table);
    memset(buckets, 0, sizeof *buckets);
}
