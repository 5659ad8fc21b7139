/* Whether the backend that gemm_open chose computes what it should on this device. */
#pragma once

#include "runtime/device/compute.h"

/* Compares a layer's three forms of GEMM, in sizes that take each class of the backend's kernels, in fp32 and with operands of this
 * type, with sums on the host; a fraction of a second, once per device, driver, backend with its library, and parameters
 * (self_test.h). 1 with what is wrong, -1 with an error where nothing came out. */
int gemm_verify(struct compute *compute, enum element_type type);
