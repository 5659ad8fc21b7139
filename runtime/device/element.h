/* How the elements of a buffer are stored. Kernels compute in float whatever they load and store. */
#ifndef HC_RUNTIME_ELEMENT_H
#define HC_RUNTIME_ELEMENT_H

#include <stddef.h>
#include <stdint.h>

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

/* The number that 16 bits of this type stand for, exactly. */
float element_decode(uint16_t bits, enum element_type type);

/* The bits of a normal number or zero that the 16-bit type has exactly, as those that self-tests draw. */
uint16_t element_encode_exact(float value, enum element_type type);

#endif
