#include "runtime/vulkan/functions.h"
#include <dlfcn.h>

struct vulkan_functions vk;

static VkInstance create_instance(PFN_vkGetInstanceProcAddr find, const char **problem) {
    const PFN_vkCreateInstance create = (PFN_vkCreateInstance)find(NULL, "vkCreateInstance");
    const PFN_vkEnumerateInstanceVersion tell =
        (PFN_vkEnumerateInstanceVersion)find(NULL, "vkEnumerateInstanceVersion");
    uint32_t version = 0;
    if (!create || !tell || tell(&version) || version < VK_API_VERSION_1_2) {
        *problem = "Vulkan's loader, libvulkan.so.1, is older than Vulkan 1.2";
        return NULL;
    }
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                           .pApplicationName = "hctrain",
                                           .apiVersion = VK_API_VERSION_1_3};
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                       .pApplicationInfo = &application};
    VkInstance instance = NULL;
    const VkResult result = create(&info, NULL, &instance);
    if (result) {
        *problem = result == VK_ERROR_INCOMPATIBLE_DRIVER
                       ? "there is no Vulkan driver on this machine; install the card's, such as Mesa's "
                         "(mesa-vulkan-drivers)"
                       : "Vulkan cannot be started: vkCreateInstance fails";
    }
    return result ? NULL : instance;
}

VkInstance vulkan_open(const char **problem) {
    void *library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, "vkGetInstanceProcAddr") : NULL;
    PFN_vkGetInstanceProcAddr find;
    *(void **)&find = symbol;
    if (!symbol) {
        *problem = "Vulkan's loader, libvulkan.so.1, is not on this machine; install it (libvulkan1)";
        return NULL;
    }
    VkInstance instance = create_instance(find, problem);
    bool whole = instance != NULL;
#define FIND(name)                                                                                                 \
    vk.name = whole ? (PFN_vk##name)find(instance, "vk" #name) : NULL;                                             \
    whole = whole && vk.name;
    VULKAN_FUNCTIONS(FIND)
#undef FIND
    if (instance && !whole) {
        *problem = "Vulkan's loader, libvulkan.so.1, lacks functions of Vulkan 1.2";
    }
    return whole ? instance : NULL;
}
