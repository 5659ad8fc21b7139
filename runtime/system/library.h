/* Functions of libraries that are loaded at run time. */
#pragma once

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

/* Sets *function, a function pointer, to a function of a library from dlopen, or to NULL. Returns whether the
 * library has it. Object and function pointers have one size on every POSIX system. */
static inline bool library_find(void *library, const char *name, void *function) {
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}
