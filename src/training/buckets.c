#include "src/training/buckets.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
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

/* A tensor of matrices, or several without a gap between them, whose buckets have one owner. */
struct owned_tensor {
    size_t bucket, buckets; /* the first of its buckets in the table, and their number */
    uint64_t elements;
    double cost;
};

struct cut {
    struct buckets *buckets;
    uint64_t elements;                      /* of a bucket, at most */
    const struct optimizer_settings *apart; /* of an optimizer that updates matrices whole; NULL: it does not */
    struct owned_tensor *tensors;           /* [tensor_count] */
    size_t tensor_count;
};

static enum tensor_kind kind_of(const struct parameter *parameter, const struct parameters *parameters) {
    return !parameter->decayed                                ? KIND_UNDECAYED
           : parameter->offset == parameters->token_embedding ? KIND_TOKENS
           : parameter->sublayer < 0                          ? KIND_EMBEDDINGS
           : parameter->sublayer == 0                         ? KIND_FIRST_SUBLAYER
           : parameter->lowp_only                             ? KIND_WEIGHTS
                                                              : KIND_PROJECTIONS;
}

static bool is_apart(const struct cut *cut, const struct parameter *parameter) {
    return cut->apart && parameter->matrices[0];
}

/* The cost of a tensor's matrices; 0 if it has none. */
static double cost_of(const struct cut *cut, const struct parameter *parameter) {
    double cost = 0.0;
    for (int i = 0; cut->apart && i < PARAMETER_MOST_MATRICES && parameter->matrices[i]; i++) {
        const struct optimizer *optimizer = optimizer_at((size_t)cut->apart->optimizer);
        cost += optimizer->matrices->cost(cut->apart, parameter->matrices[i], parameter->shape[1]);
    }
    return cost;
}

/* Adds buckets for [first, end): one, or several for a tensor that is larger than `elements`. cost: of its
 * matrices. */
static void add(struct cut *cut, uint64_t first, uint64_t end, const struct parameter *lowest,
                enum tensor_kind kind, double cost) {
    struct buckets *buckets = cut->buckets;
    const struct owned_tensor tensor = {buckets->count, 0, end - first, cost};
    while (end > first) {
        const uint64_t count = end - first < cut->elements ? end - first : cut->elements;
        end -= count;
        buckets->table = memory_resize(buckets->table, buckets->count + 1, sizeof *buckets->table);
        buckets->table[buckets->count++] = (struct bucket){.range = {end, count},
                                                           .complete_after = lowest->sublayer,
                                                           .is_matrices = is_apart(cut, lowest),
                                                           .is_embedding = kind == KIND_TOKENS};
    }
    if (is_apart(cut, lowest)) {
        cut->tensors = memory_resize(cut->tensors, cut->tensor_count + 1, sizeof *cut->tensors);
        cut->tensors[cut->tensor_count] = tensor;
        cut->tensors[cut->tensor_count++].buckets = buckets->count - tensor.bucket;
    }
}

/* Goes through the trained tensors from their end on, where those of higher sublayers lie, which are complete
 * first. A bucket begins with a tensor; small leaves of hyper-connections, which lie without gaps, stay
 * together. */
static void cut_arena(const struct parameters *parameters, struct cut *cut) {
    uint64_t end = parameters->gradients_end; /* of the next bucket */
    double cost = 0.0;
    for (size_t i = parameters->count; i-- > 0;) {
        const struct parameter *first = &parameters->table[parameters->in_arena[i]];
        if (first->without_gradient) {
            continue;
        }
        const struct parameter *below = i > 0 ? &parameters->table[parameters->in_arena[i - 1]] : NULL;
        const enum tensor_kind kind = kind_of(first, parameters);
        const bool may_end = first->offset % 64 == 0;
        const uint64_t with_below = below ? end - below->offset : 0;
        cost += cost_of(cut, first);
        if (may_end && (!below || kind_of(below, parameters) != kind || is_apart(cut, first) ||
                        is_apart(cut, below) || with_below > cut->elements)) {
            add(cut, first->offset, end, first, kind, cost);
            end = first->offset;
            cost = 0.0;
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

/* The most expensive first; those of one cost in the order of the table, so that the order is total. */
static int by_cost(const void *a, const void *b) {
    const struct owned_tensor *first = a, *second = b;
    if (first->cost > second->cost || first->cost < second->cost) {
        return first->cost > second->cost ? -1 : 1;
    }
    return first->bucket < second->bucket ? -1 : 1;
}

/* Gives each tensor of matrices to the rank that has least to do so far. Returns the most elements that a rank
 * owns. */
static uint64_t choose_owners(const struct cut *cut, const struct ranks *ranks) {
    struct owned_tensor *loads = memory_zeroed((size_t)ranks->count, sizeof *loads);
    uint64_t most = 0;
    if (cut->tensor_count > 0) {
        qsort(cut->tensors, cut->tensor_count, sizeof *cut->tensors, by_cost);
    }
    for (size_t i = 0; i < cut->tensor_count; i++) {
        const struct owned_tensor *tensor = &cut->tensors[i];
        int least = 0;
        for (int rank = 1; rank < ranks->count; rank++) {
            least = loads[rank].cost < loads[least].cost ? rank : least;
        }
        for (size_t k = 0; k < tensor->buckets; k++) {
            cut->buckets->table[tensor->bucket + k].owner_rank = least;
        }
        loads[least].cost += tensor->cost;
        loads[least].elements += tensor->elements;
        most = loads[least].elements > most ? loads[least].elements : most;
    }
    free(loads);
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
        buckets->largest = bucket->range.count > buckets->largest ? bucket->range.count : buckets->largest;
    }
    buckets->share.elements[0] = next[0] - matrices + most_matrices;
    buckets->share.elements[1] = next[1];
}

static void order_steps(struct buckets *buckets) {
    size_t next = 0;
    buckets->steps = memory_allocate(buckets->count, sizeof(const struct bucket *));
    for (int matrices = 0; matrices < 2; matrices++) {
        for (const struct bucket *bucket = buckets->table; bucket < buckets->table + buckets->count; bucket++) {
            if (bucket->is_matrices == (matrices != 0)) {
                buckets->steps[next++] = bucket;
            }
        }
    }
}

/* ---- states of own shards (ZeRO stage 1) */

/* The range of [first, first + count) in this rank's shard of a bucket; count 0: none. */
static struct element_range owned_shard(const struct bucket *bucket, uint64_t first, uint64_t count) {
    const uint64_t low = bucket->shard.offset > first ? bucket->shard.offset : first;
    const uint64_t own_end = bucket->shard.offset + bucket->shard.count, end = first + count;
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
        const uint64_t place = bucket->states_first[state] + part.offset - bucket->shard.offset;
        const size_t at = part.offset - range.offset;
        if (part.count && into) {
            status = buffer_read_floats(compute, buffer, place, into + at, part.count);
        } else if (part.count) {
            status = buffer_write_floats(compute, buffer, place, from + at, part.count);
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

void buckets_create(const struct parameters *parameters, uint64_t elements,
                    const struct optimizer_settings *sharing, const struct ranks *ranks, struct buckets *buckets) {
    *buckets = (struct buckets){.share = {.read = read_merged, .write = write_own}, .ranks = ranks};
    const uint64_t most = elements && elements < MOST ? (elements + 63) / 64 * 64 : MOST;
    const bool apart = sharing && optimizer_at((size_t)sharing->optimizer)->matrices;
    struct cut cut = {.buckets = buckets, .elements = most, .apart = apart ? sharing : NULL};
    cut_arena(parameters, &cut);
    const uint64_t most_matrices = choose_owners(&cut, ranks);
    free(cut.tensors);
    qsort(buckets->table, buckets->count, sizeof *buckets->table, by_completion);
    share(buckets, most_matrices, ranks);
    order_steps(buckets);
}

void buckets_release(struct buckets *buckets) {
    free(buckets->table);
    free(buckets->steps);
    memset(buckets, 0, sizeof *buckets);
}
