#define CL_USE_DEPRECATED_OPENCL_1_1_APIS /* clGetExtensionFunctionAddress, which needs no platform */
#include "runtime/device/vulkan_driver.h"
#include "runtime/files/files.h"
#include "runtime/system/library.h"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#define LIBRARY "libhctrain_vulkan.so"

typedef void *(*find_function)(const char *name);

static struct {
    cl_platform_id platform;
    const char *(*problem_text)(void); /* hctrainVulkanProblem */
    char problem[4400];
} driver;

/* Built and installed programs have it below their own folder, or beside that. */
static void *load(void) {
    static const char *const places[] = {"", "../"};
    char program[4000];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length < 0 ? 0 : length] = '\0';
    char *end = strrchr(program, '/');
    void *library = NULL;
    for (size_t i = 0; end && i < sizeof places / sizeof *places && !library; i++) {
        const struct path path =
            path_of("%.*s/%s%s/" LIBRARY, (int)(end - program), program, places[i], HC_LIBRARY_FOLDER);
        if (access(path.text, F_OK) == 0 && !(library = dlopen(path.text, RTLD_NOW | RTLD_LOCAL))) {
            snprintf(driver.problem, sizeof driver.problem,
                     "the driver for Vulkan cannot be loaded, which needs Vulkan's loader of version 1.2 or later "
                     "(libvulkan1): %s",
                     dlerror());
            return NULL;
        }
    }
    if (!library) {
        snprintf(driver.problem, sizeof driver.problem,
                 "there is no driver for Vulkan (" LIBRARY ") with this program: it was built without Vulkan's "
                 "headers, which `ci/setup.sh vulkan` installs");
    }
    return library;
}

/* A library that is no loader would take objects of other drivers for its own. */
static bool passes_calls_on(void) {
    return clGetExtensionFunctionAddress("clGetICDLoaderInfoOCLICD") != NULL;
}

static void load_once(void) {
    find_function find;
    cl_int (*platforms)(cl_uint, cl_platform_id *, cl_uint *);
    void *library = load(), *symbol;
    if (!library) {
        return;
    }
    if (!library_find(library, "clGetExtensionFunctionAddress", &find)) {
        snprintf(driver.problem, sizeof driver.problem, LIBRARY " is not the driver for Vulkan that it should be");
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
