#include "runtime/gemm/gemm_parameters.h"
#include "runtime/system/error.h"
#include <clblast_c.h>

#define PARAMETER_LIMIT 1024 /* no device has use for more; products of two stay far from overflow */
#define REGISTERS_LIMIT 1024 /* elements of C per work-item */
#define VECTOR_LIMIT    16

static const struct tuned_number numbers[] = {
    [GEMM_GEMMK] = {"GEMMK", 1, {0}},
    [GEMM_KREG] = {"KREG", 1, {1}},
    [GEMM_KWG] = {"KWG", 8, {1, 2, 4, 8, 16, 32, 64, 128}},
    [GEMM_KWI] = {"KWI", 4, {1, 2, 4, 8}},
    [GEMM_MDIMA] = {"MDIMA", 6, {1, 2, 4, 8, 16, 32}},
    [GEMM_MDIMC] = {"MDIMC", 5, {1, 2, 4, 8, 16}},
    [GEMM_MWG] = {"MWG", 7, {4, 8, 16, 32, 64, 128, 256}},
    [GEMM_NDIMB] = {"NDIMB", 6, {1, 2, 4, 8, 16, 32}},
    [GEMM_NDIMC] = {"NDIMC", 5, {1, 2, 4, 8, 16}},
    [GEMM_NWG] = {"NWG", 12, {4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256}},
    [GEMM_SA] = {"SA", 2, {0, 1}},
    [GEMM_SB] = {"SB", 2, {0, 1}},
    [GEMM_STRM] = {"STRM", 2, {0, 1}},
    [GEMM_STRN] = {"STRN", 2, {0, 1}},
    [GEMM_VWM] = {"VWM", 5, {1, 2, 4, 8, 16}},
    [GEMM_VWN] = {"VWN", 5, {1, 2, 4, 8, 16}},
    [GEMM_DIRECT_BELOW] = {"direct_below", 0, {0}},
};

/* ---- what is allowed */

static bool in_range(const size_t *value) {
    for (int i = 0; i < GEMM_PARAMETERS; i++) {
        const bool flag = i == GEMM_SA || i == GEMM_SB || i == GEMM_STRM || i == GEMM_STRN;
        const bool vector = i == GEMM_VWM || i == GEMM_VWN;
        const size_t most = flag ? 1 : vector ? VECTOR_LIMIT : PARAMETER_LIMIT;
        if (value[i] > most || (value[i] == 0 && !flag && i != GEMM_GEMMK)) {
            return false;
        }
        if (vector && (value[i] & (value[i] - 1)) != 0) {
            return false;
        }
    }
    return value[GEMM_GEMMK] == 0 && value[GEMM_KREG] == 1;
}

/* One of the two directions: the tile divides into vectors of the work-items that compute and of those that load.
 */
static bool tile_divides(size_t tile, size_t compute, size_t load, size_t vector, size_t work_items, size_t depth) {
    return tile % (compute * vector) == 0 && tile % (load * vector) == 0 && work_items % load == 0 &&
           depth % (work_items / load) == 0;
}

static bool is_allowed(const struct tuned_target *target, const union tuned_values *values) {
    const size_t *value = values->at;
    if (!in_range(value)) {
        return false;
    }
    const size_t m = value[GEMM_MWG], n = value[GEMM_NWG], k = value[GEMM_KWG];
    const size_t work_items = value[GEMM_MDIMC] * value[GEMM_NDIMC];
    const size_t local = (value[GEMM_SA] * m + value[GEMM_SB] * n) * k * sizeof(float);
    return k % value[GEMM_KWI] == 0 &&
           tile_divides(m, value[GEMM_MDIMC], value[GEMM_MDIMA], value[GEMM_VWM], work_items, k) &&
           tile_divides(n, value[GEMM_NDIMC], value[GEMM_NDIMB], value[GEMM_VWN], work_items, k) &&
           work_items <= target->device->max_work_group && m * n / work_items <= REGISTERS_LIMIT &&
           (local == 0 || local <= target->device->local_bytes);
}

const struct tuned_kind gemm_parameters = {
    .backend = "clblast",
    .what = "parameters",
    .command = "hc_bench --tune",
    .numbers = numbers,
    .count = sizeof numbers / sizeof *numbers,
    .group = "parameters",
    .grouped = GEMM_PARAMETERS,
    .allowed = is_allowed,
};

/* ---- CLBlast */

static int refuse(CLBlastStatusCode status) {
    return error_set("CLBlast refuses these parameters (code %d)", (int)status);
}

int gemm_parameters_apply_bound(size_t bound, const struct device *device) {
    const char *name = "XGEMM_MIN_INDIRECT_SIZE";
    const CLBlastStatusCode status =
        CLBlastOverrideParameters(device->id, "GemmRoutine", CLBlastPrecisionSingle, 1, &name, &bound);
    return status == CLBlastSuccess ? 0 : refuse(status);
}

int gemm_parameters_apply(const union tuned_values *values, const struct device *device) {
    const char *names[GEMM_PARAMETERS];
    for (int i = 0; i < GEMM_PARAMETERS; i++) {
        names[i] = numbers[i].name;
    }
    const CLBlastStatusCode status =
        CLBlastOverrideParameters(device->id, "Xgemm", CLBlastPrecisionSingle, GEMM_PARAMETERS, names, values->at);
    return status == CLBlastSuccess ? gemm_parameters_apply_bound(values->at[GEMM_DIRECT_BELOW], device)
                                    : refuse(status);
}
