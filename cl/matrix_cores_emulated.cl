/* An emulation of NVIDIA's instructions, for tests on any device. It does what the tables of the PTX ISA say, so
 * that it tests which lane holds which element in matrix_cores_ptx.cl. */
#include "matrix_cores.cl"

#undef FRAGMENT_UNROLL
#undef MATRIX_BEGIN
#define FRAGMENT_UNROLL   _Pragma("nounroll") /* it has to compile fast */
#define DIAGONAL_APART    0                   /* likewise */
#define WARP_FENCE()      barrier(CLK_LOCAL_MEM_FENCE)
#define EMULATION_SCRATCH 256 /* words of a warp */
#define MATRIX_BEGIN(item, warps)                                                                                  \
    __local uint item##_scratch[(warps) * EMULATION_SCRATCH] __attribute__((aligned(16)));                         \
    const struct work_item item = {get_local_id(0) % WARP_SIZE, get_local_id(0) / WARP_SIZE,                       \
                                   item##_scratch + get_local_id(0) / WARP_SIZE * EMULATION_SCRATCH}

/* ldmatrix .x4: the rows' addresses come from the lanes; a lane gets two neighbours of row lane / 4 of each matrix,
 * beginning at lane % 4 * 2. With .trans rows and columns change places. */
INLINED uint4 ptx_load_rows(struct work_item item, __local const ushort *row, bool transposed) {
    uint words[4];
    __local const ushort *__local *rows = (__local const ushort *__local *)item.scratch;
    rows[item.lane] = row;
    barrier(CLK_LOCAL_MEM_FENCE);
    EACH(matrix, 4) {
        const uint major = item.lane / 4, minor = item.lane % 4 * 2;
        __local const ushort *__local *at = rows + matrix * 8;
        const uint low = transposed ? at[minor][major] : at[major][minor];
        const uint high = transposed ? at[minor + 1][major] : at[major][minor + 1];
        words[matrix] = high << 16 | low;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return (uint4)(words[0], words[1], words[2], words[3]);
}

#define ptx_load(item, row)            ptx_load_rows(item, row, false)
#define ptx_load_transposed(item, row) ptx_load_rows(item, row, true)

/* mma.m16n8k16: element i of a lane lies in
 *   A: row group (+ 8 unless i < 2 or 4 <= i < 6), column 2 member + i % 2 (+ 8 from i = 4 on)
 *   B: row 2 member + i % 2 (+ 8 from i = 2 on), column group
 *   C: row group (+ 8 from i = 2 on), column 2 member + i % 2
 * with group = lane / 4 and member = lane % 4. */
INLINED void ptx_multiply(struct work_item item, float *c, uint4 a, uint2 b) {
    __local ushort *whole_a = (__local ushort *)item.scratch, *whole_b = whole_a + 16 * 16;
    const uint group = item.lane / 4, member = item.lane % 4;
    const uint words_a[4] = {a.x, a.y, a.z, a.w}, words_b[2] = {b.x, b.y};
    EACH(i, 8) {
        const uint row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
        const uint column = member * 2 + i % 2 + (i < 4 ? 0 : 8);
        whole_a[row * 16 + column] = (ushort)(words_a[i / 2] >> i % 2 * 16);
    }
    EACH(i, 4) {
        const uint row = member * 2 + i % 2 + (i < 2 ? 0 : 8);
        whole_b[row * 8 + group] = (ushort)(words_b[i / 2] >> i % 2 * 16);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    EACH(i, 4) {
        const uint row = i < 2 ? group : group + 8, column = member * 2 + i % 2;
        float sum = c[i];
        EACH(k, 16)
            sum = mad(operand_value(whole_a[row * 16 + k]), operand_value(whole_b[k * 8 + column]), sum);
        c[i] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

#define EXCHANGE(item, x, bit) emulated_exchange(item, x, bit)
INLINED float emulated_exchange(struct work_item item, float x, uint bit) {
    item.scratch[item.lane] = as_uint(x);
    barrier(CLK_LOCAL_MEM_FENCE);
    const float other = as_float(item.scratch[item.lane ^ bit]);
    barrier(CLK_LOCAL_MEM_FENCE);
    return other;
}

#include "matrix_cores_plain.cl"
#include "matrix_cores_ptx.cl"
