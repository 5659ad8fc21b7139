#include "runtime/device/convert.h"
#include "runtime/system/error.h"
#include <stdlib.h>

#define GROUP 64 /* vectors of a work-group */

/* Of a 16-bit type. */
struct converter {
    struct kernel to_fp32, from_fp32;
};

/* What compute.conversions points to. */
struct conversions {
    struct converter of_type[ELEMENT_FP16 + 1]; /* that of fp32 is empty */
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
    return status ? -1 : 0;
}

static void release(struct compute *compute) {
    for (size_t type = 0; type <= ELEMENT_FP16; type++) {
        kernel_release(&compute->conversions->of_type[type].to_fp32);
        kernel_release(&compute->conversions->of_type[type].from_fp32);
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
    struct converter *converter = &compute->conversions->of_type[type];
    if (!converter->from_fp32.handle && build(compute, type, converter)) {
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
