#include "src/checkpoint/export.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/export_files.h"
#include "src/checkpoint/hugging_face.h"
#include "src/checkpoint/weights.h"
#include "src/text/tokenizer.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PIECE ((uint64_t)1 << 20) /* elements copied at a time */

/* The key by which exports are known again, so that nothing else is replaced. */
static const char mark[] = "exported_by";

/* ---- where to write */

/* __pycache__ is what Python leaves where model.py was imported. */
static bool is_exported_file(const char *name) {
    bool known =
        strcmp(name, "config.json") == 0 || strcmp(name, WEIGHTS_FILE) == 0 || strcmp(name, "__pycache__") == 0;
    for (const struct export_file *file = export_files; file->name && !known; file++) {
        known = strcmp(name, file->name) == 0;
    }
    return known;
}

static bool has_mark(const char *folder) {
    json_t *json = NULL;
    char *path = files_path("%s/config.json", folder);
    const bool marked =
        path && json_file_read(path, (size_t)1 << 20, &json) == 0 && json_object_get(json, mark) != NULL;
    json_decref(json);
    free(path);
    return marked;
}

/* Whether a program beside the weights is as an export wrote it; one that is not there is. */
static bool is_as_written(const char *out, const struct export_file *file) {
    char *path = files_path("%s/%s", out, file->name), *text = NULL;
    size_t bytes = 0;
    const bool there = path && files_exist(path);
    const bool same =
        !there || (files_read(path, (size_t)1 << 24, &text, &bytes) == 0 && strcmp(text, file->text) == 0);
    free(path);
    free(text);
    return same;
}

/* Nothing, an empty folder, or an export may be where the new one will be. */
static int check_target(const char *out) {
    DIR *folder = opendir(out);
    if (!folder) {
        return errno == ENOENT ? 0 : error_set_errno("cannot write the folder %s", out);
    }
    size_t entries = 0;
    bool others = false;
    for (const struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            entries++;
            others = others || !is_exported_file(entry->d_name);
        }
    }
    closedir(folder);
    for (const struct export_file *file = export_files; file->name; file++) {
        if (!is_as_written(out, file)) {
            return error_set("%s/%s is not as an export wrote it, and would be lost: choose another --out", out,
                             file->name);
        }
    }
    return entries == 0 || (!others && has_mark(out))
               ? 0
               : error_set("%s is there already and not an export alone: choose another --out, or remove it", out);
}

/* ---- what to write */

int64_t export_rows(const struct model_config *config, enum export_format format) {
    const bool padded = strcmp(config->tokenizer, "gpt2") == 0 && config->vocab_size > GPT2_TOKENS;
    return format == EXPORT_HUGGING_FACE && padded ? GPT2_TOKENS : config->vocab_size;
}

/* The model as it will be in the folder. */
static int choose_model(const struct export_settings *settings, const struct model_config *source,
                        struct model_config *target) {
    *target = *source;
    if (settings->format == EXPORT_HUGGING_FACE) {
        if (!residual_is_plain(source->residual)) {
            return error_set("%s has residual = %s, which Hugging Face's GPT-2 cannot compute: give --format torch",
                             settings->checkpoint, source->residual->name);
        }
        target->bias = true; /* GPT-2 has no switch for it */
    }
    target->vocab_size = settings->vocab_size ? settings->vocab_size : export_rows(source, settings->format);
    if (target->vocab_size > source->vocab_size) {
        return error_set("--vocab-size %" PRId64 " is more than the %" PRId64 " of %s", target->vocab_size,
                         source->vocab_size, settings->checkpoint);
    }
    return 0;
}

struct export {
    enum export_format format;
    struct model_config source_config, config; /* as read, as written */
    struct parameters source, parameters;      /* their tables */
    struct weights *weights;
    float *piece; /* [PIECE] */
};

static void release(struct export *export) {
    weights_close(export->weights);
    parameters_release(&export->source);
    parameters_release(&export->parameters);
    free(export->piece);
}

static int prepare(const struct export_settings *settings, struct export *export) {
    export->format = settings->format;
    export->piece = calloc(PIECE, sizeof *export->piece);
    if (!export->piece) {
        return error_set("out of memory");
    }
    return config_file_read(settings->checkpoint, &export->source_config) ||
                   choose_model(settings, &export->source_config, &export->config) ||
                   (files_are_same(settings->checkpoint, settings->out) &&
                    error_set("--out is the checkpoint itself")) ||
                   check_target(settings->out) || parameters_create(&export->source_config, &export->source) ||
                   parameters_create(&export->config, &export->parameters) ||
                   weights_open(settings->checkpoint, &export->source_config, &export->source, &export->weights)
               ? -1
               : 0;
}

/* ---- writing */

static bool swaps(const struct export *export, const struct parameter *parameter) {
    return export->format == EXPORT_HUGGING_FACE && weights_is_transposed(parameter);
}

static int write_config(const struct export *export, const char *folder) {
    const bool hugging_face = export->format == EXPORT_HUGGING_FACE;
    char *path = files_path("%s/config.json", folder);
    json_t *json = hugging_face ? hugging_face_make_config(&export->config) : model_config_to_json(&export->config);
    int status = path && json && json_object_set_new(json, mark, json_string("hctrain " HC_VERSION)) == 0
                     ? json_file_write(path, json, JSON_INDENT(1) | JSON_REAL_PRECISION(15))
                     : error_set("out of memory");
    json_decref(json);
    free(path);
    return status;
}

static struct tensor_info *describe(const struct export *export) {
    struct tensor_info *infos = calloc(export->parameters.count, sizeof *infos);
    for (size_t i = 0; infos && i < export->parameters.count; i++) {
        struct parameter *parameter = &export->parameters.table[i];
        infos[i] = (struct tensor_info){.name = parameter->name, .type = TENSOR_F32, .rank = parameter->rank};
        for (unsigned k = 0; k < parameter->rank; k++) {
            infos[i].shape[k] = parameter->shape[swaps(export, parameter) ? 1 - k : k];
        }
    }
    return infos;
}

static int append_transposed(const struct export *export, const struct parameter *from,
                             struct safetensors_writer *writer) {
    float *values = malloc(from->elements * sizeof *values), *turned = malloc(from->elements * sizeof *turned);
    int status = values && turned ? weights_read(export->weights, from, 0, from->elements, values)
                                  : error_set("out of memory for tensor '%s'", from->name);
    if (status == 0) {
        weights_transpose(from->shape[0], from->shape[1], values, turned);
        status = safetensors_append(writer, turned, from->elements * sizeof *turned);
    }
    free(values);
    free(turned);
    return status;
}

/* Its first `elements`, zeros where the model has no such parameter. */
static int append(const struct export *export, const struct parameter *from, uint64_t elements,
                  struct safetensors_writer *writer) {
    if (!from) {
        memset(export->piece, 0, PIECE * sizeof *export->piece);
    }
    for (uint64_t done = 0; done < elements; done += PIECE) {
        const uint64_t count = elements - done < PIECE ? elements - done : PIECE;
        if ((from && weights_read(export->weights, from, done, count, export->piece)) ||
            safetensors_append(writer, export->piece, count * sizeof *export->piece)) {
            return -1;
        }
    }
    return 0;
}

static int append_all(const struct export *export, struct safetensors_writer *writer) {
    for (size_t i = 0; i < export->parameters.count; i++) {
        const struct parameter *parameter = &export->parameters.table[i];
        const struct parameter *from = parameters_find(&export->source, parameter->name);
        if (interrupt_requested()) {
            return error_set("interrupted");
        }
        if (from && swaps(export, parameter) ? append_transposed(export, from, writer)
                                             : append(export, from, parameter->elements, writer)) {
            return -1;
        }
    }
    return 0;
}

static int write_weights(const struct export *export, const char *folder) {
    struct safetensors_writer *writer = NULL;
    char *path = files_path("%s/%s", folder, WEIGHTS_FILE);
    struct tensor_info *infos = describe(export);
    int status = path && infos ? safetensors_create(path, infos, export->parameters.count, &writer)
                               : error_set("out of memory");
    if (status == 0 && append_all(export, writer)) {
        safetensors_abandon(writer);
        status = -1;
    } else if (status == 0) {
        status = safetensors_finish(writer);
    }
    free(infos);
    free(path);
    return status;
}

static int write_programs(const char *folder) {
    int status = 0;
    for (const struct export_file *file = export_files; file->name && status == 0; file++) {
        char *path = files_path("%s/%s", folder, file->name);
        status = path ? files_write(path, file->text, strlen(file->text)) : -1;
        free(path);
    }
    return status;
}

static int write_folder(const struct export *export, const char *out) {
    char *staging = NULL;
    if (files_stage_begin(out, &staging)) {
        return -1;
    }
    if (write_config(export, staging) || write_weights(export, staging) ||
        (export->format == EXPORT_TORCH && write_programs(staging))) {
        files_stage_abandon(staging);
        return -1;
    }
    return files_stage_commit(out, staging);
}

int export_run(const struct export_settings *settings, struct export_report *report) {
    struct export export = {0};
    const int status = prepare(settings, &export) || write_folder(&export, settings->out);
    *report = (struct export_report){export.source_config, export.config.vocab_size, export.parameters.total};
    release(&export);
    return status ? error_prefix("cannot export %s to %s", settings->checkpoint, settings->out) : 0;
}
