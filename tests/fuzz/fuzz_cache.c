/* Any bytes as what the cache folder keeps: a compiled program (what a Vulkan device's pipelines are kept as, too), parameters of
 * CLBlast, tiles of matrix units. */
#include "runtime/device/program_cache.h"
#include "runtime/gemm/gemm_mma.h"
#include "runtime/gemm/gemm_parameters.h"
#include "runtime/system/error.h"
#include "tests/fuzz/fuzz_file.h"
#include "tests/fuzz/fuzz_folder.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

/* A program that is taken is kept as it was. */
static void read_program(const char *folder) {
    unsigned char *program = NULL, *again = NULL;
    size_t bytes = 0, bytes_again = 0;
    if (program_cache_read(folder, KEY, &program, &bytes)) {
        program_cache_write(folder, KEY, program, bytes);
        fuzz_require(program_cache_read(folder, KEY, &again, &bytes_again) && bytes == bytes_again &&
                         memcmp(program, again, bytes) == 0,
                     "another program came back");
        free(again);
        free(program);
    }
}

/* Numbers that are taken are kept as they were. */
static void read_numbers(const struct tuned_target *target, const char *folder, const char *name) {
    char path[128], *own = tuned_path(target, folder);
    union tuned_values values, again;
    bool found, found_again;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (tuned_read(target, path, &values, &found)) {
        fuzz_require(*error_text() != '\0', "a failure without a reason");
    } else if (found) {
        fuzz_require(own && tuned_write(target, own, &values) == 0 &&
                         tuned_load(target, folder, &again, &found_again) == 0 && found_again &&
                         memcmp(&values, &again, sizeof values) == 0,
                     "other numbers came back");
        remove(own);
    }
    free(own);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char *const names[] = {KEY ".bin", "clblast.json", "mma.json", NULL};
    static const struct device device = {.name = "device",
                                         .driver = "1",
                                         .platform_name = "platform",
                                         .version = "1",
                                         .max_work_group = 1024,
                                         .local_bytes = 65536,
                                         .compute_units = 1};
    const struct mma_unit unit = mma_unit_emulation();
    const char *folder = fuzz_folder(data, bytes, names);
    char *located;
    error_clear();
    fuzz_require(program_cache_locate(folder, &located) == 0 && strcmp(located, folder) == 0,
                 "the cache is elsewhere");
    free(located);
    fuzz_require(program_cache_locate("", &located) == 0 && !located, "there is a cache where there is to be none");
    fuzz_require(program_cache_locate(NULL, &located) == 0, "the user's cache cannot be named");
    free(located);
    read_program(folder);
    read_numbers(&(struct tuned_target){&gemm_parameters, &device, NULL}, folder, "clblast.json");
    read_numbers(&(struct tuned_target){&gemm_mma_tiles, &device, &unit}, folder, "mma.json");
    return 0;
}
