/* What ranks send each other for a collective operation on one range, in which every rank owns a part. There are two
 * steps, and an all-reduce is one after the other:
 *
 *   reduce-scatter: every rank sends each part to its owner, which adds what it gets to its own in the order of the
 *                   ranks, so that sums have the same bits from run to run;
 *   all-gather: every owner sends its part to all. */
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
    char *received;           /* [R - 1, part] the others' addends for this rank's part; float or bfloat16 */
    uint16_t *packed;         /* the range in bfloat16, in the same memory; NULL without */
    struct message *messages; /* [2 (R - 1)] of the step */
    int pending;              /* so many of them have not been seen to arrive */
};

/* For ranges of up to `largest` elements. bf16: that may travel in bfloat16. */
int range_messages_create(struct range_messages *messages, const struct ranks *ranks, uint64_t largest, bool bf16);
void range_messages_release(struct range_messages *messages);

/* Host bytes that range_messages_create allocates for them. */
uint64_t range_messages_bytes(const struct ranks *ranks, uint64_t largest, bool bf16);

/* Starts a step: an all-gather if `gathers`, else a reduce-scatter. *bytes gets added what this rank sends. */
int range_messages_start(struct range_messages *messages, bool gathers, double *bytes);

/* Whether all messages of the step have arrived. */
int range_messages_arrived(struct range_messages *messages, bool *arrived);

/* When they have: `data` becomes what the step makes of it. After a reduce-scatter this rank's part of it is the sum
 * and the rest is left undefined. */
void range_messages_finish(struct range_messages *messages, bool gathers);

/* "rank 1 or 3": those whose messages have not arrived; "another rank" if that cannot be told. */
void range_messages_name_late(const struct range_messages *messages, char names[128]);
