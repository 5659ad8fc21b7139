/* AMD CDNA (gfx908, gfx90a, gfx942, gfx950): CDNA ISA, "MFMA". _mfma_8.cl (gfx908) or _16.cl follows. */
#include "matrix_cores.cl"

#define FRAGMENT_ELEMENTS        4
#define OPERAND_SHARE            4
#define FRAGMENT_PAIRS           1
#define fragment_column(item, i) ((item).lane / 16 * 4 + (i))
#define LANE_FIRST(lane)         ((lane) / 16 * 4)
typedef ushort4 operand_bits_t;
typedef float4 floats_t;

#define OPERAND_FP16(x)        as_half4(x)
#define OPERAND_BF16(x)        as_short4(x)
#define MULTIPLY_FP16(a, b, c) __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0)
