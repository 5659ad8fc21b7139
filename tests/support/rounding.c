#include "tests/support/rounding.h"
#include <math.h>

/* Bits of the fraction, and the exponent of the smallest normal number. */
struct format {
    int fraction, smallest, exponents /* bits */;
};

static struct format format_of(enum element_type type) {
    return type == ELEMENT_BF16 ? (struct format){7, -126, 8} : (struct format){10, -14, 5};
}

uint16_t rounding_encode(enum element_type type, double value) {
    const struct format format = format_of(type);
    const unsigned infinity = ((1U << format.exponents) - 1) << format.fraction;
    const unsigned sign = signbit(value) ? 0x8000U : 0;
    int exponent;
    if (isnan(value)) {
        return (uint16_t)(sign | infinity | 1U << (format.fraction - 1));
    }
    if (isinf(value)) {
        return (uint16_t)(sign | infinity);
    }
    frexp(value, &exponent);
    exponent = value == 0.0 || exponent - 1 < format.smallest ? format.smallest : exponent - 1;
    /* In units of the last place; nearbyint rounds to even. A fraction that rounds up to the next power of two
     * carries into the exponent, and the largest exponent's into infinity. */
    const unsigned units = (unsigned)nearbyint(ldexp(fabs(value), format.fraction - exponent));
    const unsigned bits = units + ((unsigned)(exponent - format.smallest) << format.fraction);
    return (uint16_t)(sign | (exponent > 127 || bits > infinity ? infinity : bits));
}

double rounding_decode(enum element_type type, uint16_t bits) {
    const struct format format = format_of(type);
    const unsigned magnitude = bits & 0x7fffU, fraction = magnitude & ((1U << format.fraction) - 1);
    const unsigned exponent = magnitude >> format.fraction, largest = (1U << format.exponents) - 1;
    const double sign = bits & 0x8000U ? -1.0 : 1.0;
    if (exponent == largest) {
        return fraction ? NAN : sign * (double)INFINITY;
    }
    const unsigned units = exponent ? fraction | 1U << format.fraction : fraction;
    return sign * ldexp(units, format.smallest + (exponent ? (int)exponent - 1 : 0) - format.fraction);
}

double rounding_nearest(enum element_type type, double value) {
    return type == ELEMENT_FP32 ? (double)(float)value : rounding_decode(type, rounding_encode(type, value));
}

double rounding_unit(enum element_type type) {
    return type == ELEMENT_FP32 ? 0.0 : ldexp(0.5, -format_of(type).fraction);
}
