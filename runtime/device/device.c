#include "runtime/device/device.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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

#define VULKAN_WORD "vulkan"

/* ---- cards */

const char *device_address_text(const struct device_address *address, char text[DEVICE_ADDRESS_SIZE]) {
    char domain[16] = "";
    text[0] = '\0';
    if (address->has_domain) {
        snprintf(domain, sizeof(domain), "%04x:", address->domain);
    }
    if (address->known) {
        snprintf(text, DEVICE_ADDRESS_SIZE, "%s%02x:%02x.%x", domain, address->bus, address->device,
                 address->function);
    }
    return text;
}

static bool is_vulkan(const struct device *device) {
    return !strcmp(device->platform_name, VULKAN_PLATFORM);
}

/* A platform that is registered twice lists the same devices again, and Vulkan lists a card once for each of its
 * drivers, such as RADV and AMDVLK. Several devices of another platform at one address are parts of a card (tiles,
 * MIG instances), each with memory and units of its own. Where a driver does not know the domain of an address, the
 * rest decides. */
static bool is_same_card(const struct device *first, const struct device *second) {
    const struct device_address *a = &first->address, *b = &second->address;
    if (first->id && first->id == second->id) {
        return true;
    }
    return (first->platform != second->platform || is_vulkan(first)) && a->known && b->known && a->bus == b->bus &&
           a->device == b->device && a->function == b->function &&
           (!a->has_domain || !b->has_domain || a->domain == b->domain);
}

/* Which of several drivers of one card is taken: the lowest. The vendors' own know the card best, then those that
 * go through the vendor's, then Mesa's, then our own. */
static size_t preference(const struct device *device) {
    static const char *const others[] = {POCL_PLATFORM, "clvk", "rusticl", "Clover", VULKAN_PLATFORM};
    size_t i = 0;
    while (i < COUNT(others) && strcasecmp(device->platform_name, others[i])) {
        i++;
    }
    return i == COUNT(others) ? 0 : i + 1;
}

size_t device_card(const struct device *devices, size_t count, size_t index, bool only_vulkan) {
    size_t best = index;
    for (size_t i = 0; i < count; i++) {
        if (i != index && devices[i].is_gpu && devices[index].is_gpu && (!only_vulkan || is_vulkan(&devices[i])) &&
            is_same_card(&devices[i], &devices[index])) {
            const size_t new = preference(&devices[i]), old = preference(&devices[best]);
            best = new < old || (new == old &&i < best) ? i : best;
        }
    }
    return best;
}

/* Vulkan on a CPU is a GPU that is simulated, which is for tests: whoever wants it names it. */
static bool is_simulated(const struct device *device) {
    return device->is_cpu && is_vulkan(device);
}

size_t device_order_gpus(const struct device *devices, size_t count, bool only_vulkan, size_t *order) {
    size_t gpus = 0;
    for (int integrated = 0; integrated < 2 && gpus == 0; integrated++) {
        for (size_t i = 0; i < count; i++) {
            const struct device *device = &devices[i];
            if (device->is_gpu && !is_simulated(device) && (only_vulkan ? is_vulkan(device) : device->compiles) &&
                device->shares_host_memory == integrated && device_card(devices, count, i, only_vulkan) == i) {
                order[gpus++] = i;
            }
        }
    }
    return gpus;
}

/* ---- choosing */

static const struct device *find_gpu(const struct device *devices, size_t count, bool only_vulkan,
                                     unsigned local_rank) {
    size_t order[DEVICE_MOST];
    const size_t gpus = device_order_gpus(devices, count, only_vulkan, order);
    return gpus ? &devices[order[local_rank % gpus]] : NULL;
}

/* The first CPU device that runs native kernels, since those get the host's BLAS; else the first at all. */
static const struct device *find_cpu(const struct device *devices, size_t count, bool only_pocl) {
    const struct device *found = NULL;
    for (size_t i = 0; i < count; i++) {
        const bool wanted =
            devices[i].is_cpu && !is_simulated(&devices[i]) && (!only_pocl || device_is_pocl(&devices[i]));
        if (wanted && (!found || (devices[i].native_kernels && !found->native_kernels))) {
            found = &devices[i];
        }
    }
    return found;
}

/* Whether a word is a number and nothing else. */
static bool read_index(const char *word, unsigned long long *index) {
    if (!*word || word[strspn(word, "0123456789")] != '\0') {
        return false;
    }
    errno = 0;
    *index = strtoull(word, NULL, 10);
    return !errno;
}

/* "vulkan", whose GPUs the ranks share, or "vulkan:N". */
static const struct device *find_vulkan(const struct device *devices, size_t count, const char *rest,
                                        unsigned local_rank) {
    unsigned long long index = 0;
    const struct device *found = *rest ? NULL : find_gpu(devices, count, true, local_rank);
    if (found || (*rest && !read_index(rest + 1, &index))) {
        return found;
    }
    for (size_t i = 0; i < count; i++) {
        if (is_vulkan(&devices[i]) && !index--) {
            return &devices[i];
        }
    }
    return NULL;
}

static const struct device *find(const struct device *devices, size_t count, const char *word,
                                 unsigned local_rank) {
    const size_t vulkan = strlen(VULKAN_WORD);
    unsigned long long index;
    if (!strcasecmp(word, "gpu")) {
        return find_gpu(devices, count, false, local_rank);
    }
    if (!strncasecmp(word, VULKAN_WORD, vulkan) && (!word[vulkan] || word[vulkan] == ':')) {
        return find_vulkan(devices, count, word + vulkan, local_rank);
    }
    if (!strcasecmp(word, "cpu") || !strcasecmp(word, "pocl")) {
        return find_cpu(devices, count, !strcasecmp(word, "pocl"));
    }
    if (!strcasecmp(word, "auto")) {
        const struct device *gpu = find_gpu(devices, count, false, local_rank);
        const struct device *found = gpu ? gpu : find_cpu(devices, count, false);
        /* an accelerator is better than nothing */
        return found || !count || is_simulated(&devices[0]) ? found : &devices[0];
    }
    if (read_index(word, &index) && index < count) {
        return &devices[index];
    }
    for (size_t i = 0; i < count && *word; i++) {
        if (strcasestr(devices[i].name, word) || strcasestr(devices[i].platform_name, word)) {
            return &devices[i];
        }
    }
    return NULL;
}

/* Names the variables that are set of those by which drivers and loaders hide devices, beginning with "; "; "" if
 * there is none. */
static const char *hidden_text(void) {
    static const char *const names[] = {"OCL_ICD_VENDORS",     "OCL_ICD_FILENAMES",    "OPENCL_VENDOR_PATH",
                                        "POCL_DEVICES",        "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                                        "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",   "ZE_AFFINITY_MASK"};
    static char text[1024];
    text[0] = '\0';
    for (size_t i = 0; i < COUNT(names); i++) {
        const char *value = getenv(names[i]);
        const size_t used = strlen(text);
        if (value) {
            snprintf(text + used, sizeof text - used, "%s%s=%.80s", used ? ", " : "; devices may be hidden by ",
                     names[i], value);
        }
    }
    const size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s", used ? " in the environment" : "");
    return text;
}

const char *device_missing_text(void) {
    static char text[2048];
    const char *problem = device_pocl_problem();
    snprintf(text, sizeof text,
             "there is no OpenCL device on this machine; install a GPU's OpenCL driver, or for the CPU PoCL or "
             "`pip install hctrain[cpu]`%s",
             hidden_text());
    return problem ? problem : text;
}

static int fail_choice(const struct device *devices, size_t count, const char *word) {
    const bool is_gpu = !strcasecmp(word, "gpu");
    const bool on_vulkan = is_gpu || !strncasecmp(word, VULKAN_WORD, strlen(VULKAN_WORD));
    const char *problem = on_vulkan ? vulkan_driver_problem() : device_pocl_problem();
    char list[4096] = "";
    for (size_t i = 0; i < count; i++) {
        const size_t used = strlen(list);
        snprintf(list + used, sizeof(list) - used, "%s%zu: %s (%s)", i ? ", " : "", i, devices[i].name,
                 devices[i].platform_name);
    }
    if (!count) {
        return error_set("device \"%s\": %s", word, problem ? problem : device_missing_text());
    }
    if (is_gpu) {
        error_set(
            "there is no GPU with an OpenCL or Vulkan driver (docs/troubleshooting.md); --device cpu uses the "
            "processor. Devices: %s%s",
            list, hidden_text());
    } else {
        error_set("no OpenCL device \"%s\"; there are: %s%s", word, list, hidden_text());
    }
    return problem ? error_set("%s; %s", error_text(), problem) : -1;
}

int device_choose_from(const struct device *devices, size_t count, const char *word, unsigned local_rank,
                       struct device *chosen) {
    size_t order[DEVICE_MOST];
    const struct device *found = find(devices, count, word, local_rank);
    if (!found) {
        return fail_choice(devices, count, word);
    }
    *chosen = *found;
    chosen->gpus = (unsigned)device_order_gpus(devices, count, is_vulkan(found), order);
    return 0;
}

/* Devices on Vulkan are listed only where no other answers the word, and one of theirs could. */
int device_choose(const char *word, unsigned local_rank, struct device *chosen) {
    struct device *devices;
    size_t count;
    unsigned long long index;
    if (device_list(false, &devices, &count)) {
        return -1;
    }
    bool is_answered = !strcasecmp(word, "cpu") || !strcasecmp(word, "pocl");
    if (!strcasecmp(word, "auto")) {
        is_answered = find_gpu(devices, count, false, local_rank) != NULL;
    } else if (read_index(word, &index)) { /* of the list with Vulkan, before it is a part of a name */
        is_answered = index < count;
    } else if (!is_answered) {
        is_answered = find(devices, count, word, local_rank) != NULL;
    }
    if (!is_answered) {
        free(devices);
        if (device_list(true, &devices, &count)) {
            return -1;
        }
    }
    const int status = device_choose_from(devices, count, word, local_rank, chosen);
    free(devices);
    return status;
}
