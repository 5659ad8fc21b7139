/* The tensors of a folder: of model.safetensors, or, where model.safetensors.index.json divides them, of several
 * files in that folder. */
#pragma once

#include "runtime/files/checksum.h"
#include "runtime/files/safetensors.h"
#include <stdbool.h>

#define WEIGHTS_FILE       "model.safetensors"
#define WEIGHTS_INDEX_FILE WEIGHTS_FILE ".index.json"

struct tensor_files;

/* Opens <folder>/model.safetensors. With may_be_divided and without that file, the index is read, whose names of
 * files must be plain names; every tensor must be in the file that the index names, and nothing else. Errors name
 * the file. The caller closes *opened, also on failure. */
int tensor_files_open(const char *folder, bool may_be_divided, struct tensor_files **opened);
void tensor_files_close(struct tensor_files *files);

/* The path that errors about tensors name. */
const char *tensor_files_path(const struct tensor_files *files);

/* The SHA-256 of the file, or of the files' ones if there are several. -1 with an error text. */
int tensor_files_checksum(const struct tensor_files *files, char digest[CHECKSUM_SIZE]);

size_t tensor_files_count(const struct tensor_files *files);
const struct tensor_info *tensor_files_at(const struct tensor_files *files, size_t index);

/* NULL: there is none. *file is the one to read it from. */
const struct tensor_info *tensor_files_find(const struct tensor_files *files, const char *name,
                                            const struct safetensors **file);
