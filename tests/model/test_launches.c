/* What launches say of their arguments (ARG_IN and the like in runtime/device/compute.h), from which records count
 * bytes, held to what kernels do: every launch of small models' training steps goes through the function below,
 * which is linked in place of kernel_run.
 *
 * - What the kernel has a const pointer to is not said to be written.
 * - No more bytes of a buffer change than are said to be written.
 * - A buffer that is said to be written and not read gets the same from the kernel whatever it had before, and in
 *   exactly as many bytes as are said.
 *
 * And what is put into the queue in other ways is logged, too. */
#include "runtime/device/gpu_model.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "tests/support/scratch.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- in place of clBuildProgram: kernels that know their arguments' types */

cl_int __real_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                             void (*notify)(cl_program, void *), void *data);
cl_int __wrap_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                             void (*notify)(cl_program, void *), void *data);

cl_int __wrap_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                             void (*notify)(cl_program, void *), void *data) {
    char *all;
    assert_true(asprintf(&all, "-cl-kernel-arg-info %s", options) > 0);
    const cl_int code = __real_clBuildProgram(program, count, devices, all, notify, data);
    free(all);
    return code;
}

/* ---- what is put into the queue, but for what this test looks at */

enum command { KERNEL, FILL, COPY, WRITE, READ, COMMANDS };
static size_t enqueued[COMMANDS];
static bool counting;

#define COUNTED(name, command, parameters, ...)                                                                    \
    cl_int __real_##name parameters;                                                                               \
    cl_int __wrap_##name parameters;                                                                               \
    cl_int __wrap_##name parameters {                                                                              \
        enqueued[command] += counting;                                                                             \
        return __real_##name(__VA_ARGS__);                                                                         \
    }
#define EVENTS cl_uint events, const cl_event *before, cl_event *event

COUNTED(clEnqueueNDRangeKernel, KERNEL,
        (cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *offset, const size_t *global,
         const size_t *local, EVENTS),
        queue, kernel, dimensions, offset, global, local, events, before, event)
COUNTED(clEnqueueFillBuffer, FILL,
        (cl_command_queue queue, cl_mem buffer, const void *pattern, size_t size, size_t at, size_t bytes, EVENTS),
        queue, buffer, pattern, size, at, bytes, events, before, event)
COUNTED(clEnqueueCopyBuffer, COPY,
        (cl_command_queue queue, cl_mem from, cl_mem to, size_t from_at, size_t to_at, size_t bytes, EVENTS), queue,
        from, to, from_at, to_at, bytes, events, before, event)
COUNTED(clEnqueueWriteBuffer, WRITE,
        (cl_command_queue queue, cl_mem buffer, cl_bool waits, size_t at, size_t bytes, const void *data, EVENTS),
        queue, buffer, waits, at, bytes, data, events, before, event)
COUNTED(clEnqueueReadBuffer, READ,
        (cl_command_queue queue, cl_mem buffer, cl_bool waits, size_t at, size_t bytes, void *data, EVENTS), queue,
        buffer, waits, at, bytes, data, events, before, event)

static enum command command_of(const struct launch_entry *entry) {
    return entry->groups                             ? KERNEL
           : strcmp(entry->name, "buffer_zero") == 0 ? FILL
           : strcmp(entry->name, "buffer_copy") == 0 ? COPY
           : strcmp(entry->name, "buffer_read") == 0 ? READ
           : strncmp(entry->name, "buffer_", 7) == 0 ? WRITE
                                                     : COMMANDS; /* a wait, or a GEMM of a library */
}

/* The log from entry `first` on has everything that was put into the queue meanwhile. */
static void check_log(const struct launch_log *log, size_t first) {
    size_t logged[COMMANDS + 1] = {0};
    for (size_t i = first; i < log->count; i++) {
        logged[command_of(&log->entries[i])]++;
    }
    assert_true(enqueued[KERNEL] > 0 && enqueued[FILL] > 0 && enqueued[WRITE] > 0);
    for (enum command command = 0; command < COMMANDS; command++) {
        assert_int_equal(logged[command], enqueued[command]);
    }
}

/* ---- in place of kernel_run */

void __real_kernel_run(struct compute *compute, const struct launch *launch,
                       const struct kernel_argument *arguments, size_t count);
void __wrap_kernel_run(struct compute *compute, const struct launch *launch,
                       const struct kernel_argument *arguments, size_t count);

enum { MOST_NAMES = 96, MOST_ARGUMENTS = 32 };

/* Kernels that have run. */
static char names[MOST_NAMES][64];
static size_t names_count;

static void remember(cl_kernel kernel) {
    char name[64];
    assert_int_equal(clGetKernelInfo(kernel, CL_KERNEL_FUNCTION_NAME, sizeof name, name, NULL), CL_SUCCESS);
    for (size_t i = 0; i < names_count; i++) {
        if (strcmp(names[i], name) == 0) {
            return;
        }
    }
    assert_true(names_count < MOST_NAMES);
    strcpy(names[names_count++], name);
}

/* A buffer among the arguments, and what is said of it by all arguments that it is. */
struct object {
    const struct buffer *buffer;
    size_t read, written; /* bytes */
    unsigned char *before;
};

static size_t list_objects(const struct kernel_argument *arguments, size_t count,
                           struct object objects[MOST_ARGUMENTS]) {
    size_t found = 0;
    assert_true(count <= MOST_ARGUMENTS);
    for (size_t i = 0; i < count; i++) {
        const struct kernel_argument *argument = &arguments[i];
        size_t at = 0;
        if (!argument->buffer) {
            continue;
        }
        while (at < found && objects[at].buffer->memory != argument->buffer->memory) {
            at++;
        }
        if (at == found) {
            objects[found++] = (struct object){.buffer = argument->buffer};
        }
        const size_t bytes = argument->elements * element_size(argument->buffer->type);
        objects[at].read += argument->reads * bytes;
        objects[at].written += argument->writes * bytes;
    }
    return found;
}

static unsigned char *contents(const struct compute *compute, const struct object *object) {
    const struct buffer *buffer = object->buffer;
    unsigned char *data = malloc(buffer->bytes + 1);
    assert_non_null(data);
    assert_int_equal(clEnqueueReadBuffer(compute->queue, buffer->memory, CL_TRUE, 0, buffer->bytes, data, 0, NULL,
                                         NULL),
                     CL_SUCCESS);
    return data;
}

static bool is_blind(const struct object *object) {
    return object->written && !object->read;
}

/* As before; if `fill` is not NULL, with that byte all over what is written and not read. */
static void restore(const struct compute *compute, const struct object *objects, size_t count,
                    const unsigned char *fill) {
    for (size_t i = 0; i < count; i++) {
        const struct buffer *buffer = objects[i].buffer;
        const cl_int code =
            fill && is_blind(&objects[i])
                ? clEnqueueFillBuffer(compute->queue, buffer->memory, fill, 1, 0, buffer->bytes, 0, NULL, NULL)
                : clEnqueueWriteBuffer(compute->queue, buffer->memory, CL_TRUE, 0, buffer->bytes, objects[i].before,
                                       0, NULL, NULL);
        assert_int_equal(code, CL_SUCCESS);
    }
}

static void check_directions(const struct launch *launch, const struct kernel_argument *arguments, size_t count) {
    for (size_t i = 0; i < count; i++) {
        cl_kernel_arg_type_qualifier type;
        if (!arguments[i].buffer) {
            continue;
        }
        assert_int_equal(clGetKernelArgInfo(launch->kernel->handle, (cl_uint)i, CL_KERNEL_ARG_TYPE_QUALIFIER,
                                            sizeof type, &type, NULL),
                         CL_SUCCESS);
        if (type & CL_KERNEL_ARG_TYPE_CONST && arguments[i].writes) {
            fail_msg("%s: argument %zu is const, and said to be written", launch->kernel->name, i);
        }
    }
}

/* What a launch leaves behind, with this byte where it is said not to read. */
static void run_on(struct compute *compute, const struct launch *launch, const struct kernel_argument *arguments,
                   size_t count, const struct object *objects, size_t objects_count, unsigned char byte,
                   unsigned char *after[MOST_ARGUMENTS]) {
    restore(compute, objects, objects_count, &byte);
    __real_kernel_run(compute, launch, arguments, count);
    require(compute_check(compute));
    for (size_t i = 0; i < objects_count; i++) {
        after[i] = contents(compute, &objects[i]);
    }
}

static void check_object(const char *name, size_t place, const struct object *object, const unsigned char *zeros,
                         const unsigned char *ones) {
    const bool blind = is_blind(object);
    size_t written = 0, changed = 0;
    for (size_t byte = 0; byte < object->buffer->bytes; byte++) {
        const bool same = zeros[byte] == ones[byte];
        if (!same && !(blind && zeros[byte] == 0x00 && ones[byte] == 0xff)) {
            fail_msg("%s: what it writes depends on what was there, which it is said not to read: buffer %zu", name,
                     place);
        }
        written += same;
        changed += zeros[byte] != object->before[byte];
    }
    if (blind ? written != object->written : changed > object->written) {
        fail_msg("%s: buffer %zu gets %zu bytes, and %zu are said", name, place, blind ? written : changed,
                 object->written);
    }
}

void __wrap_kernel_run(struct compute *compute, const struct launch *launch,
                       const struct kernel_argument *arguments, size_t count) {
    struct object objects[MOST_ARGUMENTS];
    unsigned char *zeros[MOST_ARGUMENTS], *ones[MOST_ARGUMENTS];
    if (!launch->groups) {
        return;
    }
    const size_t found = list_objects(arguments, count, objects);
    const size_t before = compute->launch_log->count;
    const bool counts = counting;
    counting = false;
    for (size_t i = 0; i < found; i++) {
        objects[i].before = contents(compute, &objects[i]);
    }
    run_on(compute, launch, arguments, count, objects, found, 0xff, ones);
    run_on(compute, launch, arguments, count, objects, found, 0x00, zeros);
    restore(compute, objects, found, NULL);
    compute->launch_log->count = before;
    counting = counts;
    __real_kernel_run(compute, launch, arguments, count); /* the one that counts */
    remember(launch->kernel->handle);
    check_directions(launch, arguments, count);
    for (size_t i = 0; i < found; i++) {
        check_object(launch->kernel->name, i, &objects[i], zeros[i], ones[i]);
        free(objects[i].before);
        free(zeros[i]);
        free(ones[i]);
    }
}

/* ---- what launches */

/* Parts of newer models than GPT-2, whose parts all models here have. */
#define MODERN                                                                                                     \
    "norm=rmsnorm position=rope qk_norm=true n_kv_head=1 head_dim=32 hc_norm_gain=false stream_reduce=head "       \
    "hc_eps=1e-6 tie_embeddings=false embed_norm=true head_bias=true mlp=swiglu mlp_width=40 logit_softcap=3"
#define DELAYED "read_delay=true"

static struct model_config config_of(const char *residual, const char *settings) {
    struct model_config config = small_model_config(residual, 3);
    small_model_set(&config, "n_embd=32 bias=true dropout=0.1"); /* heads of 16, which matrix cores take */
    small_model_set(&config, settings);
    return config;
}

/* A step of a model with all that it has, in the shape of this device, or if it is NULL PoCL's own. Its
 * second pass adds to the gradients, which the first one writes. planned: type, and what the optimizer needs. */
static void train_planned(const char *as, const char *gemm, struct model_config config,
                          const struct gpt_options planned) {
    struct compute *compute;
    struct small_model model;
    const struct compute_options options = {.device = "pocl",
                                            .cache_dir = "",
                                            .gemm = gemm,
                                            .operands = planned.type,
                                            .model = as ? gpu_model_find(as, NULL) : NULL,
                                            .log_launches = true};
    require(gemm_compute_open(&compute, &options));
    small_model_create_planned(&model, compute, &config, &planned);
    small_model_randomise(&model, 1);
    require(compute_finish(compute));
    const size_t first = compute->launch_log->count;
    memset(enqueued, 0, sizeof enqueued);
    counting = true;
    require(gpt_set_batch(&model.gpt, model.gpt.shape, model.x, model.y));
    small_model_backward(&model, (struct gpt_pass){.dropout = true});
    small_model_accumulate(&model, (struct gpt_pass){.dropout = true, .iteration = 1});
    optimizer_step(&model.gpt,
                   &(struct optimizer_settings){
                       .learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.9, .muon_steps = 1, USUAL_RATES},
                   0);
    require(compute_finish(compute));
    counting = false;
    check_log(compute->launch_log, first);
    small_model_release(&model);
    compute_close(compute);
}

static void train(const char *as, const char *gemm, const char *residual, const char *settings,
                  enum element_type type) {
    train_planned(as, gemm, config_of(residual, settings), (struct gpt_options){.type = type});
}

static bool has_run(const char *name) {
    bool found = false;
    for (size_t i = 0; i < names_count; i++) {
        found |= strcmp(names[i], name) == 0;
    }
    return found;
}

UNIT_TEST(test_gpu) {
    train("emulation", "portable", "shc", "", ELEMENT_FP32);
    train("emulation", "portable", "mhc", MODERN, ELEMENT_FP32);
    assert_true(has_run("attention_backward_keys") && has_run("gemm_blocks"));
}

LONG_TEST(test_gpu_with_other_connections) {
    train("emulation", "portable", "hc", DELAYED, ELEMENT_FP32);
    train("emulation", "auto", "gated", "", ELEMENT_BF16);
    train("emulation", "portable", "hc", "", ELEMENT_FP32);
    train("emulation", "portable", "rc", "", ELEMENT_FP32);
    train("emulation", "auto", "mudd", "", ELEMENT_BF16);
    train("emulation", "portable", "frac", "n_streams=4 hc_until=3", ELEMENT_FP32);
    train("emulation", "auto", "mhc", "hc_dynamic=false hc_until=3", ELEMENT_BF16);
    train("emulation", "auto", "dar", "attnres_heads=4 x0_lambdas=true value_embeds=true", ELEMENT_BF16);
    train("emulation", "portable", "laurel", "laurel_rank=5", ELEMENT_FP32);
}

UNIT_TEST(test_gpu_with_matrix_units) {
    train("emulation", "auto", "mhc", "", ELEMENT_BF16);
    assert_true(has_run("attention_matrix_cores_backward_keys") && has_run("mma_gemm"));
}

UNIT_TEST(test_cpu) {
    train(NULL, "portable", "gated", "", ELEMENT_BF16);
    train(NULL, "portable", "mudd", MODERN, ELEMENT_BF16);
    train(NULL, "portable", "shc", MODERN, ELEMENT_BF16);
    train(NULL, "auto", "mhc", DELAYED, ELEMENT_BF16);
    train(NULL, "portable", "dar", "attnres_heads=2 x0_lambdas=true value_embeds=true", ELEMENT_BF16);
    train(NULL, "portable", "laurel", "laurel_rank=5", ELEMENT_BF16);
    assert_true(has_run("mix_between") && has_run("mix_backward"));
    assert_true(has_run("few_rows_multiply") && has_run("projections_gradient") && has_run("convert_to_fp32"));
}

/* With weights and states in bf16, and parts that are not trained. */
UNIT_TEST(test_kept_types) {
    static const char *const frozen[] = {"wte|h\\.0\\.mlp", "lm_head|h\\.1\\.attn"};
    for (size_t i = 0; optimizer_at(i); i++) {
        train_planned(NULL, "portable", config_of("shc", MODERN),
                      (struct gpt_options){.type = ELEMENT_BF16,
                                           .optimizer = {.optimizer = (int)i,
                                                         .freeze = (char *)(uintptr_t)frozen[i % COUNT(frozen)],
                                                         .moments = ELEMENT_BF16,
                                                         .master = ELEMENT_BF16}});
    }
    assert_true(has_run("muon_update") && has_run("embedding_norm_backward"));
}

LONG_TEST(test_cpu_with_other_connections) {
    train(NULL, "portable", "rc", MODERN, ELEMENT_FP32);
    train(NULL, "auto", "shc", "", ELEMENT_FP32);
    train(NULL, "portable", "identity", "", ELEMENT_BF16);
    train(NULL, "portable", "frac", "n_streams=4 x0_lambdas=true", ELEMENT_BF16);
    train(NULL, "portable", "mudd", "mudd_norm=prepost value_embeds=true", ELEMENT_BF16);
    train(NULL, "portable", "dense", "", ELEMENT_BF16);
    train(NULL, "portable", "shc", "hc_dynamic=false x0_lambdas=true", ELEMENT_BF16);
    train(NULL, "portable", "hc", "hc_until=1", ELEMENT_FP32);
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
