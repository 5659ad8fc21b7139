#include "src/corpus/text_split.h"
#include <math.h>

bool text_split_next(const struct text_split *split, uint64_t *bytes) {
    const double period = (double)split->total / split->count, each = period * split->fraction;
    const double complete = floor((double)split->held_out / each); /* stretches */
    if (complete >= split->count) {
        *bytes = UINT64_MAX;
        return false;
    }
    const double begin = (complete + split->offset * (1.0 - split->fraction)) * period;
    const bool held_out = (double)split->position >= begin;
    const double left =
        held_out ? (complete + 1.0) * each - (double)split->held_out : begin - (double)split->position;
    *bytes = left > 1.0 ? (uint64_t)ceil(left) : 1;
    return held_out;
}
