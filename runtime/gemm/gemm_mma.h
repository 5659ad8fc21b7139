/* The GEMM backend that runs on matrix units. */
#ifndef HC_RUNTIME_GEMM_MMA_H
#define HC_RUNTIME_GEMM_MMA_H

#include "runtime/gemm/mma.h"

/* The units that the compute's backend "mma" runs on; NULL with another backend. */
struct mma *mma_of(struct compute *compute);

#endif
