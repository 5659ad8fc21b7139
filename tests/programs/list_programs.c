/* Prints, as JSON, every OpenCL program that hctrain would compile on a GPU, for ci/portability.py to compile with
 * the vendors' compilers:
 *
 *   {"texts": {FILES: TEXT, ...}, "programs": [{"model": ..., "rare": 0 or 1, "files": FILES, "options": ...},
 * ...], "clspv": {"options": [...], "addresses": [...], "before": TEXT}}
 *
 * clspv: what the driver for Vulkan gives the compiler beside a program's options, and before its text, on a device with the least
 * of what it asks of devices; `addresses`: and where kernels get addresses of buffers. An argument is the number of lanes (64).
 *
 * It opens no device and compiles nothing. The operations' programs come from the functions that build them in training, so their list
 * cannot differ from what is run. Kernels for matrix units are for ci/ptx.sh and ci/attention_ptx.sh. The same
 * program may be listed several times. `rare` ones differ from others only in which switches are combined. */
#include "runtime/gemm/gemm.h"
#include "runtime/gemm/gemm_backend.h"
#include "runtime/system/error.h"
#include "runtime/vulkan/compiler_options.h"
#include "src/operations/operations.h"
#include <jansson.h>
#include <stdlib.h>
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
enum {
    BIAS = 1,
    NORM_SUM = 2,
    FLAGS = 4,
    GELU_TANH = 8,
    SCALED = 16,
    SWITCHES = 32,
    ELEMENT_TYPES = ELEMENT_FP16 + 1
};

#define LENGTH(array) (sizeof(array) / sizeof *(array))

struct list {
    json_t *texts, *programs;
    const char *model; /* what the programs that come next are for */
    bool rare;
};

/* ---- an OpenCL that compiles nothing: in front of the library's, it has what building programs and creating kernels
 * and a scratch buffer takes. A program is its text and how many hold it. */

static struct list *listing;
static char no_object;

struct text_program {
    unsigned holders;
    char text[];
};

cl_program clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts, const size_t *lengths,
                                     cl_int *code) {
    (void)context, (void)count, (void)lengths;
    const size_t bytes = strlen(texts[0]) + 1;
    struct text_program *program = malloc(sizeof *program + bytes);
    if (program) {
        program->holders = 1;
        memcpy(program->text, texts[0], bytes);
    }
    *code = program ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
    return (cl_program)(void *)program;
}

/* The names in a text's #line directives, as "one.cl, two.cl". */
static void name_files(const char *text, char *names, size_t size) {
    static const char directive[] = "#line 1 \"";
    *names = '\0';
    for (const char *at = strstr(text, directive); at; at = strstr(at, directive)) {
        at += strlen(directive);
        const size_t used = strlen(names);
        snprintf(names + used, size - used, "%s%.*s", used ? ", " : "", (int)strcspn(at, "\""), at);
    }
}

cl_int clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                      void(CL_CALLBACK *notify)(cl_program, void *), void *unused) {
    (void)count, (void)devices, (void)notify, (void)unused;
    const char *text = ((const struct text_program *)(void *)program)->text;
    char files[256];
    name_files(text, files, sizeof files);
    if (!json_object_get(listing->texts, files) && json_object_set_new(listing->texts, files, json_string(text))) {
        return CL_OUT_OF_HOST_MEMORY; /* or the text is not UTF-8 */
    }
    json_t *listed = json_pack("{s:s, s:i, s:s, s:s}", "model", listing->model, "rare", (int)listing->rare, "files",
                               files, "options", options);
    return json_array_append_new(listing->programs, listed) ? CL_OUT_OF_HOST_MEMORY : CL_SUCCESS;
}

cl_int clRetainProgram(cl_program program) {
    ((struct text_program *)(void *)program)->holders++;
    return CL_SUCCESS;
}

cl_int clReleaseProgram(cl_program program) {
    struct text_program *text = (struct text_program *)(void *)program;
    if (--text->holders == 0) {
        free(text);
    }
    return CL_SUCCESS;
}

cl_kernel clCreateKernel(cl_program program, const char *name, cl_int *code) {
    (void)program, (void)name;
    *code = CL_SUCCESS;
    return (cl_kernel)(void *)&no_object;
}

cl_int clReleaseKernel(cl_kernel kernel) {
    (void)kernel;
    return CL_SUCCESS;
}

cl_mem clCreateBuffer(cl_context context, cl_mem_flags flags, size_t bytes, void *host, cl_int *code) {
    (void)context, (void)flags, (void)bytes, (void)host;
    *code = CL_SUCCESS;
    return (cl_mem)(void *)&no_object;
}

cl_int clEnqueueFillBuffer(cl_command_queue queue, cl_mem buffer, const void *pattern, size_t pattern_size,
                           size_t offset, size_t bytes, cl_uint count, const cl_event *events, cl_event *event) {
    (void)queue, (void)buffer, (void)pattern, (void)pattern_size, (void)offset, (void)bytes, (void)count;
    (void)events, (void)event;
    return CL_SUCCESS;
}

cl_int clReleaseMemObject(cl_mem buffer) {
    (void)buffer;
    return CL_SUCCESS;
}

/* ---- what is built */

/* All settings of variants that are true or false. */
static void set_flags(struct residual_settings *settings, bool flag) {
    const struct residual_setting *setting;
    for (size_t i = 0; (setting = residual_setting_at(i, NULL)); i++) {
        if (setting->type == RESIDUAL_BOOL) {
            settings->values[i].flag = flag;
        }
    }
}

static int list_switches(struct list *list, struct compute *compute, struct operation_shape shape) {
    for (unsigned i = 0; i < SWITCHES * ELEMENT_TYPES; i++) {
        const unsigned bits = i % SWITCHES;
        list->rare = bits != 0 && bits != SWITCHES - 1;
        shape.type = (enum element_type)(i / SWITCHES);
        shape.bias = bits & BIAS;
        shape.norm_sum = bits & NORM_SUM;
        set_flags(&shape.settings, bits & FLAGS);
        shape.gelu_tanh = bits & GELU_TANH;
        shape.scaled = bits & SCALED && shape.streams > 1;
        struct operations operations;
        if (operations_create(compute, &shape, &operations)) {
            return -1;
        }
        operations_release(&operations);
        programs_release(compute); /* so that those of the next switches are listed, whether rare or not */
    }
    return 0;
}

static int list_streams(struct list *list, struct compute *compute, const struct model *model,
                        const struct residual_variant *residual) {
    for (int64_t streams = 1; streams <= RESIDUAL_MAX_STREAMS; streams++) {
        if (!residual_takes(residual, streams)) {
            continue;
        }
        const struct operation_shape shape = {.streams = streams,
                                              .channels = model->channels,
                                              .heads = model->heads,
                                              .vocabulary = model->vocabulary,
                                              .sublayers = 24,
                                              .residual = residual,
                                              .settings = residual_settings_default()};
        if (list_switches(list, compute, shape)) {
            return -1;
        }
    }
    return 0;
}

static int list_residuals(struct list *list, struct compute *compute, const struct model *model) {
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        if (list_streams(list, compute, model, variant)) {
            return -1;
        }
    }
    return 0;
}

static int build_one(struct compute *compute, const char *const *files, const char *options) {
    cl_program program;
    const int status = program_build(compute, files, options, &program);
    return status ? status : clReleaseProgram(program);
}

/* Every kernel of the portable product for operands in fp32, and in bf16, which differ in their loads. */
static int list_products(struct compute *compute) {
    struct gemm_blocks blocks = {.groups_expected = 0};
    const int status =
        gemm_blocks_build(compute, &blocks, ELEMENT_FP32) || gemm_blocks_build(compute, &blocks, ELEMENT_BF16);
    gemm_blocks_release(compute, &blocks);
    return status ? -1 : 0;
}

/* Programs that do not belong to an operation. */
static int list_others(struct list *list, struct compute *compute) {
    static const char *const conversion[] = {"common.cl", "convert.cl", NULL};
    static const char *const loops[] = {"loops.cl", NULL};
    list->rare = false;
    const int status = gemm_open(compute, "portable", ELEMENT_FP32, true) || list_products(compute) ||
                       build_one(compute, loops, "") || build_one(compute, conversion, "-DACT=1 -DVEC=4") ||
                       build_one(compute, conversion, "-DACT=2 -DVEC=4");
    gemm_close(compute); /* compute_close would close a device */
    programs_release(compute);
    return status ? -1 : 0;
}

static int list_all(struct list *list, unsigned lanes) {
    listing = list;
    for (size_t i = 0; i < LENGTH(models); i++) {
        /* as compute_open sees a GPU */
        struct compute compute = {
            .device = {.name = "any GPU",
                       .is_gpu = true,
                       .compute_units = models[i].compute_units,
                       .max_work_group = 256,
                       .local_bytes = 64 << 10,
                       .max_buffer_bytes = SIZE_MAX},
            .compiling = {.silent = true},
            .lanes = lanes,
            .vector = 4,
        };
        list->model = models[i].name;
        if (list_residuals(list, &compute, &models[i]) || list_others(list, &compute)) {
            return -1;
        }
    }
    return 0;
}

static json_t *list_words(const char *const *words, size_t count) {
    json_t *listed = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(listed, json_string(words[i]));
    }
    return listed;
}

/* As runtime/vulkan/compiler.c has it for a device with the least of push constants and of groups that Vulkan allows. */
static json_t *list_clspv(void) {
    static const char *const options[] = {VULKAN_COMPILER_OPTIONS, VULKAN_OFFSET_OPTION};
    static const char *const addresses[] = {VULKAN_ADDRESS_OPTIONS};
    json_t *listed = list_words(options, LENGTH(options));
    json_array_append_new(listed, json_sprintf(VULKAN_PUSH_CONSTANT_OPTION, VULKAN_LEAST_PUSH_CONSTANTS));
    return json_pack("{s:o, s:o, s:s}", "options", listed, "addresses", list_words(addresses, LENGTH(addresses)),
                     "before", VULKAN_OFFSET_PREAMBLE);
}

int main(int count, char **arguments) {
    struct list list = {json_object(), json_array(), NULL, false};
    const long lanes = count > 1 ? strtol(arguments[1], NULL, 10) : 64;
    if (count > 2 || lanes < 1 || lanes > 1024) {
        fprintf(stderr, "usage: list_programs [LANES]\n");
        return 2;
    }
    if (list_all(&list, (unsigned)lanes)) {
        fprintf(stderr, "list_programs: %s\n", error_text());
        return 1;
    }
    json_t *whole =
        json_pack("{s:o, s:o, s:o}", "texts", list.texts, "programs", list.programs, "clspv", list_clspv());
    const bool written = whole && json_dumpf(whole, stdout, JSON_COMPACT) == 0 && fclose(stdout) == 0;
    json_decref(whole);
    if (!written) {
        fprintf(stderr, "list_programs: cannot write the list\n");
        return 1;
    }
    return 0;
}
