/* Whether the backend that gemm_open chose computes what it should on this device. */
#pragma once

#include "runtime/device/compute.h"

/* Compares a layer's three forms of GEMM, in sizes that take each class of the backend's kernels, in fp32 and in the type of the
 * run's operands, with sums on the host; a fraction of a second, once per device, driver and backend (self_test.h). -1 with what is
 * wrong and what to do. */
int gemm_verify(struct compute *compute);
