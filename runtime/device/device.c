#include "runtime/device/device.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define POCL_PLATFORM "Portable Computing Language"

enum { LEAST_ADDRESS_SPACE = 896 << 20, MOST_DEVICES = 256 };

/* ---- describing a device */

char *device_text(cl_device_id id, cl_device_info what) {
    size_t size = 0;
    clGetDeviceInfo(id, what, 0, NULL, &size);
    char *text = size ? calloc(1, size + 1) : NULL;
    if (text && clGetDeviceInfo(id, what, size, text, NULL) != CL_SUCCESS) {
        free(text);
        return NULL;
    }
    return text;
}

/* The same without spaces around it, "" where the device does not tell. */
static void read_text(cl_device_id id, cl_device_info what, char text[256]) {
    char *whole = device_text(id, what);
    snprintf(text, 256, "%s", whole ? whole + strspn(whole, " ") : "");
    free(whole);
    for (size_t length = strlen(text); length && text[length - 1] == ' '; length--) {
        text[length - 1] = '\0';
    }
}

/* A number of any of OpenCL's types, 0 where the device does not tell. */
static size_t read_number(cl_device_id id, cl_device_info what) {
    union {
        cl_uint narrow; /* and cl_bool */
        cl_ulong wide;
    } value;
    size_t bytes = 0;
    if (clGetDeviceInfo(id, what, sizeof(value), &value, &bytes) != CL_SUCCESS) {
        return 0;
    }
    const cl_ulong number = bytes == sizeof(value.narrow) ? value.narrow : value.wide;
    return number < SIZE_MAX ? (size_t)number : SIZE_MAX;
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
    const cl_device_type type = read_number(id, CL_DEVICE_TYPE);
    device->is_cpu = (type & CL_DEVICE_TYPE_CPU) != 0;
    device->is_gpu = (type & CL_DEVICE_TYPE_GPU) != 0;
    device->compute_units = (unsigned)read_number(id, CL_DEVICE_MAX_COMPUTE_UNITS);
    const unsigned vector_width = (unsigned)read_number(id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT);
    device->vector_width = vector_width ? vector_width : 1;
    device->max_work_group = read_number(id, CL_DEVICE_MAX_WORK_GROUP_SIZE);
    device->local_bytes = read_number(id, CL_DEVICE_LOCAL_MEM_SIZE);
    device->max_buffer_bytes = read_number(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    device->shares_host_memory = read_number(id, CL_DEVICE_HOST_UNIFIED_MEMORY) != 0;
    /* A simulator (oclgrind) runs native kernels too, but on memory of its own. */
    device->native_kernels =
        device->shares_host_memory && (read_number(id, CL_DEVICE_EXECUTION_CAPABILITIES) & CL_EXEC_NATIVE_KERNEL);
    device->memory_bytes = plan_memory(device, read_number(id, CL_DEVICE_GLOBAL_MEM_SIZE));
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
    return read_number(id, CL_DEVICE_AVAILABLE) && read_number(id, CL_DEVICE_COMPILER_AVAILABLE);
}

/* Describes the platform's devices, `room` at most; their number. A platform that has none, or that cannot tell, has 0.
 */
static size_t describe_all(cl_platform_id platform, struct device *devices, size_t room) {
    cl_device_id ids[MOST_DEVICES];
    cl_uint found = 0;
    size_t count = 0;
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, MOST_DEVICES, ids, &found) != CL_SUCCESS) {
        return 0;
    }
    for (size_t i = 0; i < found && i < MOST_DEVICES && count < room; i++) {
        if (is_usable(ids[i])) {
            describe(platform, ids[i], &devices[count++]);
        }
    }
    return count;
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
    cl_platform_id platforms[MOST_DEVICES];
    cl_uint found = 0;
    *devices = NULL;
    *count = 0;
    if (check_address_space()) {
        return -1;
    }
    if (clGetPlatformIDs(MOST_DEVICES, platforms, &found) != CL_SUCCESS || !found) {
        return 0;
    }
    *devices = calloc(MOST_DEVICES, sizeof(**devices));
    if (!*devices) {
        return error_set("out of memory");
    }
    for (size_t i = 0; i < found && i < MOST_DEVICES; i++) {
        *count += describe_all(platforms[i], *devices + *count, MOST_DEVICES - *count);
    }
    return 0;
}

/* ---- choosing */

static unsigned count_gpus(const struct device *devices, size_t count) {
    unsigned gpus = 0;
    for (size_t i = 0; i < count; i++) {
        gpus += devices[i].is_gpu;
    }
    return gpus;
}

static const struct device *find_gpu(const struct device *devices, size_t count, unsigned local_rank) {
    const unsigned gpus = count_gpus(devices, count);
    unsigned before = gpus ? local_rank % gpus : 0;
    for (size_t i = 0; i < count; i++) {
        if (devices[i].is_gpu && before-- == 0) {
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

static const struct device *find_by_number_or_name(const struct device *devices, size_t count, const char *word) {
    if (*word && word[strspn(word, "0123456789")] == '\0') {
        errno = 0;
        unsigned long long index = strtoull(word, NULL, 10);
        if (!errno && index < count) {
            return &devices[index];
        }
    }
    for (size_t i = 0; i < count && *word; i++) {
        if (strcasestr(devices[i].name, word) || strcasestr(devices[i].platform_name, word)) {
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
    if (strcasecmp(word, "auto") != 0) {
        return find_by_number_or_name(devices, count, word);
    }
    const struct device *found = find_gpu(devices, count, local_rank);
    if (!found) {
        found = find_cpu(devices, count, false);
    }
    return found || !count ? found : &devices[0]; /* an accelerator is better than nothing */
}

const char *device_missing_text(void) {
    const char *problem = device_pocl_problem();
    return problem
               ? problem
               : "there is no OpenCL device on this machine; install a GPU's OpenCL driver, or PoCL for the CPU";
}

static int fail_choice(const struct device *devices, size_t count, const char *word) {
    const char *problem = device_pocl_problem();
    char list[4096] = "";
    for (size_t i = 0; i < count; i++) {
        const size_t used = strlen(list);
        snprintf(list + used, sizeof(list) - used, "%s%zu: %s (%s)", i ? ", " : "", i, devices[i].name,
                 devices[i].platform_name);
    }
    if (!count) {
        return error_set("device \"%s\": %s", word, device_missing_text());
    }
    return error_set("no OpenCL device \"%s\"; there are: %s%s%s", word, list, problem ? "; " : "",
                     problem ? problem : "");
}

int device_choose(const char *word, unsigned local_rank, struct device *chosen) {
    struct device *devices;
    size_t count;
    if (device_list(&devices, &count)) {
        return -1;
    }
    const struct device *found = find(devices, count, word, local_rank);
    if (found) {
        *chosen = *found;
        chosen->gpus = count_gpus(devices, count);
    }
    const int status = found ? 0 : fail_choice(devices, count, word);
    free(devices);
    return status;
}
