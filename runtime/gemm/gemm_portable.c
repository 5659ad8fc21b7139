/* The portable backend, in OpenCL C alone: cl/gemm_blocks.cl where work-items share local memory, else
 * cl/gemm_panels.cl. */
#include "runtime/gemm/gemm_backend.h"
#include "runtime/system/sizes.h"

/* ---- panels */

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
size_t gemm_panels_iterations(const struct compute *compute, size_t k) {
    return k * ((size_t)PANEL_VECTORS * compute->vector + MOST_ROWS / TILE_ROWS);
}

bool gemm_panels_are_faster(const struct gemm_call *call) {
    return (double)call->m * (double)call->n * (double)call->k < LARGE;
}

/* Whether half of C is computed. */
static bool is_halved(const struct gemm_call *call) {
    return call->symmetric && call->m == call->n && call->k > 0;
}

static const struct kernel *kernel_for(struct compute *compute, const struct gemm_call *call) {
    const char *const files[] = {"common.cl", "gemm_panels.cl", NULL};
    char options[48];
    snprintf(options, sizeof options, "-DVEC=%u -DSYMMETRIC=%d", compute->vector, is_halved(call));
    return kernel_find(compute, files, options, "gemm_panels");
}

/* Rows of a work-group. Sums do not depend on it. */
static size_t rows_of_group(const struct compute *compute, const struct gemm_call *call, size_t across) {
    across *= gemm_call_count(call);
    const size_t wanted = groups_for(GROUPS_PER_UNIT * (size_t)compute->device.compute_units, across);
    const size_t rows = call->m / wanted;
    return rows < LEAST_ROWS ? LEAST_ROWS : rows > MOST_ROWS ? MOST_ROWS : rows;
}

/* What is computed, in whole rows of a triangle. */
static double flops_of(const struct gemm_call *call) {
    const double n = (double)call->n;
    return is_halved(call) ? gemm_call_flops(call) * (n + 1.0) / (2.0 * n) : gemm_call_flops(call);
}

void gemm_panels_run(struct compute *compute, const struct gemm_call *call) {
    const struct kernel kernel = gemm_call_named(call, kernel_for(compute, call));
    const struct matrix *a = call->k ? &call->a : &call->c, *b = call->k ? &call->b : &call->c;
    size_t groups;
    const size_t across = groups_for(call->n, (size_t)PANEL_VECTORS * compute->vector);
    const size_t rows = rows_of_group(compute, call, across), count = gemm_call_count(call);
    if (__builtin_mul_overflow(across * count, groups_for(call->m, rows), &groups)) {
        compute_fail(compute, "%s is too large", call->name);
        return;
    }
    const struct launch launch = {.kernel = &kernel, .groups = groups, .local = 1, .flops = flops_of(call)};
    KERNEL_LAUNCH(compute, &launch, ARG_I32(call->transpose_a), ARG_I32(call->transpose_b), ARG_U64(call->m),
                  ARG_U64(call->n), ARG_U64(call->k), ARG_U64(rows), ARG_SPAN_IN(*a, count * call->m * call->k),
                  ARG_U64(a->stride), ARG_SPAN_IN(*b, count * call->n * call->k), ARG_U64(b->stride),
                  ARG_F32(call->beta), ARG_SPAN_(call->c, count * call->m * call->n, call->beta != 0.0f, 1),
                  ARG_U64(call->c.stride));
}

/* ---- the backend */

static int portable_open(struct compute *compute) {
    (void)compute;
    return 0;
}

static void portable_run(struct compute *compute, const struct gemm_call *call) {
    if (gemm_blocks_takes(compute, call)) {
        gemm_blocks_run(compute, &gemm_state(compute)->blocks, call);
    } else {
        gemm_panels_run(compute, call);
    }
}

static bool portable_takes_batch(struct compute *compute, const struct gemm_call *call) {
    return !gemm_blocks_takes(compute, call);
}

static void portable_close(struct compute *compute) {
    buffer_release(compute, &gemm_state(compute)->blocks.partial);
}

static bool portable_takes_type(const struct compute *compute, enum element_type type) {
    (void)type;
    return gemm_blocks_suit(compute);
}

const struct gemm_backend gemm_backend_portable = {.name = "portable",
                                                   .open = portable_open,
                                                   .run = portable_run,
                                                   .close = portable_close,
                                                   .takes = gemm_blocks_takes,
                                                   .takes_batch = portable_takes_batch,
                                                   .takes_type = portable_takes_type};
