/* SHA-256 of files and memory, as 64 lower-case hexadecimal digits. */
#ifndef HC_RUNTIME_CHECKSUM_H
#define HC_RUNTIME_CHECKSUM_H

#include <stddef.h>

#define CHECKSUM_SIZE 65 /* with the final NUL */

int checksum_memory(const void *data, size_t bytes, char digest[CHECKSUM_SIZE]);
int checksum_file(const char *path, char digest[CHECKSUM_SIZE]);

#endif
