/* The environment of OpenCL drivers, and drivers that no ICD file names: the program itself finds and loads them.
 * OpenCL's loader passes calls on their objects to them, but does not know their platforms: so contexts are created
 * without naming the platform. */
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS /* clGetExtensionFunctionAddress, which needs no platform */
#include "runtime/device/device.h"
#include "runtime/device/pocl_cache.h"
#include "runtime/system/library.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef void *find_function(const char *name);

/* Loads a driver for good, which is looked for on this program's RUNPATH and where libraries are. *find becomes the
 * driver's clGetExtensionFunctionAddress; else returns why there is no driver, valid until dlerror is called. */
static const char *load_driver(const char *name, find_function **find) {
    find_function *found;
    void *library = library_load((const char *const[]){name, NULL});
    if (!library || !library_find(library, "clGetExtensionFunctionAddress", &found)) {
        return dlerror();
    }
    if (!clGetExtensionFunctionAddress("clGetICDLoaderInfoOCLICD")) {
        /* a library that is no loader would take objects of other drivers for its own */
        return "the OpenCL library of this machine serves one driver only; install an OpenCL loader (ocl-icd)";
    }
    *find = found;
    return NULL;
}

/* The driver's first platform; NULL: it has none. */
static cl_platform_id find_platform(find_function *find) {
    cl_int (*platforms)(cl_uint, cl_platform_id *, cl_uint *);
    cl_platform_id platform = NULL;
    void *symbol = find("clIcdGetPlatformIDsKHR");
    memcpy(&platforms, &symbol, sizeof symbol);
    return symbol && platforms(1, &platform, NULL) == CL_SUCCESS ? platform : NULL;
}

cl_platform_id cpu_driver_platform(void) {
    find_function *find = NULL;
    return load_driver("libintelocl.so", &find) ? NULL : find_platform(find);
}

static struct {
    cl_platform_id platform;
    const char *(*problem_text)(void); /* hctrainVulkanProblem */
    char problem[1000];
} vulkan;

static void load_vulkan(void) {
    find_function *find = NULL;
    const char *problem = load_driver("libhctrain_vulkan.so", &find);
    if (problem) {
        snprintf(
            vulkan.problem, sizeof vulkan.problem,
            "the driver for Vulkan cannot be used; it needs Vulkan's loader of version 1.2 or later (libvulkan1), "
            "and is built where Vulkan's headers are (`ci/setup.sh vulkan`): %s",
            problem);
        return;
    }
    vulkan.platform = find_platform(find);
    void *symbol = find("hctrainVulkanProblem");
    memcpy(&vulkan.problem_text, &symbol, sizeof symbol);
}

cl_platform_id vulkan_driver_platform(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_vulkan);
    return vulkan.platform;
}

const char *vulkan_driver_problem(void) {
    vulkan_driver_platform();
    if (vulkan.problem_text) {
        return vulkan.problem_text();
    }
    return *vulkan.problem ? vulkan.problem : NULL;
}

/* ---- the environment that drivers read */

void device_prepare_environment(void) {
    char cores[16];
    host_claim_cores();
    snprintf(cores, sizeof(cores), "%u", host_cores());
    /* PoCL starts a thread per core of the machine, however few of them this rank owns. */
    setenv("POCL_MAX_PTHREAD_COUNT", cores, 0);
    /* The same for Intel's driver for CPUs. Kernels have vectors already, and its compiler (2026.2) crashes where
     * it makes vectors of work-items that convert bf16. */
    setenv("CL_CONFIG_CPU_TBB_NUM_WORKERS", cores, 0);
    setenv("CL_CONFIG_USE_VECTORIZER", "False", 0);
    /* OpenBLAS's threads spin after a GEMM, on the cores that PoCL's threads need for the next kernel; with this
     * they sleep at once. Read when runtime/gemm/gemm_cblas.c loads the library. */
    setenv("OPENBLAS_THREAD_TIMEOUT", "4", 0);
    /* The same for oneDNN, whose threads are OpenMP's. */
    setenv("OMP_NUM_THREADS", cores, 0);
    setenv("OMP_WAIT_POLICY", "passive", 0);
    pocl_cache_prepare();
}
