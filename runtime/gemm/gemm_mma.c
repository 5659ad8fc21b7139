/* The backend "mma": chooses a unit on which products come out right; products of fp32 go to CLBlast. */
#include "runtime/gemm/gemm_mma.h"
#include "runtime/system/error.h"
#include <stdlib.h>

struct mma_backend {
    struct mma mma;
    const struct gemm_backend *fallback; /* for fp32 */
    void *fallback_state;
};

static int open_fallback(struct compute *compute, struct mma_backend *own) {
    struct gemm_state *state = compute->gemm_state;
    const bool tuned = state->tuned; /* is about our tiles, not about the fallback's parameters */
    const int status = gemm_backend_clblast.open(compute, &own->fallback_state);
    own->fallback = status ? NULL : &gemm_backend_clblast;
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
    struct gemm_state *state = mma->compute->gemm_state;
    const struct device *device = &mma->compute->device;
    const struct tuned_target target = {&gemm_mma_tiles, device, &mma->unit};
    union tuned_values values;
    if (mma_tiles_default(&mma->unit, device, false, &mma->large) ||
        mma_tiles_default(&mma->unit, device, true, &mma->small) ||
        tuned_load(&target, state->untuned ? NULL : mma->compute->cache_dir, &values, &state->tuned)) {
        return -1;
    }
    if (state->tuned) {
        mma->large = values.tiles;
    }
    return 0;
}

/* ---- units */

/* Opens it on this unit if it computes what it should. */
static int try_unit(struct mma *mma, const struct mma_unit *unit) {
    const struct gemm_state *state = mma->compute->gemm_state;
    mma->unit = *unit;
    if (choose_tiles(mma)) {
        return -1;
    }
    for (enum element_type type = ELEMENT_BF16; type <= ELEMENT_FP16; type++) {
        if ((state->operands == ELEMENT_FP32 || state->operands == type) && mma_self_test(mma, type)) {
            mma_release(mma);
            return error_prefix("%s", unit->name);
        }
    }
    return 0;
}

static int find_unit(struct mma *mma) {
    const struct gemm_state *state = mma->compute->gemm_state;
    struct mma_unit units[MMA_MOST_UNITS];
    const size_t count = mma_units_find(&mma->compute->device, units);
    for (size_t i = 0; i < count; i++) {
        if (try_unit(mma, &units[i]) == 0) {
            return 0;
        }
    }
    if (state->automatic || count > 0 || mma->compute->device.is_gpu) {
        return -1;
    }
    const struct mma_unit emulation = mma_unit_emulation();
    return try_unit(mma, &emulation);
}

static void describe(const struct mma *mma, char *text, size_t size) {
    const struct mma_tiles *tiles = &mma->large;
    snprintf(text, size, "%s, tiles %zux%zux%zu", mma->unit.name, tiles->block_m, tiles->block_n, tiles->block_k);
}

static void mma_close(struct compute *compute, void *state) {
    struct mma_backend *own = state;
    mma_release(&own->mma);
    if (own->fallback) {
        own->fallback->close(compute, own->fallback_state);
    }
    free(own);
}

static int mma_open(struct compute *compute, void **state) {
    struct gemm_state *gemm = compute->gemm_state;
    struct mma_backend *own = calloc(1, sizeof(*own));
    if (!own) {
        return error_set("out of memory");
    }
    own->mma.compute = compute;
    if (find_unit(&own->mma) || open_fallback(compute, own)) {
        mma_close(compute, own);
        return -1;
    }
    describe(&own->mma, gemm->unit, sizeof(gemm->unit));
    *state = own;
    return 0;
}

static bool backend_takes(const struct gemm_call *call) {
    return gemm_call_is_plain_fp32(call) || mma_takes(call);
}

static void backend_run(struct compute *compute, void *state, const struct gemm_call *call) {
    struct mma_backend *own = state;
    if (gemm_call_is_plain_fp32(call)) {
        own->fallback->run(compute, own->fallback_state, call);
    } else {
        mma_run(&own->mma, call);
    }
}

const struct gemm_backend gemm_backend_mma = {"mma", mma_open, mma_close, backend_run, backend_takes};

struct mma *mma_of(struct compute *compute) {
    const struct gemm_state *state = compute->gemm_state;
    struct mma_backend *own = state->backend;
    return compute->gemm == &gemm_backend_mma ? &own->mma : NULL;
}
