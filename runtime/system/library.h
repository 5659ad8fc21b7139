/* Libraries that are loaded at run time, and their functions. */
#pragma once

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Sets *function, a function pointer, to a function of a library from dlopen, or to NULL. Returns whether the
 * library has it. Object and function pointers have one size on every POSIX system. */
static inline bool library_find(void *library, const char *name, void *function) {
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* Loads the first of the libraries `names` (ends with NULL) that is there, for good: some end badly when they are
 * unloaded. NULL if there is none; dlerror() then says why the last one is not. */
static inline void *library_load(const char *const *names) {
    void *library = NULL;
    for (; *names && !library; names++) {
        library = dlopen(*names, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    }
    return library;
}

/* Sets `path` to the file of the library that has this function. Returns whether it is known. */
static inline bool library_path(void *library, const char *function, char path[PATH_MAX]) {
    Dl_info info;
    const void *symbol = dlsym(library, function);
    return symbol && dladdr(symbol, &info) && realpath(info.dli_fname, path);
}
