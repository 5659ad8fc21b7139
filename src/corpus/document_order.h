/* Which documents are held out for validation, and in which order documents are written. Both depend only on the
 * seed and the document's number, or on a file that lists the order. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct document_order {
    double fraction;   /* to hold out */
    double offset;     /* in [0, 1), from the seed */
    uint64_t key;      /* of the shuffle */
    uint64_t *places;  /* [count] of a listed order; owned, NULL without a list */
    uint64_t count;    /* documents in the list */
    uint64_t held_out; /* of them */
};

/* With a list, the documents come in its order and the first ceil(fraction * count) are held out, as
 * train_test_split of Hugging Face's datasets does with numpy's permutation. Without one (NULL), document d is held
 * out if floor((d + 1) fraction + offset) > floor(d fraction + offset): evenly spread, from a start that the seed
 * chooses; and the seed shuffles the order.
 *
 * The list is a file of little-endian 64-bit numbers: the documents' numbers, each once. */
int document_order_begin(struct document_order *order, uint64_t seed, double fraction, const char *list);
void document_order_end(struct document_order *order);

bool document_order_holds_out(const struct document_order *order, uint64_t document);

/* Documents sorted by (place, number) are in order; places are spread evenly over all 64-bit numbers. */
uint64_t document_order_place(const struct document_order *order, uint64_t document);
