/* The arena cut into buckets, each of which is complete at one point of the backward pass: what ranks exchange at a
 * time, and what they share between them when each keeps a shard of the optimizer's states. */
#pragma once

#include "runtime/ranks/collective.h"
#include "src/model/gpt_state.h"
#include "src/model/optimizer_settings.h"

struct bucket {
    struct element_range range; /* of the arena */
    int64_t complete_after;     /* the sublayer whose backward pass completes its gradients; -1: the last of all */
    struct element_range shard; /* this rank's part of it */
    /* It has matrices that the optimizer updates whole, and nothing else: the owner keeps their states and updates
     * them, so `shard` is the whole range there and empty elsewhere. */
    bool is_matrices;
    int owner_rank;           /* of matrices, see ranks_index */
    bool is_embedding;        /* it has the token embedding and nothing else */
    uint64_t tensor;          /* where the tensor begins that the bucket is a piece of */
    double cost;              /* of the matrices in that tensor */
    uint64_t states_first[2]; /* where the shard's states begin in buffers that hold only own ones */
};

struct buckets {
    struct state_share share; /* of the states of own shards, for gpt_options; its context are these buckets */
    const struct ranks *ranks;
    struct bucket *table;        /* in the order of completion */
    const struct bucket **steps; /* in the order of the optimizer's steps: matrices last, since they take longest */
    size_t count;
    uint64_t largest; /* elements of the largest bucket */
};

/* Buckets of whole tensors with at most `elements` together (rounded up to a multiple of 64; 0: no limit but that
 * of collective_create), and of pieces of larger tensors. `sharing`: the settings of the optimizer whose states the
 * ranks share, or NULL. If it updates matrices whole, each tensor of matrices inside the model (parameter.matrices)
 * has buckets of its own (is_matrices), and the ranks own tensors of about the same cost. */
void buckets_create(const struct parameters *parameters, uint64_t elements,
                    const struct optimizer_settings *sharing, const struct ranks *ranks, struct buckets *buckets);
void buckets_release(struct buckets *buckets);
