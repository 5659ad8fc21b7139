#include "src/operations/kernels.h"
#include "runtime/system/error.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- shapes that suit the device */

size_t row_chunks(const struct compute *compute) {
    return compute->device.is_gpu ? 256 : 32;
}

size_t square_chunks(const struct compute *compute) {
    return 4 * row_chunks(compute);
}

size_t map_chunks(const struct compute *compute, const struct operation_shape *shape) {
    const size_t theta = (size_t)residual_theta(shape->residual, shape->streams);
    const size_t fitting = theta ? ((size_t)4 << 20) / theta : 1;
    const size_t wanted = compute->device.is_gpu ? 2048 : 32;
    return fitting < 32 ? 32 : fitting < wanted ? fitting : wanted;
}

unsigned vector_for(const struct compute *compute, int64_t length) {
    unsigned vector = compute->vector;
    while (length % vector != 0) {
        vector /= 2;
    }
    return vector;
}

static size_t maximum(size_t a, size_t b) {
    return a > b ? a : b;
}

size_t operations_scratch_bytes(const struct compute *compute, const struct operation_shape *shape) {
    const size_t rows = row_chunks(compute) * 4 * (size_t)shape->channels; /* widest: the bias of c_fc */
    const size_t theta = map_chunks(compute, shape) * (size_t)residual_theta(shape->residual, shape->streams);
    return maximum(maximum(rows, theta), square_chunks(compute)) * sizeof(float);
}

/* ---- building */

void constants_add(struct constants *constants, const char *format, ...) {
    const size_t used = strlen(constants->text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(constants->text + used, sizeof constants->text - used, format, arguments);
    va_end(arguments);
}

void constants_add_vector(const struct operations *operations, struct constants *constants) {
    constants_add(constants, "-DVEC=%u", operations->vector);
}

void constants_add_streams(const struct operations *operations, struct constants *constants) {
    const struct operation_shape *shape = &operations->shape;
    constants_add_vector(operations, constants);
    constants_add(constants, " -DSTREAMS=%" PRId64 " -DCHANNELS=%" PRId64, shape->streams, shape->channels);
    constants_add(constants, " -DBIAS=%d -DPLAIN=%d -DRMS_GROUPS=%zu -DNORM_SUM=%d -DVOCABULARY=%" PRId64,
                  shape->bias, residual_is_plain(shape->residual), operations->norm_groups, shape->norm_sum,
                  shape->vocabulary);
}

static int build(struct operations *operations, const struct operation_program *row) {
    struct constants constants = {""};
    char variant[64];
    snprintf(variant, sizeof variant, "hc_%s.cl", operations->shape.residual->name);
    const char *files[sizeof row->files / sizeof *row->files + 2] = {"common.cl"};
    for (size_t i = 0; i < sizeof row->files / sizeof *row->files && row->files[i]; i++) {
        files[1 + i] = strchr(row->files[i], '%') ? variant : row->files[i];
    }
    row->add_constants(operations, &constants);
    constants_add(&constants, " -DACT=%d", element_code(operations->shape.type));
    cl_program program = NULL;
    int status = program_build(operations->compute, files, constants.text, &program);
    for (size_t i = 0; status == 0 && i < sizeof row->kernels / sizeof *row->kernels && row->kernels[i].name; i++) {
        struct kernel *kernel = (struct kernel *)((char *)operations->kernels + row->kernels[i].at);
        status = kernel_create(operations->compute, program, row->kernels[i].name, kernel);
    }
    if (program) {
        clReleaseProgram(program);
    }
    return status;
}

static int build_all(struct operations *operations) {
    static const struct operation_program *const families[] = {
        embedding_programs,   stream_programs,    head_programs,      map_programs,
        elementwise_programs, attention_programs, optimiser_programs,
    };
    const bool plain = residual_is_plain(operations->shape.residual);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        for (const struct operation_program *row = families[i]; row->files[0]; row++) {
            if (!(plain && families[i] == map_programs) && build(operations, row)) {
                return -1;
            }
        }
    }
    return 0;
}

/* Everything but what needs a device. */
static int describe(struct compute *compute, const struct operation_shape *shape, struct operations *operations) {
    *operations = (struct operations){
        .compute = compute,
        .shape = *shape,
        .columns = (size_t)residual_columns(shape->residual, shape->streams),
        .norm_groups = (size_t)residual_norm_groups(shape->residual, shape->streams),
        .h_row = (size_t)(shape->streams * (shape->streams + 2)),
        .vector = vector_for(compute, shape->channels),
        .kernels = calloc(1, sizeof(struct operation_kernels)),
    };
    return operations->kernels ? 0 : error_set("out of memory");
}

int operations_create(struct compute *compute, const struct operation_shape *shape, struct operations *operations) {
    if (describe(compute, shape, operations)) {
        return -1;
    }
    if (buffer_create(compute, &operations->partials, operations_scratch_bytes(compute, shape)) ||
        build_all(operations)) {
        operations_release(operations);
        return -1;
    }
    attention_open(operations);
    return 0;
}

int operations_list_programs(struct compute *compute, const struct operation_shape *shape) {
    struct operations operations;
    if (describe(compute, shape, &operations)) {
        return -1;
    }
    const int status = build_all(&operations);
    operations_release(&operations);
    return status;
}

void operations_release(struct operations *operations) {
    if (!operations->kernels) {
        return;
    }
    struct kernel *kernels = (struct kernel *)operations->kernels; /* the struct holds nothing else */
    for (size_t i = 0; i < sizeof *operations->kernels / sizeof *kernels; i++) {
        if (kernels[i].handle) {
            kernel_release(&kernels[i]);
        }
    }
    if (operations->partials.memory) {
        buffer_release(operations->compute, &operations->partials);
    }
    attention_close(operations);
    free(operations->kernels);
    memset(operations, 0, sizeof *operations);
}

/* ---- sums over chunks of rows */

struct chunking chunk_rows(size_t rows, size_t most) {
    const size_t per_chunk = (rows + most - 1) / most;
    return (struct chunking){per_chunk, per_chunk ? (rows + per_chunk - 1) / per_chunk : 0};
}

void add_partials(struct operations *operations, size_t chunks, size_t width, size_t first, size_t count,
                  struct span out) {
    RUN_GROUPS(partials_add, count, ELEMENT_GROUP, ARG_BUFFER(&operations->partials), ARG_U64(chunks),
               ARG_I32(width), ARG_I32(first), ARG_I32(count), ARG_SPAN(out));
}

void add_norm_partials(struct operations *operations, size_t chunks, struct layer_norm gradients) {
    const size_t channels = (size_t)operations->shape.channels;
    add_partials(operations, chunks, 2 * channels, 0, channels, gradients.gain);
    if (operations->shape.bias) {
        add_partials(operations, chunks, 2 * channels, channels, channels, gradients.bias);
    }
}
