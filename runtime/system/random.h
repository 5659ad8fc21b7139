/* Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
 * A value depends on key and counter only, never on what was drawn before, so results do not depend on the order or
 * the number of workers. cl/random.cl has the same function; tests hold the two together. */
#pragma once

#include <stdint.h>

/* The generator: four 32-bit words from a 128-bit counter and a 64-bit key. */
void random_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4]);

/* A 64-bit key for a purpose: seed and a name mixed (FNV-1a, then a 64-bit finaliser). */
uint64_t random_key(uint64_t seed, const char *purpose);

/* Uniform integer in [0, bound), unbiased (bound > 0): element `index` of the stream `key`. */
uint64_t random_below(uint64_t key, uint64_t index, uint64_t bound);

/* Fills values[0..count) with normals of this mean and deviation, elements first.. of the stream `key` (Box-Muller
 * in double). The same elements whatever the split into calls. */
void random_normal(uint64_t key, uint64_t first, uint64_t count, double mean, double deviation, float *values);

/* Uniform double in [0, 1) with 53 bits. */
double random_uniform(uint64_t key, uint64_t index);
