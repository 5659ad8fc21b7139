/* The folder in which PoCL keeps the kernels that it has compiled: where it is, whether PoCL can write there, and
 * what a power failure has left of its files. PoCL trusts them: it aborts, or crashes, where one is damaged. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Chooses a folder that can be written, by POCL_CACHE_DIR in the environment, unless the user has chosen one.
 * device_pocl_problem has the reason if there is none. */
void pocl_cache_prepare(void);

/* The folder, which the caller frees; NULL if there is none. */
char *pocl_cache_locate(void);

/* Checks again whether the folder can be written, and if `compiles` whether new kernels have space there. Returns
 * device_pocl_problem's text, or NULL. */
const char *pocl_cache_check(bool compiles);

/* In the first call after a boot, by any process, reads all files and removes damaged ones, which PoCL then
 * compiles again, with a warning that names the folder. */
void pocl_cache_mend(const char *folder);

/* Whether a file of the cache, a library or LLVM bitcode by the end of its name, is whole as far as its structure
 * shows: neither cut off nor zeroed in parts. True for other kinds of files. */
bool pocl_cache_is_whole(const unsigned char *data, size_t bytes, const char *name);

/* From here on a crash of this process prints that damaged kernels in this folder may be the cause. To be called
 * once. */
void pocl_cache_explain_crashes(const char *folder);
