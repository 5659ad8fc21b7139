/* AMD RDNA 4 (gfx12): RDNA 4 ISA, "WMMA". */
#include "matrix_cores.cl"

#define FRAGMENT_ELEMENTS        8
#define OPERAND_SHARE            8
#define FRAGMENT_PAIRS           1
#define fragment_column(item, i) ((item).lane / 16 * 8 + (i))
#define LANE_FIRST(lane)         ((lane) / 16 * 8)
typedef ushort8 operand_bits_t;
typedef float8 floats_t;

#define OPERAND_FP16(x)        as_half8(x)
#define OPERAND_BF16(x)        as_short8(x)
#define MULTIPLY_FP16(a, b, c) __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c)
#define MULTIPLY_BF16(a, b, c) __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, c)

#include "matrix_cores_amd.cl"
