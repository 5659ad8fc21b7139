/* The GEMM backend that runs on matrix units. */
#pragma once

#include "runtime/gemm/mma.h"
#include "runtime/gemm/tuned.h"

/* What the values of struct tuned_values are for matrix units: tiles. Allowed are those of mma_tiles_allowed. */
extern const struct tuned_kind gemm_mma_tiles;

/* The units that the compute's backend "mma" runs on; NULL with another backend. */
struct mma *mma_of(struct compute *compute);
