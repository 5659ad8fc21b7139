#include "runtime/device/element.h"
#include <math.h>
#include <string.h>

float element_decode(uint16_t bits, enum element_type type) {
    if (type == ELEMENT_BF16) {
        const uint32_t wide = (uint32_t)bits << 16;
        float value;
        memcpy(&value, &wide, sizeof(value));
        return value;
    }
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float value = exponent == 31 ? (fraction ? NAN : INFINITY)
                        : exponent     ? ldexpf((float)(fraction + 1024), exponent - 25)
                                       : ldexpf((float)fraction, -24);
    return bits >> 15 ? -value : value;
}

uint16_t element_encode_exact(float value, enum element_type type) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (type == ELEMENT_BF16) {
        return (uint16_t)(bits >> 16);
    }
    const uint32_t exponent = value == 0.0f ? 0 : (bits >> 23 & 255) - 127 + 15;
    return (uint16_t)(bits >> 31 << 15 | exponent << 10 | (bits >> 13 & 1023));
}
