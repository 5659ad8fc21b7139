/* Buffers, kernels, the program cache, failures and profiles on every device. The kernel used is loop_turns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/device/compute.h"
#include "runtime/device/profiler.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include <dirent.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const loop_files[] = {"loops.cl", NULL};

/* Calls check(word) for every device there is. */
static void on_every_device(void (*check)(const char *word)) {
    struct device *devices;
    size_t count;
    assert_int_equal(device_list(false, &devices, &count), 0);
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++) {
        char word[32];
        snprintf(word, sizeof(word), "%zu", i);
        check(word);
    }
    free(devices);
}

static struct compute *open_device(const char *word, const char *cache_dir, bool profile) {
    struct compute *compute;
    struct compute_options options = {.device = word, .cache_dir = cache_dir, .profile = profile};
    if (gemm_compute_open(&compute, &options)) {
        fail_msg("%s", error_text());
    }
    return compute;
}

/* sums[0] becomes what cl/loops.cl says after so many turns. */
static void launch_turns(struct compute *compute, const struct kernel *kernel, const struct buffer *sums,
                         unsigned turns) {
    KERNEL_RUN(compute, kernel, turns > 0, 1, ARG_U32(turns), ARG_U32(1), ARG_IN_OUT(sums, 5));
}

/* ---- opening */

static void check_open(const char *word) {
    struct compute *compute = open_device(word, "", false);
    assert_null(compute->cache_dir);
    assert_null(compute->failure);
    assert_true(compute->lanes >= 1 && compute->lanes <= compute->device.max_work_group);
    assert_true(compute->vector >= 1 && compute->vector <= 16);
    assert_true(!compute->device.is_cpu || compute->lanes == 1);
    assert_int_equal(compute_check(compute), 0);
    assert_int_equal(compute_finish(compute), 0);
    compute_close(compute);
}

static void test_open(void **state) {
    (void)state;
    on_every_device(check_open);
    compute_close(NULL);
}

static void check_open_fails(struct compute_options options, const char *words) {
    struct compute *compute;
    options.cache_dir = "";
    assert_int_equal(gemm_compute_open(&compute, &options), -1);
    assert_null(compute);
    if (!strstr(error_text(), words)) {
        fail_msg("\"%s\" does not say \"%s\"", error_text(), words);
    }
}

static void test_open_fails(void **state) {
    (void)state;
    check_open_fails((struct compute_options){.device = "no-such-device"}, "no-such-device");
    check_open_fails((struct compute_options){.gemm = "none"}, "none");
}

/* ---- buffers */

static void check_buffers(const char *word) {
    struct compute *compute = open_device(word, "", true);
    struct buffer one, two;
    unsigned char bytes[1000], back[1000];
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (unsigned char)(i * 7 + 1);
    }
    assert_int_equal(buffer_create(compute, &one, 1000), 0);
    assert_int_equal(buffer_create(compute, &two, 5 << 20), 0);
    assert_int_equal(compute->allocated_bytes, 1000 + (5 << 20));
    assert_true(!one.host || (uintptr_t)one.host % 4096 == 0);
    assert_true((one.host != NULL) == compute->device.native_kernels);

    assert_int_equal(buffer_read(compute, &one, 0, back, 1000), 0); /* zeroed when created */
    for (size_t i = 0; i < 1000; i++) {
        assert_int_equal(back[i], 0);
    }
    assert_int_equal(buffer_write(compute, &one, 0, bytes, 1000), 0);
    buffer_zero(compute, &one, 3, 5); /* odd places and sizes */
    buffer_zero(compute, &one, 16, 32);
    buffer_copy(compute, &one, 100, &two, (5 << 20) - 101, 101);
    buffer_zero(compute, &one, 1000, 0);
    buffer_copy(compute, &one, 1000, &two, 0, 0);
    assert_int_equal(buffer_read(compute, &one, 0, back, 1000), 0);
    for (size_t i = 0; i < 1000; i++) {
        assert_int_equal(back[i], (i >= 3 && i < 8) || (i >= 16 && i < 48) ? 0 : bytes[i]);
    }
    assert_int_equal(buffer_read(compute, &two, (5 << 20) - 101, back, 101), 0);
    assert_memory_equal(back, bytes + 100, 101);
    assert_int_equal(buffer_read(compute, &one, 1000, back, 0), 0);
    buffer_release(compute, &one);
    buffer_release(compute, &two);
    buffer_release(compute, &two); /* a released one is empty: nothing to do */
    assert_int_equal(compute->allocated_bytes, 0);
    compute_close(compute);
}

static void test_buffers(void **state) {
    (void)state;
    on_every_device(check_buffers);
}

static void check_buffer_sizes(const char *word) {
    struct compute *compute = open_device(word, "", false);
    struct buffer buffer;
    assert_int_equal(buffer_create(compute, &buffer, 0), 0);
    assert_non_null(buffer.memory);
    assert_int_equal(buffer.bytes, 0);
    buffer_release(compute, &buffer);
    assert_int_equal(buffer_create(compute, &buffer, SIZE_MAX), -1);
    assert_null(buffer.memory);
    assert_non_null(strstr(error_text(), "cannot create a buffer"));
    assert_non_null(strstr(error_text(), compute->device.name));
    assert_int_equal(buffer_create(compute, &buffer, compute->device.max_buffer_bytes + 1), -1);
    buffer_release(compute, &buffer);
    assert_int_equal(compute_check(compute), 0); /* a refused buffer harms nothing else */
    compute_close(compute);
}

static void test_buffer_sizes(void **state) {
    (void)state;
    on_every_device(check_buffer_sizes);
}

/* Devices on host memory: more buffers than the driver admits to have memory for, and only touched pages cost any.
 */
static void check_large_total(const char *word) {
    struct compute *compute = open_device(word, "", false);
    struct buffer buffers[12];
    size_t bytes = compute->device.max_buffer_bytes;
    if (compute->device.native_kernels && bytes <= (size_t)1 << 30) {
        for (size_t i = 0; i < 12; i++) {
            assert_int_equal(buffer_create(compute, &buffers[i], bytes), 0);
        }
        float value = 2.0f, back = 0.0f;
        for (size_t i = 0; i < 12; i++) {
            assert_int_equal(buffer_write(compute, &buffers[i], bytes - 4, &value, 4), 0);
            assert_int_equal(buffer_read(compute, &buffers[i], bytes - 4, &back, 4), 0);
            assert_true(back == 2.0f);
        }
        for (size_t i = 0; i < 12; i++) {
            buffer_release(compute, &buffers[i]);
        }
    }
    compute_close(compute);
}

static void test_large_total(void **state) {
    (void)state;
    on_every_device(check_large_total);
}

enum operation { WRITE, READ, ZERO, COPY_FROM, COPY_TO };

static void check_range(enum operation operation, size_t offset, size_t bytes, const char *words) {
    struct compute *compute = open_device(NULL, "", false);
    struct buffer buffer, other;
    char data[64] = "";
    assert_int_equal(buffer_create(compute, &buffer, 64), 0);
    assert_int_equal(buffer_create(compute, &other, 1024), 0);
    if (operation == WRITE) {
        assert_int_equal(buffer_write(compute, &buffer, offset, data, bytes), -1);
    } else if (operation == READ) {
        assert_int_equal(buffer_read(compute, &buffer, offset, data, bytes), -1);
    } else if (operation == ZERO) {
        buffer_zero(compute, &buffer, offset, bytes);
    } else if (operation == COPY_FROM) {
        buffer_copy(compute, &buffer, offset, &other, 0, bytes);
    } else {
        buffer_copy(compute, &other, 0, &buffer, offset, bytes);
    }
    assert_int_equal(compute_finish(compute), -1);
    if (!strstr(error_text(), words) || !strstr(error_text(), "64 bytes")) {
        fail_msg("\"%s\" does not say \"%s\"", error_text(), words);
    }
    buffer_release(compute, &buffer);
    buffer_release(compute, &other);
    compute_close(compute);
}

static void test_ranges(void **state) {
    (void)state;
    check_range(WRITE, 1, 64, "write 64 bytes at 1");
    check_range(WRITE, 65, 0, "write 0 bytes at 65");
    check_range(READ, SIZE_MAX, 2, "read 2 bytes");
    check_range(ZERO, 60, SIZE_MAX, "zero");
    check_range(COPY_FROM, 60, 8, "copy from 8 bytes at 60");
    check_range(COPY_TO, 60, 8, "copy to 8 bytes at 60");
}

/* ---- kernels and failures */

static void check_kernel(const char *word) {
    struct compute *compute = open_device(word, "", true);
    struct buffer x;
    struct kernel kernel;
    cl_program program;
    uint32_t values[] = {0, 3, 3, 3, 3}, back[5];
    if (program_build(compute, loop_files, NULL, &program)) {
        fail_msg("%s", error_text());
    }
    assert_int_equal(kernel_create(compute, program, "loop_turns", &kernel), 0);
    clReleaseProgram(program);
    assert_int_equal(buffer_create(compute, &x, sizeof(values)), 0);
    assert_int_equal(buffer_write(compute, &x, 0, values, sizeof(values)), 0);
    launch_turns(compute, &kernel, &x, 1);
    launch_turns(compute, &kernel, &x, 2);
    launch_turns(compute, &kernel, &x, 0); /* no groups: nothing happens */
    assert_int_equal(buffer_read(compute, &x, 0, back, sizeof(back)), 0);
    assert_int_equal(back[0], 1664525U * 3 + 3);
    buffer_release(compute, &x);
    kernel_release(&kernel);
    kernel_release(&kernel);
    compute_close(compute);
}

static void test_kernel(void **state) {
    (void)state;
    on_every_device(check_kernel);
}

static void check_sticky(const char *word) {
    struct compute *compute = open_device(word, "", true);
    struct buffer x;
    struct kernel kernel;
    cl_program program;
    uint32_t value = 1, back = 0;
    assert_int_equal(program_build(compute, loop_files, NULL, &program), 0);
    assert_int_equal(kernel_create(compute, program, "loop_turns", &kernel), 0);
    clReleaseProgram(program);
    assert_int_equal(buffer_create(compute, &x, 4), 0);
    assert_int_equal(buffer_write(compute, &x, 0, &value, 4), 0);
    KERNEL_RUN(compute, &kernel, 1, 1, ARG_U64(1)); /* the parameter is a uint */
    launch_turns(compute, &kernel, &x, 1);          /* does nothing any more */
    compute_fail(compute, "second failure");
    assert_int_equal(compute_check(compute), -1);
    assert_int_equal(buffer_read(compute, &x, 0, &back, 4), -1);
    assert_int_equal(buffer_write(compute, &x, 0, &value, 4), -1);
    assert_int_equal(compute_finish(compute), -1);
    assert_non_null(strstr(error_text(), "argument 0 of kernel loop_turns: CL_INVALID_ARG_SIZE"));
    assert_non_null(strstr(error_text(), compute->device.name));
    buffer_release(compute, &x);
    kernel_release(&kernel);
    compute_close(compute);
}

static void test_sticky(void **state) {
    (void)state;
    on_every_device(check_sticky);
}

static void check_launch_fails(size_t groups, size_t local, const char *words) {
    struct compute *compute = open_device(NULL, "", false);
    struct kernel kernel;
    cl_program program;
    struct buffer x;
    assert_int_equal(program_build(compute, loop_files, NULL, &program), 0);
    assert_int_equal(kernel_create(compute, program, "loop_turns", &kernel), 0);
    clReleaseProgram(program);
    assert_int_equal(buffer_create(compute, &x, 4), 0);
    KERNEL_RUN(compute, &kernel, groups, local, ARG_U32(0), ARG_U32(0), ARG_IN_OUT(&x, 0));
    assert_int_equal(compute_finish(compute), -1);
    assert_non_null(strstr(error_text(), "loop_turns"));
    if (!strstr(error_text(), words)) {
        fail_msg("\"%s\" does not say \"%s\"", error_text(), words);
    }
    buffer_release(compute, &x);
    kernel_release(&kernel);
    compute_close(compute);
}

static void test_launch_fails(void **state) {
    (void)state;
    check_launch_fails(1, 0, "1 groups of 0");
    check_launch_fails(SIZE_MAX, 2, "groups of 2");
    check_launch_fails(1, 1 << 20, "CL_INVALID_WORK_" /* GROUP_SIZE or ITEM_SIZE */);
}

/* ---- building and the cache */

static void check_build_fails(const char *word) {
    struct compute *compute = open_device(word, "", false);
    const char *const missing[] = {"loops.cl", "no_such.cl", NULL};
    struct kernel kernel;
    cl_program program;
    assert_int_equal(program_build(compute, loop_files, "-D__kernel=bogus_token", &program), -1);
    assert_null(program);
    assert_non_null(strstr(error_text(), "cannot compile loops.cl"));
    assert_non_null(strstr(error_text(), "bogus_token"));
    assert_int_equal(program_build(compute, missing, NULL, &program), -1);
    assert_non_null(strstr(error_text(), "no_such.cl"));
    assert_int_equal(program_build(compute, loop_files, NULL, &program), 0);
    assert_int_equal(kernel_create(compute, program, "no_such_kernel", &kernel), -1);
    assert_non_null(strstr(error_text(), "no_such_kernel: CL_INVALID_KERNEL_NAME"));
    kernel_release(&kernel);
    clReleaseProgram(program);
    assert_int_equal(compute_check(compute), 0);
    compute_close(compute);
}

static void test_build_fails(void **state) {
    (void)state;
    on_every_device(check_build_fails);
}

/* The path of the only file in the folder, "" when there is none. */
static void find_entry(const char *folder, char path[512]) {
    DIR *directory = opendir(folder);
    path[0] = '\0';
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) {
            continue;
        }
        assert_string_equal(path, "");
        snprintf(path, 512, "%s/%s", folder, entry->d_name);
    }
    closedir(directory);
}

/* Builds and runs with this cache; returns whether the program came from the cache. */
static bool build_cached(const char *word, const char *folder) {
    struct compute *compute = open_device(word, folder, false);
    struct kernel kernel;
    cl_program program;
    struct buffer x;
    uint32_t sums[] = {0, 3, 3, 3, 3};
    if (program_build(compute, loop_files, NULL, &program)) {
        fail_msg("%s", error_text());
    }
    assert_int_equal(compute->programs_cached + compute->programs_compiled, 1);
    bool cached = compute->programs_cached == 1;
    assert_int_equal(kernel_create(compute, program, "loop_turns", &kernel), 0);
    assert_int_equal(buffer_create(compute, &x, sizeof sums), 0);
    assert_int_equal(buffer_write(compute, &x, 0, sums, sizeof sums), 0);
    launch_turns(compute, &kernel, &x, 1);
    assert_int_equal(buffer_read(compute, &x, 0, sums, sizeof sums), 0);
    assert_int_equal(sums[0], 3);
    buffer_release(compute, &x);
    kernel_release(&kernel);
    clReleaseProgram(program);
    compute_close(compute);
    return cached;
}

/* A text with the same options is compiled once for a device that is open. */
static void test_shared(void **state) {
    struct compute *compute = open_device("pocl", "", false);
    cl_program programs[3];
    static const char *const options[] = {NULL, NULL, "-DOTHER=1"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(program_build(compute, loop_files, options[i], &programs[i]), 0);
    }
    assert_ptr_equal(programs[0], programs[1]);
    assert_ptr_not_equal(programs[0], programs[2]);
    assert_int_equal(compute->programs_compiled, 2);
    for (size_t i = 0; i < 3; i++) {
        clReleaseProgram(programs[i]);
    }
    compute_close(compute);
}

static void patch_file(const char *path, long offset) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, offset, offset < 0 ? SEEK_END : SEEK_SET);
    int byte = fgetc(file);
    fseek(file, -1, SEEK_CUR);
    fputc(byte ^ 1, file);
    assert_int_equal(fclose(file), 0);
}

static void check_damage(const char *word, const char *folder, const char *path) {
    static const long places[] = {0, 10, 80, 140, -1, -100};
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
        patch_file(path, places[i]);
        assert_false(build_cached(word, folder));
        assert_true(build_cached(word, folder));
    }
    assert_int_equal(truncate(path, 200), 0);
    assert_false(build_cached(word, folder));
    assert_int_equal(truncate(path, 0), 0);
    assert_false(build_cached(word, folder));
    assert_int_equal(chmod(path, 0666), 0); /* others could have written it */
    assert_false(build_cached(word, folder));
    assert_true(build_cached(word, folder));
}

static void check_cache(const char *word) {
    char base[] = "/tmp/hc-test-cache-XXXXXX", folder[256], parent[128], path[512];
    struct stat status;
    assert_non_null(mkdtemp(base));
    snprintf(parent, sizeof(parent), "%s/a", base);
    snprintf(folder, sizeof(folder), "%s/b", parent);
    assert_false(build_cached(word, folder));
    assert_int_equal(stat(folder, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0700);
    find_entry(folder, path);
    if (*path) { /* drivers need not give binaries */
        assert_true(build_cached(word, folder));
        check_damage(word, folder, path);
        unlink(path);
    }
    rmdir(folder);
    rmdir(parent);
    rmdir(base);
}

static void test_cache(void **state) {
    (void)state;
    on_every_device(check_cache);
}

static void remove_entries(const char *folder) {
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        unlinkat(dirfd(directory), entry->d_name, 0); /* but for the folders . and .. */
    }
    closedir(directory);
}

/* PoCL adds options from the environment: programs compiled with others are others. */
static void test_cache_by_environment(void **state) {
    (void)state;
    static const char *const variable = "POCL_EXTRA_BUILD_FLAGS", *const flags[] = {"-cl-opt-disable", "-DSOME=1"};
    const char *set = getenv(variable);
    char *before = set ? strdup(set) : NULL;
    char folder[] = "/tmp/hc-test-cache-XXXXXX";
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < 2; i++) {
        setenv(variable, flags[i], 1);
        assert_false(build_cached("pocl", folder));
        assert_true(build_cached("pocl", folder));
    }
    setenv(variable, flags[0], 1);
    assert_true(build_cached("pocl", folder));
    remove_entries(folder);
    rmdir(folder);
    before ? setenv(variable, before, 1) : unsetenv(variable);
    free(before);
}

/* A cache that cannot be written costs time, nothing else. */
static void test_cache_unwritable(void **state) {
    (void)state;
    assert_false(build_cached(NULL, "/proc/no/such/folder"));
    assert_false(build_cached(NULL, "/dev/null"));
}

static void check_cache_place(const char *expected) {
    struct compute *compute = open_device(NULL, NULL, false);
    if (expected) {
        assert_string_equal(compute->cache_dir, expected);
    } else {
        assert_null(compute->cache_dir);
    }
    compute_close(compute);
}

static void test_cache_places(void **state) {
    (void)state;
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    setenv("XDG_CACHE_HOME", "/tmp/xdg", 1);
    check_cache_place("/tmp/xdg/hctrain");
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", "/tmp/home", 1);
    check_cache_place("/tmp/home/.cache/hctrain");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    check_cache_place(NULL);
    if (home) {
        setenv("HOME", home, 1);
    }
    free(home);
}

/* ---- profiles */

static void launch_some(struct compute *compute) {
    struct kernel kernel;
    cl_program program;
    struct buffer x;
    float values[256] = {1.0f};
    assert_int_equal(program_build(compute, loop_files, NULL, &program), 0);
    assert_int_equal(kernel_create(compute, program, "loop_turns", &kernel), 0);
    clReleaseProgram(program);
    assert_int_equal(buffer_create(compute, &x, sizeof(values)), 0);
    assert_int_equal(buffer_write(compute, &x, 0, values, sizeof(values)), 0);
    for (int i = 0; i < 3; i++) {
        launch_turns(compute, &kernel, &x, 1);
    }
    struct matrix a = {&x, 0, 8}, c = {&x, 128, 8};
    gemm_run(compute, &(struct gemm_call){.transpose_b = true, .m = 8, .n = 8, .k = 8, .a = a, .b = a, .c = c});
    buffer_zero(compute, &x, 0, 16);
    if (compute_finish(compute)) {
        fail_msg("%s", error_text());
    }
    buffer_release(compute, &x);
    kernel_release(&kernel);
}

static void check_table(struct compute *compute) {
    char *text = NULL;
    size_t size;
    FILE *stream = open_memstream(&text, &size);
    assert_non_null(stream);
    profiler_print_table(compute->profiler, stream);
    fclose(stream);
    assert_non_null(strstr(text, "loop_turns"));
    assert_non_null(strstr(text, "gemm_nt 8x8x8"));
    assert_non_null(strstr(text, "buffer_write"));
    assert_non_null(strstr(text, "buffer_zero"));
    free(text);
}

static void check_trace(struct compute *compute) {
    char path[] = "/tmp/hc-test-trace-XXXXXX";
    int file = mkstemp(path);
    json_error_t error;
    assert_true(file >= 0);
    close(file);
    assert_int_equal(profiler_write_trace(compute->profiler, path), 0);
    json_t *trace = json_load_file(path, 0, &error);
    assert_non_null(trace);
    json_t *events = json_object_get(trace, "traceEvents");
    assert_int_equal(json_array_size(events), 6);
    bool clock = strcmp(compute->device.platform_name, "rusticl") != 0; /* 22.3 reports constants as times */
    double last = -1.0;
    for (size_t i = 0; i < 6; i++) {
        json_t *event = json_array_get(events, i);
        double start = json_number_value(json_object_get(event, "ts"));
        double duration = json_number_value(json_object_get(event, "dur"));
        assert_true((start >= last || !clock) && duration >= 0.0 && duration < 60e6);
        assert_true(strlen(json_string_value(json_object_get(event, "name"))) > 0);
        last = start;
    }
    json_decref(trace);
    unlink(path);
    assert_int_equal(profiler_write_trace(compute->profiler, "/no/such/folder/trace.json"), -1);
    assert_non_null(strstr(error_text(), "/no/such/folder/trace.json"));
}

static void check_profile(const char *word) {
    struct compute *compute = open_device(word, "", true);
    assert_non_null(compute->profiler);
    launch_some(compute);
    check_table(compute);
    check_trace(compute);
    compute_close(compute);
}

static void test_profile(void **state) {
    (void)state;
    on_every_device(check_profile);
}

static void test_profile_off(void **state) {
    (void)state;
    struct compute *compute = open_device(NULL, "", false);
    assert_null(compute->profiler);
    launch_some(compute);
    compute_close(compute);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_open_fails),
        cmocka_unit_test(test_buffers),
        cmocka_unit_test(test_buffer_sizes),
        cmocka_unit_test(test_large_total),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_kernel),
        cmocka_unit_test(test_sticky),
        cmocka_unit_test(test_launch_fails),
        cmocka_unit_test(test_build_fails),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_cache_by_environment),
        cmocka_unit_test(test_cache_unwritable),
        cmocka_unit_test(test_cache_places),
        cmocka_unit_test(test_profile),
        cmocka_unit_test(test_profile_off),
        cmocka_unit_test(test_shared),
    };
    device_prepare_environment();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
