/* FREED char *text = ...: heap memory that is freed where the scope of its variable ends. */
#pragma once

#include <stdlib.h>
#include <string.h>

#define FREED __attribute__((cleanup(free_at_end)))

static inline void free_at_end(void *variable) {
    void *memory;
    memcpy(&memory, variable, sizeof memory);
    free(memory);
}
