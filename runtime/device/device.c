#include "runtime/device/device.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/sizes.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Extensions' numbers, whose headers need not be there. */
#define DEVICE_COMPUTE_CAPABILITY_MAJOR_NV 0x4000 /* cl_nv_device_attribute_query, as the next one */
#define DEVICE_COMPUTE_CAPABILITY_MINOR_NV 0x4001
#define DEVICE_SUB_GROUP_SIZES_INTEL       0x4108 /* cl_intel_required_subgroup_size */
#define DEVICE_EUS_PER_SUB_SLICE_INTEL     0x4254 /* cl_intel_device_attribute_query */
#define DEVICE_PCI_BUS_INFO_KHR            0x410F /* cl_khr_pci_bus_info */
#define DEVICE_PCI_BUS_ID_NV               0x4008 /* cl_nv_device_attribute_query, as the next two */
#define DEVICE_PCI_SLOT_ID_NV              0x4009
#define DEVICE_PCI_DOMAIN_ID_NV            0x400A
#define DEVICE_TOPOLOGY_AMD                0x4037 /* cl_amd_device_attribute_query */
#define TOPOLOGY_OF_PCI_EXPRESS            1

/* Address space that drivers and their compilers take: for themselves, and for each thread, whose stack and heap
 * are reserved. */
#define DRIVER_SPACE ((size_t)1280 << 20)
#define THREAD_SPACE ((size_t)80 << 20)

/* What a limit of the address space leaves for buffers beside them, by its state before they were loaded. */
static size_t space_for_buffers = SIZE_MAX;

/* ---- describing a device */

/* A text that the device reports, such as CL_DEVICE_EXTENSIONS: heap memory, "" where it does not report it. */
static char *device_text(cl_device_id id, cl_device_info what) {
    size_t size = 0;
    clGetDeviceInfo(id, what, 0, NULL, &size);
    char *text = memory_zeroed(size + 1, 1);
    if (clGetDeviceInfo(id, what, size, text, NULL) != CL_SUCCESS) {
        *text = '\0';
    }
    return text;
}

/* The same without spaces around it. */
static void read_text(cl_device_id id, cl_device_info what, char text[256]) {
    char *whole = device_text(id, what);
    snprintf(text, 256, "%s", whole + strspn(whole, " "));
    free(whole);
    for (size_t length = strlen(text); length && text[length - 1] == ' '; length--) {
        text[length - 1] = '\0';
    }
}

/* A number of any of OpenCL's types, 0 where the device does not report it. */
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

bool device_is_pocl(const struct device *device) {
    return strcmp(device->platform_name, POCL_PLATFORM) == 0;
}

bool device_by_intel(const struct device *device) {
    return strncmp(device->platform_name, "Intel", strlen("Intel")) == 0;
}

const char *device_registers_option(const struct device *device, enum registers registers) {
    return !device_by_intel(device) || !device->is_gpu ? ""
           : registers == REGISTERS_MANY               ? " -cl-intel-256-GRF-per-thread"
                                                       : " -cl-intel-enable-auto-large-GRF-mode";
}

const char *device_sub_group_option(const struct device *device) {
    return device_by_intel(device) && device->is_gpu && device->sub_group == 16 ? " -DSUB_GROUP=16" : "";
}

/* Reads a value of exactly so many bytes; false where the device reports none, or one of another size. */
static bool read_bytes(cl_device_id id, cl_device_info what, void *value, size_t bytes) {
    size_t size = 0;
    return clGetDeviceInfo(id, what, bytes, value, &size) == CL_SUCCESS && size == bytes;
}

/* Where the card is, by the extension that the driver has for it: Khronos's, NVIDIA's or AMD's. */
static struct device_address read_address(cl_device_id id) {
    struct device_address address = {.known = false};
    cl_uint parts[4]; /* domain, bus, device, function */
    cl_uint bus, slot, domain = 0;
    struct {
        cl_uint type;
        cl_uchar unused[17], bus, device, function;
    } topology;
    if (read_bytes(id, DEVICE_PCI_BUS_INFO_KHR, parts, sizeof parts)) {
        address = (struct device_address){true, true, parts[0], parts[1], parts[2], parts[3]};
    } else if (read_bytes(id, DEVICE_PCI_BUS_ID_NV, &bus, sizeof bus) &&
               read_bytes(id, DEVICE_PCI_SLOT_ID_NV, &slot, sizeof slot)) {
        /* a slot is the device's number and, in its last three bits, the function's; old drivers report no
         * domain */
        const bool has_domain = read_bytes(id, DEVICE_PCI_DOMAIN_ID_NV, &domain, sizeof domain);
        address = (struct device_address){true, has_domain, domain, bus, slot >> 3, slot & 7};
    } else if (read_bytes(id, DEVICE_TOPOLOGY_AMD, &topology, sizeof topology) &&
               topology.type == TOPOLOGY_OF_PCI_EXPRESS) {
        address = (struct device_address){true, false, 0, topology.bus, topology.device, topology.function};
    }
    /* all zeros are the address of the host's own bridge: such a driver does not know the address */
    address.known = address.domain || address.bus || address.device || address.function;
    return address;
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

    const cl_device_type type = read_number(id, CL_DEVICE_TYPE);
    device->is_cpu = (type & CL_DEVICE_TYPE_CPU) != 0;
    device->is_gpu = (type & CL_DEVICE_TYPE_GPU) != 0;
    device->compiles = read_number(id, CL_DEVICE_COMPILER_AVAILABLE) != 0;
    /* Intel's driver for GPUs counts vector engines (EUs); a work-group runs on the 8 or 16 of an Xe core */
    const size_t engines = device->is_gpu ? read_number(id, DEVICE_EUS_PER_SUB_SLICE_INTEL) : 0;
    device->compute_units =
        (unsigned)groups_for(size_larger(read_number(id, CL_DEVICE_MAX_COMPUTE_UNITS), 1), size_larger(engines, 1));
    device->vector_width = (unsigned)size_larger(read_number(id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT), 1);
    device->max_work_group = read_number(id, CL_DEVICE_MAX_WORK_GROUP_SIZE);
    device->local_bytes = read_number(id, CL_DEVICE_LOCAL_MEM_SIZE);
    device->max_buffer_bytes = read_number(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    device->shares_host_memory = read_number(id, CL_DEVICE_HOST_UNIFIED_MEMORY) != 0;
    /* a simulator (oclgrind) runs native kernels too, but on memory of its own */
    device->native_kernels =
        device->shares_host_memory && (read_number(id, CL_DEVICE_EXECUTION_CAPABILITIES) & CL_EXEC_NATIVE_KERNEL);
    if (device->native_kernels) {
        cpu_instructions_read("/proc/cpuinfo", &device->matrix_cores);
    }
    /* PoCL reports a fraction of the memory, which does not bind buffers in our own pages */
    const size_t reported = read_number(id, CL_DEVICE_GLOBAL_MEM_SIZE);
    const size_t host = device->shares_host_memory ? size_smaller(host_memory(), space_for_buffers) : 0;
    device->memory_bytes = host && (device->native_kernels || host < reported) ? host : reported;

    /* what the vendors' extensions report */
    char *extensions = device_text(id, CL_DEVICE_EXTENSIONS);
    device->has_intel_matrix = strstr(extensions, "cl_intel_subgroup_matrix_multiply_accumulate") != NULL;
    device->has_nvidia_options = strstr(extensions, "cl_nv_compiler_options") != NULL;
    free(extensions);
    device->compute_capability = (unsigned)(10 * read_number(id, DEVICE_COMPUTE_CAPABILITY_MAJOR_NV) +
                                            read_number(id, DEVICE_COMPUTE_CAPABILITY_MINOR_NV));
    size_t sizes[16] = {0}, bytes = 0;
    if (clGetDeviceInfo(id, DEVICE_SUB_GROUP_SIZES_INTEL, sizeof(sizes), sizes, &bytes) == CL_SUCCESS) {
        for (size_t i = 0; i < bytes / sizeof(*sizes); i++) {
            if (!device->sub_group || sizes[i] < device->sub_group) {
                device->sub_group = (unsigned)sizes[i];
            }
        }
    }
    device->address = read_address(id);
}

/* ---- listing */

/* Describes the platform's devices that can be used, `capacity` at most; their number, 0 where it cannot list
 * them. */
static size_t describe_all(cl_platform_id platform, struct device *devices, size_t capacity) {
    cl_device_id ids[DEVICE_MOST];
    cl_uint found = 0;
    size_t count = 0;
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, DEVICE_MOST, ids, &found) != CL_SUCCESS) {
        return 0;
    }
    for (size_t i = 0; i < found && i < DEVICE_MOST && count < capacity; i++) {
        struct device *device = &devices[count];
        describe(platform, ids[i], device);
        count += read_number(device->id, CL_DEVICE_AVAILABLE) &&
                 (device->compiles || !strcmp(device->platform_name, VULKAN_PLATFORM));
    }
    return count;
}

/* Drivers and the compilers in them end the process, or hang, where they get no memory. Once they are loaded they
 * have taken their part, so that it is checked once. */
static int check_address_space(void) {
    static bool is_checked;
    const char *command, *most = getenv("POCL_MAX_PTHREAD_COUNT");
    const long number = most ? strtol(most, NULL, 10) : 0;
    unsigned threads = host_cores(); /* that PoCL starts */
    threads = number > 0 && number < (long)threads ? (unsigned)number : threads;
    const size_t left = host_address_space(&command), least = DRIVER_SPACE + threads * THREAD_SPACE;
    if (!is_checked && left <= least) {
        return error_set("this process may map only %zu MiB more (%s), and OpenCL drivers with their compilers and "
                         "%u threads need %zu: raise the limit, or set POCL_MAX_PTHREAD_COUNT to fewer threads",
                         left >> 20, command, threads, least >> 20);
    }
    if (!is_checked && left < SIZE_MAX) {
        space_for_buffers = left - least;
    }
    is_checked = true;
    return 0;
}

int device_list(bool with_vulkan, struct device **devices, size_t *count) {
    cl_platform_id platforms[DEVICE_MOST], other;
    cl_uint found = 0;
    bool has_cpu = false;
    *devices = NULL;
    *count = 0;
    if (check_address_space()) {
        return -1;
    }
    if (clGetPlatformIDs(DEVICE_MOST, platforms, &found) != CL_SUCCESS) {
        found = 0;
    }
    *devices = memory_zeroed(DEVICE_MOST, sizeof(**devices));
    for (size_t i = 0; i < found && i < DEVICE_MOST; i++) {
        *count += describe_all(platforms[i], *devices + *count, DEVICE_MOST - *count);
    }
    for (size_t i = 0; i < *count; i++) {
        has_cpu |= (*devices)[i].native_kernels;
    }
    if (!has_cpu && (other = cpu_driver_platform()) != NULL) {
        *count += describe_all(other, *devices + *count, DEVICE_MOST - *count);
    }
    if (with_vulkan && (other = vulkan_driver_platform()) != NULL) {
        *count += describe_all(other, *devices + *count, DEVICE_MOST - *count);
    }
    return 0;
}
