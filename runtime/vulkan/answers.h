/* Answers to the questions of OpenCL (clGet*Info). The driver of tests/emulator gives them in the same way. */
#pragma once

#include <CL/cl.h>
#include <stddef.h>
#include <string.h>

/* Where an answer goes: the value, if there is a place for it, and its size, if that is wanted. */
struct answer {
    size_t capacity;
    void *value;
    size_t *bytes;
};

/* CL_INVALID_VALUE where the place is too small. */
static inline cl_int answer_bytes(struct answer to, const void *value, size_t bytes) {
    if (to.bytes) {
        *to.bytes = bytes;
    }
    if (to.value && to.capacity < bytes) {
        return CL_INVALID_VALUE;
    }
    if (to.value) {
        memcpy(to.value, value, bytes);
    }
    return CL_SUCCESS;
}

static inline cl_int answer_text(struct answer to, const char *text) {
    return answer_bytes(to, text, strlen(text) + 1);
}

#define ANSWER(to, type, what) answer_bytes((to), &(type){what}, sizeof(type))
