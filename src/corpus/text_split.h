/* Which stretches of running text are held out, where the size of all of it is known: a number of equally long ones, spread evenly
 * from a start that the seed chooses. A stretch ends where text can be cut, so it is longer than planned; the next one is shorter
 * by that, and the share of all comes out as it was asked for. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct text_split {
    uint64_t total;    /* bytes of all the text; 0: not known, and nothing is planned */
    double fraction;   /* to hold out, above 0 */
    unsigned count;    /* of stretches */
    double offset;     /* in [0, 1), from the seed */
    uint64_t position; /* bytes that are divided already */
    uint64_t held_out; /* of them */
};

/* Whether the text at the position is held out. *bytes: how many more should be, or, where it is not, how many come before the next
 * stretch; UINT64_MAX: all that follows. */
bool text_split_next(const struct text_split *split, uint64_t *bytes);
