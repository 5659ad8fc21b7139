#include "runtime/vulkan/answers.h"
#include <string.h>

cl_int answer_bytes(struct answer to, const void *value, size_t bytes) {
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

cl_int answer_text(struct answer to, const char *text) {
    return answer_bytes(to, text, strlen(text) + 1);
}
