#include "src/checkpoint/weights.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_INDEX_BYTES ((size_t)64 << 20)
enum { MOST_FILES = 512, MOST_NAME = 200 };

static const char head_name[] = "lm_head.weight";
static const char embedding_name[] = "transformer.wte.weight";
static const char another_model[] = "the file belongs to another model than config.json";

struct weights {
    struct path path;           /* of the only file, or of the index: errors about tensors name it */
    struct safetensors **files; /* [file_count] */
    size_t file_count;
    const struct parameters *parameters;
    const struct model_config *config; /* as read */
    bool hugging_face;
    uint64_t width;                   /* n_embd */
    uint64_t rows;                    /* of the vocabulary in the files */
    float *mean;                      /* [width] of these rows of `averaged`; NULL: not needed */
    const struct parameter *averaged; /* the token embedding or lm_head */
    struct transposed_tensor held;
};

/* A parameter in the files: its values are those of the parts, one after the other. */
struct stored {
    struct hugging_face_tensors wanted;
    const struct tensor_info *infos[HUGGING_FACE_MOST_PARTS];
    const struct safetensors *files[HUGGING_FACE_MOST_PARTS];
};

/* ---- files */

/* Opens each file that the index names, once; `numbers` gets its place by its name. Only names in the folder itself
 * are accepted, so that no index leads out of it. */
static int open_named(struct weights *weights, const char *folder, const json_t *map, json_t *numbers) {
    static const char ending[] = ".safetensors";
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value) {
        const char *name = json_file_text(value);
        const size_t length = name ? strlen(name) : 0, tail = sizeof ending - 1;
        if (length <= tail || length > MOST_NAME || *name == '.' || strchr(name, '/') ||
            strcmp(name + length - tail, ending) != 0) {
            return error_set("%s: the file of tensor '%.100s' is '%.60s', which is not a plain name that ends with "
                             ".safetensors",
                             weights->path.text, tensor, name ? name : "(no string)");
        }
        if (json_object_get(numbers, name)) {
            continue;
        }
        if (weights->file_count == MOST_FILES) {
            return error_set("%s names more than %d files", weights->path.text, MOST_FILES);
        }
        json_object_set_new(numbers, name, json_integer((json_int_t)weights->file_count));
        if (safetensors_open(path_of("%s/%s", folder, name).text, &weights->files[weights->file_count])) {
            return error_prefix("%s", weights->path.text);
        }
        weights->file_count++;
    }
    return 0;
}

/* Index and files must name the same tensors at the same places. */
static int check_places(const struct weights *weights, const json_t *map, const json_t *numbers) {
    static const char help[] = "copy the folder's files again";
    const char *tensor;
    json_t *value;
    for (size_t i = 0; i < weights->file_count; i++) {
        for (size_t j = 0; j < weights->files[i]->count; j++) {
            const char *name = weights->files[i]->infos[j].name;
            const char *place = json_file_text(json_object_get(map, name));
            if (!place || json_integer_value(json_object_get(numbers, place)) != (json_int_t)i) {
                return error_set("%s: tensor '%.100s' is in another file than %s: %s", weights->path.text, name,
                                 place ? place : "those that it names for tensors", help);
            }
        }
    }
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value) {
        const char *name = json_file_text(value);
        const size_t file = (size_t)json_integer_value(json_object_get(numbers, name));
        if (!safetensors_find(weights->files[file], tensor)) {
            return error_set("%s: tensor '%.100s' is not in %s: %s", weights->path.text, tensor, name, help);
        }
    }
    return 0;
}

/* Opens <folder>/model.safetensors. With may_be_divided and without that file, the index is read, and every tensor
 * must be in the file that it names, and nothing else. */
static int open_files(struct weights *weights, const char *folder, bool may_be_divided) {
    const struct path path = path_of("%s/" WEIGHTS_FILE ".index.json", folder);
    json_t *index, *numbers = json_object();
    weights->path = path_of("%s/" WEIGHTS_FILE, folder);
    weights->files = memory_zeroed(MOST_FILES, sizeof(struct safetensors *));
    if (!may_be_divided || files_exist(weights->path.text) || !files_exist(path.text)) {
        json_decref(numbers);
        weights->file_count = 1;
        return safetensors_open(weights->path.text, &weights->files[0]);
    }
    weights->path = path;
    int status = json_file_read(path.text, MOST_INDEX_BYTES, &index);
    const json_t *map = json_object_get(index, "weight_map");
    if (status == 0 && json_object_size(map) == 0) {
        status = error_set("%s: 'weight_map' names no tensors", path.text);
    }
    status = status || open_named(weights, folder, map, numbers) || check_places(weights, map, numbers) ? -1 : 0;
    json_decref(numbers);
    json_decref(index);
    return status;
}

void weights_close(struct weights *weights) {
    if (weights) {
        for (size_t i = 0; i < weights->file_count; i++) {
            safetensors_close(weights->files[i]);
        }
        free(weights->files);
        free(weights->mean);
        free(weights->held.values);
        free(weights);
    }
}

int weights_checksum(const char *folder, char digest[CHECKSUM_SIZE]) {
    struct weights *weights = memory_zeroed(1, sizeof *weights);
    int status = open_files(weights, folder, true);
    char(*digests)[CHECKSUM_SIZE] = memory_zeroed(weights->file_count, sizeof *digests);
    for (size_t i = 0; status == 0 && i < weights->file_count; i++) {
        status = checksum_file(weights->files[i]->path.text, digests[i]);
    }
    if (status == 0 && weights->file_count > 1) {
        checksum_memory(digests, weights->file_count * sizeof *digests, digest);
    } else if (status == 0) {
        memcpy(digest, digests[0], CHECKSUM_SIZE);
    }
    free(digests);
    weights_close(weights);
    return status;
}

/* The tensor of this name in any of the files; NULL: there is none. *file is the one to read it from. */
static const struct tensor_info *find_tensor(const struct weights *weights, const char *name,
                                             const struct safetensors **file) {
    for (size_t i = 0; i < weights->file_count; i++) {
        const struct tensor_info *info = safetensors_find(weights->files[i], name);
        if (info) {
            *file = weights->files[i];
            return info;
        }
    }
    return NULL;
}

/* ---- tensors of Hugging Face's models */

/* What the names of Llama's and Qwen's tensors begin with where ours begin with "transformer.", as GPT-2's do. */
static const char llama_prefix[] = "model.", our_prefix[] = "transformer.";

/* What parameters are in Llama's and Qwen's files, by how the names begin behind the prefix and the layer:
 * "attn.c_attn." stands for its weight and bias. */
static const struct {
    const char *ours, *theirs[HUGGING_FACE_MOST_PARTS];
} llama_names[] = {
    {"wte.", {"embed_tokens."}},
    {"ln_f.", {"norm."}},
    {"ln_1.", {"input_layernorm."}},
    {"ln_2.", {"post_attention_layernorm."}},
    {"attn.c_attn.", {"self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."}},
    {"attn.c_proj.", {"self_attn.o_proj."}},
    {"attn.q_norm.", {"self_attn.q_norm."}},
    {"attn.k_norm.", {"self_attn.k_norm."}},
    {"mlp.c_gate.", {"mlp.gate_proj."}},
    {"mlp.c_fc.", {"mlp.up_proj."}},
    {"mlp.c_proj.", {"mlp.down_proj."}},
};

void hugging_face_tensors(const struct model_config *config, const struct parameter *parameter,
                          struct hugging_face_tensors *tensors) {
    const bool gpt2 = config->norm != NORM_RMS;
    const uint64_t kv = (uint64_t)(config->n_kv_head * config->head_dim);
    const char *ours = parameter->name, *rest = "";
    char layer[32] = "", *end = NULL;
    *tensors =
        (struct hugging_face_tensors){.transposed = gpt2 && parameter->rank == 2 && parameter->sublayer >= 0};
    if (!gpt2 && strncmp(ours, our_prefix, sizeof our_prefix - 1) == 0) {
        rest = ours + sizeof our_prefix - 1;
    }
    if (strncmp(rest, "h.", 2) == 0) {
        snprintf(layer, sizeof layer, "layers.%ld.", strtol(rest + 2, &end, 10));
        rest = end + 1;
    }
    for (size_t row = 0; row < COUNT(llama_names); row++) {
        const char *const *theirs = llama_names[row].theirs;
        const size_t length = strlen(llama_names[row].ours);
        for (size_t i = 0;
             i < HUGGING_FACE_MOST_PARTS && theirs[i] && !strncmp(rest, llama_names[row].ours, length); i++) {
            snprintf(tensors->names[tensors->count++], HUGGING_FACE_MOST_NAME, "%s%s%s%.40s", llama_prefix, layer,
                     theirs[i], rest + length);
        }
    }
    if (tensors->count == 0) {
        snprintf(tensors->names[tensors->count++], HUGGING_FACE_MOST_NAME, "%s", ours);
    }
    for (size_t part = 0; part < tensors->count; part++) {
        struct tensor_info *info = &tensors->infos[part];
        *info = (struct tensor_info){.type = TENSOR_F32, .rank = parameter->rank};
        for (unsigned i = 0; i < info->rank; i++) {
            info->shape[i] = parameter->shape[tensors->transposed ? 1 - i : i];
        }
        if (tensors->count == HUGGING_FACE_MOST_PARTS) { /* queries, keys, values */
            info->shape[0] = part == 0 ? parameter->shape[0] - 2 * kv : kv;
        }
    }
}

/* Whether a tensor that is no parameter may be left out: buffers of older versions, and the head (check_head). */
static bool is_ignored(const char *name) {
    return strcmp(name, head_name) == 0 || fnmatch("*.attn.@(bias|masked_bias)", name, FNM_EXTMATCH) == 0 ||
           fnmatch("*.rotary_emb.inv_freq", name, 0) == 0;
}

/* ---- finding tensors */

struct tensor_info weights_tensor(const struct parameter *parameter) {
    struct tensor_info info = {.name = (char *)parameter->name, .type = TENSOR_F32, .rank = parameter->rank};
    memcpy(info.shape, parameter->shape, info.rank * sizeof *info.shape);
    return info;
}

struct tensor_info *weights_tensors(const struct parameters *parameters) {
    struct tensor_info *infos = memory_allocate(parameters->count, sizeof *infos);
    for (size_t i = 0; i < parameters->count; i++) {
        infos[i] = weights_tensor(&parameters->table[i]);
    }
    return infos;
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

const struct tensor_info *weights_require(const struct tensor_info *info, const struct tensor_info *wanted) {
    char shape[2][200];
    if (!info) {
        error_set("tensor '%.100s' is missing: %s", wanted->name, another_model);
        return NULL;
    }
    if (info->rank == wanted->rank && memcmp(info->shape, wanted->shape, info->rank * sizeof *info->shape) == 0) {
        return info;
    }
    print_shape(info, shape[0], sizeof shape[0]);
    print_shape(wanted, shape[1], sizeof shape[1]);
    error_set("tensor '%.100s' has shape %s, and the model needs %s: %s", info->name, shape[0], shape[1],
              another_model);
    return NULL;
}

/* The parameter's tensors, with the shapes that they have in the files. Files of models without an output layer
 * lack the prefix of all names. */
static int find(const struct weights *weights, const struct parameter *parameter, struct stored *stored) {
    *stored = (struct stored){.wanted = {.count = 1, .infos = {weights_tensor(parameter)}}};
    struct hugging_face_tensors *wanted = &stored->wanted;
    const struct parameters *parameters = weights->parameters;
    const char *prefix = weights->config->norm == NORM_RMS ? llama_prefix : our_prefix;
    const bool of_vocabulary =
        parameter->offset == parameters->token_embedding || parameter->offset == parameters->head;
    if (weights->hugging_face) {
        hugging_face_tensors(weights->config, parameter, wanted);
    }
    for (size_t i = 0; i < wanted->count; i++) {
        struct tensor_info *info = &wanted->infos[i];
        if (weights->hugging_face) {
            info->name = wanted->names[i];
            info->shape[0] = of_vocabulary ? weights->rows : info->shape[0];
        }
        const struct tensor_info *found = find_tensor(weights, info->name, &stored->files[i]);
        if (!found && weights->hugging_face && strncmp(info->name, prefix, strlen(prefix)) == 0) {
            found = find_tensor(weights, info->name + strlen(prefix), &stored->files[i]);
        }
        stored->infos[i] = weights_require(found, info);
        if (!stored->infos[i]) {
            return -1;
        }
    }
    return 0;
}

/* ---- Hugging Face's files */

/* A model with a head of its own is not the same function with the token embedding in its place. */
static int check_head(const struct weights *weights, const struct stored *embedding) {
    const struct safetensors *file;
    const struct tensor_info *head = find_tensor(weights, head_name, &file);
    const uint64_t width = weights->width;
    if (!head || !weights->config->tie_embeddings) {
        return 0;
    }
    if (!weights_require(head, embedding->infos[0])) {
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

/* Reads a whole tensor and keeps it transposed. */
static int hold(struct transposed_tensor *held, const struct safetensors *file, const struct tensor_info *info) {
    free(held->values);
    held->info = NULL;
    held->values = memory_allocate(info->elements, sizeof *held->values);
    float *values = memory_allocate(info->elements, sizeof *values);
    const int status = safetensors_read_f32(file, info, 0, info->elements, values);
    if (status == 0) {
        transpose(info->shape[0], info->shape[1], values, held->values);
        held->info = info;
    }
    free(values);
    return status;
}

int weights_read_transposed(struct transposed_tensor *held, const struct safetensors *file,
                            const struct tensor_info *info, uint64_t first, uint64_t count, float *values) {
    if (held->info != info && hold(held, file, info)) {
        return -1;
    }
    memcpy(values, held->values + first, count * sizeof *values);
    return 0;
}

/* ---- opening and reading */

/* Checks all tensors before the first one is used. `used` gets the names of those that are the model's. */
static int check(const struct weights *weights, json_t *used) {
    const struct parameters *parameters = weights->parameters;
    struct stored stored;
    size_t count = 0;
    for (size_t i = 0; i < weights->file_count; i++) {
        count += weights->files[i]->count;
    }
    if (!weights->hugging_face && count != parameters->count) {
        return error_set("%s has %zu tensors, the model %zu: %s", weights->path.text, count, parameters->count,
                         another_model);
    }
    for (size_t i = 0; i < parameters->count; i++) {
        if (find(weights, &parameters->table[i], &stored)) {
            return error_prefix("%s", weights->path.text);
        }
        for (size_t part = 0; part < stored.wanted.count; part++) {
            json_object_set_new(used, stored.infos[part]->name, json_true());
        }
    }
    for (size_t i = 0; weights->hugging_face && i < weights->file_count; i++) {
        for (size_t j = 0; j < weights->files[i]->count; j++) {
            const struct tensor_info *info = &weights->files[i]->infos[j];
            if (info->elements > 0 && !is_ignored(info->name) && !json_object_get(used, info->name)) {
                return error_set("%s: tensor '%.100s' is not part of this model: %s", weights->path.text,
                                 info->name, another_model);
            }
        }
    }
    if (find(weights, parameters_find(parameters, embedding_name), &stored) ||
        (weights->hugging_face && check_head(weights, &stored))) {
        return error_prefix("%s", weights->path.text);
    }
    return 0;
}

int weights_open(const char *folder, const struct model_config *config, const struct parameters *parameters,
                 struct weights **opened) {
    static const char older[] = "pytorch_model.bin";
    const bool hugging_face = config->hugging_face_rows > 0;
    struct weights *weights = *opened = memory_zeroed(1, sizeof *weights);
    *weights = (struct weights){
        .parameters = parameters,
        .config = config,
        .hugging_face = hugging_face,
        .width = (uint64_t)config->n_embd,
        .rows = (uint64_t)(hugging_face ? config->hugging_face_rows : config->vocab_size),
    };
    if (open_files(weights, folder, hugging_face)) {
        if (!hugging_face || files_exist(weights->path.text) ||
            !files_exist(path_of("%s/%s", folder, older).text)) {
            return -1;
        }
        return error_set("%s has %s instead of " WEIGHTS_FILE ": load and save it with a current transformers, "
                         "save_pretrained(folder)",
                         folder, older);
    }
    json_t *used = json_object();
    const int status = check(weights, used);
    json_decref(used);
    return status;
}

int weights_read(struct weights *weights, const struct parameter *parameter, bool transposed, uint64_t first,
                 uint64_t count, float *values) {
    struct stored stored;
    if (find(weights, parameter, &stored)) {
        return -1;
    }
    if (transposed != stored.wanted.transposed) {
        return weights_read_transposed(&weights->held, stored.files[0], stored.infos[0], first, count, values);
    }
    uint64_t done = 0, skip = first; /* the parts follow one another */
    for (size_t i = 0; i < stored.wanted.count && done < count; i++) {
        const uint64_t elements = stored.infos[i]->elements;
        if (skip >= elements) {
            skip -= elements;
            continue;
        }
        const uint64_t some = count - done < elements - skip ? count - done : elements - skip;
        if (safetensors_read_f32(stored.files[i], stored.infos[i], skip, some, values + done)) {
            return -1;
        }
        done += some;
        skip = 0;
    }
    if (done < count && average_rows(weights, parameter, &stored)) {
        return -1;
    }
    for (; done < count; done++) {
        values[done] = weights->mean[(first + done) % weights->width];
    }
    return 0;
}
