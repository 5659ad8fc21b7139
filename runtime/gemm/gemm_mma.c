/* The backend "mma": GEMMs of 16-bit operands on matrix cores, by cl/mma_gemm.cl and the device's
 * cl/matrix_cores_*.cl, compiled for each kind of call. Those of fp32 go to CLBlast. */
#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/gemm_verify.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include <math.h>
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

/* ---- which tiles, and which blocks are divided along k */

/* The estimate of a GEMM's time holds for all GPUs to a third or so: work-groups run in waves, a wave that is not
 * full takes as long as one that is, and memory is slower than matrix cores by about the same factor everywhere. */

/* Work-items that a compute unit has registers for. With 128 each that is 65536, as on NVIDIA from sm_80 on. */
#define RESIDENT_ITEMS 512
/* Operations of the device's matrix cores in the time of a byte of its memory: 156 on an A100, 201 on an A6000,
 * 206 on an H200, 246 on an MI300X and on an Arc A770, 128 on an RX 7900 XTX (data sheets; 16 bits without
 * sparsity). */
#define OPERATIONS_PER_BYTE 200.0
/* The same of a compute unit for bytes of its local memory (8 on sm_86, 16 on sm_80), and of all of them for
 * bytes of their common cache (40 to 60): half or less of that, since all go on at once. */
#define OPERATIONS_PER_LOCAL_BYTE 8.0
#define OPERATIONS_PER_CACHE_BYTE 16.0
/* What may be reached of either. The matrix cores' is that of tiles of 128 x 128, of 64 x 32 for a warp; others
 * read more for each operation. */
#define SHARE_OF_MEMORY 0.85
#define SHARE_OF_CORES  0.75
#define LARGE_OVERHEAD  1.75
/* Of a compute unit while a kernel starts, which takes 2 to 3 microseconds. */
#define OPERATIONS_PER_LAUNCH 4e6
#define PARTS_GAIN            0.85
/* Of work-groups, to fill the tiles and to write C: as long as so many steps. */
#define STEPS_AROUND 2

static const size_t parts_to_try[] = {2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16};

size_t mma_blocks(const struct gemm_call *call, const struct mma_tiles *tiles) {
    size_t blocks;
    return __builtin_mul_overflow((call->m - 1) / tiles->block_m + 1, (call->n - 1) / tiles->block_n + 1, &blocks)
               ? SIZE_MAX
               : blocks;
}

/* Work-groups that run at the same time. */
static size_t slots_of(const struct matrix_cores *cores, unsigned compute_units, const struct mma_tiles *tiles) {
    const size_t items = mma_tiles_warps(tiles) * cores->warp;
    return compute_units * (items < RESIDENT_ITEMS ? RESIDENT_ITEMS / items : 1);
}

/* Operations in the time of a kernel that moves so many bytes, with so many work-groups: with fewer than two for
 * each compute unit it does not get all of the memory's bandwidth. */
static double memory_cost(double bytes, double groups, double compute_units) {
    const double share = fmin(1.0, groups / (2.0 * compute_units));
    return bytes * OPERATIONS_PER_BYTE / (SHARE_OF_MEMORY * share);
}

/* Steps of all slots until so many work-groups of so many steps are done. */
static double waves_of(size_t groups, size_t steps, double slots) {
    return ceil((double)groups / slots) * slots * ((double)steps + STEPS_AROUND);
}

static double cost_of(const struct matrix_cores *cores, unsigned compute_units, const struct gemm_call *call,
                      const struct mma_division *division) {
    const struct mma_tiles *tiles = &division->tiles;
    const double m = (double)tiles->block_m, n = (double)tiles->block_n, k = (double)tiles->block_k;
    const double units = (double)compute_units, slots = (double)slots_of(cores, compute_units, tiles);
    const double groups = (double)division->groups;

    /* operations of a step of a work-group, with the time of memories; bytes are an operation's */
    const double cache_bytes = 1.0 / m + 1.0 / n;
    const double local_bytes = 1.0 / (double)tiles->warp_m + 1.0 / (double)tiles->warp_n + cache_bytes;
    const double overhead = 1.0 + OPERATIONS_PER_LOCAL_BYTE * local_bytes + OPERATIONS_PER_CACHE_BYTE * cache_bytes;
    const double step = 2.0 * m * n * k * overhead / (LARGE_OVERHEAD * SHARE_OF_CORES);
    const double steps =
        waves_of(division->whole, groups_for(call->k, tiles->block_k), slots) +
        waves_of(division->groups - division->whole, groups_for(division->depth, tiles->block_k), slots);

    /* bytes of A and B, of C, read or written, and of what lies beside it */
    const enum gemm_epilogue epilogue = call->epilogue;
    const double operands = 2.0 * ((double)call->m + (double)call->n) * (double)call->k;
    double each =
        (double)element_size(call->c.buffer->type) * (call->beta != 0.0f || epilogue_reads_c(epilogue) ? 2.0 : 1.0);
    if (epilogue != EPILOGUE_NONE) {
        each += (double)element_size(call->side.buffer->type) *
                (double)(epilogue_reads_side(epilogue) + epilogue_writes_side(epilogue));
    }
    const double partial = (double)division->bytes, result = (double)call->m * (double)call->n * each;
    const double share = (double)division->whole / (double)division->blocks, launch = OPERATIONS_PER_LAUNCH * units;
    const double blocks = memory_cost(operands + partial + share * result, groups, units);
    const double sum = memory_cost(partial + (1.0 - share) * result, INFINITY, units) + launch;
    return fmax(steps * step, blocks) + launch + (division->parts > 1 ? sum : 0.0);
}

struct mma_division mma_divide(const struct matrix_cores *cores, unsigned compute_units,
                               const struct gemm_call *call, const struct mma_tiles *tiles, size_t whole,
                               size_t parts) {
    struct mma_division division = {.tiles = *tiles, .blocks = mma_blocks(call, tiles)};
    const size_t steps = (call->k - 1) / tiles->block_k + 1;
    const size_t each = parts < steps ? (steps - 1) / parts + 1 : 1;
    division.parts = (steps - 1) / each + 1;
    division.depth = each * tiles->block_k;
    division.whole = division.parts > 1 && whole < division.blocks ? whole : division.blocks;
    division.parts = division.whole < division.blocks ? division.parts : 1;
    const size_t divided = division.blocks - division.whole;
    division.groups = division.whole + divided * division.parts;
    division.bytes = divided * division.parts * tiles->block_m * tiles->block_n * sizeof(float);
    division.cost = cost_of(cores, compute_units, call, &division);
    return division;
}

/* For each shape of tiles this tries to divide no block, all blocks, and those that would not fill another wave.
 * Parts have to save more than what this model of them may be wrong by: a launch more is sure. */
struct mma_division mma_choose(const struct matrix_cores *cores, unsigned compute_units,
                               const struct gemm_call *call) {
    struct mma_division best = {.cost = INFINITY};
    for (int shape = 0; shape < MMA_SHAPES; shape++) {
        const struct mma_tiles *tiles = &cores->tiles[shape];
        const size_t blocks = mma_blocks(call, tiles), slots = slots_of(cores, compute_units, tiles);
        const size_t wholes[] = {0, blocks / slots * slots};
        const struct mma_division whole = mma_divide(cores, compute_units, call, tiles, blocks, 1);
        best = whole.cost < best.cost ? whole : best;
        for (size_t i = blocks < slots ? COUNT(parts_to_try) : 0; i < 2 * COUNT(parts_to_try); i++) {
            const size_t whole_blocks = wholes[i / COUNT(parts_to_try)],
                         parts = parts_to_try[i % COUNT(parts_to_try)];
            if (blocks - whole_blocks >
                MMA_PARTS_BYTES / (tiles->block_m * tiles->block_n * sizeof(float) * parts)) {
                continue;
            }
            const struct mma_division divided = mma_divide(cores, compute_units, call, tiles, whole_blocks, parts);
            const double asked = divided.parts > 1 && best.parts <= 1 ? PARTS_GAIN : 1.0;
            best = divided.cost < asked * best.cost ? divided : best;
        }
    }
    return best;
}

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
static const struct kernel *kernel_of(struct compute *compute, const struct gemm_call *call,
                                      const struct mma_tiles *x, enum purpose purpose) {
    const struct mma *mma = &gemm_state(compute)->mma;
    const bool side = call->epilogue != EPILOGUE_NONE;
    const bool adds = purpose == ADDS_PARTS, bias = call->bias.buffer;
    const bool two_groups =
        mma->cores.limits_registers && !adds && mma_tiles_warps(x) * mma->cores.warp == TWO_GROUPS_ITEMS;
    char activation[64];
    snprintf(activation, sizeof activation, "activation_%s.cl", side ? call->activation : "");
    const char *const files[] = {adds ? "mma_parts.cl" : "mma_gemm.cl", mma->cores.file, side ? activation : NULL,
                                 NULL};
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
             two_groups ? TWO_GROUPS_OPTION : "", device_registers_option(&compute->device, REGISTERS_MANY));
    return kernel_find(compute, files, options, adds ? "mma_parts" : "mma_gemm");
}

bool mma_takes(struct compute *compute, const struct gemm_call *call) {
    static const struct mma_tiles smallest = {.block_m = SMALLEST_BLOCK, .block_n = SMALLEST_BLOCK};
    const enum element_type type = call->a.buffer->type;
    (void)compute;
    return type != ELEMENT_FP32 && call->b.buffer->type == type && call->m <= SIZE_LIMIT && call->n <= SIZE_LIMIT &&
           call->k <= SIZE_LIMIT && call->a.stride <= STRIDE_LIMIT && call->b.stride <= STRIDE_LIMIT &&
           mma_blocks(call, &smallest) <= UINT32_MAX;
}

/* ---- running */

/* Of C and of what lies beside it so many elements. */
#define ARG_TARGET(x, row, side, elements)                                                                         \
    ARG_F32((x)->beta), ARG_SPAN_((x)->c, elements, (x)->beta != 0.0f || epilogue_reads_c((x)->epilogue), 1),      \
        ARG_U64((x)->c.stride), ARG_SPAN_IN(row, (x)->bias.buffer ? (x)->n : 0),                                   \
        ARG_SPAN_(*(side), elements, epilogue_reads_side((x)->epilogue), epilogue_writes_side((x)->epilogue)),     \
        ARG_U64((side)->stride)

void mma_run(struct compute *compute, const struct gemm_call *call) {
    struct gemm_state *state = gemm_state(compute);
    const struct mma *mma = &state->mma;
    const unsigned units = compute->device.compute_units;
    const struct mma_division division =
        mma->only ? mma_divide(&mma->cores, units, call, mma->only, mma->whole, mma->parts)
                  : mma_choose(&mma->cores, units, call);
    if (compute->failure || !gemm_reserve(compute, &state->partial, division.bytes, "parts")) {
        return;
    }
    const struct mma_tiles *tiles = &division.tiles;
    const bool has_parts = division.parts > 1;
    const struct span bias = call->bias.buffer ? call->bias : (struct span){call->c.buffer, 0};
    const struct kernel kernel =
        gemm_call_named(call, kernel_of(compute, call, tiles, has_parts ? MAKES_PARTS : MAKES_BLOCKS));
    const size_t block = tiles->block_m * tiles->block_n, divided = (division.blocks - division.whole) * block;
    const size_t partial = divided * division.parts, elements = call->m * call->n;
    const struct launch launch = {
        .kernel = &kernel,
        .groups = division.groups,
        .local = mma_tiles_warps(tiles) * mma->cores.warp,
        .flops = gemm_call_flops(call),
        .padded_flops = 2.0 * (double)(division.blocks * block) *
                        (double)(groups_for(call->k, tiles->block_k) * tiles->block_k),
        .on_matrix_cores = true,
    };
    KERNEL_LAUNCH(compute, &launch, ARG_U32(call->m), ARG_U32(call->n), ARG_U32(call->k), ARG_U32(division.whole),
                  ARG_U32(division.parts), ARG_U32(division.depth),
                  ARG_OUT(has_parts ? &state->partial : call->c.buffer, has_parts ? partial : 0),
                  ARG_SPAN_IN(call->a, call->m * call->k), ARG_U32(call->a.stride),
                  ARG_SPAN_IN(call->b, call->n * call->k), ARG_U32(call->b.stride),
                  ARG_TARGET(call, bias, side_of(call),
                             has_parts ? size_smaller(elements, division.whole * block) : elements));
    if (has_parts) {
        const size_t items = size_smaller(compute->device.max_work_group, PARTS_ITEMS);
        const size_t runs = (division.blocks - division.whole) * (block / run_of(call));
        KERNEL_RUN(compute, kernel_of(compute, call, tiles, ADDS_PARTS), groups_for(runs, items), items,
                   ARG_U32(call->m), ARG_U32(call->n), ARG_U32(division.whole), ARG_U32(division.parts),
                   ARG_U64(runs), ARG_IN(&state->partial, partial),
                   ARG_TARGET(call, bias, side_of(call), size_smaller(elements, divided)));
    }
}

/* ---- the test at the start */

/* Large and small tiles in all ways; the others, and small ones with all but the first block divided, in those of a
 * layer: they are the same kernel, and each way is compiled. */
int mma_self_test(struct compute *compute, enum element_type type) {
    struct gemm_state *state = gemm_state(compute);
    struct mma *mma = &state->mma;
    const struct mma_tiles *all = mma->cores.tiles;
    int status = 0;
    mma->whole = 1;
    for (int i = 0; i <= MMA_SHAPES && status == 0; i++) {
        const int shape = i < MMA_SHAPES ? i : MMA_SMALL;
        const struct mma_tiles *tiles = mma->only = &all[shape];
        mma->parts = i < MMA_SHAPES ? 1 : 2;
        if (mma->parts == 1 && shape > 0 && !memcmp(tiles, tiles - 1, sizeof *tiles)) {
            continue; /* an emulation has one kind */
        }
        const bool in_all_ways = mma->parts == 1 && (shape == MMA_LARGE || shape == MMA_SMALL);
        status = (in_all_ways ? gemm_verify_tiles : gemm_verify_layer)(compute, mma_run, tiles->block_m,
                                                                       tiles->block_n, tiles->block_k, type);
    }
    mma->only = NULL;
    buffer_release(compute, &state->partial);
    compute_forget(compute);
    return status ? error_prefix("self-test with %s", element_name(type)) : 0;
}

/* ---- the backend */

static int mma_open(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    struct matrix_cores *cores = &state->mma.cores;
    state->tried = matrix_cores_find(&compute->device, cores) == 0;
    if (!state->tried && (state->automatic || compute->device.is_gpu)) {
        return -1;
    }
    if (!state->tried) {
        *cores = matrix_cores_emulated();
    }
    int status = matrix_cores_check_tiles(cores, &compute->device);
    for (enum element_type type = ELEMENT_BF16; type <= ELEMENT_FP16 && !status; type++) {
        const bool wanted = state->operands == ELEMENT_FP32 || state->operands == type;
        status = wanted && !compute->device.model ? mma_self_test(compute, type) : 0;
    }
    if (status) {
        return error_prefix("%s", cores->name);
    }
    if (gemm_backend_clblast.open(compute)) {
        return -1;
    }
    state->fp32 = &gemm_backend_clblast;
    const struct mma_tiles *large = &cores->tiles[MMA_LARGE];
    snprintf(state->runs_on, sizeof(state->runs_on), "%s, tiles %zux%zux%zu", cores->name, large->block_m,
             large->block_n, large->block_k);
    state->matrix_cores = cores->kind == MATRIX_CORES_EMULATED ? NULL : cores->name;
    return 0;
}

static bool takes_type(const struct compute *compute, enum element_type type) {
    (void)compute;
    return type != ELEMENT_FP32;
}

const struct gemm_backend gemm_backend_mma = {.name = "mma",
                                              .open = mma_open,
                                              .run = mma_run,
                                              .takes = mma_takes,
                                              .takes_type = takes_type,
                                              .fuses = true,
                                              .uses_matrix_cores = true};
