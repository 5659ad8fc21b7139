#include "runtime/system/element.h"
#include <math.h>

float element_decode(uint16_t bits, enum element_type type) {
    if (type == ELEMENT_BF16) {
        return element_from_bf16(bits);
    }
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float value = exponent == 31 ? (fraction ? NAN : INFINITY)
                        : exponent     ? ldexpf((float)(fraction + 1024), exponent - 25)
                                       : ldexpf((float)fraction, -24);
    return bits >> 15 ? -value : value;
}

float element_at(const void *elements, size_t index, enum element_type type) {
    return type == ELEMENT_FP32 ? ((const float *)elements)[index]
                                : element_decode(((const uint16_t *)elements)[index], type);
}

static uint16_t encode_fp16(float value) {
    const uint16_t sign = signbit(value) ? 0x8000U : 0;
    const float magnitude = fabsf(value);
    int exponent;
    if (!(magnitude < 65520.0f)) { /* which is half a unit beyond the largest number */
        return sign | (isnan(value) ? 0x7e00U : 0x7c00U);
    }
    frexpf(magnitude, &exponent);
    /* numbers below the smallest normal one, 2^-14, have its unit */
    exponent = magnitude < 0x1p-14f ? -13 : exponent;
    /* In units of the last place. A fraction that is rounded up to a power of two carries into the exponent. */
    const unsigned units = (unsigned)nearbyintf(ldexpf(magnitude, 11 - exponent));
    return (uint16_t)(sign | (units + ((unsigned)(exponent + 13) << 10)));
}

uint16_t element_encode(float value, enum element_type type) {
    return type == ELEMENT_BF16 ? element_to_bf16(value) : encode_fp16(value);
}

void element_put(void *elements, size_t index, float value, enum element_type type) {
    if (type == ELEMENT_FP32) {
        ((float *)elements)[index] = value;
    } else {
        ((uint16_t *)elements)[index] = element_encode(value, type);
    }
}

void elements_to_bf16(const float *values, size_t count, uint16_t *bits) {
    for (size_t i = 0; i < count; i++) {
        bits[i] = element_to_bf16(values[i]);
    }
}

void elements_from_bf16(const uint16_t *bits, size_t count, float *values) {
    for (size_t i = 0; i < count; i++) {
        values[i] = element_from_bf16(bits[i]);
    }
}
