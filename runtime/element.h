/* How the elements of a buffer are stored. Kernels compute in float whatever they load and store. */
#ifndef HC_RUNTIME_ELEMENT_H
#define HC_RUNTIME_ELEMENT_H

#include <stddef.h>

enum element_type {
    ELEMENT_FP32,
    ELEMENT_BF16, /* the upper half of an fp32, rounded to nearest even */
    ELEMENT_FP16, /* IEEE binary16 */
};

/* What kernels know the type by: -DACT=<code>, see cl/common.cl. */
static inline int element_code(enum element_type type) {
    return type == ELEMENT_FP32 ? 0 : type == ELEMENT_BF16 ? 1 : 2;
}

/* "fp32", "bf16" or "fp16" */
static inline const char *element_name(enum element_type type) {
    return type == ELEMENT_FP32 ? "fp32" : type == ELEMENT_BF16 ? "bf16" : "fp16";
}

static inline size_t element_size(enum element_type type) {
    return type == ELEMENT_FP32 ? 4 : 2;
}

#endif
