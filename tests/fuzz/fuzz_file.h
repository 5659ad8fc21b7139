/* Fuzzed bytes as a file in memory. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* What libFuzzer and replay.c call. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* The path of a file with this content, valid until the next call. */
const char *fuzz_file(const uint8_t *data, size_t bytes);
