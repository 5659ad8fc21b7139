/* Products on a unit, as variants of one kernel. */
#include "runtime/gemm/mma.h"
#include "runtime/gemm/gemm_check.h"
#include "runtime/system/error.h"
#include <stdlib.h>
#include <string.h>

#define CHUNK          8 /* elements that the kernel copies at once */
#define SIZE_LIMIT     (1U << 30)
#define STRIDE_LIMIT   (1U << 23) /* the kernel counts the elements of a tile's rows, 256 at most, in 32 bits */
#define SMALLEST_BLOCK 16
/* Two work-groups of 256 share the 65536 registers of a multiprocessor if each work-item has at most 128, which is
 * about what the kernel takes: a few more and there is room for one group only. */
#define TWO_GROUPS_ITEMS  256
#define TWO_GROUPS_OPTION " -cl-nv-maxrregcount=128"

/* ---- variants of the kernel */

/* How the kernel reads A and B, LOAD in cl/mma_gemm.cl. */
enum load { LOAD_ELEMENTS, LOAD_CHUNKS, LOAD_WHOLE_TILES };

enum finish { FINISH_PLAIN, FINISH_EPILOGUE, FINISH_EPILOGUE_TANH };

/* What one is compiled for. Compared by memcmp, so that all its bytes must be set. */
struct variant_key {
    struct mma_tiles tiles;
    int transpose_a, transpose_b;
    int fp16;
    int type_c, even_c;
    enum load load;
    enum finish finish;
};

struct mma_variant {
    struct variant_key key;
    struct kernel kernel;
    struct mma_variant *next;
};

static struct mma_variant *variant_find(const struct mma *mma, const struct variant_key *key) {
    for (struct mma_variant *variant = mma->variants; variant; variant = variant->next) {
        if (!memcmp(&variant->key, key, sizeof(*key))) {
            return variant;
        }
    }
    return NULL;
}

static int variant_build(struct mma *mma, struct mma_variant *variant) {
    static const char *const files[] = {"common.cl",      "elementwise.cl", "element.cl",
                                        "matrix_unit.cl", "mma_gemm.cl",    NULL};
    const struct variant_key *key = &variant->key;
    const struct mma_tiles *tiles = &key->tiles;
    const bool plain = key->finish == FINISH_PLAIN; /* which needs only what stands from element.cl on */
    const bool two_groups =
        mma->unit.bounds_registers && mma_tiles_warps(tiles) * mma->unit.warp == TWO_GROUPS_ITEMS;
    cl_program program = NULL;
    char options[512];
    snprintf(options, sizeof(options),
             "-DVEC=1 -DUNIT=%d -DUNIT_WARP=%u -DUNIT_FP16=%d -DBLOCK_M=%zu -DBLOCK_N=%zu -DBLOCK_K=%zu "
             "-DWARP_M=%zu -DWARP_N=%zu -DSTAGES=%zu -DTRANSPOSE_A=%d -DTRANSPOSE_B=%d -DLOAD=%d -DTYPE_C=%d "
             "-DEVEN_C=%d -DEPILOGUE=%d -DGELU_TANH=%d%s",
             (int)mma->unit.kind, mma->unit.warp, key->fp16, tiles->block_m, tiles->block_n, tiles->block_k,
             tiles->warp_m, tiles->warp_n, tiles->stages, key->transpose_a, key->transpose_b, (int)key->load,
             key->type_c, key->even_c, !plain, key->finish == FINISH_EPILOGUE_TANH,
             two_groups ? TWO_GROUPS_OPTION : "");
    if (program_build(mma->compute, plain ? files + 2 : files, options, &program)) {
        return -1;
    }
    const int status = kernel_create(mma->compute, program, "mma_gemm", &variant->kernel);
    clReleaseProgram(program); /* its kernel keeps it */
    return status;
}

static void variant_release(struct mma_variant *variant) {
    kernel_release(&variant->kernel);
    free(variant);
}

/* The variant, built if need be; NULL on failure, which is kept in the compute. */
static struct mma_variant *variant_obtain(struct mma *mma, const struct variant_key *key) {
    struct mma_variant *variant = variant_find(mma, key);
    if (variant) {
        return variant;
    }
    variant = calloc(1, sizeof(*variant));
    if (!variant) {
        compute_fail(mma->compute, "out of memory");
        return NULL;
    }
    variant->key = *key;
    if (variant_build(mma, variant)) {
        compute_fail(mma->compute, "%s", error_text());
        variant_release(variant);
        return NULL;
    }
    variant->next = mma->variants;
    mma->variants = variant;
    return variant;
}

void mma_release(struct mma *mma) {
    while (mma->variants) {
        struct mma_variant *next = mma->variants->next;
        variant_release(mma->variants);
        mma->variants = next;
    }
}

/* ---- which variant a call wants */

/* Blocks of C; SIZE_MAX when they cannot be counted. */
static size_t blocks_of(const struct gemm_call *call, size_t block_m, size_t block_n) {
    size_t blocks;
    return __builtin_mul_overflow((call->m - 1) / block_m + 1, (call->n - 1) / block_n + 1, &blocks) ? SIZE_MAX
                                                                                                     : blocks;
}

bool mma_takes(const struct gemm_call *call) {
    const enum element_type type = call->a.buffer->type;
    return type != ELEMENT_FP32 && call->b.buffer->type == type && call->m <= SIZE_LIMIT && call->n <= SIZE_LIMIT &&
           call->k <= SIZE_LIMIT && call->a.stride <= STRIDE_LIMIT && call->b.stride <= STRIDE_LIMIT &&
           blocks_of(call, SMALLEST_BLOCK, SMALLEST_BLOCK) <= UINT32_MAX;
}

static bool is_aligned(const struct matrix *matrix, size_t elements) {
    return matrix->offset % elements == 0 && matrix->stride % elements == 0;
}

static enum load load_of(const struct gemm_call *call, const struct mma_tiles *tiles) {
    if (!is_aligned(&call->a, CHUNK) || !is_aligned(&call->b, CHUNK)) {
        return LOAD_ELEMENTS;
    }
    const bool whole =
        call->m % tiles->block_m == 0 && call->n % tiles->block_n == 0 && call->k % tiles->block_k == 0;
    return whole ? LOAD_WHOLE_TILES : LOAD_CHUNKS;
}

static struct variant_key key_of(const struct mma *mma, const struct gemm_call *call) {
    struct variant_key key;
    const bool enough =
        blocks_of(call, mma->large.block_m, mma->large.block_n) >= mma->compute->device.compute_units;
    memset(&key, 0, sizeof(key));
    key.tiles = enough ? mma->large : mma->small;
    key.transpose_a = call->transpose_a;
    key.transpose_b = call->transpose_b;
    key.fp16 = call->a.buffer->type == ELEMENT_FP16;
    key.type_c = (int)call->c.buffer->type;
    key.even_c = is_aligned(&call->c, 2);
    key.load = load_of(call, &key.tiles);
    key.finish = !gemm_call_has_epilogue(call) ? FINISH_PLAIN
                 : call->gelu_tanh             ? FINISH_EPILOGUE_TANH
                                               : FINISH_EPILOGUE;
    return key;
}

/* ---- running */

/* As in cl/mma_gemm.cl. */
enum part { PART_BIAS = 1, PART_ACTIVATED = 2 };

#define ARG_PRODUCT(x)                                                                                             \
    ARG_U32((x)->m), ARG_U32((x)->n), ARG_U32((x)->k), ARG_SPAN_IN((x)->a, (x)->m *(x)->k),                        \
        ARG_U32((x)->a.stride), ARG_SPAN_IN((x)->b, (x)->n *(x)->k), ARG_U32((x)->b.stride), ARG_F32((x)->beta),   \
        ARG_SPAN_((x)->c, (x)->m *(x)->n, (x)->beta != 0.0f, 1), ARG_U64((x)->c.stride)

/* Pointers to what is missing are those of C, since kernels want some. */
static void run_epilogue(struct compute *compute, const struct launch *launch, const struct gemm_call *call) {
    const struct span bias = call->bias.buffer ? call->bias : (struct span){call->c.buffer, 0};
    const struct matrix activated = call->activated.buffer ? call->activated : call->c;
    const unsigned parts = (call->bias.buffer ? PART_BIAS : 0U) | (call->activated.buffer ? PART_ACTIVATED : 0U);
    KERNEL_LAUNCH(compute, launch, ARG_PRODUCT(call), ARG_U32(parts),
                  ARG_SPAN_IN(bias, call->bias.buffer ? call->n : 0), ARG_I32(bias.buffer->type),
                  ARG_SPAN_OUT(activated, call->activated.buffer ? call->m * call->n : 0),
                  ARG_U64(activated.stride), ARG_I32(activated.buffer->type));
}

void mma_run(struct mma *mma, const struct gemm_call *call) {
    struct compute *compute = mma->compute;
    const struct variant_key key = key_of(mma, call);
    const struct mma_variant *variant = compute->failure ? NULL : variant_obtain(mma, &key);
    if (!variant) {
        return;
    }
    struct kernel named = variant->kernel;
    memcpy(named.name, call->name, sizeof(named.name)); /* the name in profiles */
    const size_t steps = (call->k - 1) / key.tiles.block_k + 1;
    const size_t groups = blocks_of(call, key.tiles.block_m, key.tiles.block_n);
    const struct launch launch = {
        .kernel = &named,
        .groups = groups,
        .local = mma_tiles_warps(&key.tiles) * mma->unit.warp,
        .flops = gemm_call_flops(call),
        .padded_flops = 2.0 * (double)(groups * key.tiles.block_m * key.tiles.block_n * key.tiles.block_k * steps),
        .on_unit = true,
    };
    if (key.finish == FINISH_PLAIN) {
        KERNEL_LAUNCH(compute, &launch, ARG_PRODUCT(call));
    } else {
        run_epilogue(compute, &launch, call);
    }
}

/* ---- the test at the start */

static void run_on_unit(void *mma, const struct gemm_call *call) {
    mma_run(mma, call);
}

int mma_self_test(struct mma *mma, enum element_type type) {
    /* one tile at a time, whatever a product's size would choose */
    const struct gemm_runner runner = {mma->compute, run_on_unit, mma};
    const struct mma_tiles tiles[] = {mma->large, mma->small};
    int status = 0;
    for (int i = 0; i < 2 && status == 0; i++) {
        mma->large = mma->small = tiles[i];
        status = gemm_check_tiles(&runner, tiles[i].block_m, tiles[i].block_n, tiles[i].block_k, type);
    }
    mma->large = tiles[0];
    mma->small = tiles[1];
    compute_forget(mma->compute);
    return status ? error_prefix("self-test with %s", element_name(type)) : 0;
}
