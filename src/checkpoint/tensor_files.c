#include "src/checkpoint/tensor_files.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_FILES = 512, MOST_NAME = 200 };
#define MOST_INDEX_BYTES ((size_t)64 << 20)

struct tensor_files {
    struct path path;           /* of the only file, or of the index */
    struct safetensors **files; /* [count] */
    size_t count;
};

/* ---- the index */

/* A name in the folder itself, so that no index leads out of it. */
static bool is_plain(const char *name) {
    static const char ending[] = ".safetensors";
    const size_t length = name ? strlen(name) : 0, tail = sizeof ending - 1;
    return length > tail && length <= MOST_NAME && *name != '.' && !strchr(name, '/') &&
           strcmp(name + length - tail, ending) == 0;
}

/* Opens each file that the index names, once; `numbers` gets its place by its name. */
static int open_named(struct tensor_files *files, const char *folder, const json_t *map, json_t *numbers) {
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value) {
        const char *name = json_file_text(value);
        if (!is_plain(name)) {
            return error_set("%s: the file of tensor '%.100s' is '%.60s', which is not a plain name that ends with "
                             ".safetensors",
                             files->path.text, tensor, name ? name : "(no string)");
        }
        if (json_object_get(numbers, name)) {
            continue;
        }
        if (files->count == MOST_FILES) {
            return error_set("%s names more than %d files", files->path.text, MOST_FILES);
        }
        json_object_set_new(numbers, name, json_integer((json_int_t)files->count));
        if (safetensors_open(path_of("%s/%s", folder, name).text, &files->files[files->count])) {
            return error_prefix("%s", files->path.text);
        }
        files->count++;
    }
    return 0;
}

/* Index and files must name the same tensors at the same places. */
static int check_places(const struct tensor_files *files, const json_t *map, const json_t *numbers) {
    static const char help[] = "copy the folder's files again";
    const char *tensor;
    json_t *value;
    for (size_t i = 0; i < files->count; i++) {
        for (size_t j = 0; j < safetensors_count(files->files[i]); j++) {
            const char *name = safetensors_at(files->files[i], j)->name;
            const char *place = json_file_text(json_object_get(map, name));
            if (!place || json_integer_value(json_object_get(numbers, place)) != (json_int_t)i) {
                return error_set("%s: tensor '%.100s' is in another file than %s: %s", files->path.text, name,
                                 place ? place : "those that it names for tensors", help);
            }
        }
    }
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value) {
        const char *name = json_file_text(value);
        const size_t file = (size_t)json_integer_value(json_object_get(numbers, name));
        if (!safetensors_find(files->files[file], tensor)) {
            return error_set("%s: tensor '%.100s' is not in %s: %s", files->path.text, tensor, name, help);
        }
    }
    return 0;
}

static int open_index(struct tensor_files *files, const char *folder) {
    json_t *index, *numbers = json_object();
    int status = json_file_read(files->path.text, MOST_INDEX_BYTES, &index);
    const json_t *map = json_object_get(index, "weight_map");
    if (status == 0 && json_object_size(map) == 0) {
        status = error_set("%s: 'weight_map' names no tensors", files->path.text);
    }
    status = status || open_named(files, folder, map, numbers) || check_places(files, map, numbers) ? -1 : 0;
    json_decref(numbers);
    json_decref(index);
    return status;
}

/* ---- all files */

int tensor_files_open(const char *folder, bool may_be_divided, struct tensor_files **opened) {
    struct tensor_files *files = *opened = memory_zeroed(1, sizeof *files);
    const struct path index = path_of("%s/" WEIGHTS_INDEX_FILE, folder);
    files->path = path_of("%s/" WEIGHTS_FILE, folder);
    files->files = memory_zeroed(MOST_FILES, sizeof(struct safetensors *));
    if (may_be_divided && !files_exist(files->path.text) && files_exist(index.text)) {
        files->path = index;
        return open_index(files, folder);
    }
    if (safetensors_open(files->path.text, &files->files[0])) {
        return -1;
    }
    files->count = 1;
    return 0;
}

void tensor_files_close(struct tensor_files *files) {
    if (files) {
        for (size_t i = 0; i < files->count; i++) {
            safetensors_close(files->files[i]);
        }
        free(files->files);
        free(files);
    }
}

const char *tensor_files_path(const struct tensor_files *files) {
    return files->path.text;
}

int tensor_files_checksum(const struct tensor_files *files, char digest[CHECKSUM_SIZE]) {
    char(*digests)[CHECKSUM_SIZE] = memory_zeroed(files->count, sizeof *digests);
    int status = 0;
    for (size_t i = 0; status == 0 && i < files->count; i++) {
        status = checksum_file(safetensors_path(files->files[i]), digests[i]);
    }
    memcpy(digest, digests[0], CHECKSUM_SIZE);
    if (status == 0 && files->count > 1) {
        status = checksum_memory(digests, files->count * sizeof *digests, digest);
    }
    free(digests);
    return status;
}

size_t tensor_files_count(const struct tensor_files *files) {
    size_t count = 0;
    for (size_t i = 0; i < files->count; i++) {
        count += safetensors_count(files->files[i]);
    }
    return count;
}

const struct tensor_info *tensor_files_at(const struct tensor_files *files, size_t index) {
    size_t file = 0;
    while (index >= safetensors_count(files->files[file])) {
        index -= safetensors_count(files->files[file++]);
    }
    return safetensors_at(files->files[file], index);
}

const struct tensor_info *tensor_files_find(const struct tensor_files *files, const char *name,
                                            const struct safetensors **file) {
    for (size_t i = 0; i < files->count; i++) {
        const struct tensor_info *info = safetensors_find(files->files[i], name);
        if (info) {
            *file = files->files[i];
            return info;
        }
    }
    return NULL;
}
