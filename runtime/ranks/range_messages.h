/* What ranks of a group (ranks->across) send each other for a collective operation on one range, in which every one of them owns a
 * part. An all-reduce is a reduce-scatter and then an all-gather:
 *
 *   reduce-scatter: every rank sends each part to its owner, which adds up what it gets;
 *   all-gather: every owner sends its part to all.
 *
 * Large parts go to their owners directly, at once. Small ones, of which a large group has many, go by halves (recursive halving and
 * doubling): in each of log2(count) steps a rank sends half of what it still has to one other rank and adds the half that it gets.
 * Both send the same bytes and add in the order of pairwise_sum.h, so both have the same bits; but in bfloat16, where a sum by halves
 * is rounded in every step. Groups whose size is no power of two have the direct way only. */
#pragma once

#include "runtime/ranks/ranks.h"

struct range_messages {
    const struct ranks *ranks;
    /* of the collective under way, set by the caller */
    struct element_range range;
    float *data; /* the range on the host */
    bool bf16;   /* it travels in bfloat16 */
    int tag;     /* below 2^14, another one for each range that is under way */
    /* owned */
    char *received;           /* others' addends; float or bfloat16 */
    uint16_t *packed;         /* the range in bfloat16, in the same memory; NULL without */
    const void **addends;     /* [count] */
    struct message *messages; /* [2 (count - 1)] of the step */
    int pending;              /* so many of them have not been seen to arrive */
    bool gathers, halves;     /* the operation under way */
    int step, steps;
};

/* For ranges of up to `largest` elements. bf16: that may travel in bfloat16. */
int range_messages_create(struct range_messages *messages, const struct ranks *ranks, uint64_t largest, bool bf16);
void range_messages_release(struct range_messages *messages);

/* Host bytes that range_messages_create allocates for them. */
uint64_t range_messages_bytes(const struct ranks *ranks, uint64_t largest, bool bf16);

/* Starts an all-gather if `gathers`, else a reduce-scatter. *bytes gets added what this rank sends in all. */
int range_messages_start(struct range_messages *messages, bool gathers, double *bytes);

/* Goes on with what has arrived. *done: `data` has become what the operation makes of it; after a reduce-scatter this rank's part
 * (ranks_own_part's) is the sum and the rest is left undefined. */
int range_messages_advance(struct range_messages *messages, bool *done, double *bytes);

/* Adds those whose messages have not arrived to a list of names, see ranks_add_name. */
void range_messages_name_late(const struct range_messages *messages, char names[128]);
