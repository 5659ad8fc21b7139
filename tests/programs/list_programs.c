/* Prints, as JSON, every OpenCL program that hctrain would compile on a GPU, for ci/portability.py:
 *
 *   {"texts": {FILES: TEXT, ...},
 *    "programs": [{"target": ..., "files": FILES, "options": ...}, ...],
 *    "clspv": {"options": [...], "addresses": [...], "before": TEXT},
 *    "intel": {TARGET: OPTIONS, ...}}
 *
 * A program with a target is for the matrix cores of that GPU alone. The same program may be listed several times.
 * clspv: what the driver for Vulkan passes to the compiler beside a program's options, and puts before its text, on
 * a device with the least that it asks of devices; `addresses`: also where kernels get addresses of buffers. intel:
 * what programs without a target get in addition on Intel's GPUs.
 *
 *   list_programs [LANES [all]]     LANES: work-items that share a row (64); all: also other widths than model M's,
 *                                   and all combinations of switches
 *
 * A program is listed once for each device. This program opens none and compiles nothing: its computes are dry. The
 * list comes from the functions that build the programs in training, so it cannot differ from what is run. */
#include "runtime/device/programs.h"
#include "runtime/gemm/gemm.h"
#include "runtime/gemm/gemm_backend.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/vulkan/driver.h"
#include "src/operations/attention.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define INTEL_PLATFORM "Intel(R) OpenCL Graphics"

/* Widths: model M's, and with `all` those of other configs/ and one whose rows only vectors of 2 fit. The number
 * of compute units decides how much a work-item takes on. */
static const struct model {
    int64_t channels, heads, vocabulary;
    unsigned compute_units;
} models[] = {
    {768, 12, 50304, 8},
    {128, 4, 256, 8},
    {1024, 16, 50304, 128},
    {90, 9, 33, 128},
};

/* Everything that a program may depend on beside the width: a bit a switch of operation_shape. */
enum {
    BIAS = 1,
    NORM_SUM = 2,
    FLAGS = 4,
    GELU_TANH = 8,
    SCALED = 16,
    BASE = 32, /* all combinations of the switches before are tried */
    NO_POSITIONS = BASE,
    RMS_NORM = 64,
    CAPPED = 128,
    SWIGLU = 256,
    RELU2 = 512,
    HC_EPS = 1024,
    GAINLESS = 2048,
    GROUPED = 4096,
    ROPE = 8192,
    QK_NORM = 16384,
    COLLAPSED = 32768,
    READ_DELAY = 65536,
    ATTN_SCALE = 131072,
    SOFTCAP_BY_RSQRT = 262144,
    PLAIN_QK_NORM = 524288,
    HEAD_BIAS = 1048576,
    EMBED_NORM = 2097152,
    X0_LAMBDAS = 4194304,
    VALUE_EMBEDS = 8388608,
    TOGETHER = 16777216, /* those before */
    STATIC = TOGETHER,
    UNMIXED = 33554432,
    FIRST_ALONE = 5, /* BASE is 1 << 5, UNMIXED 1 << 25 */
    ALONE = 21,
    COMBINATIONS = BASE + ALONE + 1,
    ELEMENT_TYPES = ELEMENT_FP16 + 1
};

struct list {
    json_t *texts, *programs;
    const char *target; /* the GPU, for programs for matrix cores; "" for others */
    bool all;           /* widths and combinations of switches */
};

/* ---- what a dry compute would have built */

/* In the order in which they were built. */
static void list_built(struct list *list, const struct built_program *built) {
    if (built) {
        list_built(list, built->next);
        if (!json_object_get(list->texts, built->files)) {
            json_object_set_new(list->texts, built->files, json_string(built->text));
        }
        json_array_append_new(list->programs, json_pack("{s:s, s:s, s:s}", "target", list->target, "files",
                                                        built->files, "options", built->options));
    }
}

static void list_and_release(struct list *list, struct compute *compute) {
    list_built(list, compute->programs);
    programs_release(compute);
}

/* ---- programs of operations */

/* All settings of variants that are true or false, or a choice; and heads over depth. */
static void set_flags(struct residual_settings *settings, bool flag) {
    const struct residual_setting *setting;
    for (size_t i = 0; (setting = residual_setting_at(i, NULL)); i++) {
        if (setting->type == RESIDUAL_BOOL) {
            settings->values[i].flag = flag;
        } else if (setting->type == RESIDUAL_CHOICE) {
            settings->values[i].choice = flag;
        } else if (strcmp(setting->name, "attnres_heads") == 0) {
            settings->values[i].number = flag ? 2 : 1;
        }
    }
}

/* Those of the first, each of the later ones by itself, and all that go together. */
static unsigned combination(unsigned number) {
    return number < BASE           ? number
           : number < BASE + ALONE ? 1u << (number - BASE + FIRST_ALONE)
                                   : (unsigned)TOGETHER - 1;
}

/* None, all, what has maps of its own, or with `all` what there is of others. */
static bool is_listed(const struct list *list, unsigned bits) {
    return list->all || bits == 0 || bits == BASE - 1 || bits == TOGETHER - 1 || bits == STATIC || bits == UNMIXED;
}

static int list_switches(struct list *list, struct compute *compute, struct operation_shape shape) {
    const bool has_maps = residual_has_matrices(shape.residual);
    for (unsigned i = 0; i < COMBINATIONS * ELEMENT_TYPES; i++) {
        const unsigned bits = combination(i % COMBINATIONS);
        if (!is_listed(list, bits) || (bits >= TOGETHER && !has_maps)) {
            continue;
        }
        shape.type = (enum element_type)(i / COMBINATIONS);
        shape.muon_type = shape.type == ELEMENT_BF16 ? ELEMENT_BF16 : ELEMENT_FP32;
        shape.moments = shape.master = shape.muon_type;
        shape.bias = bits & BIAS;
        shape.embed_norm = bits & EMBED_NORM;
        shape.head_bias = bits & HEAD_BIAS;
        shape.norm_sum = bits & NORM_SUM;
        set_flags(&shape.settings, bits & FLAGS);
        shape.activation = bits & GELU_TANH ? ACTIVATION_GELU_TANH : ACTIVATION_GELU;
        shape.scaled = bits & SCALED && shape.streams > 1;
        shape.mlp = bits & SWIGLU ? MLP_SWIGLU : bits & RELU2 ? MLP_RELU2 : MLP_GELU;
        shape.hc_eps = bits & HC_EPS ? 1e-6 : 0.0;
        shape.hc_norm_eps = bits & HC_EPS ? 0.0 : 1e-6;
        shape.h_res_transposed = bits & HC_EPS && has_maps && !shape.residual->has_fractions;
        shape.collapsed = bits & COLLAPSED && shape.streams > 1;
        shape.read_delay = bits & READ_DELAY && has_maps && !shape.residual->has_fractions;
        shape.x0_lambdas = bits & X0_LAMBDAS;
        shape.value_embeds = bits & VALUE_EMBEDS;
        shape.settings.is_static = bits & STATIC;
        shape.settings.is_unmixed = bits & UNMIXED;
        shape.fixed_top = shape.collapsed && residual_is_fixed(shape.residual);
        shape.gainless = bits & GAINLESS;
        shape.softcap = bits & (CAPPED | SOFTCAP_BY_RSQRT) ? 15.0 : 0.0;
        shape.softcap_kind = bits & SOFTCAP_BY_RSQRT ? SOFTCAP_RSQRT : SOFTCAP_TANH;
        shape.norm = bits & RMS_NORM ? NORM_RMS : NORM_LAYER;
        shape.norm_eps = norm_epsilon(shape.norm);
        shape.position = bits & ROPE ? POSITION_ROPE : bits & NO_POSITIONS ? POSITION_NONE : POSITION_LEARNED;
        shape.kv_heads = bits & GROUPED ? shape.heads / (shape.heads % 4 ? 3 : 4) : 0;
        shape.qk_norm = bits & QK_NORM ? QK_NORM_GAINED : bits & PLAIN_QK_NORM ? QK_NORM_PLAIN : QK_NORM_NONE;
        shape.attn_scale = bits & ATTN_SCALE ? 0.12 : 0.0;
        struct operations operations;
        operations_describe(compute, &shape, &operations);
        const int status = operations_build(&operations, NULL);
        operations_release(&operations);
        if (status) {
            return -1;
        }
    }
    return 0;
}

static int list_residuals(struct list *list, struct compute *compute, const struct model *model) {
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        for (int64_t streams = 1; streams <= RESIDUAL_MAX_STREAMS; streams++) {
            const struct operation_shape shape = {.streams = streams,
                                                  .channels = model->channels,
                                                  .heads = model->heads,
                                                  .vocabulary = model->vocabulary,
                                                  .sublayers = 24,
                                                  .hidden = 4 * model->channels,
                                                  .muon = true,
                                                  .residual = variant,
                                                  .settings = residual_settings_default()};
            const bool divides = !variant->has_fractions || model->channels % streams == 0;
            if (residual_takes(variant, streams) && divides && list_switches(list, compute, shape)) {
                return -1;
            }
        }
    }
    return 0;
}

/* Every kernel of the portable GEMM for operands of this type in rows of whole vectors. */
static int list_blocks(struct compute *compute, enum element_type type) {
    enum { DEPTH = 512 }; /* of k, which two work-groups share */
    struct gemm_state state = {.backend = &gemm_backend_portable, .groups_expected = 1};
    const struct buffer matrices = {.type = type};
    compute->attached = &state;
    for (size_t edge = 128; edge >= 32; edge /= 2) {
        for (unsigned transposed = 0; transposed < 4; transposed++) {
            const struct matrix matrix = matrix_of(&matrices, 0, edge, edge);
            const struct gemm_call call = {.name = "blocks",
                                           .a = matrix,
                                           .b = matrix,
                                           .c = matrix,
                                           .m = edge,
                                           .n = edge,
                                           .k = edge,
                                           .transpose_a = transposed & 1,
                                           .transpose_b = transposed & 2};
            gemm_backend_portable.run(compute, &call);
        }
    }
    state.groups_expected = 2;
    const struct gemm_call call = {.name = "parts",
                                   .a = matrix_of(&matrices, 0, 32, DEPTH),
                                   .b = matrix_of(&matrices, 0, DEPTH, 32),
                                   .c = matrix_of(&matrices, 0, 32, 32),
                                   .m = 32,
                                   .n = 32,
                                   .k = DEPTH};
    gemm_backend_portable.run(compute, &call);
    buffer_release(compute, &state.partial);
    compute->attached = NULL;
    return compute_check(compute);
}

/* Programs that do not belong to an operation. */
static int list_others(struct compute *compute) {
    static const char *const conversion[] = {"convert.cl", NULL};
    static const char *const loops[] = {"loops.cl", NULL};
    cl_program program;
    if (program_build(compute, loops, "", &program) ||
        program_build(compute, conversion, "-DACT=1 -DVEC=4", &program) ||
        program_build(compute, conversion, "-DACT=2 -DVEC=4", &program)) {
        return -1;
    }
    return list_blocks(compute, ELEMENT_FP32) || list_blocks(compute, ELEMENT_BF16) ? -1 : 0; /* other loads */
}

/* ---- programs for matrix cores */

#define NVIDIA_GPU(capability)                                                                                     \
    {.max_work_group = 1024,                                                                                       \
     .local_bytes = 48 << 10,                                                                                      \
     .compute_capability = (capability),                                                                           \
     .has_nvidia_options = true}
#define AMD_GPU(architecture)                                                                                      \
    {.name = architecture,                                                                                         \
     .platform_name = "AMD Accelerated Parallel Processing",                                                       \
     .max_work_group = 256,                                                                                        \
     .local_bytes = 64 << 10}
#define INTEL_GPU(width)                                                                                           \
    {.platform_name = INTEL_PLATFORM,                                                                              \
     .max_work_group = 1024,                                                                                       \
     .local_bytes = (width) == 16 ? 128 << 10 : 64 << 10, /* Data Center GPU Max, Arc A */                         \
     .has_intel_matrix = true,                                                                                     \
     .sub_group = (width)}

/* By the names that ci/portability.py has for them; Intel's by the width of their sub-groups. */
static const struct {
    const char *target;
    struct device device;
} matrix_gpus[] = {
    {"sm_86", NVIDIA_GPU(86)},       {"sm_90", NVIDIA_GPU(90)},     {"gfx908", AMD_GPU("gfx908")},
    {"gfx90a", AMD_GPU("gfx90a")},   {"gfx942", AMD_GPU("gfx942")}, {"gfx1100", AMD_GPU("gfx1100")},
    {"gfx1201", AMD_GPU("gfx1201")}, {"intel16", INTEL_GPU(16)},    {"intel8", INTEL_GPU(8)},
};

/* Buffers of each type, without memory: what reads and writes them does not run. */
static struct buffer typed_buffers[ELEMENT_TYPES];

/* A GEMM whose kernel differs from others': what its bits say, and how A and B are read. */
enum { TRANSPOSED_A = 1, TRANSPOSED_B = 2, ADDS = 4, WITH_BIAS = 8, FP16 = 16, FP32_C = 32 };
enum alignment { UNALIGNED, EDGES, WHOLE_TILES };

static void list_gemm_with(struct compute *compute, unsigned bits, enum alignment alignment,
                           enum gemm_epilogue epilogue, const char *activation) {
    const size_t size = alignment == WHOLE_TILES ? 256 : alignment == EDGES ? 264 : 257;
    const enum element_type type = bits & FP16 ? ELEMENT_FP16 : ELEMENT_BF16;
    const struct matrix operand = matrix_of(&typed_buffers[type], 0, size, size);
    mma_run(compute,
            &(struct gemm_call){.transpose_a = bits & TRANSPOSED_A,
                                .transpose_b = bits & TRANSPOSED_B,
                                .m = size,
                                .n = size,
                                .k = size,
                                .a = operand,
                                .b = operand,
                                .c = matrix_of(&typed_buffers[bits & FP32_C ? ELEMENT_FP32 : type], 0, size, size),
                                .beta = bits & ADDS ? 1.0f : 0.0f,
                                .bias = {bits & WITH_BIAS ? &typed_buffers[ELEMENT_FP32] : NULL, 0},
                                .epilogue = epilogue,
                                .side = operand,
                                .activation = activation});
}

static void list_gemm(struct compute *compute, unsigned bits, enum alignment alignment) {
    list_gemm_with(compute, bits, alignment, EPILOGUE_NONE, NULL);
}

static const char *const activations[] = {"gelu", "gelu_tanh", "relu2"};

/* What a layer needs of each shape of tiles; with large tiles all ways to read A and B, and all that may follow
 * the GEMM, also where work-groups share a sum. */
static int list_matrix_gemm(struct compute *compute, const struct matrix_cores *cores) {
    struct gemm_state state = {.mma = {.cores = *cores, .parts = 1}};
    struct mma *mma = &state.mma;
    compute->attached = &state;
    for (int shape = MMA_SHAPES - 1; shape >= 0; shape--) { /* the large ones are the last, and stay */
        mma->only = &cores->tiles[shape];
        list_gemm(compute, TRANSPOSED_B | WITH_BIAS, WHOLE_TILES);
        list_gemm(compute, 0, EDGES);
        list_gemm(compute, TRANSPOSED_A | FP32_C | ADDS, WHOLE_TILES);
    }
    for (unsigned transposed = 0; transposed < 4; transposed++) {
        for (enum alignment alignment = UNALIGNED; alignment <= WHOLE_TILES; alignment++) {
            list_gemm(compute, transposed | FP32_C, alignment);
        }
    }
    list_gemm_with(compute, FP16 | TRANSPOSED_B | WITH_BIAS, EDGES, EPILOGUE_ACTIVATION, "gelu");
    for (mma->whole = 1, mma->parts = 1; mma->parts <= 2; mma->parts++) {
        list_gemm(compute, TRANSPOSED_A | FP32_C | ADDS, WHOLE_TILES);
        for (size_t i = 0; i < COUNT(activations); i++) {
            list_gemm_with(compute, TRANSPOSED_B | WITH_BIAS, WHOLE_TILES, EPILOGUE_ACTIVATION, activations[i]);
            list_gemm_with(compute, 0, WHOLE_TILES, EPILOGUE_DERIVATIVE, activations[i]);
        }
        list_gemm_with(compute, 0, WHOLE_TILES, EPILOGUE_GATES, "silu");
    }
    buffer_release(compute, &state.partial);
    compute->attached = NULL;
    return compute_check(compute);
}

static int list_matrix_attention(struct compute *compute, const struct matrix_cores *unit) {
    static const struct {
        int64_t head_size;
        enum element_type type;
    } heads[] = {{64, ELEMENT_BF16}, {64, ELEMENT_FP16},  {80, ELEMENT_BF16},
                 {96, ELEMENT_BF16}, {128, ELEMENT_BF16}, {128, ELEMENT_FP16}};
    for (size_t i = 0; i < COUNT(heads); i++) {
        struct operations operations = {
            .compute = compute,
            .shape = {.heads = 1,
                      .channels = heads[i].head_size,
                      .type = heads[i].type,
                      .drops = heads[i].head_size % 64 == 0 && heads[i].type == ELEMENT_BF16},
        };
        if (attention_matrix_cores_open(&operations, unit)) {
            return -1;
        }
        attention_matrix_cores_close(&operations);
    }
    return 0;
}

static int list_matrix_cores(struct list *list, const struct device *device, unsigned lanes) {
    struct compute compute = {.device = *device, .dry = true, .lanes = lanes, .vector = 4};
    struct matrix_cores unit;
    compute.device.is_gpu = true;
    compute.device.compute_units = 64;
    compute.device.max_buffer_bytes = SIZE_MAX;
    for (int type = 0; type < ELEMENT_TYPES; type++) {
        typed_buffers[type] = (struct buffer){.bytes = SIZE_MAX, .type = (enum element_type)type};
    }
    const int status = matrix_cores_find(&compute.device, &unit) || list_matrix_gemm(&compute, &unit) ||
                       list_matrix_attention(&compute, &unit);
    list_and_release(list, &compute);
    return status ? -1 : 0;
}

static int list_all(struct list *list, unsigned lanes) {
    for (size_t i = 0; i < (list->all ? COUNT(models) : 1); i++) {
        /* as compute_open sees a GPU; with Intel's driver programs have an option more, which others do without */
        struct compute compute = {
            .device = {.name = "any GPU",
                       .platform_name = INTEL_PLATFORM,
                       .is_gpu = true,
                       .compute_units = models[i].compute_units,
                       .max_work_group = 256,
                       .local_bytes = 64 << 10,
                       .max_buffer_bytes = SIZE_MAX},
            .dry = true,
            .lanes = lanes,
            .vector = 4,
        };
        if (list_residuals(list, &compute, &models[i]) || list_others(&compute)) {
            return -1;
        }
        list_and_release(list, &compute);
    }
    for (size_t i = 0; i < COUNT(matrix_gpus); i++) {
        list->target = matrix_gpus[i].target;
        if (list_matrix_cores(list, &matrix_gpus[i].device, lanes)) {
            return error_prefix("%s", list->target);
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

/* As runtime/vulkan/compiler.c has it for a device with the least of push constants and of groups that Vulkan
 * allows. */
static json_t *list_clspv(void) {
    static const char *const options[] = {VULKAN_COMPILER_OPTIONS, VULKAN_OFFSET_OPTION};
    static const char *const addresses[] = {VULKAN_ADDRESS_OPTIONS};
    json_t *listed = list_words(options, COUNT(options));
    json_array_append_new(listed, json_sprintf(VULKAN_PUSH_CONSTANT_OPTION, VULKAN_LEAST_PUSH_CONSTANTS));
    return json_pack("{s:o, s:o, s:s}", "options", listed, "addresses", list_words(addresses, COUNT(addresses)),
                     "before", VULKAN_OFFSET_PREAMBLE);
}

static json_t *list_intel(void) {
    json_t *listed = json_object();
    for (size_t i = 0; i < COUNT(matrix_gpus); i++) {
        struct device device = matrix_gpus[i].device;
        device.is_gpu = true;
        if (device_by_intel(&device)) {
            json_object_set_new(listed, matrix_gpus[i].target, json_string(device_sub_group_option(&device)));
        }
    }
    return listed;
}

int main(int count, char **arguments) {
    struct list list = {.texts = json_object(), .programs = json_array(), .target = "", .all = count > 2};
    const long lanes = count > 1 ? strtol(arguments[1], NULL, 10) : 64;
    if (count > 3 || lanes < 1 || lanes > 1024 || (count > 2 && strcmp(arguments[2], "all"))) {
        fprintf(stderr, "usage: list_programs [LANES [all]]\n");
        return 2;
    }
    if (list_all(&list, (unsigned)lanes)) {
        fprintf(stderr, "list_programs: %s\n", error_text());
        return 1;
    }
    json_t *whole = json_pack("{s:o, s:o, s:o, s:o}", "texts", list.texts, "programs", list.programs, "clspv",
                              list_clspv(), "intel", list_intel());
    const bool written = json_dumpf(whole, stdout, JSON_COMPACT) == 0 && fclose(stdout) == 0;
    json_decref(whole);
    if (!written) {
        fprintf(stderr, "list_programs: cannot write the list\n");
        return 1;
    }
    return 0;
}
