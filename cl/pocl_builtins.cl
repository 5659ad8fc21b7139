/* The built-in functions that these kernels use, for PoCL. It begins every program with clang's header of all that
 * OpenCL C has, 18 thousand lines, which take longer than the program itself; with _OPENCL_H_ defined the header is
 * empty, and these declarations are in its place. They are what the header says, for the types that are used.
 * PoCL's names of the functions are macros. */
#define DECLARED __attribute__((overloadable))
#define VALUE    __attribute__((overloadable, const)) /* depends on its arguments alone */
#define READ     __attribute__((overloadable, pure))  /* and on memory */

/* ---- numbers */
#define OF_NUMBER(type)                                                                                            \
    type VALUE max(type, type);                                                                                    \
    type VALUE min(type, type);                                                                                    \
    type VALUE clamp(type, type, type)
#define OF_WIDTH(n)                                                                                                \
    OF_NUMBER(float##n);                                                                                           \
    OF_NUMBER(int##n);                                                                                             \
    OF_NUMBER(uint##n);                                                                                            \
    float##n VALUE copysign(float##n, float##n);                                                                   \
    float##n VALUE exp(float##n);                                                                                  \
    float##n VALUE fabs(float##n);                                                                                 \
    float##n VALUE fma(float##n, float##n, float##n);                                                              \
    float##n VALUE fmax(float##n, float##n);                                                                       \
    float##n VALUE fmin(float##n, float##n);                                                                       \
    float##n VALUE log(float##n);                                                                                  \
    float##n VALUE log2(float##n);                                                                                 \
    float##n VALUE mad(float##n, float##n, float##n);                                                              \
    float##n VALUE native_exp2(float##n);                                                                          \
    float##n VALUE rsqrt(float##n);                                                                                \
    float##n VALUE sqrt(float##n);                                                                                 \
    float##n VALUE tanh(float##n);                                                                                 \
    int##n VALUE isfinite(float##n);                                                                               \
    int##n VALUE isnan(float##n);                                                                                  \
    uint##n VALUE mul_hi(uint##n, uint##n);                                                                        \
    uint##n VALUE select(uint##n, uint##n, int##n);                                                                \
    float##n VALUE convert_float##n(uint##n);                                                                      \
    uint##n VALUE convert_uint##n(ushort##n);                                                                      \
    ushort##n VALUE convert_ushort##n(uint##n)
OF_NUMBER(long);
OF_NUMBER(ulong);
OF_WIDTH();
OF_WIDTH(2);
OF_WIDTH(4);
OF_WIDTH(8);
OF_WIDTH(16);
float VALUE dot(float2, float2);
float VALUE dot(float4, float4);

/* ---- memory */
#define OF_VECTOR(space, type, n)                                                                                  \
    type##n READ vload##n(size_t, const space type *);                                                             \
    void DECLARED vstore##n(type##n, size_t, space type *)
#define OF_VECTORS(space, n)                                                                                       \
    OF_VECTOR(space, float, n);                                                                                    \
    OF_VECTOR(space, uint, n);                                                                                     \
    OF_VECTOR(space, ushort, n);                                                                                   \
    float##n READ vload_half##n(size_t, const space half *);                                                       \
    float##n READ vloada_half##n(size_t, const space half *);                                                      \
    void DECLARED vstore_half##n##_rte(float##n, size_t, space half *);                                            \
    void DECLARED vstorea_half##n##_rte(float##n, size_t, space half *)
#define OF_SPACE(space)                                                                                            \
    OF_VECTORS(space, 2);                                                                                          \
    OF_VECTORS(space, 4);                                                                                          \
    OF_VECTORS(space, 8);                                                                                          \
    OF_VECTORS(space, 16);                                                                                         \
    float READ vload_half(size_t, const space half *);                                                             \
    void DECLARED vstore_half_rte(float, size_t, space half *)
OF_SPACE(__global);
OF_SPACE(__local);
OF_SPACE(__private);

/* ---- work-items */
size_t VALUE get_global_id(uint);
size_t VALUE get_group_id(uint);
size_t VALUE get_local_id(uint);
size_t VALUE get_local_size(uint);
size_t VALUE get_num_groups(uint);
void __attribute__((overloadable, convergent)) barrier(cl_mem_fence_flags);
