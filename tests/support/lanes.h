/* Where kernels whose rows are shared by several work-items, as on GPUs, can be tried on a CPU. */
#pragma once

#include "runtime/device/device.h"
#include <stdbool.h>

enum { LANES_SKIPPED = 77 }; /* exit status of a test that is nothing but such kernels, where they cannot */

/* Whether the device's compiler gets them right, as far as is known. PoCL 6 (Debian 13) compiles loops with
 * barriers, in kernels as large as those of hyper-connections, wrong sometimes: the same kernel compiled again may
 * be right. PoCL 3 (Debian 12) does not. No run meets that, since PoCL's rows have one work-item each. Says so
 * where they cannot be tried. */
bool lanes_can_be_tried(const struct device *device);

/* The same of PoCL's device. */
bool lanes_can_be_tried_on_pocl(void);
