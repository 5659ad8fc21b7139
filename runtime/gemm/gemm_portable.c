/* The portable backend, which runs on any device: cl/gemm_panels.cl on CPUs, cl/gemm_blocks.cl on GPUs, cl/gemm.cl
 * elsewhere; and C = beta C for all of them. */
#include "runtime/gemm/gemm_backend.h"
#include "runtime/system/error.h"

#define TILE 4 /* rows and columns of C per work-item, as in cl/gemm.cl */

/* Builds the kernels, unless they are there. */
static int prepare(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    const char *const files[] = {"gemm.cl", NULL};
    cl_program program = NULL;
    if (state->scale.handle) {
        return 0;
    }
    const int status = program_build(compute, files, NULL, &program) ||
                               kernel_create(compute, program, "gemm_tile", &state->tile) ||
                               kernel_create(compute, program, "gemm_scale", &state->scale)
                           ? -1
                           : 0;
    if (status) {
        kernel_release(&state->tile);
    }
    if (program) {
        clReleaseProgram(program); /* its kernels keep it */
    }
    return status;
}

/* Work-groups of so many work-items as fill a GPU's wave, or as a CPU vectorises over, for so many things to do, in
 * rows and columns. False when they cannot be counted. */
static bool divide(struct compute *compute, const struct gemm_call *call, size_t edge, size_t *groups,
                   size_t *local) {
    size_t items;
    if (__builtin_mul_overflow((call->m - 1) / edge + 1, (call->n - 1) / edge + 1, &items)) {
        compute_fail(compute, "%s is too large", call->name);
        return false;
    }
    *local = compute->device.max_work_group < 64 ? 1 : 64;
    *groups = (items - 1) / *local + 1;
    return true;
}

static void run_plain(struct compute *compute, const struct gemm_call *call) {
    const struct gemm_state *state = gemm_state(compute);
    const struct matrix *a = &call->a, *b = &call->b;
    size_t groups, local;
    if (!divide(compute, call, TILE, &groups, &local)) {
        return;
    }
    const struct kernel named = gemm_call_named(call, &state->tile);
    const struct launch launch = {&named, groups, local, gemm_call_flops(call), 0.0, false};
    KERNEL_LAUNCH(compute, &launch, ARG_U64(call->m), ARG_U64(call->n), ARG_U64(call->k),
                  ARG_SPAN_IN(*a, call->m * call->k), ARG_U64(call->transpose_a ? 1 : a->stride),
                  ARG_U64(call->transpose_a ? a->stride : 1), ARG_SPAN_IN(*b, call->n * call->k),
                  ARG_U64(call->transpose_b ? 1 : b->stride), ARG_U64(call->transpose_b ? b->stride : 1),
                  ARG_F32(call->beta), ARG_SPAN_(call->c, call->m * call->n, call->beta != 0.0f, 1),
                  ARG_U64(call->c.stride));
}

static void portable_run(struct compute *compute, const struct gemm_call *call) {
    struct gemm_state *state = gemm_state(compute);
    if (gemm_blocks_takes(compute, call)) {
        gemm_blocks_run(compute, &state->blocks, call);
    } else if (gemm_panels_suit(compute)) {
        gemm_panels_run(compute, &state->panels, call);
    } else {
        run_plain(compute, call);
    }
}

static void portable_close(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    gemm_blocks_release(compute, &state->blocks);
}

static bool portable_takes_type(const struct compute *compute, enum element_type type) {
    (void)type;
    return gemm_blocks_suit(compute);
}

const struct gemm_backend gemm_backend_portable = {.name = "portable",
                                                   .open = prepare,
                                                   .run = portable_run,
                                                   .close = portable_close,
                                                   .takes = gemm_blocks_takes,
                                                   .takes_type = portable_takes_type};

void gemm_scale_run(struct compute *compute, const struct gemm_call *call) {
    const struct gemm_state *state = gemm_state(compute);
    size_t groups, local;
    if (prepare(compute)) {
        compute_fail(compute, "%s", error_text());
        return;
    }
    if (divide(compute, call, 1, &groups, &local)) {
        KERNEL_RUN(compute, &state->scale, groups, local, ARG_U64(call->m), ARG_U64(call->n), ARG_F32(call->beta),
                   ARG_SPAN_IN_OUT(call->c, call->m * call->n), ARG_U64(call->c.stride));
    }
}
