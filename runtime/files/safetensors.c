#include "runtime/files/safetensors.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/element.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensors are read and written as the machine has them, which must be little-endian"
#endif

enum {
    BLOCK_BYTES = 1 << 16,         /* of the buffer for conversions */
    MOST_SHOWN = 100,              /* characters of a name from a file in an error text */
    LENGTH_BYTES = 8,              /* of the header's length, in front of everything */
    MOST_HEADER_BYTES = 100000000, /* the limit of the reference implementation */
    VALUE_BYTES = 4,               /* of a float and of an int32, as which tensors are read */
};

enum kind { FLOATING, WHOLE, OTHER };

static const struct {
    const char *name;
    size_t bytes;
    enum kind kind; /* of numbers, as which it can be read */
} types[] = {
    [TENSOR_F32] = {"F32", 4, FLOATING},   [TENSOR_F64] = {"F64", 8, FLOATING}, [TENSOR_F16] = {"F16", 2, FLOATING},
    [TENSOR_BF16] = {"BF16", 2, FLOATING}, [TENSOR_I32] = {"I32", 4, WHOLE},    [TENSOR_I64] = {"I64", 8, WHOLE},
    [TENSOR_U16] = {"U16", 2, WHOLE},      [TENSOR_U8] = {"U8", 1, WHOLE},      [TENSOR_BOOL] = {"BOOL", 1, OTHER},
};

int tensor_measure(struct tensor_info *info) {
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
    const ssize_t got = files_read_all(file->descriptor, data, bytes, (int64_t)offset);
    if (got < 0) {
        return error_set_errno("cannot read %s", file->path.text);
    }
    return (uint64_t)got == bytes
               ? 0
               : error_set("%s ends too early, at byte %" PRIu64, file->path.text, offset + (uint64_t)got);
}

static int parse_shape(const json_t *value, struct tensor_info *info) {
    const size_t rank = json_array_size(value);
    if (!json_is_array(value)) {
        return error_set("shape is not a list");
    }
    if (rank > TENSOR_MAX_RANK) {
        return error_set("shape has %zu dimensions, but at most %d are supported", rank, TENSOR_MAX_RANK);
    }
    info->rank = (unsigned)rank;
    for (size_t i = 0; i < rank; i++) {
        const json_t *size = json_array_get(value, i);
        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            return error_set("shape has something else than whole numbers, or a negative one");
        }
        info->shape[i] = (uint64_t)json_integer_value(size);
    }
    return tensor_measure(info) == 0 ? 0 : error_set("shape is too large");
}

/* data_offsets are [begin, end), relative to the end of the header. */
static int parse_tensor(const char *name, json_t *value, struct tensor_info *info, uint64_t data_offset,
                        uint64_t data_bytes) {
    const char *type;
    json_t *shape;
    json_int_t begin, end;
    json_error_t error;
    if (json_unpack_ex(value, &error, 0, "{s:s, s:o, s:[I, I!]}", "dtype", &type, "shape", &shape, "data_offsets",
                       &begin, &end) != 0) {
        return error_set("its entry in the header is not a dtype, a shape and two data_offsets: %s", error.text);
    }
    size_t number = 0;
    while (number < COUNT(types) && strcmp(type, types[number].name) != 0) {
        number++;
    }
    if (number == COUNT(types)) {
        return error_set("dtype '%.*s' is not supported (F32, F64, F16, BF16, I32, I64, U16, U8 and BOOL are)",
                         MOST_SHOWN, type);
    }
    info->type = (enum tensor_type)number;
    if (parse_shape(shape, info) != 0) {
        return -1;
    }
    if (begin < 0 || begin > end || (uint64_t)end > data_bytes) {
        return error_set("data_offsets %" JSON_INTEGER_FORMAT " .. %" JSON_INTEGER_FORMAT
                         " are not inside of the file, which has %" PRIu64 " bytes of data",
                         begin, end, data_bytes);
    }
    if ((uint64_t)(end - begin) != info->bytes) {
        return error_set("shape and dtype make %" PRIu64 " bytes, but data_offsets span %" JSON_INTEGER_FORMAT,
                         info->bytes, end - begin);
    }
    info->offset = data_offset + (uint64_t)begin;
    info->name = memory_string(name);
    return 0;
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

static int parse_header(struct safetensors *file, json_t *root, uint64_t data_offset, uint64_t data_bytes) {
    file->infos = memory_zeroed(json_object_size(root), sizeof *file->infos);
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value) {
        if (strcmp(name, "__metadata__") == 0) {
            continue;
        }
        if (parse_tensor(name, value, &file->infos[file->count], data_offset, data_bytes) != 0) {
            return error_prefix("%s: tensor '%.*s'", file->path.text, MOST_SHOWN, name);
        }
        file->count++;
    }
    /* The format wants the data covered by tensors without gaps or overlaps, from its first byte to the end of the
     * file. */
    qsort(file->infos, file->count, sizeof *file->infos, compare_offsets);
    uint64_t at = data_offset;
    for (size_t i = 0; i < file->count; i++) {
        const struct tensor_info *info = &file->infos[i];
        if (info->offset != at) {
            return error_set("%s: tensor '%.*s' %s", file->path.text, MOST_SHOWN, info->name,
                             info->offset < at ? "overlaps the one before it" : "has unused bytes before it");
        }
        at += info->bytes;
    }
    const uint64_t left = data_offset + data_bytes - at;
    return left == 0 ? 0 : error_set("%s has %" PRIu64 " bytes after the last tensor", file->path.text, left);
}

static int read_header(struct safetensors *file, uint64_t size) {
    uint64_t header_bytes;
    if (size < LENGTH_BYTES) {
        return error_set("%s has only %" PRIu64 " bytes; it is not a safetensors file", file->path.text, size);
    }
    if (read_at(file, &header_bytes, LENGTH_BYTES, 0) != 0) {
        return -1;
    }
    if (header_bytes > MOST_HEADER_BYTES) {
        return error_set("%s: the header would have %" PRIu64
                         " bytes (at most %d are allowed); it is not a safetensors file",
                         file->path.text, header_bytes, MOST_HEADER_BYTES);
    }
    if (header_bytes < 2 || header_bytes > size - LENGTH_BYTES) {
        return error_set("%s: the header of %" PRIu64 " bytes does not fit the file of %" PRIu64
                         "; it is cut short or not a safetensors file",
                         file->path.text, header_bytes, size);
    }
    char *text = memory_allocate((size_t)header_bytes, 1);
    json_t *root = NULL;
    json_error_t error;
    int status = read_at(file, text, header_bytes, LENGTH_BYTES);
    if (status == 0) {
        root = json_file_parse(text, (size_t)header_bytes, JSON_REJECT_DUPLICATES, false, &error);
        if (root == NULL) {
            status = error_set("%s: the header is not valid JSON: %s (byte %d)", file->path.text, error.text,
                               error.position);
        } else if (text[0] != '{') {
            status = error_set("%s: the header is not a JSON object", file->path.text);
        } else {
            const uint64_t data_offset = LENGTH_BYTES + header_bytes;
            status = parse_header(file, root, data_offset, size - data_offset);
        }
    }
    json_decref(root);
    free(text);
    return status;
}

/* ---- reading */

int safetensors_open(const char *path, struct safetensors **opened) {
    *opened = NULL;
    struct safetensors *file = memory_zeroed(1, sizeof *file);
    uint64_t size;
    file->path = path_of("%s", path);
    file->descriptor = files_open(path, path, &size);
    if (file->descriptor >= 0 && read_header(file, size) == 0) {
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
    free(file);
}

const struct tensor_info *safetensors_find(const struct safetensors *file, const char *name) {
    for (size_t i = 0; i < file->count; i++) {
        if (strcmp(file->infos[i].name, name) == 0) {
            return &file->infos[i];
        }
    }
    return NULL;
}

/* Elements as they are stored. */
union block {
    unsigned char u8[BLOCK_BYTES];
    uint16_t u16[BLOCK_BYTES / sizeof(uint16_t)]; /* or 16-bit floats */
    int64_t i64[BLOCK_BYTES / sizeof(int64_t)];
    double f64[BLOCK_BYTES / sizeof(double)];
};

/* Converts elements to floats or int32; how many, fewer where the next does not fit. */
static size_t convert(enum tensor_type type, const union block *block, size_t count, void *values) {
    float *floats = values;
    int32_t *integers = values;
    for (size_t i = 0; i < count; i++) {
        if (type == TENSOR_F64) {
            floats[i] = (float)block->f64[i];
        } else if (type == TENSOR_F16 || type == TENSOR_BF16) {
            floats[i] = element_decode(block->u16[i], type == TENSOR_F16 ? ELEMENT_FP16 : ELEMENT_BF16);
        } else if (type != TENSOR_I64) {
            integers[i] = type == TENSOR_U16 ? block->u16[i] : block->u8[i];
        } else if (block->i64[i] < INT32_MIN || block->i64[i] > INT32_MAX) {
            return i;
        } else {
            integers[i] = (int32_t)block->i64[i];
        }
    }
    return count;
}

static int read_values(const struct safetensors *file, const struct tensor_info *info, uint64_t first,
                       uint64_t count, enum kind kind, void *values) {
    if (types[info->type].kind != kind) {
        return error_set("%s: tensor '%.*s' has dtype %s where %s are wanted", file->path.text, MOST_SHOWN,
                         info->name, types[info->type].name,
                         kind == WHOLE ? "whole numbers" : "floating-point numbers");
    }
    if (first > info->elements || count > info->elements - first) {
        return error_set("%s: %" PRIu64 " elements from %" PRIu64
                         " on are wanted of tensor '%.*s', which has %" PRIu64,
                         file->path.text, count, first, MOST_SHOWN, info->name, info->elements);
    }
    const size_t width = types[info->type].bytes;
    if (info->type == TENSOR_F32 || info->type == TENSOR_I32) {
        return read_at(file, values, count * width, info->offset + first * width);
    }
    union block block;
    for (uint64_t done = 0, some; done < count; done += some) {
        some = count - done < sizeof block / width ? count - done : sizeof block / width;
        if (read_at(file, &block, some * width, info->offset + (first + done) * width) != 0) {
            return -1;
        }
        const size_t fit = convert(info->type, &block, (size_t)some, (char *)values + VALUE_BYTES * done);
        if (fit < some) {
            return error_set("%s: element %" PRIu64 " of tensor '%.*s' does not fit 32 bits", file->path.text,
                             first + done + fit, MOST_SHOWN, info->name);
        }
    }
    return 0;
}

int safetensors_read_f32(const struct safetensors *file, const struct tensor_info *info, uint64_t first,
                         uint64_t count, float *values) {
    const uint32_t exponent = 0x7f800000;
    uint32_t others = 0;
    uint64_t at = 0;
    if (read_values(file, info, first, count, FLOATING, values) != 0) {
        return -1;
    }
    for (uint64_t i = 0; i < count; i++) { /* compilers vectorize the loop, since nothing ends it early */
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        others |= (bits & exponent) == exponent;
    }
    if (others == 0) {
        return 0;
    }
    while (isfinite(values[at])) {
        at++;
    }
    return error_set("%s: element %" PRIu64
                     " of tensor '%.*s' is %g: the file is damaged, or the run that wrote it has "
                     "diverged; take an older checkpoint",
                     file->path.text, first + at, MOST_SHOWN, info->name, (double)values[at]);
}

int safetensors_read_i32(const struct safetensors *file, const struct tensor_info *info, uint64_t first,
                         uint64_t count, int32_t *values) {
    return read_values(file, info, first, count, WHOLE, values);
}

/* ---- writing */

/* The header's text. Readers of the Python world refuse files that do not name a framework. */
static char *make_header(const struct tensor_info *infos, size_t count) {
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t offset = 0;
    for (size_t i = 0; i < count; i++) {
        struct tensor_info info = infos[i];
        json_t *shape = json_array();
        for (unsigned axis = 0; axis < info.rank; axis++) {
            json_array_append_new(shape, json_integer((json_int_t)info.shape[axis]));
        }
        tensor_measure(&info);
        json_object_set_new(root, info.name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", types[info.type].name, "shape", shape,
                                      "data_offsets", (json_int_t)offset, (json_int_t)(offset + info.bytes)));
        offset += info.bytes;
    }
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

int tensors_each_piece(const struct tensor_info *infos, size_t count, tensor_piece *piece, void *context) {
    const uint64_t most = (uint64_t)1 << 20;
    float *values = memory_allocate(most, sizeof *values);
    int status = 0;
    for (size_t i = 0; i < count && status == 0; i++) {
        struct tensor_info info = infos[i];
        status = tensor_measure(&info) != 0 ? error_set("tensor '%s' is too large", info.name) : 0;
        const uint64_t row = info.rank == 2 && info.shape[1] > 0 && info.shape[1] <= most ? info.shape[1] : 1;
        const uint64_t step = most / row * row;
        for (uint64_t done = 0; done < info.elements && status == 0; done += step) {
            const uint64_t left = info.elements - done;
            status = piece(context, i, done, left < step ? left : step, values);
        }
    }
    free(values);
    return status;
}

struct output {
    const char *path;
    const struct tensor_info *infos;
    FILE *stream;
    tensor_piece *piece;
    void *context; /* piece's */
};

static int write_piece(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    const struct output *output = context;
    if (output->piece(output->context, tensor, first, count, values) != 0) {
        return -1;
    }
    return fwrite(values, types[output->infos[tensor].type].bytes, count, output->stream) == count
               ? 0
               : error_set_errno("cannot write %s", output->path);
}

int safetensors_write(const char *path, const struct tensor_info *infos, size_t count, tensor_piece *piece,
                      void *context) {
    struct output output = {path, infos, fopen(path, "wbe"), piece, context};
    if (output.stream == NULL) {
        return error_set_errno("cannot create %s", path);
    }
    char *header = make_header(infos, count);
    const uint64_t padded = (strlen(header) + 7) / 8 * 8; /* by spaces */
    const bool begun = fwrite(&padded, sizeof padded, 1, output.stream) == 1 &&
                       fprintf(output.stream, "%-*s", (int)padded, header) >= 0;
    int status =
        begun ? tensors_each_piece(infos, count, write_piece, &output) : error_set_errno("cannot write %s", path);
    if (status == 0 && (fflush(output.stream) != 0 || fsync(fileno(output.stream)) != 0)) {
        status = error_set_errno("cannot write %s", path);
    }
    fclose(output.stream);
    free(header);
    return status;
}
