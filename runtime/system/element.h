/* Types of elements, in buffers and in files, and the one place where the host converts between float and 16 bits.
 * Kernels compute in float whatever they load and store. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum element_type { /* kernels know them by the same numbers: ACT in cl/types.cl, TYPE_... in cl/element.cl */
                    ELEMENT_FP32,
                    ELEMENT_BF16,  /* the upper half of an fp32, rounded to nearest even */
                    ELEMENT_FP16,  /* IEEE binary16 */
                    ELEMENT_INT32, /* of tables; no kernel knows it as a type of activations */
};

/* "fp32", "bf16", "fp16" or "int32" */
static inline const char *element_name(enum element_type type) {
    return type == ELEMENT_FP32 ? "fp32" : type == ELEMENT_BF16 ? "bf16" : type == ELEMENT_FP16 ? "fp16" : "int32";
}

static inline size_t element_size(enum element_type type) {
    return type == ELEMENT_BF16 || type == ELEMENT_FP16 ? 2 : 4;
}

/* Unit roundoff of a 16-bit type: the largest relative error of rounding to nearest. */
static inline double element_roundoff(enum element_type type) {
    return type == ELEMENT_BF16 ? 0x1p-8 : 0x1p-11;
}

/* bf16 by itself, inline for loops over many. */
static inline float element_from_bf16(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

static inline uint16_t element_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7fffffffU) > 0x7f800000U) {
        return (uint16_t)(bits >> 16 | 0x40U); /* a quiet NaN: rounding could carry it to infinity */
    }
    return (uint16_t)((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

/* Arrays of them. */
void elements_to_bf16(const float *values, size_t count, uint16_t *bits);
void elements_from_bf16(const uint16_t *bits, size_t count, float *values);

/* The number that 16 bits of this type stand for, exactly. */
float element_decode(uint16_t bits, enum element_type type);

/* Element `index` of an array of any type. */
float element_at(const void *elements, size_t index, enum element_type type);

/* Sets element `index` of an array of any type to the nearest number. */
void element_put(void *elements, size_t index, float value, enum element_type type);

/* The bits of the nearest number of the 16-bit type, the even one of two; infinity beyond the largest and half a
 * unit. NaN stays NaN. */
uint16_t element_encode(float value, enum element_type type);
