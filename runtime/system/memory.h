/* Host memory that is there or ends the program: no caller checks for NULL. Where the system refuses memory, the
 * program prints what was asked for, ends the other ranks of its job and exits with status 1 at once. Nothing is
 * freed, since threads and a device may still use it; output files are whole or absent, because they are staged
 * (files_stage_begin). All results are freed with free(). Zero bytes give a pointer that is not NULL. */
#pragma once

#include "runtime/system/array.h"
#include <stddef.h>
#include <stdio.h>

/* `count` elements of `size` bytes. The bytes are not set. Sizes whose product overflows are refused. */
void *memory_allocate(size_t count, size_t size) __attribute__((malloc, returns_nonnull, alloc_size(1, 2)));

/* As memory_allocate, with all bytes 0. */
void *memory_zeroed(size_t count, size_t size) __attribute__((malloc, returns_nonnull, alloc_size(1, 2)));

/* As realloc: keeps the old bytes that fit. `old` may be NULL; it is not valid afterwards. */
void *memory_resize(void *old, size_t count, size_t size) __attribute__((returns_nonnull, alloc_size(2, 3)));

/* Makes sure that the array *block holds at least `wanted` elements of `size` bytes, by doubling it. *block and its
 * *capacity (in elements) are 0 at first. */
void memory_reserve(void **block, size_t *capacity, size_t wanted, size_t size);

/* A copy of a string, or of at most its first `length` bytes. */
char *memory_string(const char *text) __attribute__((malloc, returns_nonnull));
char *memory_string_part(const char *text, size_t length) __attribute__((malloc, returns_nonnull));

/* A formatted string. */
char *memory_format(const char *format, ...) __attribute__((malloc, returns_nonnull, format(printf, 1, 2)));

/* A stream that writes to a string, as open_memstream. *text and *bytes are set when memory_close_stream has closed
 * it. */
FILE *memory_open_stream(char **text, size_t *bytes) __attribute__((returns_nonnull));
void memory_close_stream(FILE *stream);

/* Ends the program as described above: for memory that a library has not got. `bytes` 0: it is not known how
 * many. */
void memory_refused(size_t bytes) __attribute__((noreturn));

/* Sets what memory_refused calls after its message and before it exits, to end the other ranks of the job. NULL:
 * nothing. */
void memory_before_exit(void (*end_job)(void));
