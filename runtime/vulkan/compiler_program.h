/* Where the compiler clspv is: a program of that name, or the library of PyPI's pyclspv, which Python calls. */
#pragma once

#include <stddef.h>

/* The words that a command line with clspv begins with, and their number; 0: it is neither on PATH nor in Python.
 * Looked for by the first call. */
size_t vulkan_compiler(const char *const **words);
