#include "src/checkpoint/weights.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char prefix[] = "transformer."; /* of all our names, and of those in some files of Hugging Face's */
static const char head_name[] = "lm_head.weight";

struct weights {
    struct safetensors *file;
    const struct parameters *parameters;
    bool hugging_face;
    size_t skipped;               /* characters of our names that names in the file lack */
    uint64_t width;               /* n_embd */
    uint64_t rows;                /* of the token embedding in the file */
    float *mean;                  /* [width] of these rows; NULL: not needed */
    const struct parameter *held; /* the parameter whose transposed values are in memory; NULL: none */
    float *held_values;
};

/* ---- finding tensors */

/* Linear layers, which Hugging Face has as [in, out] (Conv1D). */
static bool is_transposed(const struct parameter *parameter) {
    return parameter->rank == 2 && parameter->sublayer >= 0;
}

struct tensor_info weights_tensor(const struct parameter *parameter, bool hugging_face) {
    const bool swapped = hugging_face && is_transposed(parameter);
    struct tensor_info info = {.name = (char *)parameter->name, .type = TENSOR_F32, .rank = parameter->rank};
    for (unsigned i = 0; i < info.rank; i++) {
        info.shape[i] = parameter->shape[swapped ? 1 - i : i];
    }
    return info;
}

static bool has_shape(const struct tensor_info *info, const struct tensor_info *wanted) {
    struct tensor_info measured = *wanted;
    tensor_measure(&measured);
    if (info->rank != wanted->rank || memcmp(info->shape, wanted->shape, info->rank * sizeof *info->shape) != 0) {
        error_set("tensor '%s' has another shape than the model (%" PRIu64 " elements where %" PRIu64
                  " are expected)",
                  info->name, info->elements, measured.elements);
        return false;
    }
    return true;
}

const struct tensor_info *weights_find(const struct safetensors *file, const struct tensor_info *wanted) {
    const struct tensor_info *info = safetensors_find(file, wanted->name);
    if (!info) {
        error_set("tensor '%s' is missing: the file belongs to another model", wanted->name);
    }
    return info && has_shape(info, wanted) ? info : NULL;
}

int weights_check_count(const struct safetensors *file, const char *path, size_t count) {
    return safetensors_count(file) == count
               ? 0
               : error_set("%s has %zu tensors, the model %zu: it belongs to another model", path,
                           safetensors_count(file), count);
}

/* ---- Hugging Face's files */

/* The parameter's tensor, with the shape that it has in the file. */
static const struct tensor_info *find(const struct weights *weights, const struct parameter *parameter) {
    struct tensor_info wanted = weights_tensor(parameter, weights->hugging_face);
    wanted.name += weights->skipped;
    if (weights->hugging_face && parameter->offset == weights->parameters->token_embedding) {
        wanted.shape[0] = weights->rows;
    }
    return weights_find(weights->file, &wanted);
}

/* Older files have two more tensors per layer: the causal mask, and a number for minus infinity. */
static bool is_mask(const char *name) {
    return fnmatch("*.attn.@(bias|masked_bias)", name, FNM_EXTMATCH) == 0;
}

static int check_nothing_else(const struct weights *weights) {
    for (size_t i = 0; i < safetensors_count(weights->file); i++) {
        const char *name = safetensors_at(weights->file, i)->name;
        char whole[128];
        snprintf(whole, sizeof whole, "%s%.110s", weights->skipped ? prefix : "", name);
        if (!is_mask(name) && strcmp(name, head_name) != 0 && !parameters_find(weights->parameters, whole)) {
            return error_set("tensor '%.100s' is not part of this GPT-2", name);
        }
    }
    return 0;
}

/* A model with a head of its own is not the same function with the token embedding in its place. */
static int check_head(const struct weights *weights, const struct tensor_info *embedding) {
    const struct tensor_info *head = safetensors_find(weights->file, head_name);
    const uint64_t width = weights->width;
    if (!head) {
        return 0;
    }
    if (!has_shape(head, embedding)) {
        return -1;
    }
    float *rows = memory_allocate(2 * width, sizeof *rows);
    int status = 0;
    for (uint64_t i = 0; status == 0 && i < weights->rows; i++) {
        status = safetensors_read_f32(weights->file, head, i * width, width, rows) ||
                 safetensors_read_f32(weights->file, embedding, i * width, width, rows + width);
        if (status == 0 && memcmp(rows, rows + width, width * sizeof *rows) != 0) {
            status = error_set("'%s' differs from the token embedding: only models that tie them are supported",
                               head_name);
        }
    }
    free(rows);
    return status ? -1 : 0;
}

/* Computes the mean of the file's rows of the token embedding. */
static int average_rows(struct weights *weights, const struct tensor_info *info) {
    const uint64_t width = weights->width;
    double *sums = memory_zeroed(width, sizeof *sums);
    float *row = weights->mean = memory_allocate(width, sizeof *row);
    int status = 0;
    for (uint64_t i = 0; status == 0 && i < weights->rows; i++) {
        status = safetensors_read_f32(weights->file, info, i * width, width, row);
        for (uint64_t k = 0; status == 0 && k < width; k++) {
            sums[k] += (double)row[k];
        }
    }
    for (uint64_t k = 0; k < width; k++) {
        weights->mean[k] = (float)(sums[k] / (double)weights->rows);
    }
    free(sums);
    return status;
}

/* to [columns, rows] = transpose of from [rows, columns]. */
static void transpose(uint64_t rows, uint64_t columns, const float *from, float *to) {
    enum { TILE = 32 }; /* keeps both sides in the cache */
    for (uint64_t top = 0; top < rows; top += TILE) {
        for (uint64_t column = 0; column < columns; column++) {
            for (uint64_t row = top; row < rows && row < top + TILE; row++) {
                to[column * rows + row] = from[row * columns + column];
            }
        }
    }
}

/* Reads a whole tensor and keeps it transposed until another one is wanted. */
static int hold(struct weights *weights, const struct parameter *parameter, const struct tensor_info *info) {
    if (weights->held == parameter) {
        return 0;
    }
    free(weights->held_values);
    weights->held = NULL;
    weights->held_values = memory_allocate(info->elements, sizeof *weights->held_values);
    float *values = memory_allocate(info->elements, sizeof *values);
    const int status = safetensors_read_f32(weights->file, info, 0, info->elements, values);
    if (status == 0) {
        transpose(info->shape[0], info->shape[1], values, weights->held_values);
        weights->held = parameter;
    }
    free(values);
    return status;
}

/* ---- opening and reading */

/* Checks all tensors before the first one is used. */
static int check(struct weights *weights, const char *path) {
    const struct parameters *parameters = weights->parameters;
    if (!weights->hugging_face && weights_check_count(weights->file, path, parameters->count)) {
        return -1;
    }
    for (size_t i = 0; i < parameters->count; i++) {
        if (!find(weights, &parameters->table[i])) {
            return error_prefix("%s", path);
        }
    }
    const struct parameter *embedding = parameters_find(parameters, "transformer.wte.weight");
    const struct tensor_info *info = find(weights, embedding);
    return (weights->hugging_face && (check_nothing_else(weights) || check_head(weights, info))) ||
                   (embedding->shape[0] > weights->rows && average_rows(weights, info))
               ? error_prefix("%s", path)
               : 0;
}

/* Hugging Face's folders may have other files instead of one safetensors file; the error says how to convert
 * them. */
static int explain_absence(const char *folder) {
    static const char *const names[] = {"model.safetensors.index.json", "pytorch_model.bin"};
    for (size_t i = 0; i < COUNT(names); i++) {
        if (files_exist(path_of("%s/%s", folder, names[i]).text)) {
            return error_set("%s has %s instead of " WEIGHTS_FILE ": load and save it with a current transformers, "
                             "save_pretrained(folder, max_shard_size=\"1000GB\")",
                             folder, names[i]);
        }
    }
    return -1;
}

int weights_open(const char *folder, const struct model_config *config, const struct parameters *parameters,
                 struct weights **opened) {
    const bool hugging_face = config->hugging_face_rows > 0;
    const struct path path = path_of("%s/%s", folder, WEIGHTS_FILE);
    struct weights *weights = *opened = memory_zeroed(1, sizeof *weights);
    *weights = (struct weights){
        .parameters = parameters,
        .hugging_face = hugging_face,
        .width = (uint64_t)config->n_embd,
        .rows = (uint64_t)(hugging_face ? config->hugging_face_rows : config->vocab_size),
    };
    if (safetensors_open(path.text, &weights->file)) {
        return hugging_face && !files_exist(path.text) ? explain_absence(folder) : -1;
    }
    if (hugging_face && !safetensors_find(weights->file, "transformer.wte.weight")) {
        weights->skipped = strlen(prefix);
    }
    return check(weights, path.text);
}

void weights_close(struct weights *weights) {
    if (weights) {
        safetensors_close(weights->file);
        free(weights->mean);
        free(weights->held_values);
        free(weights);
    }
}

int weights_read(struct weights *weights, const struct parameter *parameter, bool transposed, uint64_t first,
                 uint64_t count, float *values) {
    const struct tensor_info *info = find(weights, parameter);
    if (!info) {
        return -1;
    }
    if (is_transposed(parameter) && transposed != weights->hugging_face) {
        if (hold(weights, parameter, info)) {
            return -1;
        }
        memcpy(values, weights->held_values + first, count * sizeof *values);
        return 0;
    }
    const uint64_t left = first < info->elements ? info->elements - first : 0;
    const uint64_t there = count < left ? count : left;
    for (uint64_t i = there; i < count; i++) {
        values[i] = weights->mean[(first + i) % weights->width];
    }
    return there ? safetensors_read_f32(weights->file, info, first, there, values) : 0;
}
