/* The platform, and the table through which OpenCL's loader calls this driver (cl_khr_icd). */
#include "runtime/vulkan/device.h"
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

struct _cl_platform_id vulkan_platform = {&vulkan_dispatch};

/* A platform without devices is none. */
static cl_int CL_API_CALL get_platforms(cl_uint room, cl_platform_id *platforms, cl_uint *count) {
    unsigned devices;
    vulkan_devices(&devices);
    if (count) {
        *count = devices != 0;
    }
    if (devices && platforms && room) {
        platforms[0] = &vulkan_platform;
    }
    return devices ? CL_SUCCESS : CL_PLATFORM_NOT_FOUND_KHR;
}

static cl_int CL_API_CALL get_platform_info(cl_platform_id platform, cl_platform_info what, size_t room,
                                            void *value, size_t *got) {
    (void)platform;
    switch (what) {
    case CL_PLATFORM_NAME:
        return vulkan_give_text(VULKAN_PLATFORM, room, value, got);
    case CL_PLATFORM_VENDOR:
        return vulkan_give_text("hctrain", room, value, got);
    case CL_PLATFORM_VERSION:
        return vulkan_give_text("OpenCL 1.2 " VULKAN_PLATFORM " " HC_VERSION, room, value, got);
    case CL_PLATFORM_PROFILE:
        return vulkan_give_text("EMBEDDED_PROFILE", room, value, got);
    case CL_PLATFORM_EXTENSIONS:
        return vulkan_give_text("cl_khr_icd", room, value, got);
    case CL_PLATFORM_ICD_SUFFIX_KHR:
        return vulkan_give_text("HCVK", room, value, got);
    default:
        return CL_INVALID_VALUE;
    }
}

static cl_int CL_API_CALL get_devices(cl_platform_id platform, cl_device_type type, cl_uint room,
                                      cl_device_id *devices, cl_uint *count) {
    (void)platform;
    unsigned all, found = 0;
    struct _cl_device_id *known = vulkan_devices(&all);
    for (unsigned i = 0; i < all; i++) {
        cl_device_type own = 0;
        clGetDeviceInfo(&known[i], CL_DEVICE_TYPE, sizeof own, &own, NULL);
        if ((own & type) || ((type & CL_DEVICE_TYPE_DEFAULT) && !i)) {
            if (devices && found < room) {
                devices[found] = &known[i];
            }
            found++;
        }
    }
    if (count) {
        *count = found;
    }
    return found ? CL_SUCCESS : CL_DEVICE_NOT_FOUND;
}

/* Devices are there as long as the process. */
static cl_int CL_API_CALL keep_device(cl_device_id device) {
    return device ? CL_SUCCESS : CL_INVALID_DEVICE;
}

static void *CL_API_CALL find_function(const char *name) {
    void *found = NULL;
    if (!strcmp(name, "clIcdGetPlatformIDsKHR")) {
        cl_int(CL_API_CALL * platforms)(cl_uint, cl_platform_id *, cl_uint *) = get_platforms;
        memcpy(&found, &platforms, sizeof found);
    } else if (!strcmp(name, "hctrainVulkanProblem")) { /* for runtime/device/vulkan_driver.c */
        const char *(*tell)(void) = vulkan_problem;
        memcpy(&found, &tell, sizeof found);
    } else if (!strcmp(name, "clGetPlatformInfo")) {
        cl_int(CL_API_CALL * info)(cl_platform_id, cl_platform_info, size_t, void *, size_t *) = get_platform_info;
        memcpy(&found, &info, sizeof found);
    }
    return found;
}

/* All that a loader looks for by name. A name that is exported may be another library's within this one, too: so the
 * table has none. */
PUBLIC void *CL_API_CALL clGetExtensionFunctionAddress(const char *name) {
    return find_function(name);
}

/* What the programs of hctrain do not call is missing here, and in the table. */
const cl_icd_dispatch vulkan_dispatch = {
    .clGetPlatformIDs = get_platforms,
    .clGetPlatformInfo = get_platform_info,
    .clGetDeviceIDs = get_devices,
    .clGetDeviceInfo = clGetDeviceInfo,
    .clRetainDevice = keep_device,
    .clReleaseDevice = keep_device,
    .clCreateContext = clCreateContext,
    .clRetainContext = clRetainContext,
    .clReleaseContext = clReleaseContext,
    .clGetContextInfo = clGetContextInfo,
    .clCreateCommandQueue = clCreateCommandQueue,
    .clRetainCommandQueue = clRetainCommandQueue,
    .clReleaseCommandQueue = clReleaseCommandQueue,
    .clGetCommandQueueInfo = clGetCommandQueueInfo,
    .clCreateBuffer = clCreateBuffer,
    .clRetainMemObject = clRetainMemObject,
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
    .clRetainKernel = clRetainKernel,
    .clReleaseKernel = clReleaseKernel,
    .clSetKernelArg = clSetKernelArg,
    .clGetKernelInfo = clGetKernelInfo,
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
    .clGetExtensionFunctionAddress = find_function,
};
