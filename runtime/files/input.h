/* Text of a file, a pipe or standard input, decompressed: gzip (of several members too, as dictzip's) and zstd (of
 * several frames too, as pzstd's) are known by their first bytes. A byte order mark of UTF-8 is left out. Functions
 * return 0 or -1 with an error text that names the input. */
#pragma once

#include "runtime/files/checksum.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct input;

/* What is known before anything is read. */
struct input_status {
    bool regular;     /* a file of a known size, which can be read again */
    uint64_t bytes;   /* as stored; 0 where it is not regular */
    int64_t modified; /* nanoseconds since 1970; 0 where it is not regular */
};

/* `path` "-" is standard input. Folders and missing files are refused. */
int input_examine(const char *path, struct input_status *status);

/* stop_descriptor: reading ends with an error when it becomes readable; -1: never. A named pipe's writer is waited
 * for while reading, not here. Compressed forms that are not read (xz, bzip2, Parquet) are refused at the first
 * read, with what to do. */
int input_open(const char *path, int stop_descriptor, struct input **opened);
void input_close(struct input *input);

/* Fills `data` [bytes]; *got is less only at the end. Truncated and damaged compressed data is an error. */
int input_read(struct input *input, void *data, size_t bytes, size_t *got);

/* Bytes taken from the file so far, as stored. */
uint64_t input_stored_bytes(const struct input *input);

/* Whether the input is not compressed, as far as it has been read. */
bool input_is_plain(const struct input *input);

/* The SHA-256 of the stored bytes. Call it at the end; nothing can be read after it. */
void input_digest(struct input *input, char digest[CHECKSUM_SIZE]);

/* For messages: "standard input" for "-"; and the same of an open input. */
const char *input_name(const char *path);
const char *input_label(const struct input *input);
