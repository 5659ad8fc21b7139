#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/operations/attention.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define STRIP           16 /* rows whose scores a warp has at a time in the backward pass */
#define HEAD_SIZE_UNIT  16
#define HEAD_SIZE_LIMIT 128
#define ROOMY           ((size_t)48 << 10) /* bytes of local memory that allow large blocks for wide heads */

/* ---- tiles */

/* Rows of a group. */
static size_t rows_of(const struct matrix_cores *unit, struct attention_tiles tiles) {
    return tiles.warps / tiles.shares * unit->m;
}

/* Bytes of local memory of the kernel that needs most: rows that pass, as they lie and perhaps across; those that
 * stay unless they are kept in registers; C on its way to A; bits of dropout; numbers of rows, and parts of their
 * sums. */
static size_t local_needed(const struct matrix_cores *unit, struct attention_tiles tiles, int64_t head_size) {
    const size_t size = (size_t)head_size, pad = 8, rows = rows_of(unit, tiles), row = size + pad;
    const bool turns = unit->transposed_load;
    const size_t keys_across = turns ? size * (tiles.keys + pad) : tiles.keys * row;
    const size_t both = tiles.keys * row + keys_across;
    const size_t forward = (tiles.keep ? size_larger(both, rows * row) : both + rows * row) * 2;
    const size_t block = 2 * tiles.block * row + (turns ? 2 * size * (tiles.block + pad) : 2 * tiles.block * row);
    const size_t backward = (tiles.keep ? size_larger(block, rows * row) : block + 2 * rows * row) * 2;
    const size_t kept = rows * (tiles.block / 4 + 1) + tiles.block * (rows / 4 + 1);
    return size_larger(forward + rows * (tiles.keys / 4 + 1), backward + (turns ? 1 : 2) * kept) +
           tiles.warps * unit->scratch_bytes +
           size_larger(tiles.warps * unit->warp * 4 + 8 * rows, 16 * tiles.block);
}

/* For heads of up to 64 channels, and wider ones. Registers decide: more than this, and the compilers spill
 * (docs/notes/matrix_cores.md). RDNA 3 needs twice the registers of others for its fragments. */
static const struct attention_tiles *known_tiles(const struct matrix_cores *unit) {
    static const struct attention_tiles usual[] = {{64, 32, true, 4, 1}, {32, 32, true, 4, 1}},
                                        rdna3[] = {{64, 16, true, 4, 1}, {32, 16, false, 4, 1}},
                                        rdna4[] = {{64, 32, true, 4, 1}, {32, 16, false, 4, 1}},
                                        intel_8[] = {{32, 16, false, 16, 1}, {16, 16, false, 16, 4}},
                                        intel_16[] = {{32, 32, false, 8, 1}, {32, 16, false, 16, 2}};
    if (unit->kind == MATRIX_CORES_INTEL) {
        return unit->warp == 8 ? intel_8 : intel_16;
    }
    return unit->wide_fragments ? rdna3 : unit->kind == MATRIX_CORES_AMD_WMMA_GFX12 ? rdna4 : usual;
}

static struct attention_tiles choose_tiles(const struct matrix_cores *unit, int64_t head_size, size_t local_bytes) {
    const bool wide = head_size > 64;
    struct attention_tiles chosen = known_tiles(unit)[wide];
    if (wide && local_bytes < ROOMY) {
        chosen.block = 16;
    }
    while (head_size / unit->n % chosen.shares != 0) { /* a share has whole fragments */
        chosen.shares /= 2;
    }
    if (chosen.shares > 1 && local_needed(unit, chosen, head_size) > local_bytes) {
        chosen.warps /= 2;
    }
    return chosen;
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
             " -DSCALE=%.9ef -DWARPS=%u -DSHARES=%u -DKEYS=%u -DBLOCK=%u -DSTRIP=%d -DKEEP=%d%s",
             cores->unit.kind == MATRIX_CORES_EMULATED ? "-cl-opt-disable"
                                                       : "", /* three times as fast to compile */
             cores->unit.warp, operations->shape.type == ELEMENT_FP16, cores->unit.transposed_load, drops,
             heads.heads, heads.kv_heads, heads.size, attention_scale(&operations->shape), cores->tiles.warps,
             cores->tiles.shares, cores->tiles.keys, cores->tiles.block, STRIP, cores->tiles.keep,
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
    cores->tiles = choose_tiles(&cores->unit, head_size, device->local_bytes);
    operations->attention_matrix_cores = cores;
    const size_t items = (size_t)cores->tiles.warps * cores->unit.warp;
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
    const struct attention_matrix_cores *cores = operations->attention_matrix_cores;
    const uint64_t rows = rows_of(&cores->unit, cores->tiles);
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
    const struct attention_matrix_cores *cores = operations->attention_matrix_cores;
    const double rows = (double)rows_of(&cores->unit, cores->tiles),
                 blocks = ceil((double)pass->tokens.sequence / rows);
    const double computed = 0.5 * blocks * (blocks + 1.0) * rows * rows; /* pairs, in whole blocks */
    const int64_t heads = keys ? pass->heads.kv_heads : pass->heads.heads;
    struct launch launch = attention_launch(kernel, pass, (size_t)groups_of(operations, pass->tokens, heads),
                                            (size_t)cores->tiles.warps * cores->unit.warp, gemms);
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
