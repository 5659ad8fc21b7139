/* Launch logs of a device that is not there, and the seconds that a data sheet gives launches, worked out by
 * hand. */
#include "runtime/device/compute.h"
#include "runtime/device/gpu_model.h"
#include "runtime/system/error.h"
#include "tests/support/test.h"
#include <stdio.h>
#include <string.h>

/* ---- entries */

enum { ELEMENTS = 16 };

struct dry {
    struct compute *compute;
    struct kernel kernel;
    struct buffer buffer; /* fp32 [ELEMENTS] */
};

static struct dry open_dry(void) {
    struct dry dry = {.kernel = {.handle = NULL, .name = "some_kernel"}};
    const struct compute_options options = {.model = gpu_model_find("a6000", NULL), .dry = true};
    assert_int_equal(compute_open(&dry.compute, &options), 0);
    assert_int_equal(buffer_create(dry.compute, &dry.buffer, ELEMENTS * sizeof(float)), 0);
    return dry;
}

static void close_dry(struct dry *dry) {
    buffer_release(dry->compute, &dry->buffer);
    compute_close(dry->compute);
}

static void assert_entry(const struct launch_entry *entry, const char *name, const char *module, double read,
                         double written, bool launches, bool waits) {
    assert_string_equal(entry->name, name);
    assert_string_equal(entry->module, module);
    assert_true(entry->read == read && entry->written == written);
    assert_true(entry->launches == launches && entry->waits == waits);
}

UNIT_TEST(test_entries) {
    struct dry dry = open_dry();
    struct compute *compute = dry.compute;
    const struct span half = {&dry.buffer, 8};
    float values[ELEMENTS] = {1.0f};
    struct kernel_argument thrice = ARG_IN(&dry.buffer, ELEMENTS);
    thrice.reads = 3;
    KERNEL_RUN(compute, &dry.kernel, 5, 64, ARG_U64(1), ARG_SPAN_IN(half, 8), ARG_SPAN_IN_OUT(half, 4));
    compute_set_module(compute, "a module");
    const struct launch launch = {&dry.kernel, 2, 32, 100.0, 120.0, true};
    KERNEL_LAUNCH(compute, &launch, thrice, ARG_UNUSED(&dry.buffer), ARG_OUT(&dry.buffer, 2));
    KERNEL_RUN(compute, &dry.kernel, 0, 64, ARG_IN(&dry.buffer, 1)); /* nothing to do */
    assert_int_equal(buffer_write(compute, &dry.buffer, 4, values, 8), 0);
    assert_int_equal(buffer_read(compute, &dry.buffer, 0, values, sizeof values), 0);
    buffer_zero(compute, &dry.buffer, 0, 12);
    buffer_copy(compute, &dry.buffer, 0, &dry.buffer, 32, 16);
    assert_int_equal(compute_finish(compute), 0);
    const struct launch_entry *entries = compute->launch_log->entries;
    assert_int_equal(compute->launch_log->count, 7);
    assert_entry(&entries[0], "some_kernel", "other", 8 * 4 + 4 * 4, 4 * 4, true, false);
    assert_true(entries[0].groups == 5 && entries[0].local == 64 && entries[0].flops == 0.0 &&
                !entries[0].on_matrix_cores);
    assert_entry(&entries[1], "some_kernel", "a module", 3 * 16 * 4, 2 * 4, true, false);
    assert_true(entries[1].flops == 100.0 && entries[1].padded_flops == 120.0 && entries[1].on_matrix_cores);
    assert_entry(&entries[2], "buffer_write", "a module", 0, 8, true, true);
    assert_entry(&entries[3], "buffer_read", "a module", 64, 0, true, true);
    assert_entry(&entries[4], "buffer_zero", "a module", 0, 12, true, false);
    assert_entry(&entries[5], "buffer_copy", "a module", 16, 16, true, false);
    assert_entry(&entries[6], "finish", "a module", 0, 0, false, true);
    assert_true(values[0] == 0.0f);
    close_dry(&dry);
}

/* An extent of `count` elements from `offset` on fails, with these words. */
static void check_outside(size_t offset, size_t count, const char *words) {
    struct dry dry = open_dry();
    const struct span span = {&dry.buffer, offset};
    KERNEL_RUN(dry.compute, &dry.kernel, 1, 64, ARG_U64(0), ARG_SPAN_OUT(span, count));
    assert_error(compute_finish(dry.compute), words);
    close_dry(&dry);
}

UNIT_TEST(test_extents_are_inside) {
    struct dry dry = open_dry();
    const struct span last = {&dry.buffer, ELEMENTS - 1}, end = {&dry.buffer, ELEMENTS};
    KERNEL_RUN(dry.compute, &dry.kernel, 1, 64, ARG_IN(&dry.buffer, ELEMENTS), ARG_SPAN_OUT(last, 1),
               ARG_SPAN_UNUSED(end));
    assert_int_equal(compute_finish(dry.compute), 0);
    close_dry(&dry);
    check_outside(0, ELEMENTS + 1, "kernel some_kernel: argument 1 has 17 elements at 0");
    check_outside(8, 9, "9 elements at 8, and its buffer has 16");
    check_outside(ELEMENTS + 1, 0, "0 elements at 17");
    check_outside(1, SIZE_MAX, "its buffer has 16");
}

/* ---- devices by their data sheets */

static void assert_time_on(const char *name, struct gpu_work work, double expected, const char *limit) {
    const struct gpu_time time = gpu_model_time(gpu_model_find(name, NULL), &work);
    assert_true(time.seconds > expected * (1.0 - 1e-9) && time.seconds < expected * (1.0 + 1e-9));
    assert_string_equal(time.limit, limit);
}

static void assert_time(struct gpu_work work, double expected, const char *limit) {
    assert_time_on("a6000", work, expected, limit);
}

/* RTX A6000: 84 cores, 768 GB/s, 38.7 TFLOP/s, 154.8 on units; four groups of 128 a core at a time. */
UNIT_TEST(test_times) {
    const double launch = 2.5e-6, ms = 1e-3;
    assert_time((struct gpu_work){.groups = 1, .local = 64}, launch, "launch");
    assert_time((struct gpu_work){.bytes = 768e6}, ms / 0.85 + launch, "memory");
    assert_time((struct gpu_work){.groups = 1000, .local = 64, .bytes = 768e6}, ms / 0.85 + launch, "memory");
    assert_time((struct gpu_work){.groups = 42, .local = 64, .bytes = 768e6}, 4 * ms / 0.85 + launch, "memory");
    const double flops = 154.8e9; /* 1 ms at the full rate */
    assert_time((struct gpu_work){336, 128, 1.0, flops, true, "", 0}, ms / 0.75 + launch, "arithmetic");
    assert_time((struct gpu_work){84, 128, 1.0, flops, true, "", 0}, 4 * ms / 0.75 + launch, "arithmetic");
    assert_time((struct gpu_work){336 + 168, 128, 1.0, flops, true, "", 0}, ms / 0.75 * 4 / 3 + launch,
                "arithmetic");
    assert_time((struct gpu_work){84, 1024, 1.0, flops, true, "", 0}, ms / 0.75 + launch,
                "arithmetic"); /* one a core */
    assert_time((struct gpu_work){336, 128, 1.0, flops, false, "", 0}, 4 * ms / 0.75 + launch, "arithmetic");
    assert_time((struct gpu_work){0, 0, 1.0, flops, true, "", 0}, ms / 0.75 + launch,
                "arithmetic"); /* a library's */
    assert_time((struct gpu_work){336, 128, 7680e6, flops, true, "", 0}, 10 * ms / 0.85 + launch, "memory");
    /* 1e9 matrix instructions in the loop of a listed kernel: what stands beside them hides on Ampere, where a core
     * issues 4 instructions a cycle, and on CDNA 3, where it issues one, takes longer than they do */
    assert_time((struct gpu_work){336, 128, 1.0, 4.096e12, true, "attention_matrix_cores_forward", 0},
                4.096e12 / 154.8e12 / 0.75 + launch, "arithmetic");
    assert_time_on("mi300x", (struct gpu_work){1216, 128, 1.0, 8.192e12, true, "attention_matrix_cores_forward", 0},
                   1e9 * 8.97 / (2.1e9 * 304) + launch, "issue");
    /* the same of a GEMM, which moves 224 bytes for each instruction on Arc A; not of a library */
    assert_time_on("arc770", (struct gpu_work){512, 128, 1.0, 2.048e12, true, "gemm_nt 8192x3072x768", 0},
                   1e9 * 1.75 / (2.1e9 * 32) + launch, "local memory");
    assert_time_on("arc770", (struct gpu_work){0, 0, 1.0, 2.048e12, true, "gemm_nt 8192x3072x768", 0},
                   2.048e12 / 137.6e12 / 0.75 + launch, "arithmetic");
    /* maps of 1 ms beside 1 ms of memory: one group of a core alone; and two, of which each meets the other there
     * in as much of its time as that one is not in its map */
    assert_time((struct gpu_work){.groups = 84, .local = 256, .bytes = 384e6, .map_cycles = 1.8e6},
                ms / 0.85 + ms + launch, "memory");
    const double busy = 0.5 * ms / 0.85;
    assert_time((struct gpu_work){.groups = 168, .local = 256, .bytes = 768e6, .map_cycles = 1.8e6},
                busy * (1.0 + busy / (busy + ms)) + ms + launch, "memory");
    assert_time((struct gpu_work){.groups = 168, .local = 256, .bytes = 768e6, .map_cycles = 18e6},
                busy * (1.0 + busy / (busy + 10.0 * ms)) + 10.0 * ms + launch, "maps");
    assert_true(gpu_model_map_cycles(gpu_model_find("mi300x", NULL), "mhc", true) >
                gpu_model_map_cycles(gpu_model_find("mi300x", NULL), "identity", true));
    assert_true(gpu_model_map_cycles(gpu_model_find("arc770", NULL), "mhc", true) == 0.0);
    /* two cores, a group each, 0.19 TFLOP/s */
    assert_time_on("pocl", (struct gpu_work){3, 1, 1.0, 0.19e9, false, "", 0}, ms / 0.75 * 4 / 3 + launch,
                   "arithmetic");
}

static void assert_known_as(const char *driver, double gibibytes, const char *name) {
    struct device device = {.memory_bytes = (size_t)(gibibytes * 0x1p30)};
    snprintf(device.name, sizeof device.name, "%s", driver);
    const struct gpu_model *model = gpu_model_find(NULL, &device);
    assert_non_null(model);
    assert_string_equal(model->name, name);
}

UNIT_TEST(test_names) {
    const struct device unknown = {.name = "cpu-haswell"},
                        smaller = {.name = "gfx1100", .memory_bytes = 20UL << 30};
    assert_known_as("NVIDIA RTX A6000", 47.5, "a6000");
    assert_known_as("NVIDIA H100 80GB HBM3", 79.1, "h100");
    assert_known_as("NVIDIA H200", 139.8, "h200");
    assert_known_as("gfx942:sramecc+:xnack-", 192, "mi300x");
    assert_known_as("gfx1100", 23.98, "rx7900xtx");
    assert_known_as("Intel(R) Arc(TM) A770 Graphics", 15.1, "arc770");
    assert_string_equal(gpu_model_find("H200", NULL)->name, "h200");
    assert_null(gpu_model_find("a600", NULL));
    assert_error_text("a6000, h100, h200, mi300x, rx7900xtx, arc770");
    assert_null(gpu_model_find(NULL, &unknown));
    assert_error_text("cpu-haswell");
    assert_null(gpu_model_find(NULL, &smaller));
}

/* Memory and compute units as the makers' drivers report them: clinfo of ROCm and of Intel's, whose EUs are made
 * cores. */
UNIT_TEST(test_drivers) {
    static const struct {
        const char *name;
        unsigned compute_units, percent; /* of the memory that a buffer may have */
    } drivers[] = {{"a6000", 84, 25}, {"mi300x", 304, 85}, {"rx7900xtx", 48, 85}, {"arc770", 32, 50}};
    for (size_t i = 0; i < COUNT(drivers); i++) {
        const struct device *device = &gpu_model_find(drivers[i].name, NULL)->device;
        assert_int_equal(device->compute_units, drivers[i].compute_units);
        assert_int_equal(device->max_buffer_bytes >> 20, (device->memory_bytes >> 20) * drivers[i].percent / 100);
    }
}

UNIT_TEST_MAIN(NULL, NULL)
