#include "runtime/gemm/gemm_panels.h"
#include "runtime/system/error.h"

#define PANEL_VECTORS   2                   /* of columns, as in cl/gemm_panels.cl */
#define TILE_ROWS       6                   /* as there */
#define MOST_ROWS       192                 /* of a work-group: with DEPTH of k they stay in a second-level cache */
#define LEAST_ROWS      48                  /* the copy of a panel should be worth its while */
#define GROUPS_PER_UNIT 4                   /* so that no core waits long for the last one */
#define LARGE           ((double)(1 << 27)) /* multiply-adds */

bool gemm_panels_suit(const struct compute *compute) {
    return compute->lanes == 1 && compute->device.is_cpu;
}

/* For each step of k a row of the panel is copied, and then multiplied in each tile of rows. */
size_t gemm_panels_turns(const struct compute *compute, size_t k) {
    return k * ((size_t)PANEL_VECTORS * compute->vector + MOST_ROWS / TILE_ROWS);
}

bool gemm_panels_are_faster(const struct gemm_call *call) {
    return (double)call->m * (double)call->n * (double)call->k < LARGE;
}

static struct kernel *kernel_for(struct compute *compute, struct gemm_panels *state, const struct gemm_call *call) {
    const char *const files[] = {"common.cl", "gemm_panels.cl", NULL};
    struct kernel *kernel = &state->kernels[call->transpose_a][call->transpose_b];
    char options[96];
    if (kernel->handle) {
        return kernel;
    }
    snprintf(options, sizeof options, "-DVEC=%u -DTRANSPOSE_A=%d -DTRANSPOSE_B=%d", compute->vector,
             call->transpose_a, call->transpose_b);
    return kernel_build(compute, files, options, "gemm_panels", kernel) ? NULL : kernel;
}

static size_t ceiling(size_t a, size_t b) {
    return (a - 1) / b + 1;
}

/* Rows of a work-group. Sums do not depend on it. */
static size_t rows_of_group(const struct compute *compute, const struct gemm_call *call, size_t panels) {
    const size_t wanted = ceiling(GROUPS_PER_UNIT * (size_t)compute->device.compute_units, panels);
    const size_t rows = call->m / wanted;
    return rows < LEAST_ROWS ? LEAST_ROWS : rows > MOST_ROWS ? MOST_ROWS : rows;
}

void gemm_panels_run(struct compute *compute, struct gemm_panels *state, const struct gemm_call *call) {
    const struct kernel *kernel = kernel_for(compute, state, call);
    if (!kernel) {
        compute_fail(compute, "%s", error_text());
        return;
    }
    const struct kernel named = gemm_call_named(call, kernel);
    const size_t panels = ceiling(call->n, (size_t)PANEL_VECTORS * compute->vector);
    const size_t rows = rows_of_group(compute, call, panels);
    const struct launch launch = {.kernel = &named,
                                  .groups = panels * ceiling(call->m, rows),
                                  .local = 1,
                                  .flops = gemm_call_flops(call)};
    KERNEL_LAUNCH(compute, &launch, ARG_U64(call->m), ARG_U64(call->n), ARG_U64(call->k), ARG_U64(rows),
                  ARG_SPAN_IN(call->a, call->m * call->k), ARG_U64(call->a.stride),
                  ARG_SPAN_IN(call->b, call->n * call->k), ARG_U64(call->b.stride), ARG_F32(call->beta),
                  ARG_SPAN_(call->c, call->m * call->n, call->beta != 0.0f, 1), ARG_U64(call->c.stride));
}

void gemm_panels_release(struct gemm_panels *state) {
    for (size_t form = 0; form < 4; form++) {
        kernel_release(&state->kernels[form / 2][form % 2]);
    }
}
