/* Attention on matrix units compared with attention in double. */
#ifndef HC_SRC_ATTENTION_CHECK_H
#define HC_SRC_ATTENTION_CHECK_H

#include "src/operations/attention_reference.h"
#include "src/operations/attention_units.h"

/* The numbers of a case, drawn from its key: 16-bit elements, and what they are. */
struct attention_numbers {
    uint16_t *qkv_bits, *d_y_bits;
    double *qkv, *d_y;
};

/* -1 when memory runs out. */
int attention_numbers_draw(const struct attention_case *shape, struct attention_numbers *numbers);
void attention_numbers_free(struct attention_numbers *numbers);

/* Runs both passes on them and compares every element with attention_reference: y, lse, d_qkv, and what lies behind
 * them in memory. -1 with the element that is wrong. *worst, unless NULL, gets the largest error as a part of its
 * bound.
 */
int attention_check(struct attention_units *units, const struct attention_case *wanted, double *worst);

#endif
