/* What is small of adapters (LoRA), y = x W^T + s (x A^T) B^T: GEMMs compute the rest. Element by element; VEC is
 * 1. */
#include "types.cl"

/* x [count] *= factor, in place. */
__kernel void scale_elements(ulong count, float factor, __global act_t *x) {
    const size_t i = get_global_id(0);
    if (i < count) {
        ACT_STORE_SCALAR(ACT_LOAD_SCALAR(x + i) * factor, x + i);
    }
}

/* y [rows, columns] += low [rows, rank] B^T, B [columns, rank], of few rows. A sum's order does not depend on how
 * many rows there are. Rows of low and y are low_row and y_row apart. */
__kernel void adapter_add(__global const act_t *low, ulong low_at, int low_row, uint rows, int columns, int rank,
                          __global const act_t *b, ulong b_at, __global act_t *y, ulong y_at, int y_row) {
    const uint row = get_global_id(0) / columns;
    const int column = get_global_id(0) % columns;
    if (row < rows) {
        const size_t place = y_at + (size_t)row * y_row + column;
        float sum = 0.0f;
        for (int k = 0; k < rank; k++) {
            sum += ACT_LOAD_SCALAR(low + low_at + (size_t)row * low_row + k) *
                   ACT_LOAD_SCALAR(b + b_at + (size_t)column * rank + k);
        }
        ACT_STORE_SCALAR(ACT_LOAD_SCALAR(y + place) + sum, y + place);
    }
}
