/* Which attention runs: on matrix units where that agrees with sums on the host, else on the portable kernels, which have to agree
 * with them, too. */
#pragma once

#include "src/operations/attention_matrix_cores.h"
#include "src/operations/operations.h"

/* Runs both passes of a small batch with dropout on operations->attention_matrix_cores or, where that is NULL, on the portable kernels,
 * and compares y, lse and d_qkv with sums on the host in double, and what lies behind them in memory with what was there. 1 with the
 * row that is wrong, -1 where the kernels could not run; the compute is in order either way. */
int attention_check(struct operations *operations);

/* Whether the device computes with pairs of bf16 as their instructions should: a processor may have them and an assembler not know
 * them. -1 with a reason; the compute is in order either way. Pairs must be built. */
int attention_check_bf16(struct operations *operations);

/* Leaves pairs where they fail their check. Sets operations->attention_matrix_cores where products use matrix units too, if there
 * is a unit for which the kernels compile and pass the check. Elsewhere attention stays with the portable kernels, which is no failure;
 * operations->attention_by says what runs, and why. -1 where those cannot be built, or where results are to be verified
 * (compute_options) and are wrong. Each kind of heads is checked once per device and driver, see self_test.h. */
int attention_open(struct operations *operations);
