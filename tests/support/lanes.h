/* Where kernels whose rows are shared by several work-items, as on GPUs, can be tried on a CPU. */
#pragma once

#include "runtime/device/device.h"
#include <stdbool.h>

enum { LANES_SKIPPED = 77 }; /* exit status of a test that is nothing but such kernels, where they cannot */

/* Whether the device's compiler gets them right. PoCL 6 (Debian 13) compiles loops with barriers, in kernels as large as those of hyper-connections,
 * wrong now and then, and otherwise at the next time; PoCL 3 (Debian 12) does not. No run meets that: PoCL's rows have one work-item each. */
bool lanes_can_be_tried(const struct device *device); /* says so where it does not */

/* The same of PoCL's device. */
bool lanes_can_be_tried_on_pocl(void);
