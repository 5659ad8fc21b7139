/* AMD RDNA 3 (gfx11), whose two halves of a wave hold the same elements of A and B: RDNA 3 ISA, "WMMA". */
#include "matrix_cores.cl"

#define FRAGMENT_ELEMENTS        8
#define OPERAND_SHARE            16
#define FRAGMENT_PAIRS           0
#define fragment_column(item, i) ((i) * 2 + (item).lane / 16)
#define LANE_FIRST(lane)         0
/* The place in local memory of a column's number. Those of a lane's columns lie side by side. */
#define VALUE_PLACE(column) ((column) / 16 * 16 + (column) % 2 * 8 + (column) % 16 / 2)
typedef ushort16 operand_bits_t;
typedef float8 floats_t;

#define OPERAND_FP16(x)        as_half16(x)
#define OPERAND_BF16(x)        as_short16(x)
#define MULTIPLY_FP16(a, b, c) __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c)
#define MULTIPLY_BF16(a, b, c) __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c)

#include "matrix_cores_amd.cl"
