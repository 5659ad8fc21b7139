#include "runtime/vulkan/functions.h"
#include <dlfcn.h>

struct vulkan_functions vk;

static VkInstance create_instance(PFN_vkGetInstanceProcAddr find) {
    const PFN_vkCreateInstance create = (PFN_vkCreateInstance)find(NULL, "vkCreateInstance");
    const PFN_vkEnumerateInstanceVersion tell =
        (PFN_vkEnumerateInstanceVersion)find(NULL, "vkEnumerateInstanceVersion");
    uint32_t version = 0;
    if (!create || !tell || tell(&version) || version < VK_API_VERSION_1_2) {
        return NULL;
    }
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                           .pApplicationName = "hctrain",
                                           .apiVersion = VK_API_VERSION_1_3};
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                       .pApplicationInfo = &application};
    VkInstance instance = NULL;
    return create(&info, NULL, &instance) == VK_SUCCESS ? instance : NULL;
}

VkInstance vulkan_open(void) {
    void *library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, "vkGetInstanceProcAddr") : NULL;
    PFN_vkGetInstanceProcAddr find;
    *(void **)&find = symbol;
    VkInstance instance = symbol ? create_instance(find) : NULL;
    bool whole = instance != NULL;
#define FIND(name)                                                                                                 \
    vk.name = whole ? (PFN_vk##name)find(instance, "vk" #name) : NULL;                                             \
    whole = whole && vk.name;
    VULKAN_FUNCTIONS(FIND)
#undef FIND
    return whole ? instance : NULL;
}
