/* SHA-256 of files and memory, as 64 lower-case hexadecimal digits. Functions return 0, or -1 with an error
 * text. */
#pragma once

#include <stddef.h>

#define CHECKSUM_SIZE 65 /* with the final NUL */

int checksum_memory(const void *data, size_t bytes, char digest[CHECKSUM_SIZE]);
int checksum_file(const char *path, char digest[CHECKSUM_SIZE]);

/* The checksum of strings, each with its final NUL, so that the digest depends on where one ends. */
int checksum_strings(const char *const *strings, size_t count, char digest[CHECKSUM_SIZE]);

/* ---- data that comes in pieces. A failure is reported by checksum_finish */

struct checksum;

struct checksum *checksum_create(void);
void checksum_update(struct checksum *checksum, const void *data, size_t bytes);

/* Sets the digest of all data, and frees. checksum_free is for one that is not finished (NULL: nothing to do). */
int checksum_finish(struct checksum *checksum, char digest[CHECKSUM_SIZE]);
void checksum_free(struct checksum *checksum);
