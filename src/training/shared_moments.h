/* The optimiser's moments where ranks share them (ZeRO stage 1): each keeps those of its parts of the buckets. */
#ifndef HC_SRC_SHARED_MOMENTS_H
#define HC_SRC_SHARED_MOMENTS_H

#include "src/model/gpt_state.h"
#include "src/training/buckets.h"

struct shared_moments {
    struct moment_share share; /* for gpt_options; its functions are collective and get by it to the rest */
    const struct buckets *buckets;
    const struct ranks *ranks;
};

struct shared_moments shared_moments_of(const struct buckets *buckets, const struct ranks *ranks);

#endif
