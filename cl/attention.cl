/* Causal attention without a T x T matrix (Dao et al. 2022), per head, with scale = 1/sqrt(HEAD_SIZE):
 *
 *   s_qk = scale <q, k>  (k <= q)    p = softmax_k(s)    y_q = sum_k p_qk v_k     lse_q = log sum_k exp(s_qk)
 *
 * and backward, with delta_q = <dy_q, y_q>:
 *   dp_qk = <dy_q, v_k>    ds_qk = p_qk (dp_qk - delta_q)
 *   dq_q = scale sum_k ds_qk k_k     dk_k = scale sum_q ds_qk q_q     dv_k = sum_q p_qk dy_q
 * Dropout multiplies p by a factor after the softmax, in y, dp and dv.
 *
 * qkv [B, T, 3, H, D] (D = HEAD_SIZE); y [B, T, H, D]; lse, delta [B, H, T].
 *
 * This is what the files behind have in common: attention_cpu.cl on CPUs, attention_gpu.cl on GPUs, and
 * attention_step.cl where text is generated.
 *
 * Build constants: HEADS (H), HEAD_SIZE (D), KEY_VEC keys in a vector.
 */
#define MODEL_WIDTH (HEADS * HEAD_SIZE)
#define QKV_ROW     (3 * MODEL_WIDTH) /* elements of a token in qkv: queries, then from */
#define K_AT        MODEL_WIDTH       /* here on keys, */
#define V_AT        (2 * MODEL_WIDTH) /* and here values */
#define SCORE_SCALE rsqrt((float)HEAD_SIZE)

#if KEY_VEC == 1
typedef float keys_t;
#define KEYS_LOAD(p)     (*(p))
#define KEYS_STORE(v, p) (*(p) = (v))
#else
typedef CONCAT(float, KEY_VEC) keys_t;
#define KEYS_LOAD(p)     CONCAT(vload, KEY_VEC)(0, p)
#define KEYS_STORE(v, p) CONCAT(vstore, KEY_VEC)(v, 0, p)
#endif
#define KEYS_SUM(v)      CONCAT(sum, KEY_VEC)(v)
#define KEYS_HIGHEST(v)  CONCAT(highest, KEY_VEC)(v)
#define ACT_LOAD_KEYS(p) CONCAT(act_load, KEY_VEC)(p)

struct dropout {
    float rate;
    ulong key;
    ulong first_row; /* of token 0 of this sequence in the global batch */
    int sequence;
};

/* clspv takes the structure only so: it makes one large number of one that is passed by value, and bytes of one
 * that has a vector. */
static inline float attention_factor(const struct dropout *dropout, int head, int query, int key) {
    return dropout_factor(dropout->key, dropout->first_row + query, head * dropout->sequence + key, dropout->rate);
}
