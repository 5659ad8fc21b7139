/* Attention on matrix units, which is trusted where it agrees with the portable kernels on the same device. */
#pragma once

#include "src/operations/attention_units.h"
#include "src/operations/operations.h"

/* Runs both passes of a small batch with dropout on the units and on the portable kernels, and compares y, lse and
 * d_qkv, and what lies behind them in memory. -1 with the row that is wrong; the compute is in order either way.
 * operations->attention_units must not be set yet. */
int attention_check(struct operations *operations, struct attention_units *units);

/* Whether the device computes with pairs of bf16 as their instructions should: a processor may have them and an assembler not know
 * them. -1 with a reason; the compute is in order either way. Pairs must be built. */
int attention_check_pairs(struct operations *operations);

/* Leaves pairs where they fail their check. Sets operations->attention_units where products use matrix units too, if there
 * is a unit for which the kernels compile and pass the check. Elsewhere attention stays with the portable kernels, which is no failure;
 * operations->attention_by says what runs, and why. -1 where those cannot be built. */
int attention_open_units(struct operations *operations);
