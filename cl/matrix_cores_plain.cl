/* What matrix cores other than NVIDIA's do without instructions for it: copies to local memory, and rounding. */
#include "matrix_cores.cl"

INLINED void copy_chunk(__local ushort *to, __global const ushort *from, uint bytes) {
    if (bytes == CHUNK * sizeof(ushort)) {
        *(__local uint4 *)to = *(__global const uint4 *)from;
        return;
    }
    EACH(i, CHUNK)
        to[i] = i * sizeof(ushort) < bytes ? from[i] : 0;
}
#define copy_commit()
#define COPY_WAIT(groups)

INLINED uint pair_round_bf16(float low, float high) {
    return (uint)element_round_bf16(high) << 16 | element_round_bf16(low);
}

INLINED uint pair_round_fp16(float low, float high) {
    ushort bits[2];
    vstore_half_rte(low, 0, (half *)bits);
    vstore_half_rte(high, 1, (half *)bits);
    return (uint)bits[1] << 16 | bits[0];
}
