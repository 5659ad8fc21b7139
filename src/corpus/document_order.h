/* Which documents are held out for validation, and in which order documents are written. Both depend on the seed
 * and the document's number only, or on a file that lists the order. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct document_order {
    double fraction;   /* to hold out */
    double offset;     /* in [0, 1), from the seed */
    uint64_t key;      /* of the shuffle */
    uint64_t *places;  /* [count] of a listed order; owned, NULL without one */
    uint64_t count;    /* documents that the list has */
    uint64_t held_out; /* of them */

    /* Documents from this number on are held out, whatever the above says; UINT64_MAX: none. Whoever reads them sets it. */
    uint64_t held_out_from;
};

/* With a list, the documents come in its order and the first ceil(fraction * count) are held out, which is what
 * train_test_split of Hugging Face's datasets does with numpy's permutation. Without one (NULL), document d is held
 * out where floor((d + 1) fraction + offset) > floor(d fraction + offset): evenly over all, from a start that the
 * seed chooses; and the order is a shuffle by the seed.
 *
 * The list is a file of little-endian 64-bit numbers: the documents' numbers, each once. */
int document_order_begin(struct document_order *order, uint64_t seed, double fraction, const char *list);
void document_order_end(struct document_order *order);

/* The start that the seed chooses for what is held out, in [0, 1). */
double document_order_offset(uint64_t seed);

bool document_order_holds_out(const struct document_order *order, uint64_t document);

/* Documents sorted by (place, number) are in order; places are spread evenly over all 64-bit numbers. */
uint64_t document_order_place(const struct document_order *order, uint64_t document);

/* That so many documents there were: an error where the list has another number. */
int document_order_check(const struct document_order *order, uint64_t documents);
