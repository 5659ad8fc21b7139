/* The host processor's instructions for 16-bit matrix multiplication, as the system reports them. */
#pragma once

#include "runtime/system/element.h"

enum { CPU_INSTRUCTIONS_NAME = 48 };

/* Human-readable names by enum element_type, "AVX512_BF16" or "AMX_BF16, AVX512_BF16"; "" if there are none, and
 * for fp32. */
struct cpu_instructions {
    char names[ELEMENT_FP16 + 1][CPU_INSTRUCTIONS_NAME];
};

/* Reads a file like /proc/cpuinfo. Its first line of features counts, since all cores are taken to be alike. All
 * names are "" if it cannot be read. */
void cpu_instructions_read(const char *path, struct cpu_instructions *found);

/* The same from one line of features, words separated by spaces. */
void cpu_instructions_find(const char *features, struct cpu_instructions *found);
