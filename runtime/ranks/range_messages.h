/* Messages between the ranks of ranks->cross_node for a collective operation on one range, of which each rank owns
 * a shard. An all-reduce is a reduce-scatter followed by an all-gather:
 *
 *   reduce-scatter: every rank sends each shard to its owner, which adds them in the order of pairwise_sum;
 *   all-gather: every owner sends its shard to all. In a broadcast one rank owns the whole range. */
#pragma once

#include "runtime/ranks/ranks.h"

struct range_messages {
    const struct ranks *ranks;
    /* of the current operation, set by the caller */
    struct element_range range;
    float *data; /* the range on the host */
    bool bf16;   /* it travels in bfloat16 */
    int root;    /* of a broadcast: index of the rank that owns the range; -1: each owns a shard */
    int tag;     /* below 2^14, different for each range under way */
    /* owned */
    char *received;           /* [count - 1] others' addends for this rank's shard; float or bfloat16 */
    uint16_t *packed;         /* the range in bfloat16, in the same memory; NULL without */
    const void **addends;     /* [count] */
    struct message *messages; /* [2 (count - 1)] */
    int pending;              /* messages that have not arrived */
    bool gathers;             /* the operation is an all-gather */
};

/* Allocates buffers for ranges of at most `largest` elements, which may travel in bfloat16 if bf16. */
void range_messages_create(struct range_messages *messages, const struct ranks *ranks, uint64_t largest, bool bf16);
void range_messages_release(struct range_messages *messages);

/* Returns the bytes of host memory that range_messages_create allocates. */
uint64_t range_messages_bytes(const struct ranks *ranks, uint64_t largest, bool bf16);

/* Starts an all-gather or broadcast if `gathers`, else a reduce-scatter. Adds the bytes that this rank sends to
 * *bytes. */
int range_messages_start(struct range_messages *messages, bool gathers, double *bytes);

/* Processes what has arrived. *done returns whether the operation is complete: then `data` has its result; after a
 * reduce-scatter this rank's shard (ranks_own_shard) has the sums, and the rest is undefined. */
int range_messages_advance(struct range_messages *messages, bool *done);

/* Adds the ranks whose messages have not arrived to a list of names, see ranks_add_name. */
void range_messages_name_late(const struct range_messages *messages, char names[128]);

/* ---- sums */

/* Pairwise sums over ranks: addends are added in adjacent pairs, then sums of two, of four, and so on. The order
 * depends only on the number of addends, so results have the same bits from run to run. Adding groups of 2, 4, 8
 * ... adjacent addends first gives the same bits as well. */
struct pairwise_sum {
    const void *const *addends; /* [count] arrays */
    int count;                  /* 1 .. 2^16 */
    uint64_t elements;          /* of each array */
    bool bf16;                  /* addends are bfloat16, except addends[wide]; else all are float */
    int wide;                   /* index of the float addend; -1: none */
    float *const *targets;      /* [target_count] arrays for the sums; they may be addends */
    int target_count;
};

/* Adds the arrays; with `threads`, on all cores of this rank. */
void pairwise_sum(struct pairwise_sum *sum, bool threads);
