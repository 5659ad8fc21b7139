/* AMD CDNA 2 and 3 (gfx90a, gfx942, gfx950): bf16 in steps of 16 along k. */
#include "matrix_cores_amd_mfma.cl"

/* With more registers than two waves can have, compilers keep sums in the other half of the register file, which
 * nothing but the matrix cores reads, and move them for each step of a softmax. */
#define SOFTMAX_KERNEL(warps) MATRIX_KERNEL(warps) __attribute__((amdgpu_waves_per_eu(2)))

#define MULTIPLY_BF16(a, b, c) __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0)

#include "matrix_cores_amd.cl"
