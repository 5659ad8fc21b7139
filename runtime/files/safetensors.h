/* Safetensors: 8-byte little-endian header length, JSON header, then the tensors' bytes.
 * Format: https://github.com/huggingface/safetensors. All input is hostile: offsets, overlaps, shapes, overflow,
 * types, duplicate names and trailing bytes are checked before anything is used. */
#pragma once

#include "runtime/files/files.h"
#include <stddef.h>
#include <stdint.h>

#define TENSOR_MAX_RANK 8

enum tensor_type {
    TENSOR_F32,
    TENSOR_F64,
    TENSOR_F16,
    TENSOR_BF16,
    TENSOR_I32,
    TENSOR_I64,
    TENSOR_U16,
    TENSOR_U8,
    TENSOR_BOOL
};

struct tensor_info {
    char *name; /* owned by the file */
    enum tensor_type type;
    unsigned rank; /* 0: scalar */
    uint64_t shape[TENSOR_MAX_RANK];
    uint64_t elements;
    uint64_t offset; /* of the first byte, from the start of the file */
    uint64_t bytes;
};

/* Works out elements and bytes from type, rank and shape; -1, without an error text, when they overflow. */
int tensor_measure(struct tensor_info *info);

/* ---- reading: the header is parsed on opening, tensors are read one by one, so that memory stays small */

/* Only the functions below change it. */
struct safetensors {
    struct path path;
    int descriptor;
    struct tensor_info *infos; /* [count] in the order of their bytes in the file */
    size_t count;
};

/* On success *opened is owned by the caller (safetensors_close). */
int safetensors_open(const char *path, struct safetensors **opened);
void safetensors_close(struct safetensors *file);

const struct tensor_info *safetensors_find(const struct safetensors *file, const char *name); /* NULL: none */

/* Reads elements [first, first + count) of a tensor, converted to float (F32, F64, F16, BF16) or int32 (I32, I64 if
 * in range, U16, U8). BOOL, which files may have beside what is wanted, ranges outside of the tensor, and floats
 * that are infinite or NaN are errors. */
int safetensors_read_f32(const struct safetensors *file, const struct tensor_info *info, uint64_t first,
                         uint64_t count, float *values);
int safetensors_read_i32(const struct safetensors *file, const struct tensor_info *info, uint64_t first,
                         uint64_t count, int32_t *values);

/* ---- float tensors in pieces: large ones need not be in memory as a whole */

/* Elements [first, first + count) of tensor number `tensor`; it sets the values, or takes them. 0 to go on, or -1
 * with an error text. */
typedef int tensor_piece(void *context, size_t tensor, uint64_t first, uint64_t count, float *values);

/* Calls `piece` for all elements of the tensors (rank and shape are used), in their order, at most 2^20 of one
 * tensor at a time, of a matrix whole rows if they are not longer. The values have the same place in memory in all
 * calls. */
int tensors_each_piece(const struct tensor_info *infos, size_t count, tensor_piece *piece, void *context);

/* Writes a file of tensors in the order of `infos`, of types of at most 32 bits, whose elements `piece` sets;
 * syncs it. On any failure the caller removes it. */
int safetensors_write(const char *path, const struct tensor_info *infos, size_t count, tensor_piece *piece,
                      void *context);
