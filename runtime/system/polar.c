#include "runtime/system/polar.h"
#include <math.h>

/* CMakeLists.txt has this file compiled with -O3, and without errno and exceptions of mathematical functions: GCC
 * takes vector functions only then. Clang would have to be told of the library that has them. */
#if defined __x86_64__ && defined __GLIBC__ && !defined __clang__ && !defined __SANITIZE_ADDRESS__ &&              \
    !defined __SANITIZE_THREAD__
double log(double) __attribute__((simd("notinbranch")));
double sin(double) __attribute__((simd("notinbranch")));
double cos(double) __attribute__((simd("notinbranch")));
#define FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_CPU
#endif

FOR_EACH_CPU void polar(size_t count, const double *restrict uniforms, const double *restrict angles,
                        double *restrict radii, double *restrict cosines, double *restrict sines) {
    for (size_t i = 0; i < count; i++) {
        radii[i] = sqrt(-2.0 * log(uniforms[i]));
    }
    for (size_t i = 0; i < count; i++) {
        cosines[i] = cos(angles[i]);
    }
    for (size_t i = 0; i < count; i++) {
        sines[i] = sin(angles[i]);
    }
}
