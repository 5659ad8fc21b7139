/* Random bits, and dropout, from counters and keys. */
#include "types.cl"

/* ---- Philox4x32-10, as runtime/system/random.h */
static inline uint4 philox(uint4 counter, uint2 key) {
    for (int round = 0; round < 10; round++) {
        const uint high0 = mul_hi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
        const uint high1 = mul_hi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
        counter = (uint4)(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key += (uint2)(0x9E3779B9u, 0xBB67AE85u);
    }
    return counter;
}

static inline uint2 philox_key(ulong key) {
    return (uint2)((uint)key, (uint)(key >> 32));
}

/* Factor of dropout for element `element` of row `row` at one site: 0 with probability rate, else 1/(1-rate).
 * key: of this iteration and site; row: number of the token row in the global batch, so that the way in which
 * rows are divided among ranks and micro-steps changes nothing. */
static inline float dropout_factor(ulong key, ulong row, uint element, float rate) {
    const uint4 words = philox((uint4)(element / 4, 0, (uint)row, (uint)(row >> 32)), philox_key(key));
    /* two selections instead of a switch on two bits, which oclgrind 21.10 gets wrong */
    const uint2 half_words = element & 2 ? words.hi : words.lo;
    const uint word = element & 1 ? half_words.y : half_words.x;
    return (word >> 8) * 0x1p-24f < rate ? 0.0f : 1.0f / (1.0f - rate);
}

/* x times that of elements `element` .. of row `row`. */
static inline vec_t dropout_vector(vec_t x, ulong key, ulong row, uint element, float rate) {
    if (rate > 0.0f) {
        float values[VEC];
        VEC_STORE(x, values);
        UNROLL_LANES(VEC) for (int k = 0; k < VEC; k++) {
            values[k] *= dropout_factor(key, row, element + k, rate);
        }
        x = VEC_LOAD(values);
    }
    return x;
}
