#include "runtime/gemm/gemm_parameters.h"
#include "runtime/files/checksum.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include <clblast_c.h>
#include <stdlib.h>
#include <string.h>

#define FILE_LIMIT      65536
#define PARAMETER_LIMIT 1024 /* no device has use for more; products of two stay far from overflow */
#define REGISTERS_LIMIT 1024 /* elements of C per work-item */
#define VECTOR_LIMIT    16
#define DIRECT_LIMIT    65536
#define NAME_DIGITS     16 /* of the checksum, in the file's name */

const char *const gemm_parameter_names[GEMM_PARAMETERS] = {"GEMMK", "KREG",  "KWG",   "KWI", "MDIMA", "MDIMC",
                                                           "MWG",   "NDIMB", "NDIMC", "NWG", "SA",    "SB",
                                                           "STRM",  "STRN",  "VWM",   "VWN"};

/* ---- what is allowed */

static bool in_range(const struct gemm_parameters *parameters) {
    const size_t *value = parameters->value;
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
    return value[GEMM_GEMMK] == 0 && value[GEMM_KREG] == 1 && parameters->direct_below <= DIRECT_LIMIT;
}

/* One of the two directions: the tile divides into vectors of the work-items that compute and of those that load.
 */
static bool tile_divides(size_t tile, size_t compute, size_t load, size_t vector, size_t work_items, size_t depth) {
    return tile % (compute * vector) == 0 && tile % (load * vector) == 0 && work_items % load == 0 &&
           depth % (work_items / load) == 0;
}

bool gemm_parameters_allowed(const struct gemm_parameters *parameters, const struct device *device) {
    const size_t *value = parameters->value;
    if (!in_range(parameters)) {
        return false;
    }
    const size_t m = value[GEMM_MWG], n = value[GEMM_NWG], k = value[GEMM_KWG];
    const size_t work_items = value[GEMM_MDIMC] * value[GEMM_NDIMC];
    const size_t local = (value[GEMM_SA] * m + value[GEMM_SB] * n) * k * sizeof(float);
    return k % value[GEMM_KWI] == 0 &&
           tile_divides(m, value[GEMM_MDIMC], value[GEMM_MDIMA], value[GEMM_VWM], work_items, k) &&
           tile_divides(n, value[GEMM_NDIMC], value[GEMM_NDIMB], value[GEMM_VWN], work_items, k) &&
           work_items <= device->max_work_group && m * n / work_items <= REGISTERS_LIMIT &&
           (local == 0 || local <= device->local_bytes);
}

/* ---- CLBlast */

int gemm_parameters_apply(const struct gemm_parameters *parameters, const struct device *device) {
    static const char *routine_name = "XGEMM_MIN_INDIRECT_SIZE";
    CLBlastStatusCode status =
        CLBlastOverrideParameters(device->id, "Xgemm", CLBlastPrecisionSingle, GEMM_PARAMETERS,
                                  (const char **)gemm_parameter_names, parameters->value);
    if (status == CLBlastSuccess) {
        status = CLBlastOverrideParameters(device->id, "GemmRoutine", CLBlastPrecisionSingle, 1, &routine_name,
                                           &parameters->direct_below);
    }
    return status == CLBlastSuccess ? 0 : error_set("CLBlast refuses these parameters (code %d)", (int)status);
}

/* ---- the file */

char *gemm_parameters_path(const char *folder, const struct device *device) {
    const char *const parts[] = {device->name, device->platform_name, device->version, device->driver};
    char digest[CHECKSUM_SIZE];
    if (checksum_strings(parts, sizeof parts / sizeof *parts, digest)) {
        return NULL;
    }
    return files_path("%s/clblast-%.*s.json", folder, NAME_DIGITS, digest);
}

static bool take_count(const json_t *object, const char *name, size_t *value) {
    const json_t *item = json_object_get(object, name);
    const json_int_t number = json_integer_value(item);
    *value = (size_t)number;
    return json_is_integer(item) && number >= 0 && number <= DIRECT_LIMIT;
}

static bool take_parameters(const json_t *json, struct gemm_parameters *parameters) {
    const json_t *values = json_object_get(json, "parameters");
    bool whole =
        take_count(json, "direct_below", &parameters->direct_below) && json_object_size(values) == GEMM_PARAMETERS;
    for (int i = 0; i < GEMM_PARAMETERS && whole; i++) {
        whole = take_count(values, gemm_parameter_names[i], &parameters->value[i]);
    }
    return whole;
}

int gemm_parameters_read(const char *path, const struct device *device, struct gemm_parameters *parameters,
                         bool *found) {
    json_t *json = NULL;
    *found = files_exist(path);
    if (!*found) {
        return 0;
    }
    int status = json_file_read(path, FILE_LIMIT, &json);
    if (status == 0 && (!take_parameters(json, parameters) || !gemm_parameters_allowed(parameters, device))) {
        status = error_set("%s: these are no parameters for CLBlast on %s", path, device->name);
    }
    json_decref(json);
    if (status == 0) {
        return 0;
    }
    return error_set("%s; remove the file, or write a new one by hc_bench --tune", error_text());
}

int gemm_parameters_write(const char *path, const struct device *device, const struct gemm_parameters *parameters) {
    char *folder = strndup(path, (size_t)(strrchr(path, '/') - path));
    int status = folder ? files_make_folder(folder) : error_set("out of memory");
    free(folder);
    json_t *values = json_object();
    for (int i = 0; i < GEMM_PARAMETERS; i++) {
        json_object_set_new(values, gemm_parameter_names[i], json_integer((json_int_t)parameters->value[i]));
    }
    json_t *json = json_pack("{s:s, s:s, s:I, s:o}", "device", device->name, "driver", device->driver,
                             "direct_below", (json_int_t)parameters->direct_below, "parameters", values);
    status = status || json_file_write(path, json, JSON_INDENT(1)) ? -1 : 0;
    json_decref(json);
    return status;
}
