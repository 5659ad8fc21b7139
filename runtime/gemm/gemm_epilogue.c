#include "runtime/gemm/gemm_epilogue.h"
#include "runtime/system/error.h"

#define LOCAL 64 /* work-items of a group, where the device has so many */

/* As in cl/gemm_epilogue.cl. */
enum part { PART_BIAS = 1, PART_ACTIVATE = 2, PART_ACTIVATED = 4, PART_RESIDUAL = 8 };

struct epilogue_parts gemm_epilogue_parts(const struct gemm_call *call) {
    const struct gemm_epilogue *wanted = &call->epilogue;
    struct epilogue_parts parts = {.bias = wanted->bias,
                                   .activated = wanted->activated,
                                   .residual = wanted->residual};
    const bool activates = wanted->activation != GEMM_NO_ACTIVATION;
    parts.parts = (wanted->bias.buffer ? PART_BIAS : 0U) | (activates ? PART_ACTIVATE : 0U) |
                  (activates && wanted->activated.buffer ? PART_ACTIVATED : 0U) |
                  (wanted->residual.buffer ? PART_RESIDUAL : 0U);
    if (!wanted->bias.buffer) {
        parts.bias = (struct span){call->c.buffer, 0};
    }
    if (!wanted->activated.buffer) {
        parts.activated = call->c;
    }
    if (!wanted->residual.buffer) {
        parts.residual = call->c;
    }
    parts.types = (uint32_t)parts.bias.buffer->type | (uint32_t)parts.activated.buffer->type << 2 |
                  (uint32_t)parts.residual.buffer->type << 4;
    return parts;
}

static int prepare(struct compute *compute, bool tanh) {
    struct gemm_state *state = compute->gemm_state;
    const char *const files[] = {"common.cl", "elementwise.cl", "element.cl", "gemm_epilogue.cl", NULL};
    const char *options = tanh ? "-DVEC=1 -DGELU_TANH=1" : "-DVEC=1 -DGELU_TANH=0";
    if (state->epilogues[tanh].kernel.handle) {
        return 0;
    }
    if (!state->epilogues[tanh].program &&
        program_build(compute, files, options, &state->epilogues[tanh].program)) {
        return -1;
    }
    return kernel_create(compute, state->epilogues[tanh].program, "gemm_epilogue", &state->epilogues[tanh].kernel);
}

void gemm_epilogue_run(struct compute *compute, const struct gemm_call *call) {
    struct gemm_state *state = compute->gemm_state;
    const bool tanh = call->epilogue.activation == GEMM_GELU_TANH;
    const size_t local = compute->device.max_work_group < LOCAL ? 1 : LOCAL;
    size_t elements;
    if (compute->failure) {
        return;
    }
    if (__builtin_mul_overflow(call->m, call->n, &elements)) {
        compute_fail(compute, "%s is too large", call->name);
        return;
    }
    if (prepare(compute, tanh)) {
        compute_fail(compute, "%s", error_text());
        return;
    }
    const struct epilogue_parts parts = gemm_epilogue_parts(call);
    KERNEL_RUN(compute, &state->epilogues[tanh].kernel, (elements - 1) / local + 1, local, ARG_U64(call->m),
               ARG_U64(call->n), ARG_SPAN(call->c), ARG_U64(call->c.stride), ARG_I32(call->c.buffer->type),
               ARG_EPILOGUE(parts));
}

void gemm_epilogue_close(struct compute *compute) {
    struct gemm_state *state = compute->gemm_state;
    for (int i = 0; i < 2; i++) {
        kernel_release(&state->epilogues[i].kernel);
        if (state->epilogues[i].program) {
            clReleaseProgram(state->epilogues[i].program);
        }
    }
}
