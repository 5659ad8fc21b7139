#include "src/operations/attention_matrix_cores.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/operations/operations.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define WARPS           4  /* of a work-group */
#define STRIP           16 /* rows whose scores a warp has at a time in the backward pass */
#define HEAD_SIZE_UNIT  16
#define HEAD_SIZE_LIMIT 128
#define ROOMY           ((size_t)48 << 10) /* bytes of local memory that allow large blocks for wide heads */

/* What the kernels are compiled for besides the shape. */
struct tiles {
    unsigned keys, block; /* rows that pass at a time, forward and backward */
    bool keep;            /* rows that stay are in registers */
};

struct attention_matrix_cores {
    struct compute *compute;
    struct attention_matrix_cores_shape shape;
    struct matrix_cores unit;
    struct tiles tiles;
    struct kernel forward, forward_dropout, backward_queries, backward_keys;
};

/* ---- tiles */

/* For heads of up to 64 channels, and wider ones. Registers decide: more than this, and the compilers spill
 * (docs/notes/matrix_cores.md). RDNA 3 needs twice the registers of others for its fragments; in Intel's sub-groups
 * of 8 a work-item has twice the sums of one in sub-groups of 16. */
static struct tiles choose_tiles(const struct matrix_cores *unit, bool wide, size_t local_bytes) {
    static const struct tiles usual[] = {{64, 32, true}, {32, 32, true}},
                              rdna3[] = {{32, 16, true}, {32, 16, false}},
                              rdna4_and_intel[] = {{64, 32, true}, {32, 16, false}},
                              sub_groups_of_8[] = {{16, 16, false}, {16, 16, false}};
    const struct tiles *tiles = unit->wide_fragments                                  ? rdna3
                                : unit->kind == MATRIX_CORES_INTEL && unit->warp == 8 ? sub_groups_of_8
                                : unit->kind == MATRIX_CORES_INTEL || unit->kind == MATRIX_CORES_AMD_WMMA_GFX12
                                    ? rdna4_and_intel
                                    : usual;
    struct tiles chosen = tiles[wide];
    if (wide && local_bytes < ROOMY) {
        chosen.block = 16;
    }
    return chosen;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Bytes of local memory of the kernel that needs most: the rows that pass, two blocks of them backward; those that
 * stay unless they are kept in registers; bits of dropout; numbers of rows, and parts of their sums. */
static size_t local_needed(const struct matrix_cores *unit, struct tiles tiles, int64_t head_size) {
    const size_t rows = WARPS * unit->m, row = (size_t)head_size * 2;
    const size_t forward = 2 * tiles.keys * row + rows * (tiles.keys / 4 + 1) + (tiles.keep ? 0 : rows * row);
    const size_t kept = larger(rows * (tiles.block / 4 + 1), tiles.block * (rows / 4 + 1));
    const size_t backward = 4 * tiles.block * row + 2 * kept + (tiles.keep ? 0 : 2 * rows * row);
    const size_t turned = WARPS * unit->m * unit->k * 2;
    return larger(forward, backward) + turned + WARPS * unit->scratch_bytes +
           larger(WARPS * unit->warp * 4 + 8 * rows, 16 * tiles.block);
}

static int check_fits(const struct attention_matrix_cores *cores) {
    const struct device *device = &cores->compute->device;
    const size_t items = (size_t)WARPS * cores->unit.warp;
    const size_t needed = local_needed(&cores->unit, cores->tiles, cores->shape.head_size);
    if (items > device->max_work_group || needed > device->local_bytes) {
        return error_set("attention on matrix cores needs work-groups of %zu and %zu bytes of local memory; %s has "
                         "%zu and %zu",
                         items, needed, device->name, device->max_work_group, device->local_bytes);
    }
    return 0;
}

/* ---- opening */

static int build(struct attention_matrix_cores *cores) {
    const char *files[12] = {"common.cl", "element.cl"};
    size_t count = matrix_cores_add_files(&cores->unit, files, 2);
    files[count++] = "matrix_cores_rows.cl";
    files[count++] = "attention_matrix_cores.cl";
    char text[512];
    cl_program program = NULL;
    snprintf(text, sizeof(text),
             "%s -DVEC=1 -DWARP_SIZE=%u -DFP16=%d -DC_TO_A_LOCAL=%d -DHEAD_SIZE=%" PRId64
             " -DWARPS=%d -DKEYS=%u -DBLOCK=%u -DSTRIP=%d -DKEEP=%d%s",
             cores->unit.kind == MATRIX_CORES_EMULATED ? "-cl-opt-disable"
                                                       : "", /* three times as fast to compile */
             cores->unit.warp, cores->shape.type == ELEMENT_FP16,
             cores->unit.wide_fragments || cores->unit.transposed_load, cores->shape.head_size, WARPS,
             cores->tiles.keys, cores->tiles.block, STRIP, cores->tiles.keep,
             device_registers_option(&cores->compute->device, REGISTERS_MANY));
    const struct {
        const char *name;
        struct kernel *kernel;
    } kernels[] = {
        {"attention_matrix_cores_forward", &cores->forward},
        {"attention_matrix_cores_forward_dropout", &cores->forward_dropout},
        {"attention_matrix_cores_backward_queries", &cores->backward_queries},
        {"attention_matrix_cores_backward_keys", &cores->backward_keys},
    };
    int status = program_build(cores->compute, files, text, &program);
    for (size_t i = 0; i < COUNT(kernels) && status == 0; i++) {
        status = kernel_create(cores->compute, program, kernels[i].name, kernels[i].kernel);
    }
    if (program) {
        clReleaseProgram(program);
    }
    return status;
}

int attention_matrix_cores_check_shape(const struct attention_matrix_cores_shape *shape) {
    if (shape->type == ELEMENT_FP32) {
        return error_set("attention in fp32 does not use matrix cores");
    }
    if (shape->head_size < HEAD_SIZE_UNIT || shape->head_size > HEAD_SIZE_LIMIT ||
        shape->head_size % HEAD_SIZE_UNIT != 0) {
        return error_set("attention on matrix cores takes heads of 16, 32, ... 128 channels, not %" PRId64,
                         shape->head_size);
    }
    return 0;
}

int attention_matrix_cores_open(struct compute *compute, const struct attention_matrix_cores_shape *shape,
                                const struct matrix_cores *unit, struct attention_matrix_cores **opened) {
    *opened = NULL;
    if (compute_check(compute) || attention_matrix_cores_check_shape(shape)) {
        return -1;
    }
    struct attention_matrix_cores *cores = memory_zeroed(1, sizeof(*cores));
    cores->compute = compute;
    cores->shape = *shape;
    cores->unit = *unit;
    cores->tiles = choose_tiles(unit, shape->head_size > 64, compute->device.local_bytes);
    if (check_fits(cores) || build(cores)) {
        attention_matrix_cores_close(cores);
        return -1;
    }
    *opened = cores;
    return 0;
}

void attention_matrix_cores_close(struct attention_matrix_cores *cores) {
    if (cores) {
        kernel_release(&cores->forward);
        kernel_release(&cores->forward_dropout);
        kernel_release(&cores->backward_queries);
        kernel_release(&cores->backward_keys);
        free(cores);
    }
}

const char *attention_matrix_cores_name(const struct attention_matrix_cores *cores) {
    return cores->unit.name;
}

/* ---- launching */

/* Work-groups: blocks of rows of all heads. */
static uint64_t groups_of(const struct attention_matrix_cores *cores, struct token_shape tokens) {
    const uint64_t rows = (uint64_t)WARPS * cores->unit.m;
    return (uint64_t)(tokens.batch * cores->shape.heads) * (((uint64_t)tokens.sequence + rows - 1) / rows);
}

bool attention_matrix_cores_take(const struct attention_matrix_cores *cores, struct token_shape tokens) {
    const uint64_t row = 3 * (uint64_t)(cores->shape.heads * cores->shape.head_size);
    return (uint64_t)tokens.sequence < UINT32_MAX / row && groups_of(cores, tokens) < UINT32_MAX;
}

#define ARG_SHAPE(cores, tokens) ARG_U32((cores)->shape.heads), ARG_U32((tokens).sequence)

double attention_flops(int64_t heads, int64_t head_size, struct token_shape tokens, int gemms) {
    const double pairs = 0.5 * (double)tokens.sequence * ((double)tokens.sequence + 1.0);
    return 2.0 * gemms * pairs * (double)(tokens.batch * heads * head_size);
}

/* Rows of scores of a batch. */
static size_t row_count(const struct attention_matrix_cores *cores, struct token_shape tokens) {
    return (size_t)(tokens.batch * tokens.sequence * cores->shape.heads);
}

/* A pass with so many matrix multiplications over blocks of rows and all before them, or after them. */
static struct launch launch_of(const struct attention_matrix_cores *cores, const struct kernel *kernel,
                               struct token_shape tokens, int gemms) {
    const double rows = (double)WARPS * cores->unit.m, blocks = ceil((double)tokens.sequence / rows);
    const double computed = 0.5 * blocks * (blocks + 1.0) * rows * rows; /* pairs, in whole blocks */
    return (struct launch){
        .kernel = kernel,
        .groups = (size_t)groups_of(cores, tokens),
        .local = (size_t)WARPS * cores->unit.warp,
        .flops = attention_flops(cores->shape.heads, cores->shape.head_size, tokens, gemms),
        .padded_flops =
            2.0 * gemms * computed * (double)(tokens.batch * cores->shape.heads * cores->shape.head_size),
        .on_matrix_cores = true,
    };
}

void attention_matrix_cores_forward(struct attention_matrix_cores *cores, struct token_shape tokens,
                                    const struct attention_values *values, struct dropout dropout) {
    const bool drops = dropout.rate > 0.0f;
    const size_t rows = row_count(cores, tokens), width = rows * (size_t)cores->shape.head_size;
    const struct launch launch = launch_of(cores, drops ? &cores->forward_dropout : &cores->forward, tokens, 2);
    if (drops) {
        KERNEL_LAUNCH(cores->compute, &launch, ARG_IN(values->qkv, 3 * width), ARG_SHAPE(cores, tokens),
                      ARG_DROPOUT(dropout), ARG_OUT(values->y, width), ARG_OUT(values->lse, rows));
    } else {
        KERNEL_LAUNCH(cores->compute, &launch, ARG_IN(values->qkv, 3 * width), ARG_SHAPE(cores, tokens),
                      ARG_OUT(values->y, width), ARG_OUT(values->lse, rows));
    }
}

void attention_matrix_cores_backward(struct attention_matrix_cores *cores, struct token_shape tokens,
                                     const struct attention_values *values, struct dropout dropout,
                                     const struct buffer *d_y, const struct buffer *delta,
                                     const struct buffer *d_qkv) {
    const size_t rows = row_count(cores, tokens), width = rows * (size_t)cores->shape.head_size;
    const struct launch queries = launch_of(cores, &cores->backward_queries, tokens, 3);
    const struct launch keys = launch_of(cores, &cores->backward_keys, tokens, 4);
    KERNEL_LAUNCH(cores->compute, &queries, ARG_IN(values->qkv, 3 * width), ARG_IN(values->y, width),
                  ARG_IN(d_y, width), ARG_IN(values->lse, rows), ARG_SHAPE(cores, tokens), ARG_DROPOUT(dropout),
                  ARG_OUT(d_qkv, width), ARG_OUT(delta, rows));
    KERNEL_LAUNCH(cores->compute, &keys, ARG_IN(values->qkv, 3 * width), ARG_IN(d_y, width),
                  ARG_IN(values->lse, rows), ARG_IN(delta, rows), ARG_SHAPE(cores, tokens), ARG_DROPOUT(dropout),
                  ARG_OUT(d_qkv, 2 * width));
}
