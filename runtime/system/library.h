/* Functions of libraries that are loaded at run time. */
#pragma once

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

/* Puts a function of a library, from dlopen, into *function, a pointer to it, or NULL; whether there is one. Object and
 * function pointers have one size on every POSIX system. */
static inline bool library_find(void *library, const char *name, void *function) {
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}
