/* The portable backend, in OpenCL C alone: cl/gemm_blocks.cl where work-items share local memory, else
 * cl/gemm_panels.cl. */
#include "runtime/gemm/gemm_backend.h"
#include "runtime/system/array.h"

/* ---- panels */

#define PANEL_VECTORS   2                   /* of columns, as in cl/gemm_panels.cl */
#define TILE_ROWS       6                   /* as there */
#define MOST_ROWS       192                 /* of a work-group: with DEPTH of k they stay in a second-level cache */
#define LEAST_ROWS      48                  /* the copy of a panel should be worth its while */
#define GROUPS_PER_UNIT 4                   /* so that no core waits long for the last one */
#define LARGE           ((double)(1 << 27)) /* multiply-adds */

bool gemm_panels_are_faster(struct compute *compute, const struct gemm_call *call) {
    return compute->lanes == 1 && compute->device.is_cpu &&
           (double)call->m * (double)call->n * (double)call->k < LARGE;
}

/* For each step of k a row of the panel is copied, and then multiplied in each tile of rows. */
size_t gemm_iterations(const struct compute *compute, size_t k) {
    const bool uses_panels = gemm_state(compute)->backend == &gemm_backend_portable && !gemm_blocks_suit(compute);
    return uses_panels ? k * ((size_t)PANEL_VECTORS * compute->vector + MOST_ROWS / TILE_ROWS) : 0;
}

void gemm_panels_run(struct compute *compute, const struct gemm_call *call) {
    static const char *const files[] = {"gemm_panels.cl", NULL};
    const bool is_halved = call->symmetric && call->m == call->n && call->k > 0; /* half of C is computed */
    char options[48];
    snprintf(options, sizeof options, "-DVEC=%u -DSYMMETRIC=%d", compute->vector, is_halved);
    const struct kernel kernel = gemm_call_named(call, kernel_find(compute, files, options, "gemm_panels"));
    const struct matrix *a = call->k ? &call->a : &call->c, *b = call->k ? &call->b : &call->c;
    const size_t across = groups_for(call->n, (size_t)PANEL_VECTORS * compute->vector);
    const size_t count = gemm_call_count(call), columns = across * count;
    /* rows of a work-group, on which sums do not depend */
    const size_t wanted = groups_for(GROUPS_PER_UNIT * (size_t)compute->device.compute_units, columns);
    const size_t rows = size_smaller(size_larger(call->m / wanted, LEAST_ROWS), MOST_ROWS);
    const double n = (double)call->n,
                 share = is_halved ? (n + 1.0) / (2.0 * n) : 1.0; /* whole rows of a triangle */
    size_t groups;
    if (__builtin_mul_overflow(columns, groups_for(call->m, rows), &groups)) {
        compute_fail(compute, "%s is too large", call->name);
        return;
    }
    const struct launch launch = {.kernel = &kernel,
                                  .groups = groups,
                                  .local = 1,
                                  .flops = gemm_call_flops(call) * share};
    KERNEL_LAUNCH(compute, &launch, ARG_I32(call->transpose_a), ARG_I32(call->transpose_b), ARG_U64(call->m),
                  ARG_U64(call->n), ARG_U64(call->k), ARG_U64(rows), ARG_SPAN_IN(*a, count * call->m * call->k),
                  ARG_U64(a->stride), ARG_SPAN_IN(*b, count * call->n * call->k), ARG_U64(b->stride),
                  ARG_F32(call->beta), ARG_SPAN_(call->c, count * call->m * call->n, call->beta != 0.0f, 1),
                  ARG_U64(call->c.stride));
}

/* ---- blocks */

#define QUAD         4   /* elements that the kernels move at once */
#define BLOCK_K      16  /* of cl/gemm_blocks.cl */
#define LEAST_DEPTH  256 /* of k: a part should be worth the sums that it writes */
#define OVERBOOKED   2   /* groups that a compute unit should have: one computes while another waits */
#define SIZE_LIMIT   (1U << 30)
#define STRIDE_LIMIT (1U << 24) /* the kernels count the elements of a block's rows, 128 at most, in 32 bits */
#define PARTS_ITEMS  64
#define SMALLEST     32 /* edge of a block */

static bool fits_device(const struct device *device, size_t edge) {
    const size_t items = 2 * edge, local_bytes = 2 * BLOCK_K * edge * sizeof(float);
    return items <= device->max_work_group && local_bytes <= device->local_bytes;
}

bool gemm_blocks_suit(const struct compute *compute) {
    return compute->lanes > 1 && fits_device(&compute->device, SMALLEST);
}

/* A and B of one type, C of that or fp32, nothing behind the sums, sizes that 32 bits hold. */
static bool takes_blocks(struct compute *compute, const struct gemm_call *call) {
    const enum element_type type = call->a.buffer->type, out = call->c.buffer->type;
    return gemm_blocks_suit(compute) && call->b.buffer->type == type && (out == type || out == ELEMENT_FP32) &&
           !gemm_call_has_epilogue(call) && call->m <= SIZE_LIMIT && call->n <= SIZE_LIMIT &&
           call->k <= SIZE_LIMIT && call->a.stride <= STRIDE_LIMIT && call->b.stride <= STRIDE_LIMIT &&
           groups_for(call->m, SMALLEST) <= UINT32_MAX / groups_for(call->n, SMALLEST);
}

struct gemm_blocks_choice gemm_blocks_choose(const struct device *device, size_t expected,
                                             const struct gemm_call *call) {
    /* what is tried in turn: large blocks read least, and a division of k costs less than small blocks do */
    static const struct {
        size_t edge;
        bool divided;
    } attempts[] = {{128, false}, {64, false}, {128, true}, {64, true}, {SMALLEST, false}, {SMALLEST, true}};
    struct gemm_blocks_choice choice = {0};
    const size_t least = groups_for(call->m, SMALLEST) * groups_for(call->n, SMALLEST) * SMALLEST * SMALLEST;
    expected = expected ? expected : OVERBOOKED * (size_t)device->compute_units;
    for (size_t i = 0; i < COUNT(attempts); i++) {
        const size_t edge = attempts[i].edge, blocks = groups_for(call->m, edge) * groups_for(call->n, edge);
        const bool wastes_much = blocks * edge * edge > least / 4 * 5; /* than the smallest blocks would compute */
        size_t parts = 1;
        if (!fits_device(device, edge) || wastes_much) {
            continue;
        }
        if (attempts[i].divided) {
            const size_t deep = call->k / LEAST_DEPTH,
                         capacity = GEMM_PARTS_BYTES / sizeof(float) / call->m / call->n;
            parts = size_larger(1, size_smaller(groups_for(expected, blocks), size_smaller(deep, capacity)));
        }
        const size_t depth = groups_for(groups_for(call->k, parts), BLOCK_K) * BLOCK_K;
        choice = (struct gemm_blocks_choice){edge, blocks, groups_for(call->k, depth), depth};
        if (blocks * choice.parts >= expected) {
            break;
        }
    }
    return choice;
}

static const struct kernel *blocks_kernel(struct compute *compute, size_t edge, bool transpose_a, bool transpose_b,
                                          bool vectors, enum element_type type, bool float_c) {
    static const char *const files[] = {"gemm_blocks.cl", NULL};
    char options[192];
    snprintf(options, sizeof(options),
             "-DVEC=%d -DACT=%d -DBLOCK=%zu -DTRANSPOSE_A=%d -DTRANSPOSE_B=%d -DVECTORS=%d -DFLOAT_C=%d%s", QUAD,
             (int)type, edge, transpose_a, transpose_b, vectors, float_c,
             device_registers_option(&compute->device, REGISTERS_MANY));
    return kernel_find(compute, files, options, "gemm_blocks");
}

static const struct kernel *parts_kernel(struct compute *compute, enum element_type type, bool float_c) {
    static const char *const files[] = {"gemm_parts.cl", NULL};
    char options[64];
    snprintf(options, sizeof(options), "-DVEC=%d -DACT=%d -DFLOAT_C=%d", QUAD, (int)type, float_c);
    return kernel_find(compute, files, options, "gemm_parts");
}

/* Whether the rows of a matrix in memory begin at and have multiples of a vector. */
static bool is_of_vectors(const struct matrix *matrix) {
    return matrix->offset % QUAD == 0 && matrix->stride % QUAD == 0 && matrix->columns % QUAD == 0;
}

static void run_blocks(struct compute *compute, const struct gemm_call *call) {
    struct buffer *partial = &gemm_state(compute)->partial;
    const struct gemm_blocks_choice choice =
        gemm_blocks_choose(&compute->device, gemm_state(compute)->groups_expected, call);
    const enum element_type type = call->a.buffer->type;
    const size_t elements = call->m * call->n, padded = choice.blocks * choice.edge * choice.edge;
    const bool has_parts = choice.parts > 1;
    if (has_parts && !gemm_reserve(compute, partial, elements * choice.parts * sizeof(float), "parts")) {
        return;
    }
    /* the blocks, of C or of the parts */
    const struct matrix c = has_parts ? matrix_of(partial, 0, call->m, call->n) : call->c;
    const float beta = has_parts ? 0.0f : call->beta;
    const bool vectors = is_of_vectors(&call->a) && is_of_vectors(&call->b) && is_of_vectors(&c);
    const struct kernel kernel =
        gemm_call_named(call, blocks_kernel(compute, choice.edge, call->transpose_a, call->transpose_b, vectors,
                                            type, c.buffer->type != type));
    const struct launch launch = {
        .kernel = &kernel,
        .groups = choice.blocks * choice.parts,
        .local = 2 * choice.edge,
        .flops = gemm_call_flops(call),
        .padded_flops = 2.0 * (double)padded * (double)(groups_for(call->k, BLOCK_K) * BLOCK_K),
    };
    KERNEL_LAUNCH(compute, &launch, ARG_U32(call->m), ARG_U32(call->n), ARG_U32(call->k), ARG_U32(choice.depth),
                  ARG_SPAN_IN(call->a, call->m * call->k), ARG_U32(call->a.stride),
                  ARG_SPAN_IN(call->b, call->n * call->k), ARG_U32(call->b.stride), ARG_F32(beta),
                  ARG_SPAN_(c, elements * choice.parts, beta != 0.0f, 1), ARG_U64(c.stride), ARG_U64(elements));
    if (has_parts) {
        KERNEL_RUN(compute, parts_kernel(compute, type, call->c.buffer->type != type),
                   groups_for(elements, PARTS_ITEMS), PARTS_ITEMS, ARG_U32(call->m), ARG_U32(call->n),
                   ARG_U32(choice.parts), ARG_IN(partial, elements * choice.parts), ARG_F32(call->beta),
                   ARG_SPAN_(call->c, elements, call->beta != 0.0f, 1), ARG_U64(call->c.stride));
    }
}

/* ---- the backend */

static void portable_run(struct compute *compute, const struct gemm_call *call) {
    (takes_blocks(compute, call) ? run_blocks : gemm_panels_run)(compute, call);
}

static bool takes_batch(struct compute *compute, const struct gemm_call *call) {
    return !takes_blocks(compute, call);
}

static bool takes_type(const struct compute *compute, enum element_type type) {
    (void)type;
    return gemm_blocks_suit(compute);
}

const struct gemm_backend gemm_backend_portable = {.name = "portable",
                                                   .run = portable_run,
                                                   .takes = takes_blocks,
                                                   .takes_batch = takes_batch,
                                                   .takes_type = takes_type};
