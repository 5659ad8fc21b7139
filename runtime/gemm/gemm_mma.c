/* The backend "mma": GEMMs of 16-bit operands on matrix cores, by kernels that are compiled for each kind of call.
 * Those of fp32 go to CLBlast. */
#include "runtime/gemm/gemm_mma.h"
#include "runtime/gemm/gemm_verify.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <stdlib.h>
#include <string.h>

#define CHUNK          8 /* elements that the kernel copies at once */
#define RUN            8 /* and finishes at once, where C and what lies beside it allow */
#define PARTS_ITEMS    128
#define SIZE_LIMIT     (1U << 30)
#define STRIDE_LIMIT   (1U << 23) /* the kernel counts the elements of a tile's rows, 256 at most, in 32 bits */
#define SMALLEST_BLOCK 16
/* Two work-groups of 256 share the 65536 registers of a multiprocessor if each work-item has at most 128, which is
 * about what the kernel takes: a few more and there is room for one group only. */
#define TWO_GROUPS_ITEMS  256
#define TWO_GROUPS_OPTION " -cl-nv-maxrregcount=128"

/* ---- kernels */

/* How the kernel reads A and B, LOAD in cl/mma_gemm.cl. */
enum load { LOAD_ELEMENTS, LOAD_CHUNKS, LOAD_WHOLE_TILES };

/* The GEMM, the same with divided blocks, and the kernel that adds the parts. */
enum purpose { MAKES_BLOCKS, MAKES_PARTS, ADDS_PARTS };

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

/* What lies beside C; C where nothing does, since kernels take a buffer. */
static const struct matrix *side_of(const struct gemm_call *call) {
    return call->epilogue != EPILOGUE_NONE ? &call->side : &call->c;
}

/* Elements that a work-item finishes at once. */
static size_t run_of(const struct gemm_call *call) {
    const bool by_runs = call->n % RUN == 0 && is_aligned(&call->c, RUN) && is_aligned(side_of(call), RUN) &&
                         (!call->bias.buffer || call->bias.offset % RUN == 0);
    return by_runs ? RUN : 1;
}

/* The kernel for this purpose. What does not matter to it is 0 in its options, so that calls share it. */
static const struct kernel *kernel_of(struct mma *mma, const struct gemm_call *call,
                                      const struct mma_choice *choice, enum purpose purpose) {
    const struct mma_tiles *x = &choice->tiles;
    const bool side = call->epilogue != EPILOGUE_NONE;
    const bool adds = purpose == ADDS_PARTS, bias = call->bias.buffer;
    const bool two_groups =
        mma->cores.limits_registers && !adds && mma_tiles_warps(x) * mma->cores.warp == TWO_GROUPS_ITEMS;
    char activation[64];
    snprintf(activation, sizeof activation, "activation_%s.cl", side ? call->activation : "");
    const char *files[12] = {"common.cl", activation, "element.cl"};
    size_t count = matrix_cores_add_files(&mma->cores, files, 3);
    files[count++] = "mma_finish.cl";
    files[count++] = adds ? "mma_parts.cl" : "mma_gemm.cl";
    char options[640];
    snprintf(options, sizeof(options),
             "-DVEC=1 -DWARP_SIZE=%u -DFP16=%d -DTYPE_C=%d -DTYPE_BIAS=%d -DTYPE_SIDE=%d -DADDS=%d "
             "-DBIAS=%d -DSIDE=%d -DRUN=%zu -DBLOCK_M=%zu -DBLOCK_N=%zu -DBLOCK_K=%zu -DWARP_M=%zu "
             "-DWARP_N=%zu -DSTAGES=%zu -DTRANSPOSE_A=%d -DTRANSPOSE_B=%d -DLOAD=%d -DPARTS=%d "
             "-DTRANSPOSED_LOAD=%d -DBEHIND=%zu%s%s",
             mma->cores.warp, !adds && call->a.buffer->type == ELEMENT_FP16, (int)call->c.buffer->type,
             bias ? (int)call->bias.buffer->type : 0, side ? (int)side_of(call)->buffer->type : 0,
             call->beta != 0.0f, bias, (int)call->epilogue, run_of(call), x->block_m, x->block_n,
             adds ? 0 : x->block_k, adds ? 0 : x->warp_m, adds ? 0 : x->warp_n, adds ? 0 : x->stages,
             !adds && call->transpose_a, !adds && call->transpose_b, adds ? 0 : (int)load_of(call, x),
             purpose == MAKES_PARTS, mma->cores.transposed_load, !adds && x->stages > 2 ? x->stages - 2 : 0,
             two_groups ? TWO_GROUPS_OPTION : "", device_registers_option(&mma->compute->device, REGISTERS_MANY));
    /* without an activation from element.cl on */
    return kernel_find(mma->compute, files + (side ? 0 : 2), options, adds ? "mma_parts" : "mma_gemm");
}

/* ---- which kernel a call needs */

bool mma_takes(const struct gemm_call *call) {
    static const struct mma_tiles smallest = {.block_m = SMALLEST_BLOCK, .block_n = SMALLEST_BLOCK};
    const enum element_type type = call->a.buffer->type;
    return type != ELEMENT_FP32 && call->b.buffer->type == type && call->m <= SIZE_LIMIT && call->n <= SIZE_LIMIT &&
           call->k <= SIZE_LIMIT && call->a.stride <= STRIDE_LIMIT && call->b.stride <= STRIDE_LIMIT &&
           mma_blocks(call, &smallest) <= UINT32_MAX;
}

static struct mma_choice choose(const struct mma *mma, const struct gemm_call *call) {
    const struct mma_device device = {mma->cores.tiles, mma->cores.warp, mma->compute->device.compute_units};
    return mma->only ? mma_divide(&device, call, mma->only, mma->whole, mma->parts) : mma_choose(&device, call);
}

/* ---- running */

#define ARG_SIZES(x) ARG_U32((x)->m), ARG_U32((x)->n)
#define ARG_OPERANDS(x)                                                                                            \
    ARG_SPAN_IN((x)->a, (x)->m *(x)->k), ARG_U32((x)->a.stride), ARG_SPAN_IN((x)->b, (x)->n *(x)->k),              \
        ARG_U32((x)->b.stride)
/* Of C and of what lies beside it so many elements. */
#define ARG_TARGET(x, row, side, elements)                                                                         \
    ARG_F32((x)->beta), ARG_SPAN_((x)->c, elements, (x)->beta != 0.0f || epilogue_reads_c((x)->epilogue), 1),      \
        ARG_U64((x)->c.stride), ARG_SPAN_IN(row, (x)->bias.buffer ? (x)->n : 0),                                   \
        ARG_SPAN_(*(side), elements, epilogue_reads_side((x)->epilogue), epilogue_writes_side((x)->epilogue)),     \
        ARG_U64((side)->stride)

static struct span bias_of(const struct gemm_call *call) {
    return call->bias.buffer ? call->bias : (struct span){call->c.buffer, 0};
}

/* Of C, no more than so many. */
static size_t elements_of(const struct gemm_call *call, size_t most) {
    const size_t all = call->m * call->n;
    return all < most ? all : most;
}

static void run_blocks(struct mma *mma, const struct gemm_call *call, const struct mma_choice *choice) {
    const struct mma_tiles *tiles = &choice->tiles;
    const struct kernel kernel =
        gemm_call_named(call, kernel_of(mma, call, choice, choice->parts > 1 ? MAKES_PARTS : MAKES_BLOCKS));
    const size_t steps = (call->k - 1) / tiles->block_k + 1, block = tiles->block_m * tiles->block_n;
    const size_t divided = (choice->blocks - choice->whole) * choice->parts * block;
    const bool parts = choice->parts > 1;
    const struct launch launch = {
        .kernel = &kernel,
        .groups = choice->groups,
        .local = mma_tiles_warps(tiles) * mma->cores.warp,
        .flops = gemm_call_flops(call),
        .padded_flops = 2.0 * (double)(choice->blocks * block) * (double)(steps * tiles->block_k),
        .on_matrix_cores = true,
    };
    KERNEL_LAUNCH(mma->compute, &launch, ARG_SIZES(call), ARG_U32(call->k), ARG_U32(choice->whole),
                  ARG_U32(choice->parts), ARG_U32(choice->depth),
                  ARG_OUT(parts ? &mma->partial : call->c.buffer, parts ? divided : 0), ARG_OPERANDS(call),
                  ARG_TARGET(call, bias_of(call), side_of(call),
                             elements_of(call, parts ? choice->whole * block : SIZE_MAX)));
}

static void run_sum(struct mma *mma, const struct gemm_call *call, const struct mma_choice *choice) {
    const size_t most = mma->compute->device.max_work_group, items = most < PARTS_ITEMS ? most : PARTS_ITEMS;
    const size_t size = choice->tiles.block_m * choice->tiles.block_n / run_of(call);
    const size_t runs = (choice->blocks - choice->whole) * size;
    const size_t divided = (choice->blocks - choice->whole) * choice->tiles.block_m * choice->tiles.block_n;
    KERNEL_RUN(mma->compute, kernel_of(mma, call, choice, ADDS_PARTS), (runs - 1) / items + 1, items,
               ARG_SIZES(call), ARG_U32(choice->whole), ARG_U32(choice->parts), ARG_U64(runs),
               ARG_IN(&mma->partial, divided * choice->parts),
               ARG_TARGET(call, bias_of(call), side_of(call), elements_of(call, divided)));
}

void mma_run(struct mma *mma, const struct gemm_call *call) {
    const struct mma_choice choice = choose(mma, call);
    if (mma->compute->failure || !gemm_reserve(mma->compute, &mma->partial, choice.bytes, "parts")) {
        return;
    }
    run_blocks(mma, call, &choice);
    if (choice.parts > 1) {
        run_sum(mma, call, &choice);
    }
}

/* ---- the test at the start */

static void run_on_cores(void *mma, const struct gemm_call *call) {
    mma_run(mma, call);
}

/* Large and small tiles in all ways; the others, and small ones with all but the first block divided, in those of a
 * layer: they are the same kernel, and each way is compiled. */
static int test_tiles(struct mma *mma, enum mma_shape shape, size_t parts, enum element_type type) {
    const struct gemm_runner runner = {mma->compute, run_on_cores, mma};
    const struct mma_tiles *tiles = &mma->cores.tiles[shape];
    const bool all = parts == 1 && (shape == MMA_LARGE || shape == MMA_SMALL);
    mma->only = tiles;
    mma->whole = 1;
    mma->parts = parts;
    return (all ? gemm_verify_tiles : gemm_verify_layer)(&runner, tiles->block_m, tiles->block_n, tiles->block_k,
                                                         type);
}

int mma_self_test(struct mma *mma, enum element_type type) {
    const struct mma_tiles *tiles = mma->cores.tiles;
    int status = 0;
    for (int shape = 0; shape < MMA_SHAPES && status == 0; shape++) {
        const bool known = shape > 0 && !memcmp(&tiles[shape], &tiles[shape - 1], sizeof(*tiles));
        status = known ? 0 : test_tiles(mma, (enum mma_shape)shape, 1, type);
    }
    status = status || test_tiles(mma, MMA_SMALL, 2, type) ? -1 : 0;
    mma->only = NULL;
    compute_forget(mma->compute);
    return status ? error_prefix("self-test with %s", element_name(type)) : 0;
}

/* ---- the backend */

/* Takes these cores if they compute right. */
static int try_cores(struct mma *mma) {
    const struct gemm_state *state = gemm_state(mma->compute);
    int status = matrix_cores_check_tiles(&mma->cores, &mma->compute->device);
    for (enum element_type type = ELEMENT_BF16; type <= ELEMENT_FP16 && !status; type++) {
        const bool wanted = state->operands == ELEMENT_FP32 || state->operands == type;
        status = wanted && !mma->compute->device.model ? mma_self_test(mma, type) : 0;
    }
    return status ? error_prefix("%s", mma->cores.name) : 0;
}

static int find_cores(struct mma *mma) {
    struct gemm_state *state = gemm_state(mma->compute);
    state->tried = matrix_cores_find(&mma->compute->device, &mma->cores) == 0;
    if (!state->tried && !state->automatic && !mma->compute->device.is_gpu) {
        mma->cores = matrix_cores_emulated();
    } else if (!state->tried) {
        return -1;
    }
    return try_cores(mma);
}

static void mma_close(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    buffer_release(compute, &state->mma->partial);
    free(state->mma);
    state->mma = NULL;
}

static int mma_open(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    state->mma = memory_zeroed(1, sizeof(*state->mma));
    state->mma->compute = compute;
    if (find_cores(state->mma) || gemm_backend_clblast.open(compute)) {
        mma_close(compute);
        return -1;
    }
    state->fp32 = &gemm_backend_clblast;
    const struct mma_tiles *large = &state->mma->cores.tiles[MMA_LARGE];
    snprintf(state->runs_on, sizeof(state->runs_on), "%s, tiles %zux%zux%zu", state->mma->cores.name,
             large->block_m, large->block_n, large->block_k);
    state->matrix_cores = state->mma->cores.kind == MATRIX_CORES_EMULATED ? NULL : state->mma->cores.name;
    return 0;
}

static bool backend_takes(struct compute *compute, const struct gemm_call *call) {
    (void)compute;
    return mma_takes(call);
}

static bool backend_takes_type(const struct compute *compute, enum element_type type) {
    (void)compute;
    return type != ELEMENT_FP32;
}

static void backend_run(struct compute *compute, const struct gemm_call *call) {
    mma_run(gemm_state(compute)->mma, call);
}

const struct gemm_backend gemm_backend_mma = {.name = "mma",
                                              .open = mma_open,
                                              .run = backend_run,
                                              .close = mma_close,
                                              .takes = backend_takes,
                                              .takes_type = backend_takes_type,
                                              .fuses = true,
                                              .uses_matrix_cores = true};
