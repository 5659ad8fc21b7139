#define CL_USE_DEPRECATED_OPENCL_1_1_APIS /* clGetExtensionFunctionAddress, which needs no platform */
#include "runtime/device/icd_driver.h"
#include "runtime/system/library.h"

/* A library that is no loader would take objects of other drivers for its own. */
static bool loader_passes_calls_on(void) {
    return clGetExtensionFunctionAddress("clGetICDLoaderInfoOCLICD") != NULL;
}

struct icd_driver icd_driver_load(const char *name) {
    struct icd_driver driver = {NULL};
    cl_int (*platforms)(cl_uint, cl_platform_id *, cl_uint *);
    void *library = library_load((const char *const[]){name, NULL});
    if (!library || !library_find(library, "clGetExtensionFunctionAddress", &driver.find)) {
        driver.problem = dlerror();
        return driver;
    }
    if (!loader_passes_calls_on()) {
        return (struct icd_driver){.problem = "the OpenCL library of this machine serves one driver only; install "
                                              "an OpenCL loader (ocl-icd)"};
    }
    void *symbol = driver.find("clIcdGetPlatformIDsKHR");
    memcpy(&platforms, &symbol, sizeof symbol);
    if (!symbol || platforms(1, &driver.platform, NULL) != CL_SUCCESS) {
        driver.platform = NULL;
    }
    return driver;
}
