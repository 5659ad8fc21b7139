/* What harnesses share: fuzzed bytes as a file in memory, what has to hold of it, and a disk that is full. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What libFuzzer and replay.c call. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Says what does not hold and aborts, which libFuzzer takes for a finding. */
void fuzz_require(bool holds, const char *what);

/* The path of a file with this content, valid until the next call. */
const char *fuzz_file(const uint8_t *data, size_t bytes);

/* The path of a small vocabulary in tiktoken's format, valid until the next call of fuzz_file. */
const char *fuzz_vocabulary(void);

/* While the disk is full, no file grows beyond a few bytes: as on a disk, writing more fails. */
void fuzz_fill_disk(bool full);

/* A folder with the files that the data has: each begins behind a line "==> NAME", with a name of the list, which
 * ends with NULL; what comes before the first such line is in the list's first file. Files of the list that the
 * last call left are removed. Valid until the next call. */
const char *fuzz_folder(const uint8_t *data, size_t bytes, const char *const *names);
