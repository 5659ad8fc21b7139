/* The 16-bit types in plain C, in double: what the device's conversions are held to. */
#pragma once

#include "runtime/system/element.h"
#include <stdint.h>

/* The bits that stand for the nearest number of the type, the even one of two; beyond its largest number and half a
 * unit infinity. NaN becomes a quiet NaN. */
uint16_t rounding_encode(enum element_type type, double value);

/* The number, exactly. */
double rounding_decode(enum element_type type, uint16_t bits);

/* The nearest number of the type, ELEMENT_FP32 included. */
double rounding_nearest(enum element_type type, double value);

/* Unit roundoff: the largest relative error of rounding to nearest, half the distance from 1 to the next number.
 * 0 for fp32, whose own is in the tolerances of float arithmetic. */
double rounding_unit(enum element_type type);
