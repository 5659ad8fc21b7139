/* Self-tests that a device passed, kept in the cache folder beside compiled programs, so that they do not run again
 * at every start. */
#pragma once

#include "runtime/device/compute.h"
#include "runtime/files/checksum.h"

/* Whether the self-test `what`, a text with all that its kernels depend on besides the device, passed in an earlier
 * run: on this device, with this driver, build of hctrain, and build flags in the environment. Writes the key for
 * self_test_keep. */
bool self_test_passed(const struct compute *compute, const char *what, char key[CHECKSUM_SIZE]);

/* Keeps that the self-test of this key passed, if there is a cache folder. */
void self_test_keep(const struct compute *compute, const char key[CHECKSUM_SIZE]);

/* Replaces the error of a self-test by one that names the device, its driver and `what` failed, and advises the
 * user; `instead` is more advice, such as "another --gemm, ". Returns -1. */
int self_test_refuse(const struct compute *compute, const char *what, const char *instead);
