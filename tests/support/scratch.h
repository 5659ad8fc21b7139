/* A folder for a test's files, removed at the end. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Group set-up and tear-down of cmocka: makes and removes the folder. */
int scratch_begin(void **state);
int scratch_end(void **state);

/* "<folder>/<name>", valid until scratch_end. */
const char *scratch_path(const char *name);

/* A text as by printf, valid until scratch_end. */
char *scratch_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Writes a file of this content, in a folder that is made if it is not there, and returns its path. */
const char *scratch_write(const char *name, const void *data, size_t bytes);
const char *scratch_put(const char *name, const char *text); /* the same of a text */

/* The whole content, NUL-terminated heap memory; NULL when there is no such file. */
char *scratch_read(const char *path, size_t *bytes);

/* The same, valid until scratch_end; ends the program when there is no such file. bytes may be NULL. */
char *scratch_text(const char *path, size_t *bytes);

/* Entries in a folder, without "." and ".."; -1 when there is no such folder. */
int scratch_entries(const char *path);

/* From here on files may grow to this many bytes only, and writing more is an error; UINT64_MAX: as before. */
void scratch_limit_file_size(uint64_t bytes);
