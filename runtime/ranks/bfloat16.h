/* The upper half of a float: what travels between ranks where half the bytes are wanted. */
#ifndef HC_RUNTIME_BFLOAT16_H
#define HC_RUNTIME_BFLOAT16_H

#include <stdint.h>
#include <string.h>

/* Rounded to nearest, ties to even; NaN stays NaN. */
static inline uint16_t bfloat16_round(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffU) > 0x7f800000U) {
        return (uint16_t)(bits >> 16 | 0x40U); /* a quiet NaN: rounding could carry it to infinity */
    }
    return (uint16_t)((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

static inline float bfloat16_widen(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

#endif
