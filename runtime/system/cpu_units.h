/* What the host's processor multiplies numbers of 16 bits with, by what the system says of it. */
#pragma once

#include "runtime/system/element.h"

enum { CPU_UNITS_NAME = 48 };

/* Names for people by enum element_type, "AVX512_BF16" or "AMX_BF16, AVX512_BF16"; "" where it has no instructions of their own for
 * them, and for fp32. */
struct cpu_units {
    char names[ELEMENT_FP16 + 1][CPU_UNITS_NAME];
};

/* From a text as /proc/cpuinfo's: the first line of features counts, as all cores are taken to be alike. What cannot be read has
 * none. */
void cpu_units_read(const char *path, struct cpu_units *units);

/* The same from a line of features, words with spaces between them. */
void cpu_units_find(const char *features, struct cpu_units *units);
