#include "runtime/gemm/gemm_blocks.h"
#include "runtime/system/array.h"
#include "runtime/system/sizes.h"
#include <stdio.h>

#define QUAD         4   /* elements that the kernels move at once */
#define BLOCK_K      16  /* of cl/gemm_blocks.cl */
#define LEAST_DEPTH  256 /* of k: a part should be worth the sums that it writes */
#define OVERBOOKED   2   /* groups that a compute unit should have: one computes while another waits */
#define SIZE_LIMIT   (1U << 30)
#define STRIDE_LIMIT (1U << 24) /* the kernels count the elements of a block's rows, 128 at most, in 32 bits */
#define PARTS_ITEMS  64

static const size_t edges[GEMM_BLOCK_SIZES] = {128, 64, 32};

static size_t items_of(size_t edge) {
    return 2 * edge;
}

static size_t local_bytes(size_t edge) {
    return 2 * BLOCK_K * edge * sizeof(float);
}

/* ---- choosing */

static bool fits_device(const struct device *device, size_t edge) {
    return items_of(edge) <= device->max_work_group && local_bytes(edge) <= device->local_bytes;
}

static bool takes_types(const struct gemm_call *call) {
    const enum element_type type = call->a.buffer->type, out = call->c.buffer->type;
    return call->b.buffer->type == type && (out == type || out == ELEMENT_FP32) && !gemm_call_has_epilogue(call);
}

bool gemm_blocks_suit(const struct compute *compute) {
    return compute->lanes > 1 && fits_device(&compute->device, edges[GEMM_BLOCK_SIZES - 1]);
}

bool gemm_blocks_takes(struct compute *compute, const struct gemm_call *call) {
    const size_t smallest = edges[GEMM_BLOCK_SIZES - 1];
    return gemm_blocks_suit(compute) && takes_types(call) && call->m <= SIZE_LIMIT && call->n <= SIZE_LIMIT &&
           call->k <= SIZE_LIMIT && call->a.stride <= STRIDE_LIMIT && call->b.stride <= STRIDE_LIMIT &&
           groups_for(call->m, smallest) <= UINT32_MAX / groups_for(call->n, smallest);
}

static size_t blocks_of(const struct gemm_call *call, size_t edge) {
    return groups_for(call->m, edge) * groups_for(call->n, edge);
}

/* Whether blocks of this edge compute at most a quarter more than the smallest ones would. */
static bool wastes_little(const struct gemm_call *call, size_t edge) {
    const size_t smallest = edges[GEMM_BLOCK_SIZES - 1];
    return blocks_of(call, edge) * edge * edge <= blocks_of(call, smallest) * smallest * smallest / 4 * 5;
}

/* How many parts k may be divided into so that there are so many groups. */
static size_t parts_of(const struct gemm_call *call, size_t blocks, size_t expected) {
    const size_t deep = call->k / LEAST_DEPTH, capacity = GEMM_PARTS_BYTES / sizeof(float) / call->m / call->n;
    const size_t parts = size_smaller(groups_for(expected, blocks), size_smaller(deep, capacity));
    return parts > 1 ? parts : 1;
}

/* What is tried in turn: large blocks read least, and a division of k costs less than small blocks do. */
static const struct {
    size_t size;
    bool divided;
} attempts[] = {{0, false}, {1, false}, {0, true}, {1, true}, {2, false}, {2, true}};

struct gemm_blocks_choice gemm_blocks_choose(const struct device *device, size_t expected,
                                             const struct gemm_call *call) {
    struct gemm_blocks_choice choice = {.size = GEMM_BLOCK_SIZES};
    expected = expected ? expected : OVERBOOKED * (size_t)device->compute_units;
    for (size_t i = 0; i < COUNT(attempts); i++) {
        const size_t size = attempts[i].size, edge = edges[size];
        if (!fits_device(device, edge) || !wastes_little(call, edge)) {
            continue;
        }
        const size_t blocks = blocks_of(call, edge);
        const size_t parts = attempts[i].divided ? parts_of(call, blocks, expected) : 1;
        const size_t depth = groups_for(groups_for(call->k, parts), BLOCK_K) * BLOCK_K;
        choice = (struct gemm_blocks_choice){size, edge, blocks, groups_for(call->k, depth), depth};
        if (blocks * choice.parts >= expected) {
            break;
        }
    }
    return choice;
}

/* ---- kernels */

/* What a kernel of blocks is built for. */
struct variant {
    size_t size;
    bool transpose_a, transpose_b, vectors;
    enum element_type type;
    bool float_c;
};

static const struct kernel *blocks_kernel(struct compute *compute, const struct variant *variant) {
    const char *const files[] = {"common.cl", "gemm_c.cl", "gemm_blocks.cl", NULL};
    char options[192];
    snprintf(options, sizeof(options),
             "-DVEC=%d -DACT=%d -DBLOCK=%zu -DTRANSPOSE_A=%d -DTRANSPOSE_B=%d -DVECTORS=%d -DFLOAT_C=%d%s", QUAD,
             (int)variant->type, edges[variant->size], variant->transpose_a, variant->transpose_b, variant->vectors,
             variant->float_c, device_registers_option(&compute->device, REGISTERS_MANY));
    return kernel_find(compute, files, options, "gemm_blocks");
}

static const struct kernel *parts_kernel(struct compute *compute, enum element_type type, bool float_c) {
    const char *const files[] = {"common.cl", "gemm_c.cl", "gemm_parts.cl", NULL};
    char options[64];
    snprintf(options, sizeof(options), "-DVEC=%d -DACT=%d -DFLOAT_C=%d", QUAD, (int)type, float_c);
    return kernel_find(compute, files, options, "gemm_parts");
}

int gemm_blocks_build(struct compute *compute, enum element_type type) {
    for (size_t bits = 0; bits < 4 * GEMM_BLOCK_SIZES; bits++) {
        const struct variant variant = {
            .size = bits / 4, .transpose_a = bits & 1, .transpose_b = bits & 2, .vectors = true, .type = type};
        blocks_kernel(compute, &variant);
    }
    parts_kernel(compute, type, false);
    return compute_check(compute);
}

/* ---- running */

/* Whether the rows of a matrix in memory begin at and have multiples of a vector. */
static bool is_of_vectors(const struct matrix *matrix) {
    return matrix->offset % QUAD == 0 && matrix->stride % QUAD == 0 && matrix->columns % QUAD == 0;
}

/* The blocks, of C or of the parts. */
static void run_blocks(struct compute *compute, const struct gemm_call *call,
                       const struct gemm_blocks_choice *choice, const struct matrix *c) {
    const struct variant variant = {
        .size = choice->size,
        .transpose_a = call->transpose_a,
        .transpose_b = call->transpose_b,
        .vectors = is_of_vectors(&call->a) && is_of_vectors(&call->b) && is_of_vectors(c),
        .type = call->a.buffer->type,
        .float_c = c->buffer->type != call->a.buffer->type,
    };
    const struct kernel kernel = gemm_call_named(call, blocks_kernel(compute, &variant));
    const float beta = choice->parts > 1 ? 0.0f : call->beta;
    const size_t elements = call->m * call->n, padded = choice->blocks * choice->edge * choice->edge;
    const struct launch launch = {
        .kernel = &kernel,
        .groups = choice->blocks * choice->parts,
        .local = items_of(choice->edge),
        .flops = gemm_call_flops(call),
        .padded_flops = 2.0 * (double)padded * (double)(groups_for(call->k, BLOCK_K) * BLOCK_K),
    };
    KERNEL_LAUNCH(compute, &launch, ARG_U32(call->m), ARG_U32(call->n), ARG_U32(call->k), ARG_U32(choice->depth),
                  ARG_SPAN_IN(call->a, call->m * call->k), ARG_U32(call->a.stride),
                  ARG_SPAN_IN(call->b, call->n * call->k), ARG_U32(call->b.stride), ARG_F32(beta),
                  ARG_SPAN_(*c, elements * choice->parts, beta != 0.0f, 1), ARG_U64(c->stride), ARG_U64(elements));
}

static void run_parts(struct compute *compute, struct gemm_blocks *state, const struct gemm_call *call,
                      size_t parts) {
    const enum element_type type = call->a.buffer->type;
    const size_t elements = call->m * call->n;
    KERNEL_RUN(compute, parts_kernel(compute, type, call->c.buffer->type != type),
               groups_for(elements, PARTS_ITEMS), PARTS_ITEMS, ARG_U32(call->m), ARG_U32(call->n), ARG_U32(parts),
               ARG_IN(&state->partial, elements * parts), ARG_F32(call->beta),
               ARG_SPAN_(call->c, elements, call->beta != 0.0f, 1), ARG_U64(call->c.stride));
}

void gemm_blocks_run(struct compute *compute, struct gemm_blocks *state, const struct gemm_call *call) {
    const struct gemm_blocks_choice choice = gemm_blocks_choose(&compute->device, state->groups_expected, call);
    if (choice.parts == 1) {
        run_blocks(compute, call, &choice, &call->c);
    } else if (gemm_reserve(compute, &state->partial, call->m * call->n * choice.parts * sizeof(float), "parts")) {
        const struct matrix partial = matrix_of(&state->partial, 0, call->m, call->n);
        run_blocks(compute, call, &choice, &partial);
        run_parts(compute, state, call, choice.parts);
    }
}
