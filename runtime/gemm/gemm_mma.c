/* The backend "mma": chooses a unit on which products come out right; products of fp32 go to CLBlast. */
#include "runtime/gemm/gemm_mma.h"
#include "runtime/system/error.h"
#include <stdlib.h>
#include <string.h>

static int open_fallback(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    const bool tuned = state->tuned; /* is about our tiles, not about the fallback's parameters */
    const int status = gemm_backend_clblast.open(compute);
    state->tuned = tuned;
    return status;
}

/* ---- tiles */

/* In the order of struct mma_tiles. */
static const struct tuned_number sizes[] = {
    {"block_m", 4, {32, 64, 128, 256}}, {"block_n", 4, {32, 64, 128, 256}}, {"block_k", 3, {16, 32, 64}},
    {"warp_m", 4, {16, 32, 64, 128}},   {"warp_n", 4, {16, 32, 64, 128}},   {"stages", 3, {2, 3, 4}},
};

static bool is_allowed(const struct tuned_target *target, const union tuned_values *values) {
    return mma_tiles_allowed(&values->tiles, target->unit, target->device);
}

const struct tuned_kind gemm_mma_tiles = {
    .backend = "mma",
    .what = "tiles",
    .command = "hc_bench --tune --gemm mma",
    .numbers = sizes,
    .count = sizeof sizes / sizeof *sizes,
    .allowed = is_allowed,
};

static int choose_tiles(struct mma *mma) {
    struct gemm_state *state = gemm_state(mma->compute);
    const struct device *device = &mma->compute->device;
    const struct tuned_target target = {&gemm_mma_tiles, device, &mma->unit};
    union tuned_values values;
    for (int shape = 0; shape < MMA_SHAPES; shape++) {
        if (mma_tiles_default(&mma->unit, device, (enum mma_shape)shape, &mma->shapes[shape])) {
            return -1;
        }
    }
    if (tuned_load(&target, state->untuned ? NULL : mma->compute->cache_dir, &values, &state->tuned)) {
        return -1;
    }
    if (!state->tuned) {
        return 0;
    }
    mma->shapes[MMA_LARGE] = values.tiles;
    return gemm_identify(state, &values, sizeof values);
}

/* ---- units */

/* Opens it on this unit if it computes what it should. */
static int try_unit(struct mma *mma, const struct mma_unit *unit) {
    const struct gemm_state *state = gemm_state(mma->compute);
    mma->unit = *unit;
    if (choose_tiles(mma)) {
        return error_prefix("%s", unit->name);
    }
    for (enum element_type type = ELEMENT_BF16; type <= ELEMENT_FP16; type++) {
        const bool wanted = state->operands == ELEMENT_FP32 || state->operands == type;
        if (wanted && !mma->compute->device.model && mma_self_test(mma, type)) {
            mma_release(mma);
            return error_prefix("%s", unit->name);
        }
    }
    return 0;
}

static int find_unit(struct mma *mma) {
    struct gemm_state *state = gemm_state(mma->compute);
    struct mma_unit unit;
    state->tried = mma_unit_find(&mma->compute->device, &unit) == 0;
    if (!state->tried && !state->automatic && !mma->compute->device.is_gpu) {
        unit = mma_unit_emulation();
    } else if (!state->tried) {
        return -1;
    }
    return try_unit(mma, &unit);
}

static void describe(const struct mma *mma, char *text, size_t size) {
    const struct mma_tiles *tiles = &mma->shapes[MMA_LARGE];
    snprintf(text, size, "%s, tiles %zux%zux%zu", mma->unit.name, tiles->block_m, tiles->block_n, tiles->block_k);
}

static void close_units(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    mma_release(state->mma);
    free(state->mma);
    state->mma = NULL;
    gemm_backend_clblast.close(compute);
}

static int open_units(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    state->mma = calloc(1, sizeof(*state->mma));
    if (!state->mma) {
        return error_set("out of memory");
    }
    state->mma->compute = compute;
    if (find_unit(state->mma) || open_fallback(compute)) {
        close_units(compute);
        return -1;
    }
    describe(state->mma, state->unit, sizeof(state->unit));
    state->works_on = state->mma->unit.kind == MMA_EMULATION ? NULL : state->mma->unit.name;
    return 0;
}

static bool backend_takes(struct compute *compute, const struct gemm_call *call) {
    (void)compute;
    return gemm_call_is_plain_fp32(call) || mma_takes(call);
}

static bool backend_takes_type(const struct compute *compute, enum element_type type) {
    (void)compute;
    return type != ELEMENT_FP32;
}

static void backend_run(struct compute *compute, const struct gemm_call *call) {
    const struct gemm_state *state = gemm_state(compute);
    if (gemm_call_is_plain_fp32(call)) {
        gemm_backend_clblast.run(compute, call);
    } else {
        mma_run(state->mma, call);
    }
}

static size_t take_large(struct compute *compute, bool forced) {
    return gemm_backend_clblast.take_large(compute, forced);
}

const struct gemm_backend gemm_backend_mma = {.name = "mma",
                                              .open = open_units,
                                              .run = backend_run,
                                              .close = close_units,
                                              .takes = backend_takes,
                                              .takes_type = backend_takes_type,
                                              .take_large = take_large,
                                              .fuses = true,
                                              .on_units = true};

struct mma *mma_of(struct compute *compute) {
    const struct gemm_state *state = gemm_state(compute);
    return state->mma;
}
