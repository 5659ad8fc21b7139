/* hc_train --compile-only: one step of a small model, which needs the same kernels as the run's. */
#pragma once

#include "src/training/train.h"

/* Reduces settings->model, or that of the folder which init_from names, and makes a step with weights of zero. Then
 * compares attention and GEMMs of the device with sums on the host. Reads no weights, and no data but for the
 * vocabulary, unless that is known, and writes only compiled kernels. */
enum program_status compile_only_run(struct train_settings *settings, struct ranks *ranks);
