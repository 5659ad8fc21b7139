#include "runtime/device/gpu_model.h"
#include "runtime/system/error.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define GB   1e9
#define TERA 1e12
#define GIB  ((size_t)1 << 30)
#define KIB  ((size_t)1 << 10)

/* Fractions of the data sheets' numbers that good kernels reach, and the time of a launch beside its work. */
#define BANDWIDTH_REACHED 0.85
#define RATE_REACHED      0.75
#define LAUNCH_SECONDS    2.5e-6
/* Work-items of all groups that run on a core at a time, with 128 registers each, as GEMM kernels take. */
#define ITEMS_AT_A_TIME 512.0

/* All these GPUs read or write 128 bytes of local memory a cycle and core: NVIDIA, "CUDA C++ Best Practices Guide",
 * shared memory (32 banks of 4 bytes); AMD, "CDNA 3 Instruction Set Architecture" and "RDNA 3 ...", LDS; Intel,
 * "oneAPI GPU Optimization Guide", Xe-LP's data port, to which that of an Xe-HPG core is taken to be equal. */
#define LOCAL_BYTES 128.0

/* ci/assembly.py holds these to what it counts. */
static const struct matrix_loop sm_86[] = {{"mma_gemm", 2.81, 268},
                                           {"attention_matrix_cores_forward", 5.39, 284},
                                           {"attention_matrix_cores_backward_queries", 3.71, 256},
                                           {"attention_matrix_cores_backward_keys", 4.09, 288},
                                           {NULL, 0, 0}};
static const struct matrix_loop gfx942[] = {{"mma_gemm", 3.14, 384},
                                            {"attention_matrix_cores_forward", 8.97, 640},
                                            {"attention_matrix_cores_backward_queries", 7.29, 683},
                                            {"attention_matrix_cores_backward_keys", 8.25, 776},
                                            {NULL, 0, 0}};
static const struct matrix_loop gfx1100[] = {{"mma_gemm", 6.28, 896},
                                             {"attention_matrix_cores_forward", 17.84, 1152},
                                             {"attention_matrix_cores_backward_queries", 14.58, 1195},
                                             {"attention_matrix_cores_backward_keys", 18.12, 1288},
                                             {NULL, 0, 0}};
static const struct matrix_loop dg2_g10[] = {{"mma_gemm", 8.84, 224},
                                             {"attention_matrix_cores_forward", 17.88, 304},
                                             {"attention_matrix_cores_backward_queries", 14.33, 363},
                                             {"attention_matrix_cores_backward_keys", 15.78, 341},
                                             {NULL, 0, 0}};

/* Cycles of the one lane that maps a token's projections to H, and back, with four streams: ci/maps.py counts them
 * and holds these to what it finds. Hopper's are taken to be Ampere's. */
static const struct lane_map sm_86_maps[] = {{"identity", 621, 261},  {"hc", 1760, 1985},
                                             {"mhc", 5035, 6929},     {"mhc_lite", 3916, 3752},
                                             {"shc", 2202, 3117},     {"krom", 984, 950},
                                             {"circulant", 952, 999}, {"go_mhc", 2615, 7656},
                                             {"ohc", 1306, 1402},     {NULL, 0, 0}};
static const struct lane_map gfx942_maps[] = {{"identity", 936, 256},    {"hc", 3668, 3100},
                                              {"mhc", 8616, 12976},      {"mhc_lite", 3000, 3908},
                                              {"shc", 4752, 7708},       {"krom", 1372, 1128},
                                              {"circulant", 1384, 1100}, {"go_mhc", 5660, 5084},
                                              {"ohc", 1764, 2308},       {NULL, 0, 0}};
static const struct lane_map gfx1100_maps[] = {{"identity", 297, 67},   {"hc", 2125, 1865},
                                               {"mhc", 2720, 4860},     {"mhc_lite", 1387, 1962},
                                               {"shc", 1513, 2524},     {"krom", 473, 454},
                                               {"circulant", 451, 441}, {"go_mhc", 1880, 1476},
                                               {"ohc", 667, 799},       {NULL, 0, 0}};

/* What OpenCL reports of a GPU: compute units, work-items of a group, local memory, memory, and the largest
 * buffer's share of it. */
#define GPU(units, group, local, gibibytes, share)                                                                 \
    {.platform_name = "data sheet",                                                                                \
     .compute_units = (units),                                                                                     \
     .vector_width = 1,                                                                                            \
     .max_work_group = (group),                                                                                    \
     .local_bytes = (local),                                                                                       \
     .memory_bytes = (gibibytes) * GIB,                                                                            \
     .max_buffer_bytes = (size_t)((gibibytes) * (share) * (double)GIB),                                            \
     .is_gpu = true,                                                                                               \
     .gpus = 1}

/* The clock of the data sheet's rate. A multiprocessor has four schedulers, which begin an instruction each in a
 * cycle (NVIDIA, "Ampere GA102 GPU Architecture", "H100 Tensor Core GPU Architecture"); mma.m16n8k16 is of 4096
 * FLOPs. Hopper's loops are taken to be Ampere's. */
#define AMPERE(gigahertz) (gigahertz) * 1e9, 4, 4096, sm_86, sm_86_maps

/* Bandwidth and rates are from the makers' data sheets, at boost clocks and dense: NVIDIA prints the rate of matrix
 * cores with sparsity, which is twice as much. The last column is what the makers' own OpenCL drivers report:
 * NVIDIA's 48 KiB of local memory whatever the chip has, 1024 work-items and a quarter of the memory for a buffer;
 * AMD's 64 KiB, 256 and 85 %; Intel's 1024, and on Arc A 64 KiB and half of the memory (128 KiB and all of it on
 * later chips). Mesa's rusticl differs: on the RX 7900 XTX it has 96 compute units, groups of 1024 and buffers of
 * less than 2 GiB. In a cycle a compute unit of CDNA 3 begins one vector instruction, for one of its four SIMDs in
 * turn, and one of RDNA 3 two, one for each SIMD (the two ISAs); each of Xe's vector engines is taken to begin one.
 * Scalar instructions and waits that could be begun beside these are counted as if they could not. */
static const struct gpu_model models[] = {
    /* NVIDIA RTX A6000 data sheet: 84 multiprocessors, 768 GB/s, 38.7 TFLOP/s, 309.7 with sparsity. */
    {"a6000", "NVIDIA RTX A6000", "RTX A6000", "mma.sync", 84, 768 * GB, 38.7 * TERA, 154.8 * TERA, AMPERE(1.80),
     GPU(84, 1024, 48 * KIB, 48, 0.25)},
    /* NVIDIA H100 data sheet, SXM: as the H200 below but for its memory, 3.35 TB/s. */
    {"h100", "NVIDIA H100", "H100 80GB HBM3", "mma.sync", 132, 3350 * GB, 66.9 * TERA, 0.6 * 989.4 * TERA,
     AMPERE(1.98), GPU(132, 1024, 48 * KIB, 79, 0.25)},
    /* NVIDIA H200 data sheet, SXM: 132 multiprocessors, 4.8 TB/s, 67 TFLOP/s, 1979 with sparsity. mma.sync, which
     * OpenCL has, is taken to reach 0.6 of what Hopper's own instructions do. */
    {"h200", "NVIDIA H200", "H200", "mma.sync", 132, 4800 * GB, 66.9 * TERA, 0.6 * 989.4 * TERA, AMPERE(1.98),
     GPU(132, 1024, 48 * KIB, 140, 0.25)},
    /* AMD Instinct MI300X data sheet: 304 compute units, 5.3 TB/s, 163.4 TFLOP/s of vectors, 1307.4 of matrices.
     * ROCm's OpenCL calls the device by its architecture, as it does the next one. */
    {"mi300x", "AMD Instinct MI300X", "gfx942", "MFMA", 304, 5300 * GB, 163.4 * TERA, 1307.4 * TERA, 2.1e9, 1, 8192,
     gfx942, gfx942_maps, GPU(304, 256, 64 * KIB, 192, 0.85)},
    /* AMD Radeon RX 7900 XTX, product page: 96 compute units, 960 GB/s, 61.4 TFLOP/s with two operations issued at
     * once, 122.8 of matrices. OpenCL counts pairs of compute units. */
    {"rx7900xtx", "AMD Radeon RX 7900 XTX", "gfx1100", "WMMA", 96, 960 * GB, 61.4 * TERA, 122.8 * TERA, 2.5e9, 2,
     8192, gfx1100, gfx1100_maps, GPU(48, 256, 64 * KIB, 24, 0.85)},
    /* Intel Arc A770 16GB, product page: 32 Xe cores, 560 GB/s, 2.1 GHz. A core has 16 vector engines, each with 8
     * fused multiply-adds a cycle (17.2 TFLOP/s) and a matrix engine with 64 in 16 bits. The driver counts vector
     * engines, of which device_list makes cores. */
    {"arc770", "Intel Arc A770", "A770", "XMX", 32, 560 * GB, 17.2 * TERA, 137.6 * TERA, 2.1e9, 16, 2048, dg2_g10,
     NULL, GPU(32, 1024, 64 * KIB, 16, 0.5)},
    /* For tests: PoCL can run with its shape, so that the launch log of a dry step can be compared with that of a
     * step that ran. */
    {"emulation", "a GPU of tests, its matrix cores emulated", NULL, "an emulation for tests", 4, 100 * GB,
     1 * TERA, 4 * TERA, 1e9, 4, 4096, NULL, NULL, GPU(4, 256, 64 * KIB, 8, 0.25)},
    /* Two cores with AVX2, 32 FLOPs a cycle, at 3 GHz. */
    {"pocl",
     "two CPU cores with PoCL",
     NULL,
     NULL,
     2,
     20 * GB,
     0.19 * TERA,
     0.0,
     3e9,
     1,
     0,
     NULL,
     NULL,
     {.platform_name = "data sheet",
      .compute_units = 2,
      .vector_width = 8,
      .max_work_group = 4096,
      .local_bytes = 512 * KIB,
      .memory_bytes = 8 * GIB,
      .max_buffer_bytes = 8 * GIB,
      .shares_host_memory = true,
      .native_kernels = true,
      .is_cpu = true}},
};

/* Drivers give cards of other sizes the same name, such as "gfx1100". */
static bool is_device(const struct gpu_model *model, const struct device *device) {
    const double share = (double)device->memory_bytes / (double)model->device.memory_bytes;
    return model->match && strstr(device->name, model->match) && share > 0.9 && share < 1.1;
}

const struct gpu_model *gpu_model_find(const char *name, const struct device *device) {
    char list[128] = "";
    for (size_t i = 0; i < COUNT(models); i++) {
        const struct gpu_model *model = &models[i];
        const size_t used = strlen(list);
        if (name ? strcasecmp(name, model->name) == 0 : is_device(model, device)) {
            return model;
        }
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", model->name);
    }
    if (name) {
        error_set("there is no data sheet of a device '%s' here, but of: %s", name, list);
    } else {
        error_set("there is no data sheet of %s here: name a device that is like it, of: %s", device->name, list);
    }
    return NULL;
}

void gpu_model_apply(const struct gpu_model *model, struct device *device) {
    const struct device real = *device;
    *device = model->device;
    device->model = model;
    if (!real.id) {
        snprintf(device->name, sizeof device->name, "%s", model->title);
        return;
    }
    device->platform = real.platform;
    device->id = real.id;
    snprintf(device->name, sizeof device->name, "%s", real.name);
    snprintf(device->platform_name, sizeof device->platform_name, "%s", real.platform_name);
    snprintf(device->version, sizeof device->version, "%s", real.version);
    snprintf(device->driver, sizeof device->driver, "%s", real.driver);
    device->memory_bytes = real.memory_bytes;
    device->max_buffer_bytes = real.max_buffer_bytes;
}

/* What the instructions of the kernel's loop, or what they move through local memory, take on a full device. The
 * log names GEMMs by their shapes; libraries' have no groups. */
static struct gpu_time loop_time(const struct gpu_model *model, const struct gpu_work *work) {
    const bool is_gemm = strncmp(work->kernel, "gemm_", strlen("gemm_")) == 0 && work->groups > 0.0;
    const char *const kernel = is_gemm ? "mma_gemm" : work->kernel;
    for (const struct matrix_loop *loop = model->loops; loop && loop->kernel; loop++) {
        if (strcmp(loop->kernel, kernel) == 0) {
            const double issue = loop->instructions / model->issued, local = loop->local_bytes / LOCAL_BYTES;
            const double cycles = work->padded_flops / model->matrix_flops * fmax(issue, local);
            return (struct gpu_time){cycles / (model->clock * model->cores),
                                     issue >= local ? "issue" : "local memory"};
        }
    }
    return (struct gpu_time){0.0, NULL};
}

static struct gpu_time longer(struct gpu_time one, struct gpu_time other) {
    return other.seconds > one.seconds ? other : one;
}

double gpu_model_map_cycles(const struct gpu_model *model, const char *connection, bool backward) {
    for (const struct lane_map *map = model->maps; map && map->connection; map++) {
        if (strcmp(map->connection, connection) == 0) {
            return backward ? map->backward : map->forward;
        }
    }
    return 0.0;
}

/* Each of a core's groups takes its share of `time` and then waits for its maps, while the others take theirs: mean
 * value analysis of a closed queue (Reiser and Lavenberg, 1980), one group after another added. */
static struct gpu_time time_with_maps(const struct gpu_model *model, const struct gpu_work *work,
                                      struct gpu_time time, double at_a_time) {
    const double of_a_core = fmax(work->groups / model->cores, 1.0);
    const double busy = time.seconds / of_a_core, alone = work->map_cycles / model->clock;
    double waiting = 0.0, between = busy + alone;
    for (double groups = 1.0; groups <= fmin(at_a_time, of_a_core); groups++) {
        const double served = busy * (1.0 + waiting);
        between = (served + alone) / groups;
        waiting = served / between;
    }
    return (struct gpu_time){of_a_core * between, between > 2.0 * busy ? "maps" : time.limit};
}

/* Of a launch with a known number of groups, only a share of the waves' slots may have one. A core of a CPU runs
 * one group at a time. */
struct gpu_time gpu_model_time(const struct gpu_model *model, const struct gpu_work *work) {
    const bool alone = model->device.is_cpu || work->local > ITEMS_AT_A_TIME;
    const double slots = model->cores * (alone ? 1.0 : floor(ITEMS_AT_A_TIME / fmax(work->local, 1.0)));
    double bandwidth = BANDWIDTH_REACHED * model->bandwidth;
    double rate = RATE_REACHED * (work->on_matrix_cores ? model->matrix_core_rate : model->rate);
    double filled = 1.0;
    if (work->groups > 0.0) {
        bandwidth *= fmin(1.0, work->groups / (2.0 * model->cores));
        filled = work->groups / (ceil(work->groups / slots) * slots);
    }
    rate *= filled;
    struct gpu_time time = {work->bytes / bandwidth, "memory"};
    if (work->padded_flops > 0.0) {
        time = longer(time, (struct gpu_time){work->padded_flops / rate, "arithmetic"});
    }
    if (work->on_matrix_cores) {
        struct gpu_time loop = loop_time(model, work);
        loop.seconds /= filled;
        time = longer(time, loop);
    }
    if (work->map_cycles > 0.0) {
        time = time_with_maps(model, work, time, slots / model->cores);
    }
    time.limit = time.seconds > LAUNCH_SECONDS ? time.limit : "launch";
    time.seconds += LAUNCH_SECONDS;
    return time;
}
