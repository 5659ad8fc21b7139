/* Preloaded into a program, a Vulkan whose calls fail, or are counted:
 *
 *   HC_VULKAN_FAULT="vkQueueSubmit -4 20 once"   the 20th call of that function returns this code and does nothing
 *   HC_VULKAN_FAULT="vkQueueSubmit -4 20 on"     so do all after it
 *   HC_VULKAN_AFTER=FILE                         calls are counted from when there is this file
 *   HC_VULKAN_COUNTS=FILE                        a line for each function at the end: its name, and its calls
 *
 * With the code 0 a call seems to succeed and does nothing. One that fails leaves in its results what Vulkan leaves
 * undefined. Once a device is lost (-4), it stays so for all calls that report it. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vulkan/vulkan.h>

#define PUBLIC VKAPI_ATTR __attribute__((visibility("default")))

static atomic_bool lost;

/* A function that is called: in the list from its first call on. */
struct called {
    const char *name;
    void *real;
    atomic_ulong calls;
    struct called *next;
};
static struct called *all_called;

/* Finds the function itself, in Vulkan's loader. */
static void find(struct called *called) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!called->real) {
        called->real = dlsym(dlopen(HC_VULKAN_LOADER, RTLD_NOW | RTLD_LOCAL), called->name);
        called->next = all_called;
        all_called = called;
    }
    pthread_mutex_unlock(&lock);
}

/* Counts a call; whether it fails, and with what. */
static bool fails(struct called *called, VkResult *result) {
    char wanted[64], how[8];
    unsigned long first;
    int code;
    const char *fault = getenv("HC_VULKAN_FAULT"), *after = getenv("HC_VULKAN_AFTER");
    const unsigned long call = after && access(after, F_OK) ? 0 : ++called->calls;
    find(called);
    if (!call || !fault || sscanf(fault, "%63s %d %lu %7s", wanted, &code, &first, how) != 4 ||
        strcmp(wanted, called->name) || call < first || (call > first && strcmp(how, "on") != 0)) {
        return false;
    }
    *result = (VkResult)code;
    lost |= code == VK_ERROR_DEVICE_LOST;
    return true;
}

/* A function with its parameters and arguments, what becomes of its results where it fails, and whether it reports
 * a lost device. */
#define WRAP_ANY(function, parameters, arguments, spoil, reports)                                                  \
    PUBLIC VkResult VKAPI_CALL vk##function parameters {                                                           \
        static struct called called = {.name = "vk" #function};                                                    \
        VkResult result = VK_ERROR_DEVICE_LOST;                                                                    \
        if (fails(&called, &result) || (reports && lost)) {                                                        \
            spoil;                                                                                                 \
            return result;                                                                                         \
        }                                                                                                          \
        return ((PFN_vk##function)called.real)arguments;                                                           \
    }
#define WRAP(function, parameters, arguments, spoil) WRAP_ANY(function, parameters, arguments, spoil, false)
#define WRAP_REPORTING(function, parameters, arguments, spoil)                                                     \
    WRAP_ANY(function, parameters, arguments, spoil, true)

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
WRAP_REPORTING(QueueSubmit, (VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence),
               (queue, count, infos, fence), (void)0)
WRAP_REPORTING(GetSemaphoreCounterValue, (VkDevice device, VkSemaphore semaphore, uint64_t *value),
               (device, semaphore, value), GARBAGE(value))
WRAP_REPORTING(GetQueryPoolResults,
               (VkDevice device, VkQueryPool pool, uint32_t first, uint32_t count, size_t bytes, void *values,
                VkDeviceSize stride, VkQueryResultFlags flags),
               (device, pool, first, count, bytes, values, stride, flags), memset(values, 0xa5, bytes))

/* A device that is lost has stopped: what it was at is waited for, though not for ever. */
PUBLIC VkResult VKAPI_CALL vkWaitSemaphores(VkDevice device, const VkSemaphoreWaitInfo *info,
                                            uint64_t nanoseconds) {
    static struct called called = {.name = "vkWaitSemaphores"};
    const uint64_t timeout = UINT64_C(5000000000);
    VkResult result = VK_ERROR_DEVICE_LOST;
    const bool failed = fails(&called, &result);
    if (lost) {
        ((PFN_vkWaitSemaphores)called.real)(device, info, timeout);
    }
    return failed || lost ? result : ((PFN_vkWaitSemaphores)called.real)(device, info, nanoseconds);
}

/* One that cannot fail may be left out. */
PUBLIC void VKAPI_CALL vkCmdPipelineBarrier(VkCommandBuffer commands, VkPipelineStageFlags from,
                                            VkPipelineStageFlags to, VkDependencyFlags flags, uint32_t count,
                                            const VkMemoryBarrier *barriers, uint32_t buffer_count,
                                            const VkBufferMemoryBarrier *buffers, uint32_t image_count,
                                            const VkImageMemoryBarrier *images) {
    static struct called called = {.name = "vkCmdPipelineBarrier"};
    VkResult unused;
    if (!fails(&called, &unused)) {
        ((PFN_vkCmdPipelineBarrier)called.real)(commands, from, to, flags, count, barriers, buffer_count, buffers,
                                                image_count, images);
    }
}

__attribute__((destructor)) static void write_counts(void) {
    const char *path = getenv("HC_VULKAN_COUNTS");
    FILE *file = path && all_called ? fopen(path, "we") : NULL;
    for (struct called *called = all_called; file && called; called = called->next) {
        fprintf(file, "%s %lu\n", called->name, (unsigned long)called->calls);
    }
    if (file) {
        fclose(file);
    }
}
