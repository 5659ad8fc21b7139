#include "src/training/buckets.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/sizes.h"
#include "src/model/optimizer.h"
#include <stdlib.h>
#include <string.h>

#define MOST ((uint64_t)1 << 28) /* elements, see collective_create */

/* Tensors share a bucket only with others of their kind: what may be exchanged early, or comes last, has buckets of
 * its own, and so has each part of the arena, which begins with the lowest sublayer again. */
enum tensor_kind {
    KIND_TOKENS,
    KIND_EMBEDDINGS,
    KIND_FIRST_SUBLAYER,
    KIND_WEIGHTS,
    KIND_PROJECTIONS,
    KIND_UNDECAYED,
};

static enum tensor_kind kind_of(const struct parameter *parameter, const struct parameters *parameters) {
    if (!parameter->decayed) {
        return KIND_UNDECAYED;
    }
    if (parameter->offset == parameters->token_embedding) {
        return KIND_TOKENS;
    }
    if (parameter->sublayer <= 0) {
        return parameter->sublayer < 0 ? KIND_EMBEDDINGS : KIND_FIRST_SUBLAYER;
    }
    return parameter->lowp_only ? KIND_WEIGHTS : KIND_PROJECTIONS;
}

/* `apart`: settings of an optimizer that updates matrices whole, or NULL. */
static bool is_apart(const struct optimizer_settings *apart, const struct parameter *parameter) {
    return apart && parameter->matrices[0];
}

/* The cost of a tensor's matrices; 0 if it has none. */
static double cost_of(const struct optimizer_settings *apart, const struct parameter *parameter) {
    double cost = 0.0;
    for (int i = 0; apart && i < PARAMETER_MOST_MATRICES && parameter->matrices[i]; i++) {
        const struct optimizer *optimizer = optimizer_at((size_t)apart->optimizer);
        cost += optimizer->matrices->cost(apart, parameter->matrices[i], parameter->shape[1]);
    }
    return cost;
}

/* Goes through the trained tensors from their end on, where those of higher sublayers lie, which are complete
 * first. A bucket begins with a tensor; small leaves of hyper-connections, which lie without gaps, stay together. A
 * tensor of more than `most` elements becomes several buckets. */
static void cut_arena(const struct parameters *parameters, uint64_t most, const struct optimizer_settings *apart,
                      struct buckets *buckets) {
    uint64_t end = parameters->gradients_end; /* of the next bucket */
    double cost = 0.0;
    for (size_t i = parameters->count; i-- > 0;) {
        const struct parameter *first = &parameters->table[parameters->in_arena[i]];
        if (first->without_gradient) {
            continue;
        }
        const struct parameter *below = i > 0 ? &parameters->table[parameters->in_arena[i - 1]] : NULL;
        const enum tensor_kind kind = kind_of(first, parameters);
        const uint64_t with_below = below ? end - below->offset : 0;
        cost += cost_of(apart, first);
        const bool must_end = !below || kind_of(below, parameters) != kind || is_apart(apart, first) ||
                              is_apart(apart, below) || with_below > most;
        if (first->offset % 64 != 0 || !must_end) {
            continue;
        }
        while (end > first->offset) {
            const uint64_t count = size_smaller(end - first->offset, most);
            end -= count;
            buckets->table = memory_resize(buckets->table, buckets->count + 1, sizeof *buckets->table);
            buckets->table[buckets->count++] = (struct bucket){.range = {end, count},
                                                               .complete_after = first->sublayer,
                                                               .is_matrices = is_apart(apart, first),
                                                               .is_embedding = kind == KIND_TOKENS,
                                                               .tensor = first->offset,
                                                               .cost = cost};
        }
        cost = 0.0;
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

/* Matrices first, the most expensive tensors first; those of one cost from the arena's end on, so that the order is
 * total and buckets of a tensor stay together. */
static int by_cost(const void *a, const void *b) {
    const struct bucket *first = a, *second = b;
    if (first->is_matrices != second->is_matrices) {
        return first->is_matrices ? -1 : 1;
    }
    if (first->cost > second->cost || first->cost < second->cost) {
        return first->cost > second->cost ? -1 : 1;
    }
    return first->range.offset > second->range.offset ? -1 : 1;
}

/* Gives each tensor of matrices to the rank that has least to do so far, the most expensive tensors first. Returns
 * the most elements that a rank owns. */
static uint64_t choose_owners(struct buckets *buckets, const struct ranks *ranks) {
    double *costs = memory_zeroed((size_t)ranks->count, sizeof *costs);
    uint64_t *elements = memory_zeroed((size_t)ranks->count, sizeof *elements), most = 0;
    int owner = 0;
    qsort(buckets->table, buckets->count, sizeof *buckets->table, by_cost);
    for (size_t i = 0; i < buckets->count && buckets->table[i].is_matrices; i++) {
        struct bucket *bucket = &buckets->table[i];
        if (i == 0 || bucket->tensor != bucket[-1].tensor) {
            owner = 0;
            for (int rank = 1; rank < ranks->count; rank++) {
                owner = costs[rank] < costs[owner] ? rank : owner;
            }
            costs[owner] += bucket->cost;
        }
        bucket->owner_rank = owner;
        elements[owner] += bucket->range.count;
        most = size_larger(most, elements[owner]);
    }
    free(costs);
    free(elements);
    return most;
}

/* Space for the largest shard, and for the matrices of the rank with most of them, is enough on all ranks. */
static void share(struct buckets *buckets, uint64_t most_matrices, const struct ranks *ranks) {
    uint64_t next[2] = {0}, matrices = 0;
    for (size_t i = 0; i < buckets->count; i++) {
        struct bucket *bucket = &buckets->table[i];
        bucket->shard = bucket->is_matrices ? range_of_root(bucket->range, bucket->owner_rank, ranks_index(ranks))
                                            : ranks_own_shard(ranks, bucket->range);
        const uint64_t kept = bucket->is_matrices ? bucket->shard.count : ranks_largest_shard(ranks, bucket->range);
        matrices += bucket->is_matrices ? kept : 0;
        for (size_t state = 0; state < COUNT(next); state++) {
            bucket->states_first[state] = next[state];
            next[state] += bucket->is_matrices && state > 0 ? 0 : kept;
        }
        buckets->largest = size_larger(buckets->largest, bucket->range.count);
    }
    buckets->share.elements[0] = next[0] - matrices + most_matrices;
    buckets->share.elements[1] = next[1];
}

/* ---- states of own shards (ZeRO stage 1) */

/* state_share.copy. Of a state that is read, rank 0 gets the sum of what each rank has, and zeros elsewhere. */
static int copy_states(const void *context, const struct gpt *gpt, size_t state, uint64_t first, uint64_t count,
                       float *values, bool to_device) {
    const struct buckets *buckets = context;
    const struct buffer *buffer = gpt->parameters.states[state];
    int status = 0;
    if (!to_device) {
        memset(values, 0, count * sizeof *values);
    }
    for (size_t i = 0; i < buckets->count && status == 0; i++) {
        const struct bucket *bucket = &buckets->table[i];
        const uint64_t begin = size_larger(bucket->shard.offset, first);
        const uint64_t end = size_smaller(bucket->shard.offset + bucket->shard.count, first + count);
        const uint64_t place = bucket->states_first[state] + begin - bucket->shard.offset;
        if (begin < end && to_device) {
            status = buffer_write_floats(gpt->compute, buffer, place, values + (begin - first), end - begin);
        } else if (begin < end) {
            status = buffer_read_floats(gpt->compute, buffer, place, values + (begin - first), end - begin);
        }
    }
    if (to_device) {
        return status;
    }
    if (status) { /* the others expect this rank all the same; rank 0 must not take its shard for zeros */
        memset(values, 0xff, count * sizeof *values);
    }
    if (ranks_merge(buckets->ranks, values, count, false) || status) {
        return -1;
    }
    for (uint64_t i = 0; buckets->ranks->index == 0 && i < count; i++) {
        uint32_t bits; /* of a NaN that no arithmetic makes */
        memcpy(&bits, values + i, sizeof bits);
        if (bits == UINT32_MAX) {
            return error_set("another rank cannot read its shard of the optimizer's states");
        }
    }
    return 0;
}

/* ---- all of it */

void buckets_create(const struct parameters *parameters, uint64_t elements,
                    const struct optimizer_settings *sharing, const struct ranks *ranks, struct buckets *buckets) {
    *buckets = (struct buckets){.share = {.context = buckets, .copy = copy_states}, .ranks = ranks};
    const uint64_t most = elements && elements < MOST ? (elements + 63) / 64 * 64 : MOST;
    const bool has_matrices = sharing && optimizer_at((size_t)sharing->optimizer)->matrices;
    cut_arena(parameters, most, has_matrices ? sharing : NULL, buckets);
    const uint64_t most_matrices = choose_owners(buckets, ranks);
    qsort(buckets->table, buckets->count, sizeof *buckets->table, by_completion);
    share(buckets, most_matrices, ranks);
    buckets->steps = memory_allocate(buckets->count, sizeof(const struct bucket *));
    size_t matrices = buckets->count, others = 0;
    for (size_t i = 0; i < buckets->count; i++) {
        matrices -= buckets->table[i].is_matrices;
    }
    for (size_t i = 0; i < buckets->count; i++) {
        buckets->steps[buckets->table[i].is_matrices ? matrices++ : others++] = &buckets->table[i];
    }
}

void buckets_release(struct buckets *buckets) {
    free(buckets->table);
    free(buckets->steps);
    memset(buckets, 0, sizeof *buckets);
}
