/* Fuzzed bytes as a folder of files. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* A folder with the files that the data has: each begins behind a line "==> NAME", with a name of the list, which
 * ends with NULL; what comes before the first such line is in the list's first file. Files of the list that the
 * last call left are removed. Valid until the next call. */
const char *fuzz_folder(const uint8_t *data, size_t bytes, const char *const *names);
