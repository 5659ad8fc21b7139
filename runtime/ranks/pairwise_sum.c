#include "runtime/ranks/pairwise_sum.h"
#include "runtime/system/element.h"
#include "runtime/system/parallel.h"
#include <string.h>

enum {
    PIECE = 1 << 16, /* elements that a thread adds at a time */
    LINE = 1024,     /* of these at a time: partial sums stay in the first-level cache */
    DEPTH = 17,      /* most partial sums at a time: log2 of PAIRWISE_MOST, and one */
};

/* The largest power of two below `count`. */
static int first_half(int count) {
    int half = 1;
    while (2 * half < count) {
        half *= 2;
    }
    return half;
}

/* Returns the sum of `addends` addends from `first` on, as float: in scratch[0], or in place if it is a single one.
 * */
static const float *subtotal(const struct pairwise_sum *sum, int first, int addends, uint64_t at, uint64_t count,
                             float (*scratch)[LINE]) {
    if (addends == 1 && (!sum->bf16 || first == sum->wide)) {
        return (const float *)sum->addends[first] + at;
    }
    if (addends == 1) {
        elements_from_bf16((const uint16_t *)sum->addends[first] + at, count, scratch[0]);
        return scratch[0];
    }
    const int half = first_half(addends);
    const float *a = subtotal(sum, first, half, at, count, scratch);
    const float *b = subtotal(sum, first + half, addends - half, at, count, scratch + 1);
    float *total = scratch[0];
    for (uint64_t i = 0; i < count; i++) {
        total[i] = a[i] + b[i];
    }
    return total;
}

/* Writes a + b to all targets. Arrays are identical or do not overlap. */
static void store(const float *a, const float *b, uint64_t count, float *const *targets, int target_count,
                  uint64_t at) {
    float *first = targets[0] + at, *second = targets[target_count > 1] + at;
#ifndef __clang__ /* clang checks at run time whether arrays overlap */
#pragma GCC ivdep
#endif
    for (uint64_t i = 0; i < count; i++) {
        const float total = a[i] + b[i];
        first[i] = total;
        second[i] = total;
    }
    for (int i = 2; i < target_count; i++) {
        memcpy(targets[i] + at, first, count * sizeof *first);
    }
}

static int add_piece(void *context, size_t piece) {
    const struct pairwise_sum *sum = context;
    float scratch[DEPTH][LINE];
    const int half = first_half(sum->count);
    const uint64_t first = piece * PIECE, left = sum->elements - first, end = first + (left < PIECE ? left : PIECE);
    for (uint64_t at = first; at < end; at += LINE) {
        const uint64_t line = end - at < LINE ? end - at : LINE;
        const float *a = subtotal(sum, 0, half, at, line, scratch);
        if (sum->count > 1) {
            const float *b = subtotal(sum, half, sum->count - half, at, line, scratch + 1);
            store(a, b, line, sum->targets, sum->target_count, at);
        } else {
            for (int i = 0; i < sum->target_count; i++) {
                memmove(sum->targets[i] + at, a, line * sizeof *a); /* it may be in place */
            }
        }
    }
    return 0;
}

void pairwise_sum(struct pairwise_sum *sum, bool threads) {
    const size_t pieces = (size_t)((sum->elements + PIECE - 1) / PIECE);
    if (threads) {
        parallel_run(pieces, add_piece, sum);
        return;
    }
    for (size_t piece = 0; piece < pieces; piece++) {
        add_piece(sum, piece);
    }
}
