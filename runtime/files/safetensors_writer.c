#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/files/safetensors.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct safetensors_writer {
    struct path path;
    FILE *stream;
    uint64_t written, expected; /* bytes of data */
};

static json_t *shape_json(const struct tensor_info *info) {
    json_t *shape = json_array();
    for (unsigned i = 0; i < info->rank; i++) {
        json_array_append_new(shape, json_integer((json_int_t)info->shape[i]));
    }
    return shape;
}

/* Adds one tensor at `begin`; returns 0 or -1 with an error, and the end in *end. */
static int declare(json_t *root, const struct tensor_info *given, uint64_t begin, uint64_t *end) {
    struct tensor_info info = *given;
    if (info.name == NULL || strcmp(info.name, "__metadata__") == 0 || json_object_get(root, info.name) != NULL) {
        return error_set("tensor name '%s' is taken twice or reserved", info.name != NULL ? info.name : "");
    }
    if (tensor_type_bytes(info.type) == 0 || info.rank > TENSOR_MAX_RANK) {
        return error_set("tensor '%s' has no valid type and rank", info.name);
    }
    if (tensor_measure(&info) != 0 || __builtin_add_overflow(begin, info.bytes, end) || *end > INT64_MAX) {
        return error_set("tensor '%s' is too large", info.name);
    }
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensor_type_name(info.type), "shape",
                              shape_json(&info), "data_offsets", (json_int_t)begin, (json_int_t)*end);
    return json_object_set_new(root, info.name, entry) == 0 ? 0
                                                            : error_set("tensor name '%s' is not UTF-8", info.name);
}

/* The header's text; NULL with an error. */
static char *make_header(const struct tensor_info *infos, size_t count, uint64_t *data_bytes) {
    /* Readers of the Python world refuse files that do not name a framework. */
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    *data_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (declare(root, &infos[i], *data_bytes, data_bytes) != 0) {
            json_decref(root);
            return NULL;
        }
    }
    char *text = json_file_text(root, JSON_COMPACT);
    json_decref(root);
    if (text != NULL && strlen(text) > SAFETENSORS_MOST_HEADER_BYTES) {
        error_set("the header would be larger than %d bytes", SAFETENSORS_MOST_HEADER_BYTES);
        free(text);
        text = NULL;
    }
    return text;
}

/* The header with its length in front, padded by spaces to whole 8 bytes. */
static bool write_header(FILE *stream, const char *text) {
    const uint64_t padded = (strlen(text) + 7) / 8 * 8;
    return fwrite(&padded, sizeof padded, 1, stream) == 1 && fprintf(stream, "%-*s", (int)padded, text) >= 0;
}

int safetensors_create(const char *path, const struct tensor_info *infos, size_t count,
                       struct safetensors_writer **created) {
    *created = NULL;
    uint64_t data_bytes = 0;
    char *header = make_header(infos, count, &data_bytes);
    struct safetensors_writer *writer = memory_zeroed(1, sizeof *writer);
    if (header == NULL) {
        error_prefix("cannot write %s", path);
    } else if ((writer->stream = fopen(path, "wbe")) == NULL) {
        error_set_errno("cannot create %s", path);
    } else if (!write_header(writer->stream, header)) {
        error_set_errno("cannot write %s", path);
    } else {
        writer->path = path_of("%s", path);
        writer->expected = data_bytes;
        *created = writer;
    }
    free(header);
    if (*created == NULL) {
        safetensors_abandon(writer);
        return -1;
    }
    return 0;
}

int safetensors_append(struct safetensors_writer *writer, const void *data, uint64_t bytes) {
    if (bytes > writer->expected - writer->written) {
        return error_set("cannot write %s: %" PRIu64 " bytes more than the declared tensors have",
                         writer->path.text, bytes - (writer->expected - writer->written));
    }
    if (bytes > SIZE_MAX || (bytes > 0 && fwrite(data, (size_t)bytes, 1, writer->stream) != 1)) {
        return error_set_errno("cannot write %s", writer->path.text);
    }
    writer->written += bytes;
    return 0;
}

int safetensors_finish(struct safetensors_writer *writer) {
    int result = 0;
    if (writer->written != writer->expected) {
        result = error_set("cannot write %s: %" PRIu64 " of %" PRIu64 " bytes came", writer->path.text,
                           writer->written, writer->expected);
    } else if (fflush(writer->stream) != 0 || fsync(fileno(writer->stream)) != 0) {
        result = error_set_errno("cannot write %s", writer->path.text);
    }
    safetensors_abandon(writer);
    return result;
}

void safetensors_abandon(struct safetensors_writer *writer) {
    if (writer != NULL) {
        if (writer->stream != NULL) {
            fclose(writer->stream);
        }
        free(writer);
    }
}

/* ---- float tensors in pieces */

int tensors_each_piece(const struct tensor_info *infos, size_t count, tensor_piece *piece, void *context) {
    const uint64_t most = (uint64_t)1 << 20;
    float *values = memory_allocate(most, sizeof *values);
    int status = 0;
    for (size_t i = 0; i < count && status == 0; i++) {
        struct tensor_info info = infos[i];
        status = tensor_measure(&info) != 0 ? error_set("tensor '%s' is too large", info.name) : 0;
        for (uint64_t done = 0; done < info.elements && status == 0; done += most) {
            const uint64_t left = info.elements - done;
            status = piece(context, i, done, left < most ? left : most, values);
        }
    }
    free(values);
    return status;
}

struct filled {
    struct safetensors_writer *writer;
    const struct tensor_info *infos;
    tensor_piece *piece;
    void *context; /* piece's */
};

static int append_piece(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    const struct filled *filled = context;
    if (filled->piece(filled->context, tensor, first, count, values) != 0) {
        return -1;
    }
    return safetensors_append(filled->writer, values, count * sizeof *values) != 0
               ? error_prefix("%s", filled->infos[tensor].name)
               : 0;
}

int safetensors_write(const char *path, const struct tensor_info *infos, size_t count, tensor_piece *piece,
                      void *context) {
    struct filled filled = {.infos = infos, .piece = piece, .context = context};
    if (safetensors_create(path, infos, count, &filled.writer) != 0) {
        return -1;
    }
    if (tensors_each_piece(infos, count, append_piece, &filled) != 0) {
        safetensors_abandon(filled.writer);
        return -1;
    }
    return safetensors_finish(filled.writer);
}
