#include "runtime/device/convert.h"
#include "runtime/system/error.h"
#include <stdlib.h>

#define GROUP 64 /* vectors of a work-group */

struct converter {
    struct kernel to_fp32, from_fp32;
    bool built;
};

/* What compute.conversions points to: for each 16-bit type its own. */
struct conversions {
    struct converter bf16, fp16;
};

static int build(struct compute *compute, enum element_type type, struct converter *converter) {
    const char *const files[] = {"common.cl", "convert.cl", NULL};
    cl_program program;
    char options[64];
    snprintf(options, sizeof(options), "-DACT=%d -DVEC=%u", (int)type, compute->vector);
    if (program_build(compute, files, options, &program)) {
        return -1;
    }
    const int status = kernel_create(compute, program, "convert_to_fp32", &converter->to_fp32) ||
                       kernel_create(compute, program, "convert_from_fp32", &converter->from_fp32);
    clReleaseProgram(program);
    converter->built = !status;
    return status ? -1 : 0;
}

static void release(struct compute *compute) {
    struct converter *const converters[] = {&compute->conversions->bf16, &compute->conversions->fp16};
    for (size_t i = 0; i < 2; i++) {
        kernel_release(&converters[i]->to_fp32);
        kernel_release(&converters[i]->from_fp32);
    }
    free(compute->conversions);
    compute->conversions = NULL;
}

/* NULL with the failure kept. */
static struct converter *find(struct compute *compute, enum element_type type) {
    if (!compute->conversions) {
        compute->conversions = calloc(1, sizeof(*compute->conversions));
        if (!compute->conversions) {
            compute_fail(compute, "out of memory");
            return NULL;
        }
        compute_on_close(compute, release);
    }
    struct converter *converter = type == ELEMENT_BF16 ? &compute->conversions->bf16 : &compute->conversions->fp16;
    if (!converter->built && build(compute, type, converter)) {
        compute_fail(compute, "%s", error_text());
        return NULL;
    }
    return converter;
}

static bool is_inside(struct compute *compute, struct span span, size_t count, const char *which) {
    const size_t elements = span.buffer->bytes / element_size(span.buffer->type);
    if (span.offset > elements || count > elements - span.offset) {
        compute_fail(compute, "cannot convert %zu elements at %zu: the buffer %s has %zu", count, span.offset,
                     which, elements);
        return false;
    }
    return true;
}

void convert_elements(struct compute *compute, struct span from, struct span to, size_t count) {
    const enum element_type source = from.buffer->type, target = to.buffer->type;
    if (compute->failure || !count || !is_inside(compute, from, count, "to read") ||
        !is_inside(compute, to, count, "to write")) {
        return;
    }
    if (source == target) {
        const size_t size = element_size(source);
        buffer_copy(compute, from.buffer, from.offset * size, to.buffer, to.offset * size, count * size);
        return;
    }
    if (source != ELEMENT_FP32 && target != ELEMENT_FP32) {
        compute_fail(compute, "cannot convert from bf16 to fp16 or back");
        return;
    }
    struct converter *converter = find(compute, target == ELEMENT_FP32 ? source : target);
    if (!converter) {
        return;
    }
    const size_t vectors = (count - 1) / compute->vector + 1;
    KERNEL_RUN(compute, target == ELEMENT_FP32 ? &converter->to_fp32 : &converter->from_fp32,
               (vectors - 1) / GROUP + 1, GROUP, ARG_SPAN(from), ARG_U64(count), ARG_SPAN(to));
}
