#include "runtime/files/safetensors.h"
#include "runtime/system/element.h"
#include "runtime/system/error.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensors are read and written as the machine has them, which must be little-endian"
#endif

enum {
    LENGTH_BYTES = 8,              /* of the header's length, in front of everything */
    MOST_HEADER_BYTES = 100000000, /* the limit of the reference implementation */
    BLOCK_BYTES = 1 << 16,         /* of the buffer for conversions */
    MOST_SHOWN = 100,              /* characters of a name from a file in an error text */
};

static const struct {
    const char *name;
    size_t bytes;
} types[] = {
    [TENSOR_F32] = {"F32", 4},   [TENSOR_F64] = {"F64", 8}, [TENSOR_F16] = {"F16", 2},
    [TENSOR_BF16] = {"BF16", 2}, [TENSOR_I32] = {"I32", 4}, [TENSOR_I64] = {"I64", 8},
    [TENSOR_U16] = {"U16", 2},   [TENSOR_U8] = {"U8", 1},   [TENSOR_BOOL] = {"BOOL", 1},
};

enum { TYPE_COUNT = sizeof types / sizeof types[0] };

struct safetensors {
    char *path;
    int descriptor;
    struct tensor_info *infos; /* in the order of their bytes in the file */
    size_t count;
};

size_t tensor_type_bytes(enum tensor_type type) {
    return (unsigned)type < TYPE_COUNT ? types[type].bytes : 0;
}

const char *tensor_type_name(enum tensor_type type) {
    return (unsigned)type < TYPE_COUNT ? types[type].name : "unknown";
}

/* Elements and bytes from type, rank and shape; -1 when they overflow. */
static int measure(struct tensor_info *info) {
    uint64_t elements = 1;
    for (unsigned i = 0; i < info->rank; i++) {
        if (__builtin_mul_overflow(elements, info->shape[i], &elements)) {
            return -1;
        }
    }
    info->elements = elements;
    return __builtin_mul_overflow(elements, (uint64_t)types[info->type].bytes, &info->bytes) ? -1 : 0;
}

/* ---- the header */

/* Reads exactly `bytes` at `offset`. */
static int read_at(const struct safetensors *file, void *data, uint64_t bytes, uint64_t offset) {
    char *at = data;
    while (bytes > 0) {
        const size_t wanted = bytes < (1u << 30) ? (size_t)bytes : 1u << 30;
        const ssize_t got = pread(file->descriptor, at, wanted, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return error_set_errno("cannot read %s", file->path);
        }
        if (got == 0) {
            return error_set("%s ends too early, at byte %" PRIu64, file->path, offset);
        }
        at += got;
        bytes -= (uint64_t)got;
        offset += (uint64_t)got;
    }
    return 0;
}

static int parse_type(const json_t *value, struct tensor_info *info) {
    const char *name = json_string_value(value);
    if (name == NULL) {
        return error_set("dtype is missing or not a text");
    }
    for (int i = 0; i < TYPE_COUNT; i++) {
        if (strcmp(name, types[i].name) == 0) {
            info->type = (enum tensor_type)i;
            return 0;
        }
    }
    return error_set("dtype '%.*s' is not supported (F32, F64, F16, BF16, I32, I64, U16, U8 and BOOL are)",
                     MOST_SHOWN, name);
}

static int parse_count(const json_t *value, const char *what, uint64_t *count) {
    if (!json_is_integer(value)) {
        return error_set("%s has something else than whole numbers", what);
    }
    if (json_integer_value(value) < 0) {
        return error_set("%s has a negative number, %" JSON_INTEGER_FORMAT, what, json_integer_value(value));
    }
    *count = (uint64_t)json_integer_value(value);
    return 0;
}

static int parse_shape(const json_t *value, struct tensor_info *info) {
    if (!json_is_array(value)) {
        return error_set("shape is missing or not a list");
    }
    const size_t rank = json_array_size(value);
    if (rank > TENSOR_MAX_RANK) {
        return error_set("shape has %zu dimensions, but at most %d are supported", rank, TENSOR_MAX_RANK);
    }
    info->rank = (unsigned)rank;
    for (size_t i = 0; i < rank; i++) {
        if (parse_count(json_array_get(value, i), "shape", &info->shape[i]) != 0) {
            return -1;
        }
    }
    return measure(info) == 0 ? 0 : error_set("shape is too large");
}

/* data_offsets [begin, end), relative to the end of the header. */
static int parse_offsets(const json_t *value, struct tensor_info *info, uint64_t data_offset, uint64_t data_bytes) {
    uint64_t begin = 0, end = 0;
    if (!json_is_array(value) || json_array_size(value) != 2) {
        return error_set("data_offsets is missing or not a list of two numbers");
    }
    if (parse_count(json_array_get(value, 0), "data_offsets", &begin) != 0 ||
        parse_count(json_array_get(value, 1), "data_offsets", &end) != 0) {
        return -1;
    }
    if (begin > end || end > data_bytes) {
        return error_set("data_offsets %" PRIu64 " .. %" PRIu64 " are not inside of the file, which has %" PRIu64
                         " bytes of data",
                         begin, end, data_bytes);
    }
    if (end - begin != info->bytes) {
        return error_set("shape and dtype make %" PRIu64 " bytes, but data_offsets span %" PRIu64, info->bytes,
                         end - begin);
    }
    info->offset = data_offset + begin;
    return 0;
}

static int parse_tensor(const char *name, const json_t *value, struct tensor_info *info, uint64_t data_offset,
                        uint64_t data_bytes) {
    if (!json_is_object(value)) {
        return error_set("its entry in the header is not an object");
    }
    if (parse_type(json_object_get(value, "dtype"), info) != 0 ||
        parse_shape(json_object_get(value, "shape"), info) != 0 ||
        parse_offsets(json_object_get(value, "data_offsets"), info, data_offset, data_bytes) != 0) {
        return -1;
    }
    info->name = strdup(name);
    return info->name != NULL ? 0 : error_set("out of memory");
}

static int compare_offsets(const void *left, const void *right) {
    const struct tensor_info *a = left, *b = right;
    if (a->offset != b->offset) {
        return a->offset < b->offset ? -1 : 1;
    }
    if (a->bytes != b->bytes) { /* empty tensors before the one that begins at the same place */
        return a->bytes < b->bytes ? -1 : 1;
    }
    return strcmp(a->name, b->name);
}

/* The format wants the data covered by tensors without gaps or overlaps, from its first byte to the end of the
 * file. */
static int check_layout(struct safetensors *file, uint64_t data_offset, uint64_t data_bytes) {
    qsort(file->infos, file->count, sizeof *file->infos, compare_offsets);
    uint64_t at = data_offset;
    for (size_t i = 0; i < file->count; i++) {
        const struct tensor_info *info = &file->infos[i];
        if (info->offset != at) {
            return error_set("%s: tensor '%.*s' %s", file->path, MOST_SHOWN, info->name,
                             info->offset < at ? "overlaps the one before it" : "has unused bytes before it");
        }
        at += info->bytes;
    }
    const uint64_t left = data_offset + data_bytes - at;
    if (left != 0) {
        return error_set("%s has %" PRIu64 " bytes after the last tensor", file->path, left);
    }
    return 0;
}

static int parse_header(struct safetensors *file, json_t *root, uint64_t data_offset, uint64_t data_bytes) {
    file->infos = calloc(json_object_size(root) + 1, sizeof *file->infos);
    if (file->infos == NULL) {
        return error_set("out of memory opening %s", file->path);
    }
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value) {
        if (strcmp(name, "__metadata__") == 0) {
            continue;
        }
        if (parse_tensor(name, value, &file->infos[file->count], data_offset, data_bytes) != 0) {
            return error_prefix("%s: tensor '%.*s'", file->path, MOST_SHOWN, name);
        }
        file->count++;
    }
    return check_layout(file, data_offset, data_bytes);
}

/* The header's text as JSON, NULL with an error. */
static json_t *load_header(const struct safetensors *file, uint64_t bytes) {
    char *text = malloc((size_t)bytes);
    if (text == NULL) {
        error_set("out of memory reading the header of %s", file->path);
        return NULL;
    }
    json_t *root = NULL;
    if (read_at(file, text, bytes, LENGTH_BYTES) == 0) {
        json_error_t error;
        root = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &error);
        if (root == NULL) {
            error_set("%s: the header is not valid JSON: %s (byte %d)", file->path, error.text, error.position);
        } else if (text[0] != '{') {
            error_set("%s: the header is not a JSON object", file->path);
            json_decref(root);
            root = NULL;
        }
    }
    free(text);
    return root;
}

static int read_header(struct safetensors *file) {
    struct stat status;
    if (fstat(file->descriptor, &status) != 0) {
        return error_set_errno("cannot read %s", file->path);
    }
    if (!S_ISREG(status.st_mode)) {
        return error_set("cannot read %s: it is %s", file->path,
                         S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
    }
    const uint64_t size = (uint64_t)status.st_size;
    uint64_t header_bytes;
    if (size < LENGTH_BYTES) {
        return error_set("%s has only %" PRIu64 " bytes; it is not a safetensors file", file->path, size);
    }
    if (read_at(file, &header_bytes, LENGTH_BYTES, 0) != 0) {
        return -1;
    }
    if (header_bytes > MOST_HEADER_BYTES) {
        return error_set("%s: the header would have %" PRIu64
                         " bytes (at most %d are allowed); it is not a safetensors "
                         "file",
                         file->path, header_bytes, MOST_HEADER_BYTES);
    }
    if (header_bytes < 2 || header_bytes > size - LENGTH_BYTES) {
        return error_set("%s: the header of %" PRIu64 " bytes does not fit the file of %" PRIu64
                         "; it is cut short or not "
                         "a safetensors file",
                         file->path, header_bytes, size);
    }
    json_t *root = load_header(file, header_bytes);
    if (root == NULL) {
        return -1;
    }
    const uint64_t data_offset = LENGTH_BYTES + header_bytes;
    const int result = parse_header(file, root, data_offset, size - data_offset);
    json_decref(root);
    return result;
}

/* ---- reading */

int safetensors_open(const char *path, struct safetensors **opened) {
    *opened = NULL;
    struct safetensors *file = calloc(1, sizeof *file);
    if (file == NULL || (file->path = strdup(path)) == NULL) {
        free(file);
        return error_set("out of memory opening %s", path);
    }
    /* O_NONBLOCK: a named pipe is refused, not waited for. */
    file->descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->descriptor < 0) {
        error_set_errno("cannot open %s", path);
    } else if (read_header(file) == 0) {
        *opened = file;
        return 0;
    }
    safetensors_close(file);
    return -1;
}

void safetensors_close(struct safetensors *file) {
    if (file == NULL) {
        return;
    }
    if (file->descriptor >= 0) {
        close(file->descriptor);
    }
    for (size_t i = 0; i < file->count; i++) {
        free(file->infos[i].name);
    }
    free(file->infos);
    free(file->path);
    free(file);
}

size_t safetensors_count(const struct safetensors *file) {
    return file->count;
}

const struct tensor_info *safetensors_at(const struct safetensors *file, size_t index) {
    return index < file->count ? &file->infos[index] : NULL;
}

const struct tensor_info *safetensors_find(const struct safetensors *file, const char *name) {
    for (size_t i = 0; i < file->count; i++) {
        if (strcmp(file->infos[i].name, name) == 0) {
            return &file->infos[i];
        }
    }
    return NULL;
}

/* Converts `count` elements; the source need not be aligned. */
static void convert_f32(enum tensor_type type, const unsigned char *source, size_t count, float *values) {
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        double wide;
        switch (type) {
        case TENSOR_F64:
            memcpy(&wide, source + 8 * i, sizeof wide);
            values[i] = (float)wide;
            break;
        default:
            memcpy(&half, source + 2 * i, sizeof half);
            values[i] = element_decode(half, type == TENSOR_F16 ? ELEMENT_FP16 : ELEMENT_BF16);
            break;
        }
    }
}

/* As convert_f32; -1 and the element's place in *wrong when an I64 does not fit. */
static int convert_i32(enum tensor_type type, const unsigned char *source, size_t count, int32_t *values,
                       size_t *wrong) {
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        int64_t wide;
        switch (type) {
        case TENSOR_I64:
            memcpy(&wide, source + 8 * i, sizeof wide);
            if (wide < INT32_MIN || wide > INT32_MAX) {
                *wrong = i;
                return -1;
            }
            values[i] = (int32_t)wide;
            break;
        case TENSOR_U16:
            memcpy(&half, source + 2 * i, sizeof half);
            values[i] = half;
            break;
        default:
            values[i] = source[i];
            break;
        }
    }
    return 0;
}

static int check_range(const struct safetensors *file, const struct tensor_info *info, uint64_t first,
                       uint64_t count) {
    if (first > info->elements || count > info->elements - first) {
        return error_set("%s: %" PRIu64 " elements from %" PRIu64
                         " on are wanted of tensor '%.*s', which has %" PRIu64,
                         file->path, count, first, MOST_SHOWN, info->name, info->elements);
    }
    return 0;
}

int safetensors_read_f32(const struct safetensors *file, const struct tensor_info *info, uint64_t first,
                         uint64_t count, float *values) {
    if (info->type != TENSOR_F32 && info->type != TENSOR_F64 && info->type != TENSOR_F16 &&
        info->type != TENSOR_BF16) {
        return error_set("%s: tensor '%.*s' has dtype %s where floating-point numbers are wanted", file->path,
                         MOST_SHOWN, info->name, tensor_type_name(info->type));
    }
    if (check_range(file, info, first, count) != 0) {
        return -1;
    }
    const size_t width = types[info->type].bytes;
    uint64_t offset = info->offset + first * width;
    if (info->type == TENSOR_F32) {
        return read_at(file, values, count * width, offset);
    }
    unsigned char block[BLOCK_BYTES];
    while (count > 0) {
        const size_t some = count < sizeof block / width ? (size_t)count : sizeof block / width;
        if (read_at(file, block, some * width, offset) != 0) {
            return -1;
        }
        convert_f32(info->type, block, some, values);
        values += some;
        count -= some;
        offset += some * width;
    }
    return 0;
}

int safetensors_read_i32(const struct safetensors *file, const struct tensor_info *info, uint64_t first,
                         uint64_t count, int32_t *values) {
    if (info->type != TENSOR_I32 && info->type != TENSOR_I64 && info->type != TENSOR_U16 &&
        info->type != TENSOR_U8) {
        return error_set("%s: tensor '%.*s' has dtype %s where whole numbers are wanted", file->path, MOST_SHOWN,
                         info->name, tensor_type_name(info->type));
    }
    if (check_range(file, info, first, count) != 0) {
        return -1;
    }
    const size_t width = types[info->type].bytes;
    uint64_t offset = info->offset + first * width;
    if (info->type == TENSOR_I32) {
        return read_at(file, values, count * width, offset);
    }
    unsigned char block[BLOCK_BYTES];
    while (count > 0) {
        const size_t some = count < sizeof block / width ? (size_t)count : sizeof block / width;
        size_t wrong = 0;
        if (read_at(file, block, some * width, offset) != 0) {
            return -1;
        }
        if (convert_i32(info->type, block, some, values, &wrong) != 0) {
            const uint64_t element = (offset - info->offset) / width + wrong;
            return error_set("%s: element %" PRIu64 " of tensor '%.*s' does not fit 32 bits", file->path, element,
                             MOST_SHOWN, info->name);
        }
        values += some;
        count -= some;
        offset += some * width;
    }
    return 0;
}

/* ---- writing */

struct safetensors_writer {
    char *path;
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
    if ((unsigned)info.type >= TYPE_COUNT || info.rank > TENSOR_MAX_RANK) {
        return error_set("tensor '%s' has no valid type and rank", info.name);
    }
    if (measure(&info) != 0 || __builtin_add_overflow(begin, info.bytes, end) || *end > INT64_MAX) {
        return error_set("tensor '%s' is too large", info.name);
    }
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", types[info.type].name, "shape", shape_json(&info),
                              "data_offsets", (json_int_t)begin, (json_int_t)*end);
    if (entry == NULL || json_object_set_new(root, info.name, entry) != 0) {
        return error_set("tensor name '%s' is not UTF-8, or memory ran out", info.name);
    }
    return 0;
}

/* The header's text with its length in front, padded by spaces to whole 8 bytes; NULL with an error. */
static char *make_header(const struct tensor_info *infos, size_t count, size_t *bytes, uint64_t *data_bytes) {
    /* Readers of the Python world refuse files that do not name a framework. */
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    *data_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (root == NULL || declare(root, &infos[i], *data_bytes, data_bytes) != 0) {
            json_decref(root);
            return NULL;
        }
    }
    char *json = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    const size_t length = json != NULL ? strlen(json) : 0;
    const uint64_t padded = (length + 7) / 8 * 8;
    char *text = NULL;
    if (padded > MOST_HEADER_BYTES) {
        error_set("the header would be larger than %d bytes", MOST_HEADER_BYTES);
    } else if (json == NULL || (text = malloc(LENGTH_BYTES + (size_t)padded)) == NULL) {
        error_set("out of memory");
    } else {
        memcpy(text, &padded, LENGTH_BYTES);
        memset(text + LENGTH_BYTES, ' ', (size_t)padded);
        memcpy(text + LENGTH_BYTES, json, length);
        *bytes = LENGTH_BYTES + (size_t)padded;
    }
    free(json);
    return text;
}

int safetensors_create(const char *path, const struct tensor_info *infos, size_t count,
                       struct safetensors_writer **created) {
    *created = NULL;
    size_t header_bytes = 0;
    uint64_t data_bytes = 0;
    char *header = make_header(infos, count, &header_bytes, &data_bytes);
    struct safetensors_writer *writer = calloc(1, sizeof *writer);
    int result = -1;
    if (header == NULL) {
        error_prefix("cannot write %s", path);
    } else if (writer == NULL || (writer->path = strdup(path)) == NULL) {
        error_set("cannot write %s: out of memory", path);
    } else if ((writer->stream = fopen(path, "wbe")) == NULL) {
        error_set_errno("cannot create %s", path);
    } else if (fwrite(header, header_bytes, 1, writer->stream) != 1) {
        error_set_errno("cannot write %s", path);
    } else {
        writer->expected = data_bytes;
        *created = writer;
        result = 0;
    }
    free(header);
    if (result != 0) {
        safetensors_abandon(writer);
    }
    return result;
}

int safetensors_append(struct safetensors_writer *writer, const void *data, uint64_t bytes) {
    if (bytes > writer->expected - writer->written) {
        return error_set("cannot write %s: %" PRIu64 " bytes more than the declared tensors have", writer->path,
                         bytes - (writer->expected - writer->written));
    }
    if (bytes > SIZE_MAX || (bytes > 0 && fwrite(data, (size_t)bytes, 1, writer->stream) != 1)) {
        return error_set_errno("cannot write %s", writer->path);
    }
    writer->written += bytes;
    return 0;
}

int safetensors_finish(struct safetensors_writer *writer) {
    int result = 0;
    if (writer->written != writer->expected) {
        result = error_set("cannot write %s: %" PRIu64 " of %" PRIu64 " bytes came", writer->path, writer->written,
                           writer->expected);
    } else if (fflush(writer->stream) != 0 || fsync(fileno(writer->stream)) != 0) {
        result = error_set_errno("cannot write %s", writer->path);
    }
    if (fclose(writer->stream) != 0 && result == 0) {
        result = error_set_errno("cannot write %s", writer->path);
    }
    free(writer->path);
    free(writer);
    return result;
}

void safetensors_abandon(struct safetensors_writer *writer) {
    if (writer != NULL) {
        if (writer->stream != NULL) {
            fclose(writer->stream);
        }
        free(writer->path);
        free(writer);
    }
}
