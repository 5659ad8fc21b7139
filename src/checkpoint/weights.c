#include "src/checkpoint/weights.h"
#include "runtime/files/files.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/checkpoint/hugging_face.h"
#include "src/checkpoint/tensor_files.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char head_name[] = "lm_head.weight";

struct weights {
    struct tensor_files *files;
    const struct parameters *parameters;
    const struct model_config *config; /* as read */
    bool hugging_face;
    const char *skipped;              /* what our names for tensors begin with and those in the files do not; "" */
    uint64_t width;                   /* n_embd */
    uint64_t rows;                    /* of the vocabulary in the files */
    float *mean;                      /* [width] of these rows of `averaged`; NULL: not needed */
    const struct parameter *averaged; /* the token embedding or lm_head */
    const struct parameter *held;     /* the parameter whose transposed values are in memory; NULL: none */
    float *held_values;
};

/* A parameter in the files: its values are those of the parts, one after the other. */
struct stored {
    struct hugging_face_tensors wanted;
    const struct tensor_info *infos[HUGGING_FACE_MOST_PARTS];
    const struct safetensors *files[HUGGING_FACE_MOST_PARTS];
};

/* ---- finding tensors */

struct tensor_info weights_tensor(const struct parameter *parameter) {
    struct tensor_info info = {.name = (char *)parameter->name, .type = TENSOR_F32, .rank = parameter->rank};
    memcpy(info.shape, parameter->shape, info.rank * sizeof *info.shape);
    return info;
}

static void print_shape(const struct tensor_info *info, char *text, size_t size) {
    size_t length = (size_t)snprintf(text, size, "[");
    for (unsigned i = 0; i < info->rank && length < size; i++) {
        length += (size_t)snprintf(text + length, size - length, "%s%" PRIu64, i ? ", " : "", info->shape[i]);
    }
    if (length < size) {
        snprintf(text + length, size - length, "]");
    }
}

static const char another_model[] = "the file belongs to another model than config.json";

static int check_shape(const struct tensor_info *info, const struct tensor_info *wanted) {
    char shape[2][200];
    if (info->rank == wanted->rank && memcmp(info->shape, wanted->shape, info->rank * sizeof *info->shape) == 0) {
        return 0;
    }
    print_shape(info, shape[0], sizeof shape[0]);
    print_shape(wanted, shape[1], sizeof shape[1]);
    return error_set("tensor '%.100s' has shape %s, and the model needs %s: %s", info->name, shape[0], shape[1],
                     another_model);
}

/* The tensor if it was found with the shape that is wanted; NULL with an error. */
static const struct tensor_info *require(const struct tensor_info *info, const struct tensor_info *wanted) {
    if (!info) {
        error_set("tensor '%.100s' is missing: %s", wanted->name, another_model);
    }
    return info && check_shape(info, wanted) == 0 ? info : NULL;
}

const struct tensor_info *weights_find(const struct safetensors *file, const struct tensor_info *wanted) {
    return require(safetensors_find(file, wanted->name), wanted);
}

static bool is_of_vocabulary(const struct weights *weights, const struct parameter *parameter) {
    return parameter->offset == weights->parameters->token_embedding ||
           parameter->offset == weights->parameters->head;
}

static bool begins_with(const char *text, const char *beginning) {
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

/* The parameter's tensors, with the shapes that they have in the files. */
static int find(const struct weights *weights, const struct parameter *parameter, struct stored *stored) {
    *stored = (struct stored){.wanted = {.count = 1, .infos = {weights_tensor(parameter)}}};
    struct hugging_face_tensors *wanted = &stored->wanted;
    if (weights->hugging_face) {
        hugging_face_tensors(weights->config, parameter, wanted);
    }
    for (size_t i = 0; i < wanted->count; i++) {
        struct tensor_info *info = &wanted->infos[i];
        if (weights->hugging_face) {
            const bool cut = begins_with(wanted->names[i], weights->skipped);
            info->name = wanted->names[i] + (cut ? strlen(weights->skipped) : 0);
            info->shape[0] = is_of_vocabulary(weights, parameter) ? weights->rows : info->shape[0];
        }
        stored->infos[i] = require(tensor_files_find(weights->files, info->name, &stored->files[i]), info);
        if (!stored->infos[i]) {
            return -1;
        }
    }
    return 0;
}

/* ---- Hugging Face's files */

/* Whether a tensor of a file is one of the model's. */
static bool is_part(const struct weights *weights, const char *name) {
    for (size_t i = 0; i < weights->parameters->count; i++) {
        struct hugging_face_tensors tensors;
        hugging_face_tensors(weights->config, &weights->parameters->table[i], &tensors);
        for (size_t part = 0; part < tensors.count; part++) {
            const char *whole = tensors.names[part];
            if (strcmp(whole + (begins_with(whole, weights->skipped) ? strlen(weights->skipped) : 0), name) == 0) {
                return true;
            }
        }
    }
    return false;
}

static int check_nothing_else(const struct weights *weights) {
    for (size_t i = 0, count = tensor_files_count(weights->files); i < count; i++) {
        const struct tensor_info *info = tensor_files_at(weights->files, i);
        if (info->elements > 0 && !hugging_face_ignores(info->name) && strcmp(info->name, head_name) != 0 &&
            !is_part(weights, info->name)) {
            return error_set("tensor '%.100s' is not part of this model: %s", info->name, another_model);
        }
    }
    return 0;
}

/* A model with a head of its own is not the same function with the token embedding in its place. */
static int check_head(const struct weights *weights, const struct stored *embedding) {
    const struct safetensors *file;
    const struct tensor_info *head = tensor_files_find(weights->files, head_name, &file);
    const uint64_t width = weights->width;
    if (!head || !weights->config->tie_embeddings) {
        return 0;
    }
    if (check_shape(head, embedding->infos[0])) {
        return -1;
    }
    float *rows = memory_allocate(2 * width, sizeof *rows);
    int status = 0;
    for (uint64_t i = 0; status == 0 && i < weights->rows; i++) {
        status = safetensors_read_f32(file, head, i * width, width, rows) ||
                 safetensors_read_f32(embedding->files[0], embedding->infos[0], i * width, width, rows + width);
        if (status == 0 && memcmp(rows, rows + width, width * sizeof *rows) != 0) {
            status = error_set("'%s' differs from the token embedding, and config.json says that they are one: if "
                               "they are not, set tie_word_embeddings to false there (llama, qwen2, qwen3)",
                               head_name);
        }
    }
    free(rows);
    return status ? -1 : 0;
}

/* Computes the mean of the files' rows of the token embedding, or of lm_head. */
static int average_rows(struct weights *weights, const struct parameter *parameter, const struct stored *stored) {
    const uint64_t width = weights->width;
    if (weights->averaged == parameter) {
        return 0;
    }
    double *sums = memory_zeroed(width, sizeof *sums);
    float *row = weights->mean = weights->mean ? weights->mean : memory_allocate(width, sizeof *row);
    int status = 0;
    for (uint64_t i = 0; status == 0 && i < weights->rows; i++) {
        status = safetensors_read_f32(stored->files[0], stored->infos[0], i * width, width, row);
        for (uint64_t k = 0; status == 0 && k < width; k++) {
            sums[k] += (double)row[k];
        }
    }
    for (uint64_t k = 0; k < width; k++) {
        weights->mean[k] = (float)(sums[k] / (double)weights->rows);
    }
    free(sums);
    weights->averaged = status ? NULL : parameter;
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
static int hold(struct weights *weights, const struct parameter *parameter, const struct stored *stored) {
    const struct tensor_info *info = stored->infos[0];
    if (weights->held == parameter) {
        return 0;
    }
    free(weights->held_values);
    weights->held = NULL;
    weights->held_values = memory_allocate(info->elements, sizeof *weights->held_values);
    float *values = memory_allocate(info->elements, sizeof *values);
    const int status = safetensors_read_f32(stored->files[0], info, 0, info->elements, values);
    if (status == 0) {
        transpose(info->shape[0], info->shape[1], values, weights->held_values);
        weights->held = parameter;
    }
    free(values);
    return status;
}

/* ---- opening and reading */

/* Checks all tensors before the first one is used. */
static int check(struct weights *weights) {
    const struct parameters *parameters = weights->parameters;
    const char *path = tensor_files_path(weights->files);
    struct stored stored;
    if (!weights->hugging_face && tensor_files_count(weights->files) != parameters->count) {
        return error_set("%s has %zu tensors, the model %zu: %s", path, tensor_files_count(weights->files),
                         parameters->count, another_model);
    }
    for (size_t i = 0; i < parameters->count; i++) {
        if (find(weights, &parameters->table[i], &stored)) {
            return error_prefix("%s", path);
        }
    }
    const struct parameter *embedding = parameters_find(parameters, "transformer.wte.weight");
    return find(weights, embedding, &stored) ||
                   (weights->hugging_face && (check_nothing_else(weights) || check_head(weights, &stored)))
               ? error_prefix("%s", path)
               : 0;
}

/* Folders without safetensors may have other files; then the error says how to convert them. */
static int explain_absence(const char *folder) {
    static const char *const names[] = {WEIGHTS_FILE, WEIGHTS_INDEX_FILE, "pytorch_model.bin"};
    bool there[COUNT(names)];
    for (size_t i = 0; i < COUNT(names); i++) {
        there[i] = files_exist(path_of("%s/%s", folder, names[i]).text);
    }
    return !there[0] && !there[1] && there[2]
               ? error_set("%s has %s instead of " WEIGHTS_FILE ": load and save it with a current transformers, "
                           "save_pretrained(folder)",
                           folder, names[2])
               : -1;
}

/* Files of models without an output layer lack the prefix of all names. */
static const char *skipped_prefix(const struct weights *weights) {
    struct hugging_face_tensors embedding;
    const struct safetensors *file;
    const char *prefix = hugging_face_prefix(weights->config);
    hugging_face_tensors(weights->config, parameters_find(weights->parameters, "transformer.wte.weight"),
                         &embedding);
    return tensor_files_find(weights->files, embedding.names[0], &file) ? "" : prefix;
}

int weights_open(const char *folder, const struct model_config *config, const struct parameters *parameters,
                 struct weights **opened) {
    const bool hugging_face = config->hugging_face_rows > 0;
    struct weights *weights = *opened = memory_zeroed(1, sizeof *weights);
    *weights = (struct weights){
        .parameters = parameters,
        .config = config,
        .hugging_face = hugging_face,
        .skipped = "",
        .width = (uint64_t)config->n_embd,
        .rows = (uint64_t)(hugging_face ? config->hugging_face_rows : config->vocab_size),
    };
    if (tensor_files_open(folder, hugging_face, &weights->files)) {
        return hugging_face ? explain_absence(folder) : -1;
    }
    weights->skipped = hugging_face ? skipped_prefix(weights) : "";
    return check(weights);
}

void weights_close(struct weights *weights) {
    if (weights) {
        tensor_files_close(weights->files);
        free(weights->mean);
        free(weights->held_values);
        free(weights);
    }
}

/* Reads elements of what the files have, from the parts in their order. Returns how many there were, or -1. */
static int64_t read_parts(const struct stored *stored, uint64_t first, uint64_t count, float *values) {
    uint64_t done = 0;
    for (size_t i = 0; i < stored->wanted.count; i++) {
        const uint64_t elements = stored->infos[i]->elements;
        if (first >= elements) {
            first -= elements;
            continue;
        }
        const uint64_t some = count - done < elements - first ? count - done : elements - first;
        if (some > 0 && safetensors_read_f32(stored->files[i], stored->infos[i], first, some, values + done)) {
            return -1;
        }
        done += some;
        first = 0;
    }
    return (int64_t)done;
}

int weights_read(struct weights *weights, const struct parameter *parameter, bool transposed, uint64_t first,
                 uint64_t count, float *values) {
    struct stored stored;
    if (find(weights, parameter, &stored)) {
        return -1;
    }
    if (transposed != stored.wanted.transposed) {
        if (hold(weights, parameter, &stored)) {
            return -1;
        }
        memcpy(values, weights->held_values + first, count * sizeof *values);
        return 0;
    }
    const int64_t there = read_parts(&stored, first, count, values);
    if (there < 0 || ((uint64_t)there < count && average_rows(weights, parameter, &stored))) {
        return -1;
    }
    for (uint64_t i = (uint64_t)there; i < count; i++) {
        values[i] = weights->mean[(first + i) % weights->width];
    }
    return 0;
}
