/* Between fp32 and the 16-bit types on the device. */
#pragma once

#include "runtime/device/compute.h"

/* Copies `count` elements from one buffer to another; the buffers' types say how they are stored there. One of the
 * two is fp32: from it numbers are rounded to nearest even (NaN stays NaN), to it they go exactly. Two of the same
 * type are copied as they are. A launch; the kernels are built at the first need. */
void convert_elements(struct compute *compute, struct span from, struct span to, size_t count);
