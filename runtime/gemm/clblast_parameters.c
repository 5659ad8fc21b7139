#include "runtime/gemm/clblast_parameters.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include <clblast_c.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_LIMIT    ((size_t)64 << 20) /* a file lists all that the tuner tried */
#define LARGEST       256                /* of sizes of tiles and work-groups */
#define LARGEST_BOUND 65536
#define WIDEST_VECTOR 16

/* ---- the kernels that a GEMM is made of */

static const struct {
    const char *family; /* in the file; some have several stages: xgemm_1, xgemm_2 */
    const char *kernel; /* as CLBlastOverrideParameters takes it */
    const char *names[CLBLAST_MOST_PARAMETERS + 1];
} kernels[CLBLAST_KERNELS] = {
    {"xgemm",
     "Xgemm",
     {"GEMMK", "KREG", "KWG", "KWI", "MDIMA", "MDIMC", "MWG", "NDIMB", "NDIMC", "NWG", "SA", "SB", "STRM", "STRN",
      "VWM", "VWN"}},
    {"xgemm_direct",
     "XgemmDirect",
     {"KWID", "MDIMAD", "MDIMCD", "NDIMBD", "NDIMCD", "PADA", "PADB", "VWMD", "VWND", "WGD"}},
    {"gemm_routine", "GemmRoutine", {"XGEMM_MIN_INDIRECT_SIZE"}},
    {"copy", "Copy", {"COPY_DIMX", "COPY_DIMY", "COPY_VW", "COPY_WPT"}},
    {"pad", "Pad", {"PAD_DIMX", "PAD_DIMY", "PAD_WPTX", "PAD_WPTY"}},
    {"transpose", "Transpose", {"TRA_DIM", "TRA_PAD", "TRA_SHUFFLE", "TRA_WPT"}},
    {"padtranspose", "Padtranspose", {"PADTRA_PAD", "PADTRA_TILE", "PADTRA_WPT"}},
};
enum { BOUND_KERNEL = 2 };

/* What CLBlast's kernels are defined for: the first is a multiple of the product of the second and third, divided
 * by the fourth. A name that is missing is 1. */
static const char *const multiples[][4] = {
    {"KWG", "KWI"},
    {"MWG", "MDIMC", "VWM"},
    {"NWG", "NDIMC", "VWN"},
    {"MWG", "MDIMA", "VWM"},
    {"NWG", "NDIMB", "VWN"},
    {"KWG", "MDIMC", "NDIMC", "MDIMA"},
    {"KWG", "MDIMC", "NDIMC", "NDIMB"},
    {"WGD", "KWID"},
    {"WGD", "MDIMCD", "VWMD"},
    {"WGD", "NDIMCD", "VWND"},
    {"WGD", "MDIMAD", "VWMD"},
    {"WGD", "NDIMBD", "VWND"},
    {"WGD", "MDIMCD", "NDIMCD", "MDIMAD"},
    {"WGD", "MDIMCD", "NDIMCD", "NDIMBD"},
};

static size_t count_names(size_t kernel) {
    size_t count = 0;
    while (kernels[kernel].names[count]) {
        count++;
    }
    return count;
}

static size_t find_name(size_t kernel, const char *name) {
    size_t i = 0;
    while (kernels[kernel].names[i] && strcmp(kernels[kernel].names[i], name)) {
        i++;
    }
    return i;
}

static bool is_any(const char *name, const char *const *names) {
    while (*names && strcmp(*names, name)) {
        names++;
    }
    return *names != NULL;
}

/* GEMMK 1 is another kernel behind the same name, with rules of its own. */
static bool is_in_range(const char *name, size_t value) {
    static const char *const flags[] = {"SA",   "SB",      "STRM",        "STRN",       "PADA",
                                        "PADB", "TRA_PAD", "TRA_SHUFFLE", "PADTRA_PAD", NULL};
    static const char *const vectors[] = {"VWM", "VWN", "VWMD", "VWND", "COPY_VW", NULL};
    if (!strcmp(name, "GEMMK")) {
        return value == 0;
    }
    if (is_any(name, flags)) {
        return value <= 1;
    }
    if (is_any(name, vectors)) {
        return value >= 1 && value <= WIDEST_VECTOR && (value & (value - 1)) == 0;
    }
    return value >= 1 && value <= (strcmp(name, kernels[BOUND_KERNEL].names[0]) ? LARGEST : LARGEST_BOUND);
}

static size_t value_of(size_t kernel, const size_t *values, const char *name) {
    const size_t i = name ? find_name(kernel, name) : count_names(kernel);
    return kernels[kernel].names[i] ? values[i] : 1;
}

static bool are_multiples(size_t kernel, const size_t *values) {
    for (size_t i = 0; i < COUNT(multiples); i++) {
        const char *const *rule = multiples[i];
        const size_t product = value_of(kernel, values, rule[1]) * value_of(kernel, values, rule[2]);
        const size_t divisor = value_of(kernel, values, rule[3]);
        if (kernels[kernel].names[find_name(kernel, rule[0])] &&
            (product % divisor || value_of(kernel, values, rule[0]) % (product / divisor))) {
            return false;
        }
    }
    return true;
}

/* ---- reading */

/* "NAME=VALUE NAME=VALUE ...": each of the kernel's names once. PRECISION, the file's, may be there, too. */
static int parse_values(size_t kernel, const char *text, size_t *values) {
    bool known[CLBLAST_MOST_PARAMETERS] = {false};
    size_t count = 0;
    char name[32];
    unsigned value;
    int length;
    while (sscanf(text, " %31[A-Z0-9_]=%6u%n", name, &value, &length) == 2) {
        const size_t i = find_name(kernel, name);
        const bool named = kernels[kernel].names[i];
        if (named ? known[i] || !is_in_range(name, value) : strcmp(name, "PRECISION") != 0) {
            return error_set("best_parameters: %s is unknown, given twice or not in its range", name);
        }
        if (named) {
            known[i] = true;
            values[i] = value;
            count++;
        }
        text += length;
    }
    if (*text || count < count_names(kernel)) {
        return error_set("best_parameters does not give %zu numbers for %s", count_names(kernel),
                         kernels[kernel].kernel);
    }
    return are_multiples(kernel, values)
               ? 0
               : error_set("best_parameters: %s is not defined for these numbers", kernels[kernel].kernel);
}

/* The row of the kernel that a file is about; CLBLAST_KERNELS: none of GEMM's in fp32. */
static size_t find_kernel(const json_t *json) {
    const char *family = json_string_value(json_object_get(json, "kernel_family"));
    const char *precision = json_string_value(json_object_get(json, "precision"));
    size_t kernel = 0;
    for (; family && precision && kernel < CLBLAST_KERNELS; kernel++) {
        const size_t length = strlen(kernels[kernel].family);
        const char *stage = family + length;
        if (!strncmp(family, kernels[kernel].family, length) &&
            (!*stage || !strcmp(stage, "_1") || !strcmp(stage, "_2"))) {
            return strcmp(precision, "32") ? CLBLAST_KERNELS : kernel;
        }
    }
    return CLBLAST_KERNELS;
}

static int read_kernel(const json_t *json, size_t kernel, struct clblast_parameters *parameters) {
    const char *text = json_string_value(json_object_get(json, "best_parameters"));
    const char *time = json_string_value(json_object_get(json, "best_time"));
    struct clblast_kernel_parameters read = {.milliseconds = time ? strtod(time, NULL) : NAN};
    if (!text || !isfinite(read.milliseconds)) {
        return error_set("best_parameters or best_time is missing");
    }
    if (parse_values(kernel, text, read.values)) {
        return -1;
    }
    struct clblast_kernel_parameters *best = &parameters->kernels[kernel];
    if (read.milliseconds < best->milliseconds) {
        *best = read;
    }
    return 0;
}

static int read_file(const char *path, bool of_folder, struct clblast_parameters *parameters) {
    json_t *json;
    if (json_file_read(path, FILE_LIMIT, &json)) {
        return -1;
    }
    const size_t kernel = find_kernel(json);
    int status = 0;
    if (kernel < CLBLAST_KERNELS) {
        status = read_kernel(json, kernel, parameters);
    } else if (!of_folder) {
        status = error_set(
            "kernel_family and precision are not those of a kernel of GEMM in fp32, such as xgemm_1 and 32");
    }
    json_decref(json);
    return status ? error_prefix("%s: no parameters by a tuner of CLBlast", path) : 0;
}

struct folder {
    const char *path;
    struct clblast_parameters *parameters;
};

static int visit(void *context, const char *name) {
    const struct folder *folder = context;
    const size_t length = strlen(name);
    if (length < 5 || strcmp(name + length - 5, ".json")) {
        return 0;
    }
    return read_file(path_of("%s/%s", folder->path, name).text, true, folder->parameters);
}

int clblast_parameters_read(const char *path, struct clblast_parameters *parameters) {
    struct stat status;
    *parameters = (struct clblast_parameters){0};
    for (size_t i = 0; i < CLBLAST_KERNELS; i++) {
        parameters->kernels[i].milliseconds = INFINITY;
    }
    if (stat(path, &status) || !S_ISDIR(status.st_mode)) {
        return read_file(path, false, parameters);
    }
    if (files_each(path, visit, &(struct folder){path, parameters})) {
        return -1;
    }
    for (size_t i = 0; i < CLBLAST_KERNELS; i++) {
        if (isfinite(parameters->kernels[i].milliseconds)) {
            return 0;
        }
    }
    return error_set("%s has no JSON file that a tuner of CLBlast wrote for GEMM in fp32 (clblast_xgemm_1_32.json)",
                     path);
}

/* ---- CLBlast */

static int override(size_t kernel, const size_t *values, const struct device *device) {
    const char *names[CLBLAST_MOST_PARAMETERS];
    memcpy(names, kernels[kernel].names, sizeof names);
    const CLBlastStatusCode status =
        CLBlastOverrideParameters(device->id, kernels[kernel].kernel, CLBlastPrecisionSingle, count_names(kernel),
                                  names, values);
    return status == CLBlastSuccess
               ? 0
               : error_set("CLBlast refuses these parameters of %s (code %d)", kernels[kernel].kernel, (int)status);
}

int clblast_parameters_apply(const struct clblast_parameters *parameters, const struct device *device) {
    for (size_t i = 0; i < CLBLAST_KERNELS; i++) {
        if (isfinite(parameters->kernels[i].milliseconds) && override(i, parameters->kernels[i].values, device)) {
            return -1;
        }
    }
    return 0;
}

int clblast_parameters_apply_bound(size_t bound, const struct device *device) {
    return override(BOUND_KERNEL, &bound, device);
}
