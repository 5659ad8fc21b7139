/* Buffers, kernels, compilers' logs, the program cache, failures and profiles on every device. The kernel used is
 * loop_turns. */
#include "runtime/device/compute.h"
#include "runtime/device/profiler.h"
#include "runtime/device/programs.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <dirent.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const loop_files[] = {"loops.cl", NULL};

/* Runs the check of one device, given as the word that chooses it, for every device there is. */
static void on_every_device(void (*check)(const char *word)) {
    struct device *devices;
    size_t count;
    char word[32];
    assert_int_equal(device_list(false, &devices, &count), 0);
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++) {
        snprintf(word, sizeof(word), "%zu", i);
        check(word);
    }
    free(devices);
}

/* A test that is a check of one device. */
#define ON_EVERY_DEVICE(check)                                                                                     \
    static void check(const char *word);                                                                           \
    UNIT_TEST(every_device_##check) {                                                                              \
        on_every_device(check);                                                                                    \
    }                                                                                                              \
    static void check(const char *word)

static struct compute *open_device(const char *word, const char *cache_dir, bool profile) {
    struct compute *compute;
    struct compute_options options = {.device = word, .cache_dir = cache_dir, .profile = profile};
    require(gemm_compute_open(&compute, &options));
    return compute;
}

/* A device with the kernel loop_turns and a buffer for it. */
struct loop {
    struct compute *compute;
    const struct kernel *kernel;
    struct buffer sums; /* {0, 3, 3, 3, 3} and zeros */
};

static struct loop open_loop(const char *word, const char *cache_dir, bool profile) {
    struct loop loop = {.compute = open_device(word, cache_dir, profile)};
    const uint32_t sums[] = {0, 3, 3, 3, 3};
    loop.kernel = kernel_find(loop.compute, loop_files, "", "loop_turns");
    assert_int_equal(buffer_create(loop.compute, &loop.sums, 1024), 0);
    assert_int_equal(buffer_write(loop.compute, &loop.sums, 0, sums, sizeof sums), 0);
    return loop;
}

static void close_loop(struct loop *loop) {
    buffer_release(loop->compute, &loop->sums);
    compute_close(loop->compute);
}

/* sums[0] becomes what cl/loops.cl computes after so many turns. */
static void launch_turns(struct loop *loop, unsigned turns) {
    KERNEL_RUN(loop->compute, loop->kernel, turns > 0, 1, ARG_U32(turns), ARG_U32(1), ARG_IN_OUT(&loop->sums, 5));
}

/* ---- opening */

ON_EVERY_DEVICE(check_open) {
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

UNIT_TEST(test_open_fails) {
    static const struct compute_options wrong[] = {{.device = "no-such-device"}, {.device = "0", .gemm = "none"}};
    struct compute *compute;
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(gemm_compute_open(&compute, &wrong[i]), -1);
        assert_null(compute);
        assert_error_text(wrong[i].gemm ? wrong[i].gemm : wrong[i].device);
    }
    compute_close(NULL);
}

/* ---- buffers */

ON_EVERY_DEVICE(check_buffers) {
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

ON_EVERY_DEVICE(check_buffer_sizes) {
    struct compute *compute = open_device(word, "", false);
    struct buffer buffer;
    assert_int_equal(buffer_create(compute, &buffer, 0), 0);
    assert_non_null(buffer.memory);
    assert_int_equal(buffer.bytes, 0);
    buffer_release(compute, &buffer);
    assert_int_equal(buffer_create(compute, &buffer, SIZE_MAX), -1);
    assert_null(buffer.memory);
    assert_error_text("cannot create a buffer");
    assert_error_text(compute->device.name);
    assert_int_equal(buffer_create(compute, &buffer, compute->device.max_buffer_bytes + 1), -1);
    buffer_release(compute, &buffer);
    assert_int_equal(compute_check(compute), 0); /* a refused buffer harms nothing else */
    compute_close(compute);
}

/* Devices on host memory: more buffers than the driver admits to have memory for, and only touched pages cost
 * any. */
ON_EVERY_DEVICE(check_large_total) {
    enum { COUNT = 12 };
    struct compute *compute = open_device(word, "", false);
    struct buffer buffers[COUNT];
    const size_t bytes = compute->device.max_buffer_bytes;
    const size_t count = compute->device.native_kernels && bytes <= (size_t)1 << 30 ? COUNT : 0;
    for (size_t i = 0; i < count; i++) {
        const float value = 2.0f;
        assert_int_equal(buffer_create(compute, &buffers[i], bytes), 0);
        assert_int_equal(buffer_write(compute, &buffers[i], bytes - 4, &value, 4), 0);
    }
    for (size_t i = 0; i < count; i++) {
        float back = 0.0f;
        assert_int_equal(buffer_read(compute, &buffers[i], bytes - 4, &back, 4), 0);
        assert_true(back == 2.0f);
        buffer_release(compute, &buffers[i]);
    }
    compute_close(compute);
}

UNIT_TEST(test_ranges) {
    enum operation { WRITE, READ, ZERO, COPY_FROM, COPY_TO };
    static const struct {
        enum operation operation;
        size_t offset, bytes;
        const char *words;
    } cases[] = {{WRITE, 1, 64, "write 64 bytes at 1"},         {WRITE, 65, 0, "write 0 bytes at 65"},
                 {READ, SIZE_MAX, 2, "read 2 bytes"},           {ZERO, 60, SIZE_MAX, "zero"},
                 {COPY_FROM, 60, 8, "copy from 8 bytes at 60"}, {COPY_TO, 60, 8, "copy to 8 bytes at 60"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        const size_t offset = cases[i].offset, bytes = cases[i].bytes;
        struct compute *compute = open_device(NULL, "", false);
        struct buffer buffer, other;
        char data[64] = "";
        assert_int_equal(buffer_create(compute, &buffer, 64), 0);
        assert_int_equal(buffer_create(compute, &other, 1024), 0);
        switch (cases[i].operation) {
        case WRITE:
            assert_int_equal(buffer_write(compute, &buffer, offset, data, bytes), -1);
            break;
        case READ:
            assert_int_equal(buffer_read(compute, &buffer, offset, data, bytes), -1);
            break;
        case ZERO:
            buffer_zero(compute, &buffer, offset, bytes);
            break;
        case COPY_FROM:
            buffer_copy(compute, &buffer, offset, &other, 0, bytes);
            break;
        case COPY_TO:
            buffer_copy(compute, &other, 0, &buffer, offset, bytes);
        }
        assert_error(compute_finish(compute), cases[i].words);
        assert_error_text("64 bytes");
        buffer_release(compute, &buffer);
        buffer_release(compute, &other);
        compute_close(compute);
    }
}

/* ---- kernels and failures */

ON_EVERY_DEVICE(check_kernel) {
    struct loop loop = open_loop(word, "", true);
    uint32_t sum;
    launch_turns(&loop, 1);
    launch_turns(&loop, 2);
    launch_turns(&loop, 0); /* no groups: nothing happens */
    assert_int_equal(buffer_read(loop.compute, &loop.sums, 0, &sum, sizeof(sum)), 0);
    assert_int_equal(sum, 1664525U * 3 + 3);
    assert_ptr_equal(kernel_find(loop.compute, loop_files, "", "loop_turns"), loop.kernel);
    close_loop(&loop);
}

ON_EVERY_DEVICE(check_first_failure) {
    struct loop loop = open_loop(word, "", true);
    uint32_t value = 1;
    KERNEL_RUN(loop.compute, loop.kernel, 1, 1, ARG_U64(1)); /* the parameter is a uint */
    launch_turns(&loop, 1);                                  /* does nothing any more */
    compute_fail(loop.compute, "second failure");
    assert_int_equal(compute_check(loop.compute), -1);
    assert_int_equal(buffer_read(loop.compute, &loop.sums, 0, &value, 4), -1);
    assert_int_equal(buffer_write(loop.compute, &loop.sums, 0, &value, 4), -1);
    assert_error(compute_finish(loop.compute), "argument 0 of kernel loop_turns: CL_INVALID_ARG_SIZE");
    assert_error_text(loop.compute->device.name);
    close_loop(&loop);
}

UNIT_TEST(test_launch_fails) {
    static const struct {
        size_t groups, local;
        const char *words;
    } cases[] = {{1, 0, "loop_turns as 1 groups of 0"},
                 {SIZE_MAX, 2, "groups of 2"},
                 {1, 1 << 20, "CL_INVALID_WORK_" /* GROUP_SIZE or ITEM_SIZE */}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct loop loop = open_loop(NULL, "", false);
        KERNEL_RUN(loop.compute, loop.kernel, cases[i].groups, cases[i].local, ARG_U32(0), ARG_U32(0),
                   ARG_IN_OUT(&loop.sums, 0));
        assert_error(compute_finish(loop.compute), cases[i].words);
        close_loop(&loop);
    }
}

/* ---- building */

ON_EVERY_DEVICE(check_build_fails) {
    struct compute *compute = open_device(word, "", false);
    const char *const missing[] = {"no_such.cl", NULL};
    cl_program program;
    assert_int_equal(program_build(compute, loop_files, "-D__kernel=bogus_token", &program), -1);
    assert_null(program);
    assert_error_text("cannot compile loops.cl");
    assert_error_text("bogus_token");
    assert_error(program_build(compute, missing, NULL, &program), "no_such.cl");
    assert_int_equal(compute_check(compute), 0);
    assert_null(kernel_find(compute, loop_files, "", "no_such_kernel")->handle);
    assert_error(compute_check(compute), "no_such_kernel: CL_INVALID_KERNEL_NAME");
    compute_close(compute);
}

/* ---- places in the logs of compilers */

/* Line 6 of it is b.cl's second. */
static const char two_files[] = "#line 1 \"a.cl\"\n"
                                "int a1;\n"
                                "int a2;\n"
                                "#line 1 \"b.cl\"\n"
                                "int b1;\n"
                                "int b2;\n"
                                "\n";

static void assert_located(const char *log, const char *expected) {
    char *located = build_log_locate(two_files, log);
    assert_string_equal(located, expected);
    free(located);
}

UNIT_TEST(lines_of_all_files_get_the_place_in_one) {
    static const struct {
        const char *log, *place;
    } cases[] = {
        {"<kernel>:6:4: error: use of undeclared identifier 'x'", "b.cl:2"}, /* NVIDIA, Mesa */
        {"input.cl:2:5: warning: unused", "a.cl:1"},
        {"/tmp/comgr-1/input/CompileSource:3:1: error: x", "a.cl:2"}, /* AMD's comgr */
        {"1:5:1: error: x", "b.cl:1"},                                /* Intel */
        {"error (6:12): no such thing", "b.cl:2"},
        {"ptxas error at line 6, near x", "b.cl:2"},
        {"note: <kernel>:5:1: here", "b.cl:1"},
    };
    char log[200], expected[200];
    for (size_t i = 0; i < COUNT(cases); i++) {
        snprintf(log, sizeof log, "%s\r\nint b2;\n   ^\n", cases[i].log);
        snprintf(expected, sizeof expected, "%s [%s]\nint b2;\n   ^\n", cases[i].log, cases[i].place);
        assert_located(log, expected);
    }
}

UNIT_TEST(other_lines_stay) {
    static const char *const logs[] = {
        "",
        "\n\n",
        "no log",
        "/tmp/pocl/b.cl:2:4: error: named by the directive",
        "<kernel>:0:1: error: before all",
        "<kernel>:1:1: error: a directive is of no file",
        "<kernel>:8:1: error: behind all",
        "<kernel>:99999999999999999999999:1: error: behind all",
        "baseline 6",
        "line six",
        "ptxas application ptx input, line 6; error   : of the PTX",
    };
    for (size_t i = 0; i < COUNT(logs); i++) {
        assert_located(logs[i], logs[i]);
    }
}

/* ---- the cache */

/* The path of the only file in the folder, "" when there is none. */
static void find_entry(const char *folder, char path[512]) {
    DIR *directory = opendir(folder);
    path[0] = '\0';
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (*entry->d_name != '.') {
            assert_string_equal(path, "");
            snprintf(path, 512, "%s/%s", folder, entry->d_name);
        }
    }
    closedir(directory);
}

/* Builds and runs with this cache; returns whether the program came from the cache. */
static bool build_cached(const char *word, const char *folder) {
    struct loop loop = open_loop(word, folder, false);
    uint32_t sum;
    assert_int_equal(loop.compute->programs_cached + loop.compute->programs_compiled, 1);
    const bool cached = loop.compute->programs_cached == 1;
    launch_turns(&loop, 1);
    assert_int_equal(buffer_read(loop.compute, &loop.sums, 0, &sum, sizeof(sum)), 0);
    assert_int_equal(sum, 3);
    close_loop(&loop);
    return cached;
}

/* A text with the same options is compiled once for a device that is open. */
UNIT_TEST(test_shared) {
    struct compute *compute = open_device("pocl", "", false);
    cl_program programs[3];
    static const char *const options[] = {NULL, NULL, "-DOTHER=1"};
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
    for (size_t i = 0; i < COUNT(places); i++) {
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

ON_EVERY_DEVICE(check_cache) {
    char path[512];
    struct stat status;
    const char *folder = scratch_path(scratch_format("caches/of-%s", word));
    assert_false(build_cached(word, folder));
    if (stat(folder, &status)) {
        return; /* drivers need not give binaries, and PoCL is not asked */
    }
    assert_int_equal(status.st_mode & 0777, 0700);
    find_entry(folder, path);
    assert_true(build_cached(word, folder));
    check_damage(word, folder, path);
}

UNIT_TEST(test_cache_on_vulkan) {
    struct device device;
    if (device_choose("vulkan", 0, &device)) {
        skip();
    }
    check_cache("vulkan");
}

/* Sets a variable, or with NULL unsets it. */
static void set(const char *variable, const char *value) {
    value ? setenv(variable, value, 1) : unsetenv(variable);
}

/* A cache that cannot be written costs time, nothing else. */
UNIT_TEST(test_cache_unwritable) {
    assert_false(build_cached(NULL, "/proc/no/such/folder"));
    assert_false(build_cached(NULL, "/dev/null"));
}

UNIT_TEST(test_cache_places) {
    static const struct {
        const char *cache_home, *home, *expected;
    } cases[] = {{"/tmp/xdg", "/tmp/home", "/tmp/xdg/hctrain"},
                 {"relative", "/tmp/home", "/tmp/home/.cache/hctrain"},
                 {NULL, NULL, NULL}};
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    for (size_t i = 0; i < COUNT(cases); i++) {
        set("XDG_CACHE_HOME", cases[i].cache_home);
        set("HOME", cases[i].home);
        struct compute *compute = open_device(NULL, NULL, false);
        assert_true(!compute->cache_dir == !cases[i].expected);
        assert_true(!compute->cache_dir || !strcmp(compute->cache_dir, cases[i].expected));
        compute_close(compute);
    }
    set("HOME", home);
    free(home);
}

/* ---- profiles */

/* Six launches: a write, three kernels, a GEMM, a fill. */
static struct loop launch_some(const char *word, bool profile) {
    struct loop loop = open_loop(word, "", profile);
    for (int i = 0; i < 3; i++) {
        launch_turns(&loop, 1);
    }
    const struct matrix a = matrix_of(&loop.sums, 0, 8, 8), c = matrix_of(&loop.sums, 128, 8, 8);
    gemm_run(loop.compute, &(struct gemm_call){.transpose_b = true, .a = a, .b = a, .c = c});
    buffer_zero(loop.compute, &loop.sums, 0, 16);
    require(compute_finish(loop.compute));
    return loop;
}

static void check_table(struct compute *compute) {
    static const char *const names[] = {"loop_turns", "gemm_nt 8x8x8", "buffer_write", "buffer_zero"};
    char *text = NULL;
    size_t size;
    FILE *stream = open_memstream(&text, &size);
    assert_non_null(stream);
    profiler_print_table(compute->profiler, stream);
    fclose(stream);
    for (size_t i = 0; i < COUNT(names); i++) {
        assert_non_null(strstr(text, names[i]));
    }
    free(text);
}

static void check_trace(struct compute *compute) {
    json_error_t error;
    assert_int_equal(profiler_write_trace(compute->profiler, scratch_path("trace.json")), 0);
    json_t *trace = json_load_file(scratch_path("trace.json"), 0, &error);
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
    assert_error(profiler_write_trace(compute->profiler, "/no/such/folder/trace.json"),
                 "/no/such/folder/trace.json");
}

ON_EVERY_DEVICE(check_profile) {
    struct loop loop = launch_some(word, true);
    check_table(loop.compute);
    check_trace(loop.compute);
    close_loop(&loop);
}

UNIT_TEST(test_profile_off) {
    struct loop loop = launch_some(NULL, false);
    assert_null(loop.compute->profiler);
    close_loop(&loop);
}

DEVICE_TEST_MAIN(scratch_begin, scratch_end)
