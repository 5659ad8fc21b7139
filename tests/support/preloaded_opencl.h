/* What the OpenCLs have in common that tests preload into programs. */
#pragma once

#include <CL/cl.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The function itself, in the library behind this one: declares `next`. */
#define NEXT(name)                                                                                                 \
    __typeof__(&name) next;                                                                                        \
    void *symbol = dlsym(RTLD_NEXT, #name);                                                                        \
    memcpy(&next, &symbol, sizeof next)

/* Gives a value to who asks for one, as all clGet*Info do. */
static inline cl_int answer(const void *from, size_t size, size_t capacity, void *value, size_t *bytes) {
    if (value && capacity < size) {
        return CL_INVALID_VALUE;
    }
    if (value) {
        memcpy(value, from, size);
    }
    if (bytes) {
        *bytes = size;
    }
    return CL_SUCCESS;
}

/* A program's options and the one that makes PoCL keep the types of arguments; the caller frees it. Aborts without
 * memory. */
static inline char *keep_argument_types(const char *options) {
    char *all;
    if (asprintf(&all, "-cl-kernel-arg-info %s", options ? options : "") < 0) {
        abort();
    }
    return all;
}
