/* Whether a device comes to the end of long loops. Mesa's CPU drivers (llvmpipe for OpenCL, lavapipe for Vulkan) of release 22.3
 * leave all loops of a work-item after 65535 turns in all, and say nothing. */
#pragma once

#include "src/operations/operations.h"

/* Where work-items of the model would make more turns than half of that, for a batch of this shape and so many parameters, tries four times
 * as many on the device, once per device and driver (self_test.h). -1 with what to do where they do not come out right. */
int operations_check_loops(struct operations *operations, struct token_shape tokens, size_t parameters);
