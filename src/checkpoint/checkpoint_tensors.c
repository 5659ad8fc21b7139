#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/weights.h"
#include "src/model/optimizer.h"
#include <stdlib.h>

/* The tensors of a file, between it and the arenas on the device: the weights in the order of the table of
 * parameters, or the optimizer's states, one after the other. */
struct arena_tensors {
    struct gpt *gpt;
    bool moments;
    size_t count;
    struct tensor_info *infos; /* [count], with names */
    struct weights *weights;   /* the file, when weights are loaded */
    struct safetensors *file;  /* the file, when states are loaded */
};

static struct arena_tensors describe(struct gpt *gpt, bool moments) {
    const struct parameters *parameters = &gpt->parameters;
    const char *const *states = gpt->options.optimizer->states;
    size_t arenas = 1;
    while (moments && arenas < OPTIMIZER_MOST_STATES && states[arenas]) {
        arenas++;
    }
    struct arena_tensors tensors = {.gpt = gpt, .moments = moments, .count = arenas * parameters->count};
    tensors.infos = memory_allocate(tensors.count, sizeof *tensors.infos);
    for (size_t i = 0; i < tensors.count; i++) {
        const struct parameter *parameter = &parameters->table[i % parameters->count];
        tensors.infos[i] = weights_tensor(parameter, false);
        tensors.infos[i].name = moments ? memory_format("%s.%s", states[i / parameters->count], parameter->name)
                                        : memory_string(parameter->name);
    }
    return tensors;
}

static void release(struct arena_tensors *tensors) {
    weights_close(tensors->weights);
    safetensors_close(tensors->file);
    for (size_t i = 0; i < tensors->count; i++) {
        free(tensors->infos[i].name);
    }
    free(tensors->infos);
}

/* Where a tensor is on the device. */
static const struct buffer *arena_of(const struct arena_tensors *tensors, size_t tensor,
                                     const struct parameter **parameter) {
    const struct parameters *parameters = &tensors->gpt->parameters;
    *parameter = &parameters->table[tensor % parameters->count];
    return tensors->moments ? parameters->states[tensor / parameters->count] : parameters->weights;
}

/* Ranks may divide the states. */
static const struct moment_share *share_of(const struct arena_tensors *tensors) {
    return tensors->moments ? tensors->gpt->options.moments : NULL;
}

/* ---- from the device */

static int read_arena(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    const struct arena_tensors *tensors = context;
    const struct parameter *parameter;
    const struct buffer *arena = arena_of(tensors, tensor, &parameter);
    const uint64_t at = parameter->offset + first;
    struct compute *compute = tensors->gpt->compute;
    const struct moment_share *share = share_of(tensors);
    const int status = share ? share->read(share, compute, arena, at, count, values)
                             : buffer_read(compute, arena, at * sizeof *values, values, count * sizeof *values);
    return status ? error_prefix("%s", parameter->name) : 0;
}

static int write_tensors(const char *path, struct gpt *gpt, bool moments) {
    struct arena_tensors tensors = describe(gpt, moments);
    const int status = safetensors_write(path, tensors.infos, tensors.count, read_arena, &tensors);
    release(&tensors);
    return status;
}

int checkpoint_write_weights(const char *path, struct gpt *gpt) {
    return write_tensors(path, gpt, false);
}

int checkpoint_write_moments(const char *path, struct gpt *gpt) {
    return write_tensors(path, gpt, true);
}

int checkpoint_hand_over(struct gpt *gpt) {
    if (!gpt->options.moments) {
        return 0;
    }
    struct arena_tensors tensors = describe(gpt, true);
    const int status = tensors_each_piece(tensors.infos, tensors.count, read_arena, &tensors);
    release(&tensors);
    return status ? error_prefix("cannot send the optimizer's states for a checkpoint") : 0;
}

/* ---- to the device */

static int load_piece(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    const struct arena_tensors *tensors = context;
    const struct parameter *parameter;
    const struct buffer *arena = arena_of(tensors, tensor, &parameter);
    const uint64_t at = parameter->offset + first;
    struct compute *compute = tensors->gpt->compute;
    const struct moment_share *share = share_of(tensors);
    const struct tensor_info *info = NULL;
    if (tensors->moments && !(info = weights_find(tensors->file, &tensors->infos[tensor]))) {
        return -1;
    }
    return (info ? safetensors_read_f32(tensors->file, info, first, count, values)
                 : weights_read(tensors->weights, parameter, false, first, count, values)) ||
                   (share ? share->write(share, compute, arena, at, count, values)
                          : buffer_write(compute, arena, at * sizeof *values, values, count * sizeof *values))
               ? error_prefix("tensor '%s'", tensors->infos[tensor].name)
               : 0;
}

int checkpoint_load_weights(const char *folder, struct gpt *gpt) {
    struct arena_tensors tensors = describe(gpt, false);
    const int status = weights_open(folder, &gpt->config, &gpt->parameters, &tensors.weights) ||
                       tensors_each_piece(tensors.infos, tensors.count, load_piece, &tensors);
    release(&tensors);
    parameters_round(gpt->compute, &gpt->parameters);
    return status ? -1 : 0;
}

int checkpoint_load_moments(const char *path, struct gpt *gpt) {
    struct arena_tensors tensors = describe(gpt, true);
    int status = safetensors_open(path, &tensors.file) || weights_check_count(tensors.file, path, tensors.count);
    if (status == 0 && tensors_each_piece(tensors.infos, tensors.count, load_piece, &tensors)) {
        status = error_prefix("%s", path);
    }
    release(&tensors);
    return status ? -1 : 0;
}
