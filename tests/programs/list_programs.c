/* Prints, as JSON, every OpenCL program that hctrain would compile on a GPU, for ci/portability.py to compile with
 * the vendors' compilers:
 *
 *   {"texts": {FILES: TEXT, ...}, "programs": [{"model": ..., "rare": 0 or 1, "files": FILES, "options": ...},
 * ...]}
 *
 * It opens no device. The operations' programs come from the functions that build them in training, so their list
 * cannot differ from what is run. Kernels for matrix units are for ci/ptx.sh and ci/attention_ptx.sh. The same
 * program may be listed several times. `rare` ones differ from others only in which switches are combined. */
#include "runtime/gemm/gemm.h"
#include "runtime/gemm/gemm_backend.h"
#include "runtime/system/error.h"
#include "src/operations/operations.h"
#include <jansson.h>
#include <string.h>

/* Widths: those of configs/, and one whose rows only vectors of 2 fit. The GPUs' number of compute units decides
 * how much a work-item takes on. */
static const struct model {
    const char *name;
    int64_t channels, heads, vocabulary;
    unsigned compute_units;
} models[] = {
    {"tiny", 128, 4, 256, 8},
    {"M", 768, 12, 50304, 8},
    {"L", 1024, 16, 50304, 128},
    {"odd", 90, 9, 33, 128},
};

/* Everything that a program may depend on beside the width: a bit a switch of operation_shape. */
enum { BIAS = 1, NORM_SUM = 2, FREEZE_GAMMA = 4, GELU_TANH = 8, SWITCHES = 16, ELEMENT_TYPES = ELEMENT_FP16 + 1 };

#define LENGTH(array) (sizeof(array) / sizeof *(array))

struct list {
    json_t *texts, *programs;
    const char *model; /* what the programs that come next are for */
    bool rare;
};

static int list_take(void *context, const char *files, const char *text, const char *options) {
    struct list *list = context;
    if (!json_object_get(list->texts, files) && json_object_set_new(list->texts, files, json_string(text))) {
        return error_set("out of memory, or %s is not UTF-8", files);
    }
    json_t *program = json_pack("{s:s, s:i, s:s, s:s}", "model", list->model, "rare", (int)list->rare, "files",
                                files, "options", options);
    return json_array_append_new(list->programs, program) ? error_set("out of memory") : 0;
}

static int list_switches(struct list *list, struct compute *compute, struct operation_shape shape) {
    for (unsigned i = 0; i < SWITCHES * ELEMENT_TYPES; i++) {
        const unsigned bits = i % SWITCHES;
        list->rare = bits != 0 && bits != SWITCHES - 1;
        shape.type = (enum element_type)(i / SWITCHES);
        shape.bias = bits & BIAS;
        shape.norm_sum = bits & NORM_SUM;
        shape.freeze_gamma = bits & FREEZE_GAMMA;
        shape.gelu_tanh = bits & GELU_TANH;
        if (operations_list_programs(compute, &shape)) {
            return -1;
        }
    }
    return 0;
}

static int list_streams(struct list *list, struct compute *compute, const struct model *model,
                        const struct residual_variant *residual) {
    const bool plain = residual_is_plain(residual);
    const int64_t last = plain ? 1 : RESIDUAL_MAX_STREAMS;
    for (int64_t streams = plain ? 1 : RESIDUAL_MIN_STREAMS; streams <= last; streams++) {
        const struct operation_shape shape = {.streams = streams,
                                              .channels = model->channels,
                                              .heads = model->heads,
                                              .vocabulary = model->vocabulary,
                                              .sinkhorn_iterations = 20,
                                              .residual = residual};
        if (list_switches(list, compute, shape)) {
            return -1;
        }
    }
    return 0;
}

static int list_residuals(struct list *list, struct compute *compute, const struct model *model) {
    char names[256], *rest = NULL;
    snprintf(names, sizeof names, "%s", residual_names());
    for (const char *name = strtok_r(names, "|", &rest); name; name = strtok_r(NULL, "|", &rest)) {
        if (list_streams(list, compute, model, residual_find(name))) {
            return -1;
        }
    }
    return 0;
}

/* Programs that do not belong to an operation. */
static int list_others(struct list *list, struct compute *compute) {
    static const char *const conversion[] = {"common.cl", "convert.cl", NULL};
    cl_program none;
    list->rare = false;
    const int status = gemm_open(compute, "portable", ELEMENT_FP32, true) ||
                       program_build(compute, conversion, "-DACT=1 -DVEC=4", &none) ||
                       program_build(compute, conversion, "-DACT=2 -DVEC=4", &none);
    compute_release_parts(compute);
    return status ? -1 : 0;
}

static int list_all(struct list *list) {
    const struct program_sink sink = {list_take, list};
    for (size_t i = 0; i < LENGTH(models); i++) {
        /* as compute_open sees a GPU */
        struct compute compute = {
            .device = {.name = "any GPU",
                       .is_gpu = true,
                       .compute_units = models[i].compute_units,
                       .max_work_group = 256},
            .lanes = 64,
            .vector = 4,
            .sink = &sink,
        };
        list->model = models[i].name;
        if (list_residuals(list, &compute, &models[i]) || list_others(list, &compute)) {
            return -1;
        }
    }
    return 0;
}

int main(void) {
    struct list list = {json_object(), json_array(), NULL, false};
    if (list_all(&list)) {
        fprintf(stderr, "list_programs: %s\n", error_text());
        return 1;
    }
    json_t *whole = json_pack("{s:o, s:o}", "texts", list.texts, "programs", list.programs);
    const bool written = whole && json_dumpf(whole, stdout, JSON_COMPACT) == 0 && fclose(stdout) == 0;
    json_decref(whole);
    if (!written) {
        fprintf(stderr, "list_programs: cannot write the list\n");
        return 1;
    }
    return 0;
}
