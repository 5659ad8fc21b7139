#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/operations/attention.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define WARPS           4  /* of a work-group */
#define STRIP           16 /* rows whose scores a warp has at a time in the backward pass */
#define HEAD_SIZE_UNIT  16
#define HEAD_SIZE_LIMIT 128
#define ROOMY           ((size_t)48 << 10) /* bytes of local memory that allow large blocks for wide heads */

/* ---- tiles */

/* For heads of up to 64 channels, and wider ones. Registers decide: more than this, and the compilers spill
 * (docs/notes/matrix_cores.md). RDNA 3 needs twice the registers of others for its fragments; in Intel's sub-groups
 * of 8 a work-item has twice the sums of one in sub-groups of 16. */
static struct attention_tiles choose_tiles(const struct matrix_cores *unit, bool wide, size_t local_bytes) {
    static const struct attention_tiles usual[] = {{64, 32, true}, {32, 32, true}},
                                        rdna3[] = {{64, 16, true}, {32, 16, false}},
                                        rdna4_and_intel[] = {{64, 32, true}, {32, 16, false}},
                                        sub_groups_of_8[] = {{16, 16, false}, {16, 16, false}};
    const struct attention_tiles *tiles =
        unit->wide_fragments                                                            ? rdna3
        : unit->kind == MATRIX_CORES_INTEL && unit->warp == 8                           ? sub_groups_of_8
        : unit->kind == MATRIX_CORES_INTEL || unit->kind == MATRIX_CORES_AMD_WMMA_GFX12 ? rdna4_and_intel
                                                                                        : usual;
    struct attention_tiles chosen = tiles[wide];
    if (wide && local_bytes < ROOMY) {
        chosen.block = 16;
    }
    return chosen;
}

/* Whether rows that are read across are transposed on their way into local memory: where matrix cores read
 * fragments fast along k only, but for Intel's, whose compiler leaves the rows on their way in memory. */
static bool transposes(const struct matrix_cores *unit) {
    return unit->transposed_load && unit->kind != MATRIX_CORES_INTEL;
}

/* Bytes of local memory of the kernel that needs most: rows that pass, as they lie and perhaps across; those that
 * stay unless they are kept in registers; C on its way to A; bits of dropout; numbers of rows, and parts of their
 * sums. */
static size_t local_needed(const struct matrix_cores *unit, struct attention_tiles tiles, int64_t head_size) {
    const size_t size = (size_t)head_size, pad = 8, rows = WARPS * unit->m, row = size + pad;
    const bool turns = transposes(unit);
    const size_t keys_across = turns ? size * (tiles.keys + pad) : tiles.keys * row;
    const size_t both = tiles.keys * row + keys_across;
    const size_t forward = (tiles.keep ? size_larger(both, rows * row) : both + rows * row) * 2;
    const size_t block = 2 * tiles.block * row + (turns ? 2 * size * (tiles.block + pad) : 2 * tiles.block * row);
    const size_t backward = (tiles.keep ? size_larger(block, rows * row) : block + 2 * rows * row) * 2;
    const size_t kept = rows * (tiles.block / 4 + 1) + tiles.block * (rows / 4 + 1);
    const size_t turned = WARPS * unit->m * (unit->k + pad) * 2;
    return size_larger(forward + rows * (tiles.keys / 4 + 1), backward + (turns ? 1 : 2) * kept) + turned +
           WARPS * unit->scratch_bytes + size_larger(WARPS * unit->warp * 4 + 8 * rows, 16 * tiles.block);
}

/* ---- opening */

static int build(struct operations *operations, bool drops) {
    struct compute *compute = operations->compute;
    struct attention_matrix_cores *cores = operations->attention_matrix_cores;
    const struct head_shape heads = head_shape(&operations->shape);
    const char *const files[] = {"attention_matrix_cores.cl", cores->unit.file, NULL};
    char text[512];
    cl_program program = NULL;
    snprintf(text, sizeof(text),
             "%s -DVEC=1 -DKEY_VEC=1 -DWARP_SIZE=%u -DFP16=%d -DTRANSPOSED_LOAD=%d -DDROPS=%d -DHEADS=%" PRId64
             " -DKV_HEADS=%" PRId64 " -DHEAD_SIZE=%" PRId64
             " -DSCALE=%.9ef -DWARPS=%d -DKEYS=%u -DBLOCK=%u -DSTRIP=%d -DKEEP=%d%s",
             cores->unit.kind == MATRIX_CORES_EMULATED ? "-cl-opt-disable"
                                                       : "", /* three times as fast to compile */
             cores->unit.warp, operations->shape.type == ELEMENT_FP16, transposes(&cores->unit), drops, heads.heads,
             heads.kv_heads, heads.size, attention_scale(&operations->shape), WARPS, cores->tiles.keys,
             cores->tiles.block, STRIP, cores->tiles.keep,
             device_registers_option(&compute->device, REGISTERS_MANY));
    static const char *const names[ATTENTION_KERNELS] = {
        [FORWARD] = "forward", [BACKWARD_QUERIES] = "backward_queries", [BACKWARD_KEYS] = "backward_keys"};
    int status = program_build(compute, files, text, &program);
    for (size_t i = 0; i < ATTENTION_KERNELS && status == 0; i++) {
        char name[64];
        snprintf(name, sizeof name, "attention_matrix_cores_%s", names[i]);
        status = kernel_create(compute, program, name, &cores->kernels[drops][i]);
    }
    if (program) {
        clReleaseProgram(program);
    }
    return status;
}

int attention_matrix_cores_open(struct operations *operations, const struct matrix_cores *unit) {
    struct compute *compute = operations->compute;
    const struct device *device = &compute->device;
    const int64_t head_size = head_shape(&operations->shape).size;
    struct matrix_cores own = {0};
    if (compute_check(compute)) {
        return -1;
    }
    if (operations->shape.type == ELEMENT_FP32) {
        return error_set("attention in fp32 does not use matrix cores");
    }
    if (head_size < HEAD_SIZE_UNIT || head_size > HEAD_SIZE_LIMIT || head_size % HEAD_SIZE_UNIT != 0) {
        return error_set("attention on matrix cores takes heads of 16, 32, ... 128 channels, not %" PRId64,
                         head_size);
    }
    if (!unit && matrix_cores_find(device, &own)) {
        return -1;
    }
    struct attention_matrix_cores *cores = memory_zeroed(1, sizeof(*cores));
    cores->unit = unit ? *unit : own;
    cores->tiles = choose_tiles(&cores->unit, head_size > 64, device->local_bytes);
    operations->attention_matrix_cores = cores;
    const size_t items = (size_t)WARPS * cores->unit.warp;
    const size_t needed = local_needed(&cores->unit, cores->tiles, head_size);
    const bool fits = items <= device->max_work_group && needed <= device->local_bytes;
    if (!fits) {
        error_set(
            "attention on matrix cores needs work-groups of %zu and %zu bytes of local memory; %s has %zu and "
            "%zu",
            items, needed, device->name, device->max_work_group, device->local_bytes);
    }
    if (!fits || build(operations, false) || (operations->shape.drops && build(operations, true))) {
        error_prefix("%s", cores->unit.name);
        attention_matrix_cores_close(operations);
        return -1;
    }
    return 0;
}

void attention_matrix_cores_close(struct operations *operations) {
    struct attention_matrix_cores *cores = operations->attention_matrix_cores;
    if (cores) {
        for (size_t i = 0; i < 2 * ATTENTION_KERNELS; i++) {
            kernel_release(&cores->kernels[i / ATTENTION_KERNELS][i % ATTENTION_KERNELS]);
        }
        free(cores);
        operations->attention_matrix_cores = NULL;
    }
}

/* ---- launching */

/* Work-groups: blocks of rows of so many heads of each sequence. */
static uint64_t groups_of(const struct operations *operations, struct token_shape tokens, int64_t heads) {
    const uint64_t rows = (uint64_t)WARPS * operations->attention_matrix_cores->unit.m;
    return (uint64_t)(tokens.batch * heads) * (((uint64_t)tokens.sequence + rows - 1) / rows);
}

bool attention_matrix_cores_take(const struct operations *operations, struct token_shape tokens) {
    const struct head_shape heads = head_shape(&operations->shape);
    return operations->attention_matrix_cores &&
           (uint64_t)tokens.sequence < UINT32_MAX / 2 / (uint64_t)heads.qkv_row &&
           groups_of(operations, tokens, heads.heads) < UINT32_MAX;
}

/* A pass with so many matrix multiplications over blocks of rows and all before them, or (`keys`) after them. */
static struct launch launch_of(const struct operations *operations, const struct kernel *kernel,
                               const struct attention_pass *pass, bool keys, int gemms) {
    const struct matrix_cores *unit = &operations->attention_matrix_cores->unit;
    const double rows = (double)WARPS * unit->m, blocks = ceil((double)pass->tokens.sequence / rows);
    const double computed = 0.5 * blocks * (blocks + 1.0) * rows * rows; /* pairs, in whole blocks */
    const int64_t heads = keys ? pass->heads.kv_heads : pass->heads.heads;
    struct launch launch = attention_launch(kernel, pass, (size_t)groups_of(operations, pass->tokens, heads),
                                            (size_t)WARPS * unit->warp, gemms);
    launch.padded_flops = 2.0 * gemms * computed * (double)(pass->tokens.batch * pass->heads.y_row);
    launch.on_matrix_cores = true;
    return launch;
}

void attention_matrix_cores_forward(struct operations *operations, const struct attention_pass *pass) {
    const struct attention_matrix_cores *cores = operations->attention_matrix_cores;
    const struct attention_values *values = pass->values;
    const struct kernel *kernel = &cores->kernels[pass->dropout.rate > 0.0f][FORWARD];
    const struct launch launch = launch_of(operations, kernel, pass, false, 2);
    KERNEL_LAUNCH(operations->compute, &launch, ARG_IN(values->qkv, pass->qkv_elements),
                  ARG_U32(pass->tokens.sequence), ARG_DROPOUT(pass->dropout), ARG_OUT(values->y, pass->y_elements),
                  ARG_OUT(values->lse, pass->score_rows));
}

void attention_matrix_cores_backward(struct operations *operations, const struct attention_pass *pass) {
    const struct attention_matrix_cores *cores = operations->attention_matrix_cores;
    const struct attention_values *values = pass->values;
    const size_t width = pass->y_elements, rows = pass->score_rows;
    const struct kernel *kernels = cores->kernels[pass->dropout.rate > 0.0f];
    const struct launch queries = launch_of(operations, &kernels[BACKWARD_QUERIES], pass, false, 3);
    const struct launch keys = launch_of(operations, &kernels[BACKWARD_KEYS], pass, true, 4);
    KERNEL_LAUNCH(operations->compute, &queries, ARG_IN(values->qkv, pass->qkv_elements), ARG_IN(values->y, width),
                  ARG_IN(pass->d_y, width), ARG_IN(values->lse, rows), ARG_U32(pass->tokens.sequence),
                  ARG_DROPOUT(pass->dropout), ARG_OUT(pass->d_qkv, width), ARG_OUT(pass->scratch->delta, rows));
    KERNEL_LAUNCH(operations->compute, &keys, ARG_IN(values->qkv, pass->qkv_elements), ARG_IN(pass->d_y, width),
                  ARG_IN(values->lse, rows), ARG_IN(pass->scratch->delta, rows), ARG_U32(pass->tokens.sequence),
                  ARG_DROPOUT(pass->dropout), ARG_OUT(pass->d_qkv, 2 * pass->kv_elements));
}
