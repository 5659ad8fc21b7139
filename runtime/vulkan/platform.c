/* The platform, and the table through which OpenCL's loader calls this driver (cl_khr_icd). */
#include "runtime/vulkan/objects.h"
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

struct _cl_platform_id vulkan_platform = {&vulkan_dispatch};

/* A platform without devices is none. */
static cl_int CL_API_CALL get_platforms(cl_uint capacity, cl_platform_id *platforms, cl_uint *count) {
    unsigned devices;
    vulkan_devices(&devices);
    if (count) {
        *count = devices != 0;
    }
    if (devices && platforms && capacity) {
        platforms[0] = &vulkan_platform;
    }
    return devices ? CL_SUCCESS : CL_PLATFORM_NOT_FOUND_KHR;
}

static cl_int CL_API_CALL get_platform_info(cl_platform_id platform, cl_platform_info what, size_t capacity,
                                            void *value, size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    (void)platform;
    switch (what) {
    case CL_PLATFORM_NAME:
    case CL_PLATFORM_VENDOR:
        return answer_text(to, VULKAN_PLATFORM);
    case CL_PLATFORM_VERSION:
        return answer_text(to, "OpenCL 1.2 " VULKAN_PLATFORM " " HC_VERSION);
    default:
        return CL_INVALID_VALUE;
    }
}

/* All devices, whatever the type. */
static cl_int CL_API_CALL get_devices(cl_platform_id platform, cl_device_type type, cl_uint capacity,
                                      cl_device_id *devices, cl_uint *count) {
    (void)platform, (void)type;
    unsigned all;
    struct _cl_device_id *known = vulkan_devices(&all);
    for (unsigned i = 0; devices && i < all && i < capacity; i++) {
        devices[i] = &known[i];
    }
    if (count) {
        *count = all;
    }
    return all ? CL_SUCCESS : CL_DEVICE_NOT_FOUND;
}

/* All that is exported, so that no name is another library's within this one: "clIcdGetPlatformIDsKHR", and for
 * runtime/device/drivers.c "hctrainVulkanProblem". */
PUBLIC void *CL_API_CALL clGetExtensionFunctionAddress(const char *name) {
    void *found = NULL;
    if (!strcmp(name, "clIcdGetPlatformIDsKHR")) {
        cl_int(CL_API_CALL * platforms)(cl_uint, cl_platform_id *, cl_uint *) = get_platforms;
        memcpy(&found, &platforms, sizeof found);
    } else if (!strcmp(name, "hctrainVulkanProblem")) {
        const char *(*problem)(void) = vulkan_problem;
        memcpy(&found, &problem, sizeof found);
    }
    return found;
}

/* OpenCL's calls that hctrain's programs and CLBlast make. */
const cl_icd_dispatch vulkan_dispatch = {
    .clGetPlatformInfo = get_platform_info,
    .clGetDeviceIDs = get_devices,
    .clGetDeviceInfo = clGetDeviceInfo,
    .clCreateContext = clCreateContext,
    .clReleaseContext = clReleaseContext,
    .clCreateCommandQueue = clCreateCommandQueue,
    .clReleaseCommandQueue = clReleaseCommandQueue,
    .clGetCommandQueueInfo = clGetCommandQueueInfo,
    .clCreateBuffer = clCreateBuffer,
    .clReleaseMemObject = clReleaseMemObject,
    .clGetMemObjectInfo = clGetMemObjectInfo,
    .clCreateProgramWithSource = clCreateProgramWithSource,
    .clCreateProgramWithBinary = clCreateProgramWithBinary,
    .clRetainProgram = clRetainProgram,
    .clReleaseProgram = clReleaseProgram,
    .clBuildProgram = clBuildProgram,
    .clGetProgramInfo = clGetProgramInfo,
    .clGetProgramBuildInfo = clGetProgramBuildInfo,
    .clCreateKernel = clCreateKernel,
    .clReleaseKernel = clReleaseKernel,
    .clSetKernelArg = clSetKernelArg,
    .clGetKernelWorkGroupInfo = clGetKernelWorkGroupInfo,
    .clWaitForEvents = clWaitForEvents,
    .clGetEventInfo = clGetEventInfo,
    .clRetainEvent = clRetainEvent,
    .clReleaseEvent = clReleaseEvent,
    .clGetEventProfilingInfo = clGetEventProfilingInfo,
    .clFlush = clFlush,
    .clFinish = clFinish,
    .clEnqueueReadBuffer = clEnqueueReadBuffer,
    .clEnqueueWriteBuffer = clEnqueueWriteBuffer,
    .clEnqueueCopyBuffer = clEnqueueCopyBuffer,
    .clEnqueueFillBuffer = clEnqueueFillBuffer,
    .clEnqueueMapBuffer = clEnqueueMapBuffer,
    .clEnqueueUnmapMemObject = clEnqueueUnmapMemObject,
    .clEnqueueNDRangeKernel = clEnqueueNDRangeKernel,
    .clEnqueueMarkerWithWaitList = clEnqueueMarkerWithWaitList,
};
