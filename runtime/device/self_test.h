/* Self-tests that a device passed, kept in the cache folder beside compiled programs: what a device and its driver computed
 * right once is not computed again at the start of every run. */
#pragma once

#include "runtime/device/compute.h"
#include "runtime/files/checksum.h"

/* Whether the self-test `what`, a text with all that its kernels depend on besides the device, passed in an earlier run:
 * on this device, with this driver, build of hctrain, and build flags in the environment. Writes the key for
 * self_test_keep. */
bool self_test_passed(const struct compute *compute, const char *what, char key[CHECKSUM_SIZE]);

/* Keeps that the self-test of this key passed; nothing happens where there is no cache folder. */
void self_test_keep(const struct compute *compute, const char key[CHECKSUM_SIZE]);

/* Replaces the error of a self-test by one that says on which device and driver it is `what` that failed, how, and what the
 * user can do; `instead` is what may help besides, such as "another --gemm, ". Returns -1. */
int self_test_refuse(const struct compute *compute, const char *what, const char *instead);
