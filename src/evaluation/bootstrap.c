/* lm-evaluation-harness draws its samples in chunks, each by a generator of Python's module random, seeded with the
 * chunk's number: the Mersenne Twister (MT19937) of Matsumoto and Nishimura, 1998. */
#include "src/evaluation/bootstrap.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "runtime/system/parallel.h"
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

enum { CHUNKS = 100, CHUNK_SAMPLES = 1000, SAMPLES = CHUNKS * CHUNK_SAMPLES };
enum { STATE = 624, MIDDLE = 397 };

struct twister {
    uint32_t state[STATE];
    size_t at; /* the next number to take */
};

static uint32_t mixed(uint32_t before) {
    return before ^ (before >> 30);
}

/* init_by_array of one number, as random.seed(number) calls it. */
static void twister_seed(struct twister *twister, uint32_t number) {
    uint32_t *state = twister->state;
    size_t i = 1;
    state[0] = 19650218;
    for (uint32_t k = 1; k < STATE; k++) {
        state[k] = 1812433253u * mixed(state[k - 1]) + k;
    }
    for (size_t step = 0; step < 2 * STATE - 1; step++) {
        state[i] = step < STATE ? (state[i] ^ (mixed(state[i - 1]) * 1664525u)) + number
                                : (state[i] ^ (mixed(state[i - 1]) * 1566083941u)) - (uint32_t)i;
        if (++i == STATE) {
            state[0] = state[STATE - 1];
            i = 1;
        }
    }
    state[0] = 0x80000000u;
    twister->at = STATE;
}

static void twist(uint32_t *state) {
    for (size_t i = 0; i < STATE; i++) {
        const uint32_t both = (state[i] & 0x80000000u) | (state[(i + 1) % STATE] & 0x7fffffffu);
        state[i] = state[(i + MIDDLE) % STATE] ^ (both >> 1) ^ (both & 1 ? 0x9908b0dfu : 0);
    }
}

static uint32_t twister_next(struct twister *twister) {
    if (twister->at == STATE) {
        twist(twister->state);
        twister->at = 0;
    }
    uint32_t number = twister->state[twister->at++];
    number ^= number >> 11;
    number ^= (number << 7) & 0x9d2c5680u;
    number ^= (number << 15) & 0xefc60000u;
    return number ^ (number >> 18);
}

/* random.random(): 53 bits, in [0, 1). */
static double twister_double(struct twister *twister) {
    const uint32_t high = twister_next(twister) >> 5, low = twister_next(twister) >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
}

static double sample_perplexity(struct twister *twister, const double *log_likelihoods, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        sum += log_likelihoods[(size_t)(twister_double(twister) * (double)count)];
    }
    return exp(-sum / (double)count);
}

static double deviation(const double *values, size_t count) {
    double mean = 0.0, squares = 0.0;
    for (size_t i = 0; i < count; i++) {
        mean += values[i] / (double)count;
    }
    for (size_t i = 0; i < count; i++) {
        squares += (values[i] - mean) * (values[i] - mean);
    }
    return sqrt(squares / (double)(count - 1));
}

struct resampling {
    const double *log_likelihoods;
    size_t count;
    double *perplexities; /* [SAMPLES] */
};

static int draw_chunk(void *context, size_t chunk) {
    const struct resampling *resampling = context;
    struct twister twister;
    twister_seed(&twister, (uint32_t)chunk);
    for (size_t i = 0; i < CHUNK_SAMPLES; i++) {
        resampling->perplexities[chunk * CHUNK_SAMPLES + i] =
            sample_perplexity(&twister, resampling->log_likelihoods, resampling->count);
    }
    return interrupt_requested() ? error_set("interrupted") : 0;
}

int bootstrap_perplexity_error(const double *log_likelihoods, size_t count, double *error) {
    const struct resampling resampling = {log_likelihoods, count, memory_allocate(SAMPLES, sizeof(double))};
    const int status = count > 1 ? parallel_run(CHUNKS, draw_chunk, (void *)(uintptr_t)&resampling) : 0;
    *error = count > 1 && status == 0 ? deviation(resampling.perplexities, SAMPLES) : (double)NAN;
    free(resampling.perplexities);
    return status;
}
