/* Any bytes as a safetensors file: opened, every tensor read, closed. */
#include "runtime/files/safetensors.h"
#include "tests/fuzz/fuzz_file.h"
#include <stdbool.h>

static void read_tensor(const struct safetensors *file, const struct tensor_info *info) {
    float floats[16];
    int32_t integers[16];
    const uint64_t count = info->elements < 16 ? info->elements : 16;
    safetensors_read_f32(file, info, info->elements - count, count, floats);
    safetensors_read_i32(file, info, info->elements - count, count, integers);
    safetensors_read_f32(file, info, 1, info->elements, floats); /* one too many */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct safetensors *file;
    if (safetensors_open(fuzz_file(data, bytes), &file) == 0) {
        for (size_t i = 0; i < file->count; i++) {
            read_tensor(file, &file->infos[i]);
            safetensors_find(file, file->infos[i].name);
        }
        safetensors_close(file);
    }
    return 0;
}
