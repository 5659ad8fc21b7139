/* Vulkan's loader as libhctrain_vulkan.so finds it, in front of the real one: calls fail, or are counted.
 *
 *   HC_VULKAN_FAULT="vkQueueSubmit -4 20 once"   the 20th call of that function returns this code and does nothing
 *   HC_VULKAN_FAULT="vkQueueSubmit -4 20 on"     so do all after it
 *   HC_VULKAN_AFTER=FILE                         calls are counted from when there is this file
 *   HC_VULKAN_COUNTS=FILE                        a line for each function at the end: its name, and its calls
 *
 * With the code 0 a call seems to succeed and does nothing. One that fails leaves in its results what Vulkan leaves
 * undefined. Once a device is lost (-4), it stays so for all calls that tell. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>

#define PUBLIC VKAPI_ATTR __attribute__((visibility("default")))

PUBLIC PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance, const char *name);

static atomic_bool lost;

/* Counts a call; whether it fails, and with what. */
static bool fails(const char *function, atomic_ulong *calls, VkResult *result) {
    char wanted[64], how[8];
    unsigned long first;
    int code;
    const char *fault = getenv("HC_VULKAN_FAULT"), *after = getenv("HC_VULKAN_AFTER");
    const unsigned long call = after && access(after, F_OK) ? 0 : ++*calls;
    if (!call || !fault || sscanf(fault, "%63s %d %lu %7s", wanted, &code, &first, how) != 4 ||
        strcmp(wanted, function) || call < first || (call > first && strcmp(how, "on") != 0)) {
        return false;
    }
    *result = (VkResult)code;
    if (*result == VK_ERROR_DEVICE_LOST) {
        lost = true;
    }
    return true;
}

/* A function, what it is given, and what becomes of its results where it fails. */
#define WRAP(name, parameters, arguments, spoil)                                                                   \
    static PFN_vk##name next_##name;                                                                               \
    static atomic_ulong calls_##name;                                                                              \
    static VKAPI_ATTR VkResult VKAPI_CALL do_##name parameters {                                                   \
        VkResult result;                                                                                           \
        if (fails("vk" #name, &calls_##name, &result)) {                                                           \
            spoil;                                                                                                 \
            return result;                                                                                         \
        }                                                                                                          \
        return next_##name arguments;                                                                              \
    }

/* The same for those that tell that a device is lost. */
#define WRAP_TELLING(name, parameters, arguments, spoil)                                                           \
    static PFN_vk##name next_##name;                                                                               \
    static atomic_ulong calls_##name;                                                                              \
    static VKAPI_ATTR VkResult VKAPI_CALL do_##name parameters {                                                   \
        VkResult result = VK_ERROR_DEVICE_LOST;                                                                    \
        if (fails("vk" #name, &calls_##name, &result) || lost) {                                                   \
            spoil;                                                                                                 \
            return result;                                                                                         \
        }                                                                                                          \
        return next_##name arguments;                                                                              \
    }

#define GARBAGE(handle) memset(handle, 0xa5, sizeof *(handle))
#define CREATE(name, info_type, handle_type)                                                                       \
    WRAP(name, (VkDevice device, const info_type *info, const VkAllocationCallbacks *memory, handle_type *handle), \
         (device, info, memory, handle), GARBAGE(handle))

WRAP(EnumeratePhysicalDevices, (VkInstance instance, uint32_t *count, VkPhysicalDevice *devices),
     (instance, count, devices), GARBAGE(count))
WRAP(CreateDevice,
     (VkPhysicalDevice physical, const VkDeviceCreateInfo *info, const VkAllocationCallbacks *memory,
      VkDevice *handle),
     (physical, info, memory, handle), GARBAGE(handle))
CREATE(AllocateMemory, VkMemoryAllocateInfo, VkDeviceMemory)
CREATE(CreateBuffer, VkBufferCreateInfo, VkBuffer)
CREATE(CreateCommandPool, VkCommandPoolCreateInfo, VkCommandPool)
CREATE(CreateDescriptorPool, VkDescriptorPoolCreateInfo, VkDescriptorPool)
CREATE(CreateDescriptorSetLayout, VkDescriptorSetLayoutCreateInfo, VkDescriptorSetLayout)
CREATE(CreatePipelineCache, VkPipelineCacheCreateInfo, VkPipelineCache)
CREATE(CreatePipelineLayout, VkPipelineLayoutCreateInfo, VkPipelineLayout)
CREATE(CreateQueryPool, VkQueryPoolCreateInfo, VkQueryPool)
CREATE(CreateSemaphore, VkSemaphoreCreateInfo, VkSemaphore)
CREATE(CreateShaderModule, VkShaderModuleCreateInfo, VkShaderModule)
WRAP(CreateComputePipelines,
     (VkDevice device, VkPipelineCache cache, uint32_t count, const VkComputePipelineCreateInfo *infos,
      const VkAllocationCallbacks *memory, VkPipeline *handles),
     (device, cache, count, infos, memory, handles), memset(handles, 0, count * sizeof *handles))
WRAP(AllocateCommandBuffers, (VkDevice device, const VkCommandBufferAllocateInfo *info, VkCommandBuffer *handles),
     (device, info, handles), memset(handles, 0, info->commandBufferCount * sizeof *handles))
WRAP(AllocateDescriptorSets, (VkDevice device, const VkDescriptorSetAllocateInfo *info, VkDescriptorSet *handles),
     (device, info, handles), memset(handles, 0, info->descriptorSetCount * sizeof *handles))
WRAP(BindBufferMemory, (VkDevice device, VkBuffer buffer, VkDeviceMemory memory, VkDeviceSize offset),
     (device, buffer, memory, offset), (void)0)
WRAP(MapMemory,
     (VkDevice device, VkDeviceMemory memory, VkDeviceSize offset, VkDeviceSize bytes, VkMemoryMapFlags flags,
      void **host),
     (device, memory, offset, bytes, flags, host), GARBAGE(host))
WRAP(BeginCommandBuffer, (VkCommandBuffer commands, const VkCommandBufferBeginInfo *info), (commands, info),
     (void)0)
WRAP(EndCommandBuffer, (VkCommandBuffer commands), (commands), (void)0)
WRAP_TELLING(QueueSubmit, (VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence),
             (queue, count, infos, fence), (void)0)
WRAP_TELLING(GetSemaphoreCounterValue, (VkDevice device, VkSemaphore semaphore, uint64_t *value),
             (device, semaphore, value), GARBAGE(value))
WRAP_TELLING(GetQueryPoolResults,
             (VkDevice device, VkQueryPool pool, uint32_t first, uint32_t count, size_t bytes, void *values,
              VkDeviceSize stride, VkQueryResultFlags flags),
             (device, pool, first, count, bytes, values, stride, flags), memset(values, 0xa5, bytes))

/* A device that is lost has stopped: what it was at is waited for, though not for ever. */
static PFN_vkWaitSemaphores next_WaitSemaphores;
static atomic_ulong calls_WaitSemaphores;
static VKAPI_ATTR VkResult VKAPI_CALL do_WaitSemaphores(VkDevice device, const VkSemaphoreWaitInfo *info,
                                                        uint64_t nanoseconds) {
    const uint64_t patience = UINT64_C(5000000000);
    VkResult result = VK_ERROR_DEVICE_LOST;
    if (fails("vkWaitSemaphores", &calls_WaitSemaphores, &result) || lost) {
        if (lost) {
            next_WaitSemaphores(device, info, patience);
        }
        return result;
    }
    return next_WaitSemaphores(device, info, nanoseconds);
}

/* One that cannot fail may be left out. */
static PFN_vkCmdPipelineBarrier next_CmdPipelineBarrier;
static atomic_ulong calls_CmdPipelineBarrier;
static VKAPI_ATTR void VKAPI_CALL do_CmdPipelineBarrier(VkCommandBuffer commands, VkPipelineStageFlags from,
                                                        VkPipelineStageFlags to, VkDependencyFlags flags,
                                                        uint32_t count, const VkMemoryBarrier *barriers,
                                                        uint32_t buffer_count, const VkBufferMemoryBarrier *buffers,
                                                        uint32_t image_count, const VkImageMemoryBarrier *images) {
    VkResult unused;
    if (!fails("vkCmdPipelineBarrier", &calls_CmdPipelineBarrier, &unused)) {
        next_CmdPipelineBarrier(commands, from, to, flags, count, barriers, buffer_count, buffers, image_count,
                                images);
    }
}

/* ---- finding functions */

#define FUNCTIONS(EACH)                                                                                            \
    EACH(AllocateCommandBuffers)                                                                                   \
    EACH(AllocateDescriptorSets)                                                                                   \
    EACH(AllocateMemory)                                                                                           \
    EACH(BeginCommandBuffer)                                                                                       \
    EACH(BindBufferMemory)                                                                                         \
    EACH(CmdPipelineBarrier)                                                                                       \
    EACH(CreateBuffer)                                                                                             \
    EACH(CreateCommandPool)                                                                                        \
    EACH(CreateComputePipelines)                                                                                   \
    EACH(CreateDescriptorPool)                                                                                     \
    EACH(CreateDescriptorSetLayout)                                                                                \
    EACH(CreateDevice)                                                                                             \
    EACH(CreatePipelineCache)                                                                                      \
    EACH(CreatePipelineLayout)                                                                                     \
    EACH(CreateQueryPool)                                                                                          \
    EACH(CreateSemaphore)                                                                                          \
    EACH(CreateShaderModule)                                                                                       \
    EACH(EndCommandBuffer)                                                                                         \
    EACH(EnumeratePhysicalDevices)                                                                                 \
    EACH(GetQueryPoolResults)                                                                                      \
    EACH(GetSemaphoreCounterValue)                                                                                 \
    EACH(MapMemory)                                                                                                \
    EACH(QueueSubmit)                                                                                              \
    EACH(WaitSemaphores)

static PFN_vkGetInstanceProcAddr real_find(void) {
    static void *library;
    PFN_vkGetInstanceProcAddr find = NULL;
    library = library ? library : dlopen(HC_VULKAN_LOADER, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, "vkGetInstanceProcAddr") : NULL;
    memcpy(&find, &symbol, sizeof symbol);
    return find;
}

PUBLIC PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance, const char *name) {
    const PFN_vkGetInstanceProcAddr find = real_find();
    const PFN_vkVoidFunction found = find ? find(instance, name) : NULL;
#define TAKE(own)                                                                                                  \
    if (found && !strcmp(name, "vk" #own)) {                                                                       \
        next_##own = (PFN_vk##own)found;                                                                           \
        return (PFN_vkVoidFunction)do_##own;                                                                       \
    }
    FUNCTIONS(TAKE)
#undef TAKE
    return found;
}

__attribute__((destructor)) static void write_counts(void) {
    const char *path = getenv("HC_VULKAN_COUNTS");
    FILE *file = path ? fopen(path, "we") : NULL;
    if (file) {
#define TELL(name) fprintf(file, "vk" #name " %lu\n", (unsigned long)calls_##name);
        FUNCTIONS(TELL)
#undef TELL
        fclose(file);
    }
}
