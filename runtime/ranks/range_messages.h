/* Messages between the ranks of ranks->cross_node for a collective operation on one range, of which each rank
 * owns a part. An all-reduce is a reduce-scatter followed by an all-gather:
 *
 *   reduce-scatter: every rank sends each part to its owner, which adds what it receives;
 *   all-gather: every owner sends its part to all.
 *
 * Large parts are sent to their owners directly, all at once. Small parts, of which a large group has many, are
 * sent by recursive halving and doubling: in each of log2(count) steps a rank exchanges half of its remaining
 * range with one other rank. Both send the same bytes and add in the order of pairwise_sum.h, so results have the
 * same bits; except in bfloat16, where recursive halving rounds the sum in each step. Groups whose size is no
 * power of two send directly. */
#pragma once

#include "runtime/ranks/ranks.h"

struct range_messages {
    const struct ranks *ranks;
    /* of the current operation, set by the caller */
    struct element_range range;
    float *data; /* the range on the host */
    bool bf16;   /* it travels in bfloat16 */
    int tag;     /* below 2^14, different for each range under way */
    /* owned */
    char *received;           /* others' addends; float or bfloat16 */
    uint16_t *packed;         /* the range in bfloat16, in the same memory; NULL without */
    const void **addends;     /* [count] */
    struct message *messages; /* [2 (count - 1)] of the step */
    int pending;              /* messages that have not arrived */
    bool gathers, halves;     /* all-gather, not reduce-scatter; by recursive halving or doubling */
    int step, steps;
};

/* Allocates buffers for ranges of at most `largest` elements, which may travel in bfloat16 if bf16. */
void range_messages_create(struct range_messages *messages, const struct ranks *ranks, uint64_t largest, bool bf16);
void range_messages_release(struct range_messages *messages);

/* Returns the bytes of host memory that range_messages_create allocates. */
uint64_t range_messages_bytes(const struct ranks *ranks, uint64_t largest, bool bf16);

/* Starts an all-gather if `gathers`, else a reduce-scatter. Adds the bytes that this rank sends to *bytes. */
int range_messages_start(struct range_messages *messages, bool gathers, double *bytes);

/* Processes what has arrived. *done tells whether the operation is complete: then `data` has its result; after a
 * reduce-scatter this rank's part (ranks_own_part) has the sums, and the rest is undefined. */
int range_messages_advance(struct range_messages *messages, bool *done, double *bytes);

/* Adds the ranks whose messages have not arrived to a list of names, see ranks_add_name. */
void range_messages_name_late(const struct range_messages *messages, char names[128]);
