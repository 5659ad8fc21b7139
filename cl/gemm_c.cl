/* Elements of C in the portable GEMM on GPUs: act_t, or float with FLOAT_C 1. */
#include "types.cl"

#if FLOAT_C
typedef float c_t;
#define C_LOAD(p)            VEC_LOAD(p)
#define C_STORE(v, p)        VEC_STORE(v, p)
#define C_LOAD_SCALAR(p)     (*(p))
#define C_STORE_SCALAR(v, p) (*(p) = (v))
#else
typedef act_t c_t;
#define C_LOAD(p)            ACT_LOAD(p)
#define C_STORE(v, p)        ACT_STORE(v, p)
#define C_LOAD_SCALAR(p)     ACT_LOAD_SCALAR(p)
#define C_STORE_SCALAR(v, p) ACT_STORE_SCALAR(v, p)
#endif
