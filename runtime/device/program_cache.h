/* Compiled programs on disk. Entries are trusted only if this user owns them and their checksum holds; every
 * failure here means no more than compiling from source. */
#pragma once

#include "runtime/files/checksum.h"
#include <stdbool.h>
#include <stddef.h>

/* The folder to use for a compute_options.cache_dir: NULL is $XDG_CACHE_HOME/hctrain or ~/.cache/hctrain (no folder
 * without either variable), "" is none. *folder is heap memory, NULL for no cache. Returns -1 out of memory. */
int program_cache_locate(const char *wanted, char **folder);

/* Makes the folder and its parents (mode 0700); whether it is there now and can be written. */
bool program_cache_make(const char *folder);

/* Reads the entry `key`. *binary is heap memory of the caller. False: there is no usable entry. */
bool program_cache_read(const char *folder, const char key[CHECKSUM_SIZE], unsigned char **binary, size_t *bytes);

/* Writes the entry, whole or not at all; makes the folder when needed. */
void program_cache_write(const char *folder, const char key[CHECKSUM_SIZE], const unsigned char *binary,
                         size_t bytes);
