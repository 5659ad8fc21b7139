#include "runtime/device/vulkan_driver.h"
#include "runtime/device/icd_driver.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libhctrain_vulkan.so"

static struct {
    cl_platform_id platform;
    const char *(*problem_text)(void); /* hctrainVulkanProblem */
    char problem[1000];
} driver;

static void load_once(void) {
    const struct icd_driver loaded = icd_driver_load(LIBRARY);
    driver.platform = loaded.platform;
    if (loaded.problem) {
        snprintf(
            driver.problem, sizeof driver.problem,
            "the driver for Vulkan cannot be used; it needs Vulkan's loader of version 1.2 or later (libvulkan1), "
            "and is built where Vulkan's headers are (`ci/setup.sh vulkan`): %s",
            loaded.problem);
        return;
    }
    void *symbol = loaded.find("hctrainVulkanProblem");
    memcpy(&driver.problem_text, &symbol, sizeof symbol);
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
