/* bf16 in steps of 8 along k */
#include "matrix_cores_amd_mfma.cl"

#define MULTIPLY_8(a, b, c)    __builtin_amdgcn_mfma_f32_16x16x8bf16(a, b, c, 0, 0, 0)
#define MULTIPLY_BF16(a, b, c) MULTIPLY_8((a).hi, (b).hi, MULTIPLY_8((a).lo, (b).lo, c))

#include "matrix_cores_amd.cl"
