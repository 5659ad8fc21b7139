/* Square roots of logarithms, cosines and sines of many numbers at once. */
#pragma once

#include <stddef.h>

/* radii[i] = sqrt(-2 log(uniforms[i])), of numbers in (0, 1], and cosines and sines of angles in [0, 2 pi]: within
 * POLAR_ERROR, of the radius relative to itself. Where the C library has vector functions (glibc's libmvec), they
 * compute several at a time, ten times as fast as one by one. The arrays do not overlap. */
#define POLAR_ERROR 0x1p-50
void polar(size_t count, const double *restrict uniforms, const double *restrict angles, double *restrict radii,
           double *restrict cosines, double *restrict sines);
