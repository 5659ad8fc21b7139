/* Products on a unit, as variants of one kernel. */
#include "runtime/gemm/mma.h"
#include "runtime/gemm/gemm_epilogue.h"
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
    cl_program program;
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
    static const char *const plain[] = {"element.cl", "matrix_unit.cl", "mma_gemm.cl", NULL};
    static const char *const full[] = {"common.cl",        "elementwise.cl", "element.cl", "matrix_unit.cl",
                                       "gemm_epilogue.cl", "mma_gemm.cl",    NULL};
    const struct variant_key *key = &variant->key;
    const bool two_groups =
        mma->unit.bounds_registers && mma_tiles_warps(&key->tiles) * mma->unit.warp == TWO_GROUPS_ITEMS;
    char options[512];
    snprintf(options, sizeof(options),
             "-DUNIT=%d -DUNIT_WARP=%u -DUNIT_FP16=%d -DBLOCK_M=%u -DBLOCK_N=%u -DBLOCK_K=%u -DWARP_M=%u "
             "-DWARP_N=%u -DSTAGES=%u -DTRANSPOSE_A=%d -DTRANSPOSE_B=%d -DLOAD=%d -DTYPE_C=%d -DEVEN_C=%d "
             "-DEPILOGUE=%d -DSWAPPED=%d%s%s",
             (int)mma->unit.kind, mma->unit.warp, key->fp16, key->tiles.block_m, key->tiles.block_n,
             key->tiles.block_k, key->tiles.warp_m, key->tiles.warp_n, key->tiles.stages, key->transpose_a,
             key->transpose_b, (int)key->load, key->type_c, key->even_c, key->finish != FINISH_PLAIN, mma->swapped,
             key->finish == FINISH_PLAIN      ? ""
             : key->finish == FINISH_EPILOGUE ? " -DVEC=1 -DGELU_TANH=0"
                                              : " -DVEC=1 -DGELU_TANH=1",
             two_groups ? TWO_GROUPS_OPTION : "");
    if (program_build(mma->compute, key->finish == FINISH_PLAIN ? plain : full, options, &variant->program)) {
        return -1;
    }
    return kernel_create(mma->compute, variant->program, "mma_gemm", &variant->kernel);
}

static void variant_release(struct mma_variant *variant) {
    kernel_release(&variant->kernel);
    if (variant->program) {
        clReleaseProgram(variant->program);
    }
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
    const bool counted =
        !__builtin_mul_overflow((call->m - 1) / block_m + 1, (call->n - 1) / block_n + 1, &blocks) &&
        !__builtin_mul_overflow(blocks, call->batch.count, &blocks);
    return counted ? blocks : SIZE_MAX;
}

bool mma_takes(const struct gemm_call *call) {
    const enum element_type type = call->a.buffer->type;
    return type != ELEMENT_FP32 && call->b.buffer->type == type && call->m <= SIZE_LIMIT && call->n <= SIZE_LIMIT &&
           call->k <= SIZE_LIMIT && call->a.stride <= STRIDE_LIMIT && call->b.stride <= STRIDE_LIMIT &&
           blocks_of(call, SMALLEST_BLOCK, SMALLEST_BLOCK) <= UINT32_MAX &&
           (call->batch.count == 1 || !gemm_epilogue_exists(&call->epilogue));
}

static bool is_aligned(const struct matrix *matrix, size_t step, size_t elements) {
    return matrix->offset % elements == 0 && matrix->stride % elements == 0 && step % elements == 0;
}

static enum load load_of(const struct gemm_call *call, const struct mma_tiles *tiles) {
    if (!is_aligned(&call->a, call->batch.a, CHUNK) || !is_aligned(&call->b, call->batch.b, CHUNK)) {
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
    key.even_c = is_aligned(&call->c, call->batch.c, 2);
    key.load = load_of(call, &key.tiles);
    key.finish = !gemm_epilogue_exists(&call->epilogue)        ? FINISH_PLAIN
                 : call->epilogue.activation == GEMM_GELU_TANH ? FINISH_EPILOGUE_TANH
                                                               : FINISH_EPILOGUE;
    return key;
}

/* ---- running */

#define ARG_OPERAND(x, step) ARG_SPAN(x), ARG_U32((x).stride), ARG_U64(step)
#define ARG_PRODUCT(x)                                                                                             \
    ARG_U32((x)->m), ARG_U32((x)->n), ARG_U32((x)->k), ARG_F32((x)->alpha), ARG_OPERAND((x)->a, (x)->batch.a),     \
        ARG_OPERAND((x)->b, (x)->batch.b), ARG_F32((x)->beta), ARG_SPAN((x)->c), ARG_U64((x)->c.stride),           \
        ARG_U64((x)->batch.c)

void mma_run(struct mma *mma, const struct gemm_call *call) {
    struct compute *compute = mma->compute;
    const struct variant_key key = key_of(mma, call);
    const struct mma_variant *variant = compute->failure ? NULL : variant_obtain(mma, &key);
    if (!variant) {
        return;
    }
    const size_t groups = blocks_of(call, key.tiles.block_m, key.tiles.block_n);
    const size_t items = (size_t)mma_tiles_warps(&key.tiles) * mma->unit.warp;
    struct kernel named = variant->kernel;
    memcpy(named.name, call->name, sizeof(named.name)); /* the name in profiles */
    if (key.finish == FINISH_PLAIN) {
        KERNEL_RUN(compute, &named, groups, items, ARG_PRODUCT(call));
    } else {
        const struct epilogue_parts parts = gemm_epilogue_parts(call);
        KERNEL_RUN(compute, &named, groups, items, ARG_PRODUCT(call), ARG_EPILOGUE(parts));
    }
}
