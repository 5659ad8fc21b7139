/* What programs are built from and where they are kept: the OpenCL files of cl/, the places in a compiler's log,
 * and the cache of compiled programs on disk. Building itself is program_build of compute.h. */
#pragma once

#include "runtime/files/checksum.h"
#include "runtime/system/embedded_text.h"
#include <CL/cl.h>
#include <stdbool.h>
#include <stddef.h>

/* The OpenCL files of cl/. */
extern const struct embedded_text kernel_sources[];

/* A program that was built since the device was opened, or that a dry compute would have built: models of one
 * process share many. */
struct built_program {
    struct built_program *next; /* built before */
    cl_program program;         /* NULL in a dry compute */
    char files[256];            /* "adamw.cl, rounding.cl, ..." */
    char *text;    /* all of them, with #line directives; while it is being built, or in a dry compute */
    char *options; /* complete */
    char key[CHECKSUM_SIZE];
};

/* A compiler's log with " [FILE:LINE]" behind each line that names a line of `text`, which is several files, each
 * piece behind a line `#line NUMBER "FILE"`: the compilers of NVIDIA and Mesa ignore #line. Lines that name one of
 * the files stay. Heap memory. */
char *build_log_locate(const char *text, const char *log);

/* ---- the cache folder */

/* An entry is used only if this user owns it, nobody else can write it, and its checksum holds. A failure means no
 * more than compiling from source. */

/* The folder of a compute_options.cache_dir, as heap memory: NULL stands for $XDG_CACHE_HOME/hctrain or
 * ~/.cache/hctrain. NULL for no cache: `wanted` is "", or neither variable is set. */
char *program_cache_locate(const char *wanted);

/* Makes the folder and its parents (mode 0700); whether it is there now and can be written. */
bool program_cache_make(const char *folder);

/* Reads the entry `key`. *binary is heap memory of the caller. False: there is no usable entry. */
bool program_cache_read(const char *folder, const char key[CHECKSUM_SIZE], unsigned char **binary, size_t *bytes);

/* Writes the entry, whole or not at all; makes the folder when needed. */
void program_cache_write(const char *folder, const char key[CHECKSUM_SIZE], const unsigned char *binary,
                         size_t bytes);
