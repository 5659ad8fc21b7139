#include "src/operations/attention_units.h"
#include "runtime/system/error.h"
#include "src/operations/operations.h"
#include <inttypes.h>
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

struct attention_units {
    struct compute *compute;
    struct attention_units_shape shape;
    struct mma_unit unit;
    struct tiles tiles;
    struct kernel forward, forward_dropout, backward_queries, backward_keys;
};

/* ---- tiles */

/* Registers decide, see docs/matrix_units.md: more than this, and the compilers spill. */
static struct tiles choose_tiles(const struct mma_unit *unit, int64_t head_size, size_t local_bytes) {
    const bool wide = head_size > 64;
    return (struct tiles){
        .keys = wide || unit->wide_fragments ? 32 : 64,
        .block = unit->wide_fragments || (wide && local_bytes < ROOMY) ? 16 : 32,
        .keep = !(wide && unit->wide_fragments),
    };
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Bytes of local memory of the kernel that needs most: the rows that pass, two blocks of them backward; those that
 * stay unless they are kept in registers; bits of dropout; numbers of rows, and parts of their sums. */
static size_t local_needed(const struct mma_unit *unit, struct tiles tiles, int64_t head_size) {
    const size_t rows = WARPS * unit->m, row = (size_t)head_size * 2;
    const size_t forward = 2 * tiles.keys * row + rows * (tiles.keys / 4 + 1) + (tiles.keep ? 0 : rows * row);
    const size_t kept = larger(rows * (tiles.block / 4 + 1), tiles.block * (rows / 4 + 1));
    const size_t backward = 4 * tiles.block * row + 2 * kept + (tiles.keep ? 0 : 2 * rows * row);
    const size_t turned = WARPS * unit->m * unit->k * 2;
    return larger(forward, backward) + turned + WARPS * unit->scratch_bytes +
           larger(WARPS * unit->warp * 4 + 8 * rows, 16 * tiles.block);
}

static int check_fits(const struct attention_units *units) {
    const struct device *device = &units->compute->device;
    const size_t items = (size_t)WARPS * units->unit.warp;
    const size_t needed = local_needed(&units->unit, units->tiles, units->shape.head_size);
    if (items > device->max_work_group || needed > device->local_bytes) {
        return error_set("attention on matrix units needs work-groups of %zu and %zu bytes of local memory; %s has "
                         "%zu and %zu",
                         items, needed, device->name, device->max_work_group, device->local_bytes);
    }
    return 0;
}

/* ---- opening */

static int build(struct attention_units *units) {
    static const char *const files[] = {"common.cl",           "element.cl",         "matrix_unit.cl",
                                        "matrix_unit_rows.cl", "attention_units.cl", NULL};
    char text[512];
    cl_program program = NULL;
    snprintf(text, sizeof(text),
             "%s -DVEC=1 -DUNIT=%d -DUNIT_WARP=%u -DUNIT_FP16=%d -DUNIT_TURN_LOCAL=%d -DHEAD_SIZE=%" PRId64
             " -DWARPS=%d -DKEYS=%u -DBLOCK=%u -DSTRIP=%d -DKEEP=%d",
             units->unit.kind == MMA_EMULATION ? "-cl-opt-disable" : "", /* three times as fast to compile */
             (int)units->unit.kind, units->unit.warp, units->shape.type == ELEMENT_FP16, units->unit.wide_fragments,
             units->shape.head_size, WARPS, units->tiles.keys, units->tiles.block, STRIP, units->tiles.keep);
    int status = program_build(units->compute, files, text, &program);
    status = status || kernel_create(units->compute, program, "attention_units_forward", &units->forward) ||
                     kernel_create(units->compute, program, "attention_units_forward_dropout",
                                   &units->forward_dropout) ||
                     kernel_create(units->compute, program, "attention_units_backward_queries",
                                   &units->backward_queries) ||
                     kernel_create(units->compute, program, "attention_units_backward_keys", &units->backward_keys)
                 ? -1
                 : 0;
    if (program) {
        clReleaseProgram(program);
    }
    return status;
}

int attention_units_check_shape(const struct attention_units_shape *shape) {
    if (shape->type == ELEMENT_FP32) {
        return error_set("attention in fp32 does not use matrix units");
    }
    if (shape->head_size < HEAD_SIZE_UNIT || shape->head_size > HEAD_SIZE_LIMIT ||
        shape->head_size % HEAD_SIZE_UNIT != 0) {
        return error_set("attention on matrix units takes heads of 16, 32, ... 128 channels, not %" PRId64,
                         shape->head_size);
    }
    return 0;
}

int attention_units_open(struct compute *compute, const struct attention_units_shape *shape,
                         const struct mma_unit *unit, struct attention_units **opened) {
    *opened = NULL;
    if (compute_check(compute) || attention_units_check_shape(shape)) {
        return -1;
    }
    struct attention_units *units = calloc(1, sizeof(*units));
    if (!units) {
        return error_set("out of memory");
    }
    units->compute = compute;
    units->shape = *shape;
    units->unit = *unit;
    units->tiles = choose_tiles(unit, shape->head_size, compute->device.local_bytes);
    if (check_fits(units) || build(units)) {
        attention_units_close(units);
        return -1;
    }
    *opened = units;
    return 0;
}

void attention_units_close(struct attention_units *units) {
    if (units) {
        kernel_release(&units->forward);
        kernel_release(&units->forward_dropout);
        kernel_release(&units->backward_queries);
        kernel_release(&units->backward_keys);
        free(units);
    }
}

const char *attention_units_name(const struct attention_units *units) {
    return units->unit.name;
}

/* ---- launching */

/* Work-groups: blocks of rows of all heads. */
static uint64_t groups_of(const struct attention_units *units, struct token_shape tokens) {
    const uint64_t rows = (uint64_t)WARPS * units->unit.m;
    return (uint64_t)(tokens.batch * units->shape.heads) * (((uint64_t)tokens.sequence + rows - 1) / rows);
}

bool attention_units_take(const struct attention_units *units, struct token_shape tokens) {
    const uint64_t row = 3 * (uint64_t)(units->shape.heads * units->shape.head_size);
    return (uint64_t)tokens.sequence < UINT32_MAX / row && groups_of(units, tokens) < UINT32_MAX;
}

#define ARG_SHAPE(units, tokens) ARG_U32((units)->shape.heads), ARG_U32((tokens).sequence)
#define RUN(kernel, ...)                                                                                           \
    KERNEL_RUN(units->compute, &units->kernel, (size_t)groups_of(units, tokens), (size_t)WARPS * units->unit.warp, \
               __VA_ARGS__)

void attention_units_forward(struct attention_units *units, struct token_shape tokens, const struct buffer *qkv,
                             struct dropout dropout, const struct buffer *y, const struct buffer *lse) {
    if (dropout.rate > 0.0f) {
        RUN(forward_dropout, ARG_BUFFER(qkv), ARG_SHAPE(units, tokens), ARG_DROPOUT(dropout), ARG_BUFFER(y),
            ARG_BUFFER(lse));
    } else {
        RUN(forward, ARG_BUFFER(qkv), ARG_SHAPE(units, tokens), ARG_BUFFER(y), ARG_BUFFER(lse));
    }
}

void attention_units_backward(struct attention_units *units, struct token_shape tokens,
                              const struct attention_values *values, struct dropout dropout,
                              const struct buffer *d_y, const struct buffer *delta, const struct buffer *d_qkv) {
    RUN(backward_queries, ARG_BUFFER(values->qkv), ARG_BUFFER(values->y), ARG_BUFFER(d_y), ARG_BUFFER(values->lse),
        ARG_SHAPE(units, tokens), ARG_DROPOUT(dropout), ARG_BUFFER(d_qkv), ARG_BUFFER(delta));
    RUN(backward_keys, ARG_BUFFER(values->qkv), ARG_BUFFER(d_y), ARG_BUFFER(values->lse), ARG_BUFFER(delta),
        ARG_SHAPE(units, tokens), ARG_DROPOUT(dropout), ARG_BUFFER(d_qkv));
}
