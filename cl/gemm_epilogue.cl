/* What follows a matrix product: with y [m, n] the product and f GELU,
 *
 *   z = y + bias,   C = z + residual                         without an activation
 *                   C = f(z) + residual                      with one
 *                   C = z,  activated = f(z) + residual      with one and a matrix for its result
 *
 * Every part may be missing. bias is [n]; C, activated and residual are [m, n] with rows of their own strides, of any element
 * type. Needs common.cl and elementwise.cl with VEC 1, for GELU_TANH, and element.cl.
 */
#define EPILOGUE_BIAS      1
#define EPILOGUE_ACTIVATE  2
#define EPILOGUE_ACTIVATED 4
#define EPILOGUE_RESIDUAL  8

/* The parts of one launch, and their types in `types`, two bits each from the lowest: bias, activated, residual. */
#define EPILOGUE_PARAMETERS                                                                                        \
    uint parts, uint types, __global const void *bias, ulong bias_at, __global void *activated, ulong activated_at, \
        ulong activated_stride, __global const void *residual, ulong residual_at, ulong residual_stride
#define EPILOGUE_ARGUMENTS                                                                                         \
    parts, types, bias, bias_at, activated, activated_at, activated_stride, residual, residual_at, residual_stride

/* Element (row, column): takes y, writes into `activated`, returns what goes into C. */
INLINED float epilogue_finish(float y, ulong row, ulong column, EPILOGUE_PARAMETERS) {
    float kept = y;
    if (parts & EPILOGUE_BIAS)
        kept += element_load(bias, bias_at + column, types & 3);
    float result = parts & EPILOGUE_ACTIVATE ? kept * gelu_factor(kept) : kept;
    if (parts & EPILOGUE_RESIDUAL)
        result += element_load(residual, residual_at + row * residual_stride + column, types >> 4 & 3);
    if (!(parts & EPILOGUE_ACTIVATED))
        return result;
    element_store(result, activated, activated_at + row * activated_stride + column, types >> 2 & 3);
    return kept;
}

/* For products that cannot do it themselves: C holds y. A work-item takes an element. */
__kernel void gemm_epilogue(ulong m, ulong n, __global void *c, ulong c_at, ulong c_stride, int c_type,
                            EPILOGUE_PARAMETERS) {
    const ulong element = get_global_id(0);
    if (element >= m * n)
        return;
    const ulong row = element / n, column = element % n, at = c_at + row * c_stride + column;
    element_store(epilogue_finish(element_load(c, at, c_type), row, column, EPILOGUE_ARGUMENTS), c, at, c_type);
}
