#define CL_USE_DEPRECATED_OPENCL_1_1_APIS /* clGetExtensionFunctionAddress, which needs no platform */
#include "runtime/device/vulkan_driver.h"
#include "runtime/system/library.h"
#include <pthread.h>
#include <stdio.h>

#define LIBRARY "libhctrain_vulkan.so"

typedef void *(*find_function)(const char *name);

static struct {
    cl_platform_id platform;
    const char *(*problem_text)(void); /* hctrainVulkanProblem */
    char problem[1000];
} driver;

/* A library that is no loader would take objects of other drivers for its own. */
static bool passes_calls_on(void) {
    return clGetExtensionFunctionAddress("clGetICDLoaderInfoOCLICD") != NULL;
}

static void load_once(void) {
    find_function find;
    cl_int (*platforms)(cl_uint, cl_platform_id *, cl_uint *);
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL), *symbol; /* on the program's RUNPATH */
    if (!library || !library_find(library, "clGetExtensionFunctionAddress", &find)) {
        snprintf(driver.problem, sizeof driver.problem,
                 "the driver for Vulkan cannot be loaded, which is built where Vulkan's headers are (`ci/setup.sh "
                 "vulkan`) and needs Vulkan's loader of version 1.2 or later (libvulkan1): %s",
                 dlerror());
        return;
    }
    if (!passes_calls_on()) {
        snprintf(
            driver.problem, sizeof driver.problem,
            "the OpenCL library of this machine serves one driver only, so that ours for Vulkan cannot be used; "
            "install an OpenCL loader (ocl-icd)");
        return;
    }
    symbol = find("clIcdGetPlatformIDsKHR");
    memcpy(&platforms, &symbol, sizeof symbol);
    symbol = find("hctrainVulkanProblem");
    memcpy(&driver.problem_text, &symbol, sizeof symbol);
    if (platforms(1, &driver.platform, NULL) != CL_SUCCESS) {
        driver.platform = NULL;
    }
}

cl_platform_id vulkan_driver_platform(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_once);
    return driver.platform;
}

const char *vulkan_driver_problem(void) {
    vulkan_driver_platform();
    return driver.problem_text ? driver.problem_text() : *driver.problem ? driver.problem : NULL;
}
