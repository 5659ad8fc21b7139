/* Vulkan's functions, found at run time: a machine without Vulkan's loader has no devices, and no other trouble. */
#pragma once

#define VK_NO_PROTOTYPES
#include <stdbool.h>
#include <vulkan/vulkan.h>

/* Those that need an instance, without "vk". */
#define VULKAN_FUNCTIONS(EACH)                                                                                     \
    EACH(AllocateCommandBuffers)                                                                                   \
    EACH(AllocateDescriptorSets)                                                                                   \
    EACH(AllocateMemory)                                                                                           \
    EACH(BeginCommandBuffer)                                                                                       \
    EACH(BindBufferMemory)                                                                                         \
    EACH(CmdBindDescriptorSets)                                                                                    \
    EACH(CmdBindPipeline)                                                                                          \
    EACH(CmdCopyBuffer)                                                                                            \
    EACH(CmdDispatch)                                                                                              \
    EACH(CmdFillBuffer)                                                                                            \
    EACH(CmdPipelineBarrier)                                                                                       \
    EACH(CmdPushConstants)                                                                                         \
    EACH(CmdResetQueryPool)                                                                                        \
    EACH(CmdWriteTimestamp)                                                                                        \
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
    EACH(DestroyBuffer)                                                                                            \
    EACH(DestroyCommandPool)                                                                                       \
    EACH(DestroyDescriptorPool)                                                                                    \
    EACH(DestroyDescriptorSetLayout)                                                                               \
    EACH(DestroyDevice)                                                                                            \
    EACH(DestroyPipeline)                                                                                          \
    EACH(DestroyPipelineCache)                                                                                     \
    EACH(DestroyPipelineLayout)                                                                                    \
    EACH(DestroyQueryPool)                                                                                         \
    EACH(DestroySemaphore)                                                                                         \
    EACH(DestroyShaderModule)                                                                                      \
    EACH(EndCommandBuffer)                                                                                         \
    EACH(EnumerateDeviceExtensionProperties)                                                                       \
    EACH(EnumeratePhysicalDevices)                                                                                 \
    EACH(FreeMemory)                                                                                               \
    EACH(GetBufferDeviceAddress)                                                                                   \
    EACH(GetBufferMemoryRequirements)                                                                              \
    EACH(GetDeviceQueue)                                                                                           \
    EACH(GetPhysicalDeviceFeatures2)                                                                               \
    EACH(GetPhysicalDeviceMemoryProperties)                                                                        \
    EACH(GetPhysicalDeviceProperties2)                                                                             \
    EACH(GetPhysicalDeviceQueueFamilyProperties)                                                                   \
    EACH(GetPipelineCacheData)                                                                                     \
    EACH(GetQueryPoolResults)                                                                                      \
    EACH(GetSemaphoreCounterValue)                                                                                 \
    EACH(MapMemory)                                                                                                \
    EACH(QueueSubmit)                                                                                              \
    EACH(ResetDescriptorPool)                                                                                      \
    EACH(UpdateDescriptorSets)                                                                                     \
    EACH(WaitSemaphores)

struct vulkan_functions {
#define DECLARE(name) PFN_vk##name name;
    VULKAN_FUNCTIONS(DECLARE)
#undef DECLARE
};

/* Filled in by vulkan_devices. */
extern struct vulkan_functions vk;
