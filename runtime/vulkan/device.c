/* The platform, and the devices that Vulkan offers. */
#include "runtime/system/memory.h"
#include "runtime/vulkan/objects.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "addresses" or "bindings": how kernels get buffers. Any other word leaves it to the device. */
#define BUFFERS_VARIABLE "HCTRAIN_VULKAN_BUFFERS"
enum { SHORT_RANGE = 1 << 29 }; /* bytes: about the weights of GPT-2's smallest model */

enum { LEAST_LOCAL_BYTES = 24576 }; /* what attention's tiles take: ci/portability.txt has what each kernel does */

#define PCI_BUS_INFO_KHR 0x410F /* cl_khr_pci_bus_info, whose header need not be there */

/* All that can run kernels: Vulkan 1.2 with 64-bit integers. They live as long as the process. */
enum { MOST_DEVICES = 32 };
static struct _cl_device_id all_devices[MOST_DEVICES];
static unsigned device_count; /* 0 without Vulkan */

/* Why there is no device, or which one was left out and why, and what to do; NULL: there is no problem. */
static const char *problem;

/* ---- listing */

static bool has_extension(VkPhysicalDevice physical, const char *name) {
    uint32_t count = 0;
    bool found = false;
    vkEnumerateDeviceExtensionProperties(physical, NULL, &count, NULL);
    VkExtensionProperties *all = memory_allocate(count, sizeof *all);
    if (vkEnumerateDeviceExtensionProperties(physical, NULL, &count, all) >= 0) {
        for (uint32_t i = 0; i < count && !found; i++) {
            found = !strcmp(all[i].extensionName, name);
        }
    }
    free(all);
    return found;
}

/* Chooses a family of queues that compute: best one with timestamps, then one that does not draw, since such queues
 * run beside a display's work. */
static bool find_family(cl_device_id device) {
    VkQueueFamilyProperties families[32];
    uint32_t count = COUNT(families);
    vkGetPhysicalDeviceQueueFamilyProperties(device->physical, &count, families);
    int best = -1;
    for (uint32_t i = 0; i < count; i++) {
        const VkQueueFlags flags = families[i].queueFlags;
        const int worth = 2 * (families[i].timestampValidBits > 0) + !(flags & VK_QUEUE_GRAPHICS_BIT);
        if ((flags & VK_QUEUE_COMPUTE_BIT) && worth > best) {
            device->family = i;
            device->time_bits = families[i].timestampValidBits;
            best = worth;
        }
    }
    return best >= 0;
}

static void read_features(cl_device_id device) {
    const struct device_features none = {
        {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2},
        {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES},
        {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES},
    };
    struct device_features all = none, *used = &device->features;
    *used = none;
    used->base.pNext = &used->v11;
    used->v11.pNext = &used->v12;
    all.base.pNext = &all.v11;
    all.v11.pNext = &all.v12;
    vkGetPhysicalDeviceFeatures2(device->physical, &all.base);
    for (const struct module_feature *row = vulkan_features; row->name; row++) {
        memcpy((char *)used + row->offset, (char *)&all + row->offset, sizeof(VkBool32));
    }
}

/* A binding of a buffer reaches maxStorageBufferRange bytes, an address the whole buffer. Most programs use
 * bindings, so that drivers know them best: addresses are taken only where bindings are too short for models, or on
 * request. */
static void choose_addressing(cl_device_id device) {
    const char *variable = getenv(BUFFERS_VARIABLE), *wish = variable ? variable : "";
    const VkDeviceSize range = device->properties.limits.maxStorageBufferRange / 16 * 16;
    const bool wanted = !strcmp(wish, "addresses") || (range < SHORT_RANGE && strcmp(wish, "bindings"));
    VkBool32 *feature = &device->features.v12.bufferDeviceAddress;
    device->uses_addresses = *feature && wanted;
    *feature = device->uses_addresses;
    if (!device->uses_addresses && range < device->largest_buffer) {
        device->largest_buffer = range;
    }
}

/* A common number of compute units for the kind of device, by which reductions are divided, where no vendor's
 * extension reports it. */
static uint32_t guess_units(cl_device_id device) {
    if (device->properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU) {
        const long cores = sysconf(_SC_NPROCESSORS_ONLN);
        return cores > 0 ? (uint32_t)cores : 1;
    }
    return device->properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU ? 32 : 8;
}

static void read_properties(cl_device_id device) {
    VkPhysicalDevicePCIBusInfoPropertiesEXT bus = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PCI_BUS_INFO_PROPERTIES_EXT};
    VkPhysicalDeviceShaderCorePropertiesAMD amd = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD};
    VkPhysicalDeviceShaderSMBuiltinsPropertiesNV nvidia = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV};
#ifdef VK_ARM_shader_core_builtins /* of Vulkan's headers from 1.3.231 on */
    VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM arm = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_BUILTINS_PROPERTIES_ARM};
#endif
    VkPhysicalDeviceVulkan11Properties v11 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES};
    VkPhysicalDeviceVulkan12Properties v12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES,
                                              .pNext = &v11};
    VkPhysicalDeviceProperties2 all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &v12};
    const struct {
        const char *extension;
        void *properties; /* stay 0 without the extension */
    } more[] = {
        {VK_EXT_PCI_BUS_INFO_EXTENSION_NAME, &bus},
        {VK_AMD_SHADER_CORE_PROPERTIES_EXTENSION_NAME, &amd},
        {VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME, &nvidia},
#ifdef VK_ARM_shader_core_builtins
        {VK_ARM_SHADER_CORE_BUILTINS_EXTENSION_NAME, &arm},
#endif
    };
    for (size_t i = 0; i < COUNT(more); i++) {
        if (has_extension(device->physical, more[i].extension)) {
            VkBaseOutStructure *properties = more[i].properties;
            properties->pNext = all.pNext;
            all.pNext = properties;
            device->has_address |= i == 0;
        }
    }
    vkGetPhysicalDeviceProperties2(device->physical, &all);
    device->properties = all.properties;
    device->largest_buffer = v11.maxMemoryAllocationSize / 16 * 16; /* see choose_addressing */
    device->units = amd.shaderEngineCount * amd.shaderArraysPerEngineCount * amd.computeUnitsPerShaderArray;
    device->units += nvidia.shaderSMCount;
#ifdef VK_ARM_shader_core_builtins
    device->units += arm.shaderCoreCount;
#endif
    device->units = device->units ? device->units : guess_units(device);
    device->rounds_to_even = v12.shaderRoundingModeRTEFloat16;
    snprintf(device->driver, sizeof device->driver, "%s %s (%x)", v12.driverName, v12.driverInfo,
             all.properties.driverVersion);
    memcpy(device->address, (cl_uint[]){bus.pciDomain, bus.pciBus, bus.pciDevice, bus.pciFunction},
           sizeof device->address);
    vkGetPhysicalDeviceMemoryProperties(device->physical, &device->memories);
}

/* What a device lacks, NULL where it can be used. A device of Vulkan 1.2 may be behind a loader of 1.3. The
 * compiler describes kernels by instructions that are part of Vulkan 1.3, and an extension of 1.2. */
static const char *describe(VkPhysicalDevice physical, cl_device_id device) {
    *device = (struct _cl_device_id){.dispatch = &vulkan_dispatch, .physical = physical};
    VkPhysicalDeviceProperties2 basic = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    vkGetPhysicalDeviceProperties2(physical, &basic);
    device->properties = basic.properties;
    if (basic.properties.apiVersion < VK_API_VERSION_1_2) {
        return "Vulkan 1.2";
    }
    device->enables_reflection = has_extension(physical, VK_KHR_SHADER_NON_SEMANTIC_INFO_EXTENSION_NAME);
    if (!device->enables_reflection && basic.properties.apiVersion < VK_API_VERSION_1_3) {
        return VK_KHR_SHADER_NON_SEMANTIC_INFO_EXTENSION_NAME;
    }
    read_properties(device);
    read_features(device);
    choose_addressing(device);
    if (!find_family(device)) {
        return "a queue for computing";
    }
    if (!device->features.base.features.shaderInt64) {
        return "64-bit integers (shaderInt64)";
    }
    if (!device->features.v12.timelineSemaphore) {
        return "timeline semaphores";
    }
    const uint32_t local_bytes = device->properties.limits.maxComputeSharedMemorySize;
    return local_bytes < LEAST_LOCAL_BYTES ? "24 KiB of local memory" : NULL;
}

/* The instance, of Vulkan 1.2 or later, lives until the process ends. */
static void list_once(void) {
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                           .pApplicationName = "hctrain",
                                           .apiVersion = VK_API_VERSION_1_3};
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                       .pApplicationInfo = &application};
    VkPhysicalDevice found[MOST_DEVICES];
    uint32_t count = MOST_DEVICES;
    VkInstance instance;
    const VkResult result = vkCreateInstance(&info, NULL, &instance);
    if (result == VK_ERROR_INCOMPATIBLE_DRIVER) {
        problem =
            "there is no Vulkan driver on this machine; install the card's, such as Mesa's (mesa-vulkan-drivers)";
    } else if (result) {
        problem = "Vulkan cannot be started: vkCreateInstance fails";
    } else if (vkEnumeratePhysicalDevices(instance, &count, found) < 0 || !count) {
        problem = "Vulkan offers no device; install the card's Vulkan driver, such as Mesa's (mesa-vulkan-drivers)";
    } else {
        for (uint32_t i = 0; i < count; i++) {
            const char *missing = describe(found[i], &all_devices[device_count]);
            if (missing) {
                problem = memory_format("%s cannot be used through Vulkan: its driver lacks %s",
                                        all_devices[device_count].properties.deviceName, missing);
            }
            device_count += !missing;
        }
    }
}

static void list_devices(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, list_once);
}

static const char *problem_text(void) {
    list_devices();
    return problem;
}

/* ---- what a device reports */

/* Cached programs are known by it. */
#define VERSION "OpenCL 1.2 " VULKAN_PLATFORM " " HC_VERSION "." VULKAN_OPTIONS_REVISION

/* Vulkan on a CPU is a simulated GPU: what suits GPUs suits it, too. */
static cl_device_type type_of(cl_device_id device) {
    switch (device->properties.deviceType) {
    case VK_PHYSICAL_DEVICE_TYPE_CPU:
        return CL_DEVICE_TYPE_CPU | CL_DEVICE_TYPE_GPU;
    case VK_PHYSICAL_DEVICE_TYPE_OTHER:
        return CL_DEVICE_TYPE_ACCELERATOR;
    default:
        return CL_DEVICE_TYPE_GPU;
    }
}

/* The largest of the device's own heaps. */
static cl_ulong memory_of(cl_device_id device) {
    VkDeviceSize most = 0;
    for (uint32_t i = 0; i < device->memories.memoryHeapCount; i++) {
        const VkMemoryHeap *heap = &device->memories.memoryHeaps[i];
        if ((heap->flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) && heap->size > most) {
            most = heap->size;
        }
    }
    return most;
}

cl_int CL_API_CALL vulkan_clGetDeviceInfo(cl_device_id device, cl_device_info what, size_t capacity, void *value,
                                          size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    const VkPhysicalDeviceLimits *limits = &device->properties.limits;
    const uint32_t *most = limits->maxComputeWorkGroupSize;
    const VkPhysicalDeviceType type = device->properties.deviceType;
    switch (what) {
    case CL_DEVICE_NAME:
        return answer_text(to, device->properties.deviceName);
    case CL_DEVICE_VENDOR:
    case CL_DRIVER_VERSION:
        return answer_text(to, device->driver);
    case CL_DEVICE_VERSION:
        return answer_text(to, device->uses_addresses ? VERSION " addresses" : VERSION);
    case CL_DEVICE_EXTENSIONS:
        return answer_text(to, device->has_address ? "cl_khr_pci_bus_info" : "");
    case CL_DEVICE_TYPE:
        return ANSWER(to, cl_device_type, type_of(device));
    case CL_DEVICE_PLATFORM:
        return ANSWER(to, cl_platform_id, &vulkan_platform);
    case CL_DEVICE_HOST_UNIFIED_MEMORY:
        return ANSWER(to, cl_bool,
                      type == VK_PHYSICAL_DEVICE_TYPE_CPU || type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU);
    case CL_DEVICE_COMPILER_AVAILABLE:
        return ANSWER(to, cl_bool, vulkan_has_compiler());
    case CL_DEVICE_AVAILABLE:
        return ANSWER(to, cl_bool, CL_TRUE);
    case CL_DEVICE_MAX_COMPUTE_UNITS:
        return ANSWER(to, cl_uint, device->units);
    case CL_DEVICE_MAX_WORK_GROUP_SIZE:
        return ANSWER(to, size_t, limits->maxComputeWorkGroupInvocations);
    case CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS:
        return ANSWER(to, cl_uint, 3);
    case CL_DEVICE_MAX_WORK_ITEM_SIZES:
        return answer_bytes(to, (size_t[]){most[0], most[1], most[2]}, 3 * sizeof(size_t));
    case CL_DEVICE_LOCAL_MEM_SIZE:
        return ANSWER(to, cl_ulong, limits->maxComputeSharedMemorySize);
    case CL_DEVICE_GLOBAL_MEM_SIZE:
        return ANSWER(to, cl_ulong, memory_of(device));
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE:
        return ANSWER(to, cl_ulong, device->largest_buffer);
    case PCI_BUS_INFO_KHR:
        return device->has_address ? answer_bytes(to, device->address, sizeof device->address) : CL_INVALID_VALUE;
    default:
        return CL_INVALID_VALUE;
    }
}

/* ---- the platform, and the table through which OpenCL's loader calls this driver (cl_khr_icd) */

#define PUBLIC __attribute__((visibility("default")))

struct _cl_platform_id vulkan_platform = {&vulkan_dispatch};

/* A platform without devices is none. */
static cl_int CL_API_CALL get_platforms(cl_uint capacity, cl_platform_id *platforms, cl_uint *count) {
    list_devices();
    if (count) {
        *count = device_count != 0;
    }
    if (device_count && platforms && capacity) {
        platforms[0] = &vulkan_platform;
    }
    return device_count ? CL_SUCCESS : CL_PLATFORM_NOT_FOUND_KHR;
}

static cl_int CL_API_CALL get_platform_info(cl_platform_id platform, cl_platform_info what, size_t capacity,
                                            void *value, size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    (void)platform;
    switch (what) {
    case CL_PLATFORM_NAME:
    case CL_PLATFORM_VENDOR:
        return answer_text(to, VULKAN_PLATFORM);
    case CL_PLATFORM_VERSION:
        return answer_text(to, "OpenCL 1.2 " VULKAN_PLATFORM " " HC_VERSION);
    default:
        return CL_INVALID_VALUE;
    }
}

/* All devices, whatever the type. */
static cl_int CL_API_CALL get_devices(cl_platform_id platform, cl_device_type type, cl_uint capacity,
                                      cl_device_id *devices, cl_uint *count) {
    (void)platform, (void)type;
    list_devices();
    for (unsigned i = 0; devices && i < device_count && i < capacity; i++) {
        devices[i] = &all_devices[i];
    }
    if (count) {
        *count = device_count;
    }
    return device_count ? CL_SUCCESS : CL_DEVICE_NOT_FOUND;
}

/* All that is exported, so that no name is another library's within this one: "clIcdGetPlatformIDsKHR", and for
 * runtime/device/drivers.c "hctrainVulkanProblem". */
PUBLIC void *CL_API_CALL clGetExtensionFunctionAddress(const char *name) {
    void *found = NULL;
    if (!strcmp(name, "clIcdGetPlatformIDsKHR")) {
        cl_int(CL_API_CALL * platforms)(cl_uint, cl_platform_id *, cl_uint *) = get_platforms;
        memcpy(&found, &platforms, sizeof found);
    } else if (!strcmp(name, "hctrainVulkanProblem")) {
        const char *(*text)(void) = problem_text;
        memcpy(&found, &text, sizeof found);
    }
    return found;
}

#define ENTRY(name) .name = vulkan_##name,
const cl_icd_dispatch vulkan_dispatch = {.clGetPlatformInfo = get_platform_info,
                                         .clGetDeviceIDs = get_devices,
                                         VULKAN_CALLS(ENTRY)};
