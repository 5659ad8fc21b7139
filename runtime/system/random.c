#include "runtime/system/random.h"
#include <math.h>

/* The last word of the counter keeps the functions below apart, should they share a key. */
enum { STREAM_UNIFORM = 1, STREAM_BELOW = 2, STREAM_NORMAL = 3 };

enum { PHILOX_ROUNDS = 10 };

void random_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* Two 64-bit numbers for element `index`; `draw` counts further draws for the same element. */
static void draw_pair(uint64_t key, uint64_t index, uint32_t draw, uint32_t stream, uint64_t pair[2]) {
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), draw, stream};
    const uint32_t keys[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    uint32_t words[4];
    random_philox(counter, keys, words);
    pair[0] = words[0] | (uint64_t)words[1] << 32;
    pair[1] = words[2] | (uint64_t)words[3] << 32;
}

/* [0, 1) in steps of 2^-53. */
static double unit_interval(uint64_t bits) {
    return (double)(bits >> 11) * 0x1p-53;
}

uint64_t random_key(uint64_t seed, const char *purpose) {
    uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a */
    for (const char *at = purpose; *at != '\0'; at++) {
        hash = (hash ^ (unsigned char)*at) * 0x100000001B3u;
    }
    hash ^= seed + 0x9E3779B97F4A7C15u + (hash << 6) + (hash >> 2);
    hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9u; /* the finaliser of SplitMix64 */
    hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBu;
    return hash ^ (hash >> 31);
}

uint64_t random_below(uint64_t key, uint64_t index, uint64_t bound) {
    /* The first 2^64 mod bound numbers would make small results likelier: draw again. */
    const uint64_t unfair = (0 - bound) % bound;
    for (uint32_t draw = 0;; draw++) {
        uint64_t pair[2];
        draw_pair(key, index, draw, STREAM_BELOW, pair);
        if (pair[0] >= unfair) {
            return pair[0] % bound;
        }
        if (pair[1] >= unfair) {
            return pair[1] % bound;
        }
    }
}

/* Elements 2i and 2i + 1 come from pair i: a range may begin or end in the middle of one. */
void random_normal(uint64_t key, uint64_t first, uint64_t count, double mean, double deviation, float *values) {
    const double two_pi = 6.283185307179586476925;
    for (uint64_t element = first; element < first + count;) {
        uint64_t pair[2];
        draw_pair(key, element / 2, 0, STREAM_NORMAL, pair);
        const double radius = deviation * sqrt(-2.0 * log(1.0 - unit_interval(pair[0])));
        const double angle = two_pi * unit_interval(pair[1]);
        if (element % 2 == 0) {
            *values++ = (float)(mean + radius * cos(angle));
            element++;
        }
        if (element < first + count) {
            *values++ = (float)(mean + radius * sin(angle));
            element++;
        }
    }
}

double random_uniform(uint64_t key, uint64_t index) {
    uint64_t pair[2];
    draw_pair(key, index, 0, STREAM_UNIFORM, pair);
    return unit_interval(pair[0]);
}
