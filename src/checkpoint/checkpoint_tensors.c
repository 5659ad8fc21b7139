#include "src/checkpoint/checkpoint_tensors.h"
#include "runtime/system/error.h"
#include "src/checkpoint/weights.h"
#include "src/model/optimizer.h"
#include <stdlib.h>

/* The tensors of a checkpoint's file: the weights in the order of the table, or both moments, one after the other. */
struct arena_tensors {
    struct gpt *gpt;
    bool moments;
    size_t count;
    struct tensor_info *infos; /* [count] */
    char (*names)[128];        /* [count] */
    struct weights *weights;   /* what is being loaded, */
    struct safetensors *file;  /* or that */
};

static int describe(struct gpt *gpt, bool moments, struct arena_tensors *tensors) {
    const struct parameters *parameters = &gpt->parameters;
    const char *const *states = gpt->options.optimizer->states;
    size_t arenas = 1;
    while (moments && arenas < OPTIMIZER_MOST_STATES && states[arenas]) {
        arenas++;
    }
    *tensors = (struct arena_tensors){.gpt = gpt, .moments = moments, .count = arenas * parameters->count};
    tensors->infos = calloc(tensors->count, sizeof *tensors->infos);
    tensors->names = calloc(tensors->count, sizeof *tensors->names);
    if (!tensors->infos || !tensors->names) {
        return error_set("out of memory");
    }
    for (size_t i = 0; i < tensors->count; i++) {
        const struct parameter *parameter = &parameters->table[i % parameters->count];
        snprintf(tensors->names[i], sizeof *tensors->names, "%s%s%s", moments ? states[i / parameters->count] : "",
                 moments ? "." : "", parameter->name);
        tensors->infos[i] = weights_tensor(parameter, false);
        tensors->infos[i].name = tensors->names[i];
    }
    return 0;
}

static void release(struct arena_tensors *tensors) {
    weights_close(tensors->weights);
    safetensors_close(tensors->file);
    free(tensors->infos);
    free(tensors->names);
}

static const struct parameter *parameter_of(const struct arena_tensors *tensors, size_t tensor) {
    return &tensors->gpt->parameters.table[tensor % tensors->gpt->parameters.count];
}

static const struct buffer *arena_of(const struct arena_tensors *tensors, size_t tensor) {
    const struct parameters *parameters = &tensors->gpt->parameters;
    return tensors->moments ? parameters->states[tensor / parameters->count] : parameters->weights;
}

/* ---- from the device */

/* Ranks may share the moments. */
static const struct moment_share *share_of(const struct arena_tensors *tensors) {
    return tensors->moments ? tensors->gpt->options.moments : NULL;
}

static int read_arena(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    const struct arena_tensors *tensors = context;
    const struct parameter *parameter = parameter_of(tensors, tensor);
    const struct buffer *arena = arena_of(tensors, tensor);
    const uint64_t at = parameter->offset + first;
    struct compute *compute = tensors->gpt->compute;
    const struct moment_share *share = share_of(tensors);
    const int status = share ? share->read(share, compute, arena, at, count, values)
                             : buffer_read(compute, arena, at * sizeof *values, values, count * sizeof *values);
    return status ? error_prefix("%s", parameter->name) : 0;
}

static int write_tensors(const char *path, struct gpt *gpt, bool moments) {
    struct arena_tensors tensors;
    const int status = describe(gpt, moments, &tensors) ||
                       safetensors_write(path, tensors.infos, tensors.count, read_arena, &tensors);
    release(&tensors);
    return status ? -1 : 0;
}

int checkpoint_write_weights(const char *path, struct gpt *gpt) {
    return write_tensors(path, gpt, false);
}

int checkpoint_write_moments(const char *path, struct gpt *gpt) {
    return write_tensors(path, gpt, true);
}

int checkpoint_hand_over(struct gpt *gpt) {
    struct arena_tensors tensors;
    if (!gpt->options.moments) {
        return 0;
    }
    const int status =
        describe(gpt, true, &tensors) || tensors_each_piece(tensors.infos, tensors.count, read_arena, &tensors);
    release(&tensors);
    return status ? error_prefix("cannot hand over the optimiser's moments for a checkpoint") : 0;
}

/* ---- to the device */

static int write_arena(const struct arena_tensors *tensors, size_t tensor, uint64_t first, uint64_t count,
                       const float *values) {
    struct compute *compute = tensors->gpt->compute;
    const struct moment_share *share = share_of(tensors);
    const struct buffer *arena = arena_of(tensors, tensor);
    const uint64_t at = parameter_of(tensors, tensor)->offset + first;
    return share ? share->write(share, compute, arena, at, count, values)
                 : buffer_write(compute, arena, at * sizeof *values, values, count * sizeof *values);
}

static int write_weights(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    const struct arena_tensors *tensors = context;
    const struct parameter *parameter = parameter_of(tensors, tensor);
    return weights_read(tensors->weights, parameter, false, first, count, values) ||
                   write_arena(tensors, tensor, first, count, values)
               ? error_prefix("tensor '%s'", parameter->name)
               : 0;
}

static int write_moments(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    const struct arena_tensors *tensors = context;
    const struct tensor_info *info = weights_find(tensors->file, &tensors->infos[tensor]);
    if (!info) {
        return -1;
    }
    return safetensors_read_f32(tensors->file, info, first, count, values) ||
                   write_arena(tensors, tensor, first, count, values)
               ? error_prefix("tensor '%s'", info->name)
               : 0;
}

int checkpoint_load_weights(const char *path, struct gpt *gpt) {
    struct arena_tensors tensors;
    const int status = describe(gpt, false, &tensors) ||
                       weights_open(path, &gpt->config, &gpt->parameters, &tensors.weights) ||
                       tensors_each_piece(tensors.infos, tensors.count, write_weights, &tensors);
    release(&tensors);
    parameters_round(gpt->compute, &gpt->parameters);
    return status ? -1 : 0;
}

int checkpoint_load_moments(const char *path, struct gpt *gpt) {
    struct arena_tensors tensors;
    int status = describe(gpt, true, &tensors) || safetensors_open(path, &tensors.file) ||
                 weights_check_count(tensors.file, path, tensors.count);
    if (status == 0 && tensors_each_piece(tensors.infos, tensors.count, write_moments, &tensors)) {
        status = error_prefix("%s", path);
    }
    release(&tensors);
    return status ? -1 : 0;
}
