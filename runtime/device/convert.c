#include "runtime/device/convert.h"
#include "runtime/system/error.h"

#define GROUP 64 /* vectors of a work-group */

/* Both kernels of a 16-bit type, unless they are there. */
static int build(struct compute *compute, enum element_type type) {
    const char *const files[] = {"common.cl", "convert.cl", NULL};
    cl_program program;
    char options[64];
    if (compute->from_fp32[type].handle) {
        return 0;
    }
    snprintf(options, sizeof(options), "-DACT=%d -DVEC=%u", (int)type, compute->vector);
    if (program_build(compute, files, options, &program)) {
        return -1;
    }
    const int status = kernel_create(compute, program, "convert_to_fp32", &compute->to_fp32[type]) ||
                       kernel_create(compute, program, "convert_from_fp32", &compute->from_fp32[type]);
    clReleaseProgram(program);
    return status ? -1 : 0;
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
    const enum element_type narrow = target == ELEMENT_FP32 ? source : target;
    if (build(compute, narrow)) {
        compute_fail(compute, "%s", error_text());
        return;
    }
    const size_t vectors = (count - 1) / compute->vector + 1;
    KERNEL_RUN(compute, target == ELEMENT_FP32 ? &compute->to_fp32[narrow] : &compute->from_fp32[narrow],
               (vectors - 1) / GROUP + 1, GROUP, ARG_SPAN_IN(from, count), ARG_U64(count), ARG_SPAN_OUT(to, count));
}
