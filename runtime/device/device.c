#include "runtime/device/device.h"
#include "runtime/device/program_cache.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define POCL_PLATFORM "Portable Computing Language"

enum { LEAST_ADDRESS_SPACE = 896 << 20 };

/* ---- describing a device */

static void read_text(cl_device_id id, cl_device_info what, char text[256]) {
    size_t size = 0;
    text[0] = '\0';
    if (clGetDeviceInfo(id, what, 0, NULL, &size) != CL_SUCCESS || !size) {
        return;
    }
    char *whole = calloc(1, size + 1);
    if (whole && clGetDeviceInfo(id, what, size, whole, NULL) == CL_SUCCESS) {
        const char *start = whole + strspn(whole, " ");
        snprintf(text, 256, "%s", start);
    }
    free(whole);
    for (size_t length = strlen(text); length && text[length - 1] == ' '; length--) {
        text[length - 1] = '\0';
    }
}

static cl_uint read_uint(cl_device_id id, cl_device_info what) {
    cl_uint value = 0;
    return clGetDeviceInfo(id, what, sizeof(value), &value, NULL) == CL_SUCCESS ? value : 0;
}

static cl_ulong read_ulong(cl_device_id id, cl_device_info what) {
    cl_ulong value = 0;
    return clGetDeviceInfo(id, what, sizeof(value), &value, NULL) == CL_SUCCESS ? value : 0;
}

static size_t read_size(cl_device_id id, cl_device_info what) {
    size_t value = 0;
    return clGetDeviceInfo(id, what, sizeof(value), &value, NULL) == CL_SUCCESS ? value : 0;
}

static size_t to_size(cl_ulong value) {
    return value < SIZE_MAX ? (size_t)value : SIZE_MAX;
}

/* PoCL tells a fraction of the memory, and buffers in our own pages are not bound by it. Others allocate
 * themselves. */
static size_t plan_memory(const struct device *device, size_t reported) {
    size_t host = device->shares_host_memory ? host_memory() : 0;
    if (!host) {
        return reported;
    }
    return device->native_kernels || host < reported ? host : reported;
}

static void read_numbers(struct device *device) {
    cl_device_id id = device->id;
    device->type = (cl_device_type)read_ulong(id, CL_DEVICE_TYPE);
    device->is_cpu = (device->type & CL_DEVICE_TYPE_CPU) != 0;
    device->is_gpu = (device->type & CL_DEVICE_TYPE_GPU) != 0;
    device->compute_units = read_uint(id, CL_DEVICE_MAX_COMPUTE_UNITS);
    device->vector_width = read_uint(id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT);
    if (!device->vector_width) {
        device->vector_width = 1;
    }
    device->max_work_group = read_size(id, CL_DEVICE_MAX_WORK_GROUP_SIZE);
    device->local_bytes = to_size(read_ulong(id, CL_DEVICE_LOCAL_MEM_SIZE));
    device->max_buffer_bytes = to_size(read_ulong(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE));
    device->base_alignment = read_uint(id, CL_DEVICE_MEM_BASE_ADDR_ALIGN) / 8;
    device->shares_host_memory = read_uint(id, CL_DEVICE_HOST_UNIFIED_MEMORY) != 0;
    /* A simulator (oclgrind) runs native kernels too, but on memory of its own. */
    device->native_kernels =
        device->shares_host_memory && (read_ulong(id, CL_DEVICE_EXECUTION_CAPABILITIES) & CL_EXEC_NATIVE_KERNEL);
    device->memory_bytes = plan_memory(device, to_size(read_ulong(id, CL_DEVICE_GLOBAL_MEM_SIZE)));
}

static void describe(cl_platform_id platform, cl_device_id id, struct device *device) {
    *device = (struct device){.platform = platform, .id = id};
    read_text(id, CL_DEVICE_NAME, device->name);
    read_text(id, CL_DEVICE_VERSION, device->version);
    read_text(id, CL_DRIVER_VERSION, device->driver);
    if (clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof(device->platform_name) - 1, device->platform_name,
                          NULL) != CL_SUCCESS) {
        strcpy(device->platform_name, "unknown platform");
    }
    read_numbers(device);
}

/* ---- listing */

static bool is_usable(cl_device_id id) {
    return read_uint(id, CL_DEVICE_AVAILABLE) && read_uint(id, CL_DEVICE_COMPILER_AVAILABLE);
}

/* Adds the platform's devices. One that has none, or that cannot tell, adds nothing. */
static int append_platform(cl_platform_id platform, struct device **devices, size_t *count) {
    cl_uint found = 0;
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, NULL, &found) != CL_SUCCESS || !found) {
        return 0;
    }
    cl_device_id *ids = calloc(found, sizeof(*ids));
    struct device *larger = reallocarray(*devices, *count + found, sizeof(**devices));
    if (larger) {
        *devices = larger;
    }
    if (!ids || !larger) {
        free(ids);
        return error_set("out of memory");
    }
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, found, ids, NULL) == CL_SUCCESS) {
        for (cl_uint i = 0; i < found; i++) {
            if (is_usable(ids[i])) {
                describe(platform, ids[i], &(*devices)[(*count)++]);
            }
        }
    }
    free(ids);
    return 0;
}

/* Drivers and the compilers in them end the process, or hang, where they get no memory. */
static int check_address_space(void) {
    const size_t left = host_address_space();
    return left >= LEAST_ADDRESS_SPACE
               ? 0
               : error_set(
                     "this process may map only %zu MiB more (ulimit -v), and OpenCL drivers with their compilers "
                     "need %d: raise the limit",
                     left >> 20, LEAST_ADDRESS_SPACE >> 20);
}

int device_list(struct device **devices, size_t *count) {
    cl_uint platforms = 0;
    *devices = NULL;
    *count = 0;
    if (check_address_space()) {
        return -1;
    }
    if (clGetPlatformIDs(0, NULL, &platforms) != CL_SUCCESS || !platforms) {
        return 0;
    }
    cl_platform_id *ids = calloc(platforms, sizeof(*ids));
    if (!ids) {
        return error_set("out of memory");
    }
    int result = 0;
    if (clGetPlatformIDs(platforms, ids, NULL) == CL_SUCCESS) {
        for (cl_uint i = 0; i < platforms && !result; i++) {
            result = append_platform(ids[i], devices, count);
        }
    }
    free(ids);
    if (result) {
        free(*devices);
        *devices = NULL;
        *count = 0;
    }
    return result;
}

/* ---- choosing */

static bool contains(const char *text, const char *part) {
    size_t length = strlen(part);
    for (; *text; text++) {
        if (!strncasecmp(text, part, length)) {
            return true;
        }
    }
    return false;
}

static const struct device *find_gpu(const struct device *devices, size_t count, unsigned local_rank) {
    size_t gpus = 0, wanted;
    for (size_t i = 0; i < count; i++) {
        gpus += devices[i].is_gpu;
    }
    if (!gpus) {
        return NULL;
    }
    wanted = local_rank % gpus;
    for (size_t i = 0; i < count; i++) {
        if (devices[i].is_gpu && wanted-- == 0) {
            return &devices[i];
        }
    }
    return NULL;
}

/* The first CPU device that runs native kernels, since those get the host's BLAS; else the first at all. */
static const struct device *find_cpu(const struct device *devices, size_t count, bool only_pocl) {
    const struct device *found = NULL;
    for (size_t i = 0; i < count; i++) {
        if (!devices[i].is_cpu || (only_pocl && strcmp(devices[i].platform_name, POCL_PLATFORM))) {
            continue;
        }
        if (devices[i].native_kernels) {
            return &devices[i];
        }
        if (!found) {
            found = &devices[i];
        }
    }
    return found;
}

static const struct device *find_auto(const struct device *devices, size_t count, unsigned local_rank) {
    const struct device *found = find_gpu(devices, count, local_rank);
    if (!found) {
        found = find_cpu(devices, count, false);
    }
    return found || !count ? found : &devices[0]; /* an accelerator is better than nothing */
}

static const struct device *find_by_number_or_name(const struct device *devices, size_t count, const char *word) {
    if (*word && word[strspn(word, "0123456789")] == '\0') {
        errno = 0;
        unsigned long long index = strtoull(word, NULL, 10);
        if (!errno && index < count) {
            return &devices[index];
        }
    }
    for (size_t i = 0; i < count && *word; i++) {
        if (contains(devices[i].name, word) || contains(devices[i].platform_name, word)) {
            return &devices[i];
        }
    }
    return NULL;
}

static const struct device *find(const struct device *devices, size_t count, const char *word,
                                 unsigned local_rank) {
    if (!strcasecmp(word, "gpu")) {
        return find_gpu(devices, count, local_rank);
    }
    if (!strcasecmp(word, "cpu")) {
        return find_cpu(devices, count, false);
    }
    if (!strcasecmp(word, "pocl")) {
        return find_cpu(devices, count, true);
    }
    if (!strcasecmp(word, "auto")) {
        return find_auto(devices, count, local_rank);
    }
    return find_by_number_or_name(devices, count, word);
}

/* Where PoCL cannot keep its kernels, "" if it can: without such a folder it offers no device, and says nothing. */
static char unusable_cache[4096];

void device_missing_text(char *text, size_t bytes) {
    if (*unusable_cache) {
        snprintf(text, bytes,
                 "PoCL, the OpenCL for CPUs, cannot be used: it keeps its compiled kernels in %s, which cannot be "
                 "written; set POCL_CACHE_DIR to a folder that can",
                 unusable_cache);
    } else {
        snprintf(text, bytes,
                 "there is no OpenCL device on this machine; install a GPU's OpenCL driver, or PoCL for "
                 "the CPU");
    }
}

static int fail_choice(const struct device *devices, size_t count, const char *word) {
    char list[4096] = "", reason[sizeof unusable_cache + 200];
    for (size_t i = 0; i < count; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof(list) - used, "%s%zu: %s (%s)", i ? ", " : "", i, devices[i].name,
                 devices[i].platform_name);
    }
    if (!count || *unusable_cache) {
        device_missing_text(reason, sizeof reason);
    }
    if (!count) {
        return error_set("device \"%s\": %s", word, reason);
    }
    return error_set("no OpenCL device \"%s\"; there are: %s%s%s", word, list, *unusable_cache ? "; " : "",
                     *unusable_cache ? reason : "");
}

int device_choose(const char *word, unsigned local_rank, struct device *chosen) {
    struct device *devices;
    size_t count;
    if (device_list(&devices, &count)) {
        return -1;
    }
    const struct device *found = find(devices, count, word, local_rank);
    int result = 0;
    if (found) {
        *chosen = *found;
        for (size_t i = 0; i < count; i++) {
            chosen->gpus += devices[i].is_gpu;
        }
    } else {
        result = fail_choice(devices, count, word);
    }
    free(devices);
    return result;
}

/* ---- the environment */

/* Whether PoCL can keep its kernels where it does by default: in pocl/kcache, beside where ours are kept. */
static bool has_cache_home(void) {
    char *ours = NULL, *folder = NULL;
    bool has = false;
    if (program_cache_locate(NULL, &ours) == 0 && ours &&
        asprintf(&folder, "%.*s/pocl/kcache", (int)(strrchr(ours, '/') - ours), ours) >= 0) {
        has = program_cache_make(folder);
        free(folder);
    }
    free(ours);
    return has;
}

/* Makes the folder, or accepts it if it is one that only this user can write. */
static bool claim_folder(const char *path) {
    struct stat status;
    if (!mkdir(path, 0700)) {
        return true;
    }
    return errno == EEXIST && !lstat(path, &status) && S_ISDIR(status.st_mode) && status.st_uid == geteuid() &&
           !(status.st_mode & (S_IWGRP | S_IWOTH));
}

/* A private folder for PoCL's kernels below the temporary folder; one per user, so that it is found again. */
static void move_pocl_cache(void) {
    const char *base = getenv("TMPDIR");
    char path[sizeof unusable_cache];
    if (!base || *base != '/') {
        base = "/tmp";
    }
    int length = snprintf(path, sizeof(path), "%s/hctrain-pocl-%lu", base, (unsigned long)geteuid());
    if (length >= 0 && (size_t)length < sizeof(path) && !claim_folder(path)) {
        length = snprintf(path, sizeof(path), "%s/hctrain-pocl-XXXXXX", base);
        length = length >= 0 && (size_t)length < sizeof(path) && mkdtemp(path) ? length : -1;
    }
    if (length >= 0 && (size_t)length < sizeof(path)) {
        setenv("POCL_CACHE_DIR", path, 0);
    } else {
        snprintf(unusable_cache, sizeof unusable_cache, "%s", base);
    }
}

/* A folder that the user chose is used or complained of, not replaced. */
static void check_pocl_cache(void) {
    const char *chosen = getenv("POCL_CACHE_DIR");
    if (chosen && !*chosen) {
        unsetenv("POCL_CACHE_DIR"); /* PoCL takes the empty word for a path */
        chosen = NULL;
    }
    if (!chosen && !has_cache_home()) {
        move_pocl_cache();
    } else if (chosen && !program_cache_make(chosen)) {
        snprintf(unusable_cache, sizeof unusable_cache, "%s", chosen);
    }
}

void device_prepare_environment(void) {
    char cores[16];
    host_claim_cores();
    snprintf(cores, sizeof(cores), "%u", host_cores());
    /* PoCL starts a thread per core of the machine, however few of them this rank owns. */
    setenv("POCL_MAX_PTHREAD_COUNT", cores, 0);
    /* OpenBLAS's threads spin after a product, on the cores that PoCL's threads need for the next kernel; with this
     * they sleep at once. Read when the library is loaded, which runtime/gemm/gemm_cblas.c does later. */
    setenv("OPENBLAS_THREAD_TIMEOUT", "4", 0);
    check_pocl_cache();
}

/* ---- error names */

struct error_name {
    cl_int code;
    const char *name;
};

#define NAME(code)                                                                                                 \
    { code, #code }
static const struct error_name error_names[] = {
    NAME(CL_SUCCESS),
    NAME(CL_DEVICE_NOT_FOUND),
    NAME(CL_DEVICE_NOT_AVAILABLE),
    NAME(CL_COMPILER_NOT_AVAILABLE),
    NAME(CL_MEM_OBJECT_ALLOCATION_FAILURE),
    NAME(CL_OUT_OF_RESOURCES),
    NAME(CL_OUT_OF_HOST_MEMORY),
    NAME(CL_PROFILING_INFO_NOT_AVAILABLE),
    NAME(CL_MEM_COPY_OVERLAP),
    NAME(CL_IMAGE_FORMAT_MISMATCH),
    NAME(CL_IMAGE_FORMAT_NOT_SUPPORTED),
    NAME(CL_BUILD_PROGRAM_FAILURE),
    NAME(CL_MAP_FAILURE),
    NAME(CL_MISALIGNED_SUB_BUFFER_OFFSET),
    NAME(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
    NAME(CL_COMPILE_PROGRAM_FAILURE),
    NAME(CL_LINKER_NOT_AVAILABLE),
    NAME(CL_LINK_PROGRAM_FAILURE),
    NAME(CL_DEVICE_PARTITION_FAILED),
    NAME(CL_KERNEL_ARG_INFO_NOT_AVAILABLE),
    NAME(CL_INVALID_VALUE),
    NAME(CL_INVALID_DEVICE_TYPE),
    NAME(CL_INVALID_PLATFORM),
    NAME(CL_INVALID_DEVICE),
    NAME(CL_INVALID_CONTEXT),
    NAME(CL_INVALID_QUEUE_PROPERTIES),
    NAME(CL_INVALID_COMMAND_QUEUE),
    NAME(CL_INVALID_HOST_PTR),
    NAME(CL_INVALID_MEM_OBJECT),
    NAME(CL_INVALID_IMAGE_FORMAT_DESCRIPTOR),
    NAME(CL_INVALID_IMAGE_SIZE),
    NAME(CL_INVALID_SAMPLER),
    NAME(CL_INVALID_BINARY),
    NAME(CL_INVALID_BUILD_OPTIONS),
    NAME(CL_INVALID_PROGRAM),
    NAME(CL_INVALID_PROGRAM_EXECUTABLE),
    NAME(CL_INVALID_KERNEL_NAME),
    NAME(CL_INVALID_KERNEL_DEFINITION),
    NAME(CL_INVALID_KERNEL),
    NAME(CL_INVALID_ARG_INDEX),
    NAME(CL_INVALID_ARG_VALUE),
    NAME(CL_INVALID_ARG_SIZE),
    NAME(CL_INVALID_KERNEL_ARGS),
    NAME(CL_INVALID_WORK_DIMENSION),
    NAME(CL_INVALID_WORK_GROUP_SIZE),
    NAME(CL_INVALID_WORK_ITEM_SIZE),
    NAME(CL_INVALID_GLOBAL_OFFSET),
    NAME(CL_INVALID_EVENT_WAIT_LIST),
    NAME(CL_INVALID_EVENT),
    NAME(CL_INVALID_OPERATION),
    NAME(CL_INVALID_GL_OBJECT),
    NAME(CL_INVALID_BUFFER_SIZE),
    NAME(CL_INVALID_MIP_LEVEL),
    NAME(CL_INVALID_GLOBAL_WORK_SIZE),
    NAME(CL_INVALID_PROPERTY),
    NAME(CL_INVALID_IMAGE_DESCRIPTOR),
    NAME(CL_INVALID_COMPILER_OPTIONS),
    NAME(CL_INVALID_LINKER_OPTIONS),
    NAME(CL_INVALID_DEVICE_PARTITION_COUNT),
    {-1001, "CL_PLATFORM_NOT_FOUND_KHR"}, /* of cl_khr_icd, whose header need not be there */
    {-9999, "NVIDIA's error -9999"},      /* an access outside of a buffer, or a kernel that was ended */
};

const char *device_error_name(cl_int code) {
    static _Thread_local char unknown[32];
    for (size_t i = 0; i < sizeof(error_names) / sizeof(*error_names); i++) {
        if (error_names[i].code == code) {
            return error_names[i].name;
        }
    }
    snprintf(unknown, sizeof(unknown), "OpenCL error %d", (int)code);
    return unknown;
}

#define NO_MEMORY                                                                                                  \
    "the device has no memory left: choose a smaller batch_size, block_size or model, or --recompute layer"
#define LOST                                                                                                       \
    "the device was lost: its driver was reset, or ended a kernel that took too long; see the kernel's log "       \
    "(dmesg), "                                                                                                    \
    "and choose a smaller batch_size if this happens again"

static const struct error_name error_advice[] = {
    {CL_MEM_OBJECT_ALLOCATION_FAILURE, NO_MEMORY},
    {CL_OUT_OF_HOST_MEMORY, "the host, or the device, has no memory left: choose a smaller batch_size or model"},
    {CL_OUT_OF_RESOURCES, NO_MEMORY "; on a GPU that drives a display, its watchdog may have ended a kernel"},
    {CL_DEVICE_NOT_AVAILABLE, LOST},
    {CL_INVALID_CONTEXT, LOST},
    {CL_INVALID_COMMAND_QUEUE, LOST},
    {CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, LOST},
    {-9999, LOST},
};

const char *device_error_text(cl_int code) {
    static _Thread_local char text[400];
    for (size_t i = 0; i < sizeof(error_advice) / sizeof(*error_advice); i++) {
        if (error_advice[i].code == code) {
            snprintf(text, sizeof(text), "%s: %s", device_error_name(code), error_advice[i].name);
            return text;
        }
    }
    return device_error_name(code);
}
