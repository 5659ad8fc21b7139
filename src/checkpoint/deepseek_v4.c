#include "src/checkpoint/deepseek_v4.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "src/checkpoint/tensor_files.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NAME = 64, NAME_FORMS = 4 };
enum kind { FN, BASE, SCALE, KINDS }; /* tensor number t is of this kind, t % KINDS, in place t / KINDS */
enum group { PRE, POST, RES };        /* of rows */

/* Theirs is the epsilon of all norms; ours is this one in front of all projections. */
static const double rms_norm_eps = 1e-6;

/* ---- which models have them */

int deepseek_v4_check(const struct model_config *config) {
    if (strcmp(config->residual->name, "mhc") != 0) {
        return error_set("residual = \"%s\": DeepSeek-V4's hyper-connections are mhc", config->residual->name);
    }
    if (config->hc_norm_gain) {
        return error_set("hc_norm_gain = true: DeepSeek-V4's hyper-connections have no norm.weight, so give "
                         "--no-hc-norm-gain when the run begins");
    }
    return config->stream_expand == STREAM_EXPAND_COPY
               ? 0
               : error_set("stream_expand = \"scaled\": DeepSeek-V4 has no scales of streams");
}

json_t *deepseek_v4_config(const struct model_config *config) {
    return json_pack("{s:I, s:I, s:I, s:I, s:f, s:f}", "num_hidden_layers", (json_int_t)config->n_layer,
                     "hidden_size", (json_int_t)config->n_embd, "hc_mult", (json_int_t)config->n_streams,
                     "hc_sinkhorn_iters",
                     (json_int_t)config->settings.values[residual_setting_find("sinkhorn_iters")].number, "hc_eps",
                     config->hc_eps, "rms_norm_eps", rms_norm_eps);
}

/* ---- tensors of theirs */

/* Places: the sublayers, and the top. */
static size_t top_of(const struct model_config *config) {
    return (size_t)(2 * config->n_layer);
}

static size_t count_tensors(const struct model_config *config) {
    return KINDS * (top_of(config) + (config->stream_reduce == STREAM_REDUCE_HEAD));
}

/* Form 0 is the one that is written. */
static void name_theirs(const struct model_config *config, size_t tensor, unsigned form, char name[MOST_NAME]) {
    static const char *const kinds[] = {"fn", "base", "scale"}, *const modules[] = {"attn_hc.", "ffn_hc."},
                             *const released[] = {"hc_attn_", "hc_ffn_"};
    const char *kind = kinds[tensor % KINDS], *prefix = form & 1 ? "" : "model.";
    const size_t place = tensor / KINDS;
    if (place == top_of(config)) {
        snprintf(name, MOST_NAME, "%shc_head%s%s", prefix, form & 2 ? "_" : ".hc_", kind);
    } else {
        snprintf(name, MOST_NAME, "%slayers.%zu.%s%s", prefix, place / 2,
                 (form & 2 ? released : modules)[place % 2], kind);
    }
}

static struct tensor_info info_of(const struct model_config *config, size_t tensor) {
    const uint64_t n = (uint64_t)config->n_streams;
    const bool top = tensor / KINDS == top_of(config);
    const uint64_t rows = top ? n : 2 * n + n * n;
    struct tensor_info info = {.type = TENSOR_F32, .rank = 1};
    info.shape[0] = tensor % KINDS == SCALE ? (top ? 1 : 3) : rows;
    if (tensor % KINDS == FN) {
        info.rank = 2;
        info.shape[1] = n * (uint64_t)config->n_embd;
    }
    tensor_measure(&info);
    return info;
}

/* ---- leaves of ours */

static size_t count_groups(const struct model_config *config, size_t tensor) {
    return tensor / KINDS == top_of(config) ? 1 : 3;
}

/* The leaf of ours that has a group of a tensor's rows. */
static const struct parameter *find_ours(const struct model_config *config, const struct parameters *parameters,
                                         size_t tensor, size_t group) {
    static const char *const kinds[] = {"w_", "b_", "alpha_"}, *const groups[] = {"pre", "post", "res"},
                             *const modules[] = {"hc_attn", "hc_mlp"};
    const size_t place = tensor / KINDS;
    char name[MOST_NAME];
    if (place == top_of(config)) {
        snprintf(name, sizeof name, "transformer.hc_head.%s%s", kinds[tensor % KINDS], groups[group]);
    } else {
        snprintf(name, sizeof name, "transformer.h.%zu.%s.%s%s", place / 2, modules[place % 2],
                 kinds[tensor % KINDS], groups[group]);
    }
    return parameters_find(parameters, name);
}

/* Copies a leaf to its rows of a tensor, or with `back` from there. */
static void copy_leaf(const struct model_config *config, size_t tensor, size_t group, float *leaf, float *values,
                      bool back) {
    const uint64_t n = (uint64_t)config->n_streams;
    const bool scale = tensor % KINDS == SCALE;
    const uint64_t rows = scale ? 1 : group == RES ? n * n : n, first = scale ? group : group * n;
    const uint64_t columns = tensor % KINDS == FN ? n * (uint64_t)config->n_embd : 1;
    for (uint64_t row = 0; row < rows; row++) {
        const uint64_t theirs = first + (group == RES && !scale ? row % n * n + row / n : row);
        for (uint64_t column = 0; column < columns; column++) {
            float *of_leaf = &leaf[column * rows + row], *of_tensor = &values[theirs * columns + column];
            *(back ? of_leaf : of_tensor) = *(back ? of_tensor : of_leaf);
        }
    }
}

/* ---- writing */

struct writing {
    const struct model_config *config;
    const struct parameters *parameters;
    struct weights *weights;
    size_t held;   /* the tensor that is in memory */
    float *values; /* of it; NULL: none */
};

static int hold(struct writing *writing, size_t tensor) {
    int status = 0;
    free(writing->values);
    writing->held = tensor;
    writing->values = memory_allocate(info_of(writing->config, tensor).elements, sizeof *writing->values);
    for (size_t group = 0; status == 0 && group < count_groups(writing->config, tensor); group++) {
        const struct parameter *parameter = find_ours(writing->config, writing->parameters, tensor, group);
        float *leaf = memory_allocate(parameter->elements, sizeof *leaf);
        status = weights_read(writing->weights, parameter, false, 0, parameter->elements, leaf);
        copy_leaf(writing->config, tensor, group, leaf, writing->values, false);
        free(leaf);
    }
    return status;
}

static int write_piece(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    struct writing *writing = context;
    if (interrupt_requested()) {
        return error_set("interrupted");
    }
    if ((!writing->values || writing->held != tensor) && hold(writing, tensor)) {
        return -1;
    }
    memcpy(values, writing->values + first, count * sizeof *values);
    return 0;
}

int deepseek_v4_write(const char *path, const struct model_config *config, const struct parameters *parameters,
                      struct weights *weights, uint64_t *elements) {
    struct writing writing = {.config = config, .parameters = parameters, .weights = weights};
    const size_t count = count_tensors(config);
    char(*names)[MOST_NAME] = memory_allocate(count, sizeof *names);
    struct tensor_info *infos = memory_allocate(count, sizeof *infos);
    *elements = 0;
    for (size_t i = 0; i < count; i++) {
        infos[i] = info_of(config, i);
        infos[i].name = names[i];
        name_theirs(config, i, 0, names[i]);
        *elements += infos[i].elements;
    }
    const int status = safetensors_write(path, infos, count, write_piece, &writing);
    free(writing.values);
    free(infos);
    free(names);
    return status;
}

/* ---- reading */

/* The tensor under any of its names; NULL: there is none. */
static const struct tensor_info *find_theirs(const struct tensor_files *files, const struct model_config *config,
                                             size_t tensor, const struct safetensors **file) {
    const struct tensor_info *info = NULL;
    char name[MOST_NAME];
    for (unsigned form = 0; !info && form < NAME_FORMS; form++) {
        name_theirs(config, tensor, form, name);
        info = tensor_files_find(files, name, file);
    }
    return info;
}

static int check_tensor(const struct tensor_files *files, const struct model_config *config, size_t tensor) {
    const struct tensor_info wanted = info_of(config, tensor);
    const struct safetensors *file;
    const struct tensor_info *info = find_theirs(files, config, tensor, &file);
    char name[2][MOST_NAME];
    if (!info) {
        name_theirs(config, tensor, 0, name[0]);
        name_theirs(config, tensor, 3, name[1]);
        return error_set(
            "neither tensor '%s' nor '%s' is there: it is not a file of DeepSeek-V4's hyper-connections "
            "of n_layer = %" PRId64 " layers%s",
            name[0], name[1], config->n_layer,
            tensor / KINDS == top_of(config) ? " with hc_head (give another --stream-reduce)" : "");
    }
    return weights_check_shape(info, &wanted, "give the --n-streams and --n-embd of the file");
}

/* What the file has and the model has no place for: the top, or the layer behind the last one. */
static int check_nothing_else(const struct tensor_files *files, const struct model_config *config) {
    struct model_config deeper = *config;
    const struct safetensors *file;
    deeper.n_layer++;
    if (config->stream_reduce != STREAM_REDUCE_HEAD && find_theirs(files, config, KINDS * top_of(config), &file)) {
        return error_set("hc_head is there, with which the model does not end: give --stream-reduce head");
    }
    return find_theirs(files, &deeper, KINDS * top_of(config), &file)
               ? error_set("there are hyper-connections of more layers than n_layer = %" PRId64
                           ": give the file's --n-layer",
                           config->n_layer)
               : 0;
}

static int check_all(const struct tensor_files *files, const struct model_config *config) {
    int status = check_nothing_else(files, config);
    for (size_t i = 0; status == 0 && i < count_tensors(config); i++) {
        status = check_tensor(files, config, i);
    }
    return status;
}

static int load_tensor(const struct tensor_files *files, struct gpt *gpt, size_t tensor) {
    const struct safetensors *file;
    const struct tensor_info *info = find_theirs(files, &gpt->config, tensor, &file);
    float *values = memory_allocate(info->elements, sizeof *values);
    int status = safetensors_read_f32(file, info, 0, info->elements, values);
    for (size_t group = 0; status == 0 && group < count_groups(&gpt->config, tensor); group++) {
        const struct parameter *parameter = find_ours(&gpt->config, &gpt->parameters, tensor, group);
        float *leaf = memory_allocate(parameter->elements, sizeof *leaf);
        copy_leaf(&gpt->config, tensor, group, leaf, values, true);
        status = parameters_write(gpt->compute, &gpt->parameters, parameter->offset, parameter->elements, leaf);
        free(leaf);
    }
    free(values);
    return status;
}

int deepseek_v4_load(const char *path, struct gpt *gpt) {
    struct tensor_files *files = NULL;
    int status =
        deepseek_v4_check(&gpt->config) || tensor_files_open_any(path, &files) || check_all(files, &gpt->config);
    for (size_t i = 0; status == 0 && i < count_tensors(&gpt->config); i++) {
        status = load_tensor(files, gpt, i);
    }
    tensor_files_close(files);
    parameters_round(gpt->compute, &gpt->parameters);
    return status ? error_prefix("cannot begin with the hyper-connections in %s", path) : 0;
}
