/* The estimate holds for all GPUs to a third or so: work-groups run in waves, a wave that is not full takes as long
 * as one that is, and memory is slower than matrix cores by about the same factor everywhere. */
#include "runtime/gemm/mma_choice.h"
#include "runtime/system/array.h"
#include <math.h>

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

static double ceiling(size_t value, size_t part) {
    return (double)((value - 1) / part + 1);
}

size_t mma_blocks(const struct gemm_call *call, const struct mma_tiles *tiles) {
    size_t blocks;
    return __builtin_mul_overflow((call->m - 1) / tiles->block_m + 1, (call->n - 1) / tiles->block_n + 1, &blocks)
               ? SIZE_MAX
               : blocks;
}

/* Operations of a step of a work-group, with the time of memories. */
static double step_cost(const struct mma_tiles *tiles) {
    const double m = (double)tiles->block_m, n = (double)tiles->block_n, k = (double)tiles->block_k;
    const double warp_m = (double)tiles->warp_m, warp_n = (double)tiles->warp_n;
    const double cache_bytes = 1.0 / m + 1.0 / n,
                 local_bytes = 1.0 / warp_m + 1.0 / warp_n + cache_bytes; /* an operation's */
    const double overhead = 1.0 + OPERATIONS_PER_LOCAL_BYTE * local_bytes + OPERATIONS_PER_CACHE_BYTE * cache_bytes;
    return 2.0 * m * n * k * overhead / (LARGE_OVERHEAD * SHARE_OF_CORES);
}

/* Work-groups that run at the same time. */
static size_t slots_of(const struct mma_device *device, const struct mma_tiles *tiles) {
    const size_t items = mma_tiles_warps(tiles) * device->warp;
    return device->compute_units * (items < RESIDENT_ITEMS ? RESIDENT_ITEMS / items : 1);
}

/* Operations in the time of a kernel that moves so many bytes, with so many work-groups: with fewer than two for
 * each compute unit it does not get all of the memory's bandwidth. */
static double memory_cost(double bytes, double groups, double compute_units) {
    const double share = fmin(1.0, groups / (2.0 * compute_units));
    return bytes * OPERATIONS_PER_BYTE / (SHARE_OF_MEMORY * share);
}

/* Bytes of C, read or written, and of what lies beside it. */
static double result_bytes(const struct gemm_call *call) {
    const double elements = (double)call->m * (double)call->n;
    const enum gemm_epilogue epilogue = call->epilogue;
    double each =
        (double)element_size(call->c.buffer->type) * (call->beta != 0.0f || epilogue_reads_c(epilogue) ? 2.0 : 1.0);
    if (epilogue != EPILOGUE_NONE) {
        each += (double)element_size(call->side.buffer->type) *
                (double)(epilogue_reads_side(epilogue) + epilogue_writes_side(epilogue));
    }
    return elements * each;
}

static double waves_of(double groups, double steps, double slots) {
    return ceil(groups / slots) * slots * (steps + STEPS_AROUND);
}

static double cost_of(const struct mma_device *device, const struct gemm_call *call,
                      const struct mma_choice *choice) {
    const struct mma_tiles *tiles = &choice->tiles;
    const double units = (double)device->compute_units, slots = (double)slots_of(device, tiles);
    const double whole = (double)choice->whole, groups = (double)choice->groups;
    const double steps = waves_of(whole, ceiling(call->k, tiles->block_k), slots) +
                         waves_of(groups - whole, ceiling(choice->depth, tiles->block_k), slots);
    const double operands = 2.0 * ((double)call->m + (double)call->n) * (double)call->k;
    const double partial = (double)choice->bytes, result = result_bytes(call);
    const double share = whole / (double)choice->blocks, launch = OPERATIONS_PER_LAUNCH * units;
    const double blocks = memory_cost(operands + partial + share * result, groups, units);
    const double sum = memory_cost(partial + (1.0 - share) * result, INFINITY, units) + launch;
    return fmax(steps * step_cost(tiles), blocks) + launch + (choice->parts > 1 ? sum : 0.0);
}

struct mma_choice mma_divide(const struct mma_device *device, const struct gemm_call *call,
                             const struct mma_tiles *tiles, size_t whole, size_t parts) {
    struct mma_choice choice = {.tiles = *tiles, .blocks = mma_blocks(call, tiles)};
    const size_t steps = (call->k - 1) / tiles->block_k + 1;
    const size_t each = parts < steps ? (steps - 1) / parts + 1 : 1;
    choice.parts = (steps - 1) / each + 1;
    choice.depth = each * tiles->block_k;
    choice.whole = choice.parts > 1 && whole < choice.blocks ? whole : choice.blocks;
    choice.parts = choice.whole < choice.blocks ? choice.parts : 1;
    const size_t divided = choice.blocks - choice.whole;
    choice.groups = choice.whole + divided * choice.parts;
    choice.bytes = divided * choice.parts * tiles->block_m * tiles->block_n * sizeof(float);
    choice.cost = cost_of(device, call, &choice);
    return choice;
}

static bool parts_fit(size_t blocks, const struct mma_tiles *tiles, size_t parts) {
    return blocks <= MMA_PARTS_BYTES / (tiles->block_m * tiles->block_n * sizeof(float) * parts);
}

/* Parts have to save more than what this model of them may be wrong by: a launch more is sure. */
static void keep_cheaper(struct mma_choice *best, struct mma_choice choice) {
    const double asked = choice.parts > 1 && best->parts <= 1 ? PARTS_GAIN : 1.0;
    if (choice.cost < asked * best->cost) {
        *best = choice;
    }
}

/* Tries to divide no block, all blocks, and those that would not fill another wave. */
static void try_tiles(const struct mma_device *device, const struct gemm_call *call, const struct mma_tiles *tiles,
                      struct mma_choice *best) {
    const size_t blocks = mma_blocks(call, tiles), slots = slots_of(device, tiles);
    const size_t wholes[] = {0, blocks / slots * slots};
    keep_cheaper(best, mma_divide(device, call, tiles, blocks, 1));
    for (int i = blocks < slots ? 1 : 0; i < 2; i++) {
        for (size_t j = 0; j < COUNT(parts_to_try); j++) {
            if (parts_fit(blocks - wholes[i], tiles, parts_to_try[j])) {
                keep_cheaper(best, mma_divide(device, call, tiles, wholes[i], parts_to_try[j]));
            }
        }
    }
}

struct mma_choice mma_choose(const struct mma_device *device, const struct gemm_call *call) {
    struct mma_choice best = {.cost = INFINITY};
    for (int shape = 0; shape < MMA_SHAPES; shape++) {
        try_tiles(device, call, &device->tiles[shape], &best);
    }
    return best;
}
