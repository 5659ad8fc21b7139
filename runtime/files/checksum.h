/* SHA-256 of files and memory, as 64 lower-case hexadecimal digits. */
#pragma once

#include <stddef.h>

#define CHECKSUM_SIZE 65 /* with the final NUL */

/* Both return 0, or -1 with an error. */
int checksum_memory(const void *data, size_t bytes, char digest[CHECKSUM_SIZE]);
int checksum_file(const char *path, char digest[CHECKSUM_SIZE]);

/* Of strings, each with its final NUL, so that it counts where one ends. */
int checksum_strings(const char *const *strings, size_t count, char digest[CHECKSUM_SIZE]);

/* ---- of data that comes in pieces */

struct checksum;

/* NULL with an error when that cannot be. */
struct checksum *checksum_create(void);

int checksum_update(struct checksum *checksum, const void *data, size_t bytes);

/* The digest of all that came. Nothing but checksum_free may follow, also on failure. */
int checksum_finish(struct checksum *checksum, char digest[CHECKSUM_SIZE]);

/* NULL: nothing to do. */
void checksum_free(struct checksum *checksum);
