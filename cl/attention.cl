/* Causal attention without a T x T matrix (Dao et al. 2022), per head, with scale = SCALE:
 *
 *   s_qk = scale <q, k>  (k <= q)    p = softmax_k(s)    y_q = sum_k p_qk v_k     lse_q = log sum_k exp(s_qk)
 *
 * and backward, with delta_q = <dy_q, y_q>:
 *   dp_qk = <dy_q, v_k>    ds_qk = p_qk (dp_qk - delta_q)
 *   dq_q = scale sum_k ds_qk k_k     dk_k = scale sum_q ds_qk q_q     dv_k = sum_q p_qk dy_q
 * Dropout multiplies p by a factor after the softmax, in y, dp and dv.
 *
 * qkv [B, T, (H + 2 K) D] has H heads of q, K of k and K of v in a row, D = HEAD_SIZE; y [B, T, H, D]; lse, delta
 * [B, H, T]. Neighbouring query heads share a key head: query head h reads key and value head h / KV_GROUP, where
 * KV_GROUP = H / K. dk and dv are sums over the query heads of a group, in their order.
 *
 * This is what the other files of attention have in common: attention_cpu.cl on CPUs (in attention_cpu_fp32.cl and
 * attention_cpu_bf16.cl), attention_gpu.cl on GPUs, attention_matrix_cores.cl on matrix cores, and
 * attention_step.cl where text is generated. The table in src/operations/attention.c picks one.
 *
 * Build constants: HEADS (H), KV_HEADS (K, divides H), HEAD_SIZE (D), SCALE, KEY_VEC keys in a vector.
 */
#include "random.cl"

#define KV_GROUP (HEADS / KV_HEADS)
#define Y_ROW    (HEADS * HEAD_SIZE)    /* elements of a token in y, */
#define KV_ROW   (KV_HEADS * HEAD_SIZE) /* in keys, and in values, */
#define QKV_ROW  (Y_ROW + 2 * KV_ROW)   /* and in qkv: queries, then keys, then values */
#define LOG2E    1.4426950408889634f
#define LN2      0.6931471805599453f

typedef CONCAT(float, KEY_VEC) keys_t;
#define KEYS_LOAD(p)     FLOATS_LOAD(KEY_VEC, p)
#define KEYS_STORE(v, p) FLOATS_STORE(KEY_VEC, v, p)
#define KEYS_SUM(v)      CONCAT(sum, KEY_VEC)(v)
#define KEYS_HIGHEST(v)  CONCAT(highest, KEY_VEC)(v)

/* NVIDIA's native_exp2, written out: clang has no such built-in when it compiles for NVIDIA. */
INLINED float power_of_two(float x) {
#if defined(__NVPTX__) || defined(__NV_CL_C_VERSION)
    float y;
    __asm__("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#elif defined(__AMDGCN__) && __has_builtin(__builtin_amdgcn_exp2f)
    return __builtin_amdgcn_exp2f(x); /* native_exp2 of other compilers than AMD's own scales small numbers */
#else
    return native_exp2(x);
#endif
}

struct dropout {
    float rate;
    ulong key;
    ulong first_row; /* of token 0 of this sequence in the global batch */
    uint element;    /* of key 0 in a row */
};

/* A head of the batch. */
struct head {
    size_t qkv, y; /* where its rows begin in qkv, and in y */
    size_t keys;   /* where the keys that it reads begin in qkv; their values begin KV_ROW behind them */
    size_t rows;   /* where its numbers begin in lse and delta */
    struct dropout dropout;
};

/* Query head `number` of the batch. Sequence i has the query heads i * HEADS to (i + 1) * HEADS - 1; those that
 * share key head i of the batch are i * KV_GROUP to (i + 1) * KV_GROUP - 1. Structures are filled and passed
 * through pointers and have no vectors: clspv turns one that is passed by value into one large integer, and one
 * with a vector into bytes; Mesa's compiler would keep copies in memory. */
INLINED void head_find(uint number, int sequence, float rate, ulong dropout_key, ulong first_row,
                       struct head *head) {
    const size_t token = (size_t)(number / HEADS) * sequence;
    const uint in_model = number % HEADS;
    head->qkv = token * QKV_ROW + in_model * HEAD_SIZE;
    head->y = token * Y_ROW + in_model * HEAD_SIZE;
    head->keys = head->qkv + Y_ROW - (in_model - in_model / KV_GROUP) * HEAD_SIZE;
    head->rows = (size_t)number * sequence;
    head->dropout.rate = rate;
    head->dropout.key = dropout_key;
    head->dropout.first_row = first_row + token;
    head->dropout.element = in_model * sequence;
}

/* The next query head of the same key head. */
INLINED void head_next(int sequence, struct head *head) {
    head->qkv += HEAD_SIZE;
    head->y += HEAD_SIZE;
    head->rows += sequence;
    head->dropout.element += sequence;
}

INLINED float attention_factor(const struct dropout *dropout, int query, int key) {
    return dropout_factor(dropout->key, dropout->first_row + query, dropout->element + key, dropout->rate);
}
