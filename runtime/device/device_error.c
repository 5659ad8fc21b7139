/* What OpenCL's error codes are called and mean. */
#include "runtime/device/device.h"
#include <stdio.h>

struct error_name {
    cl_int code;
    const char *name;
};

#define NAME(code)                                                                                                 \
    { code, #code }
static const struct error_name error_names[] = {
    NAME(CL_SUCCESS),
    NAME(CL_DEVICE_NOT_FOUND),
    NAME(CL_DEVICE_NOT_AVAILABLE),
    NAME(CL_COMPILER_NOT_AVAILABLE),
    NAME(CL_MEM_OBJECT_ALLOCATION_FAILURE),
    NAME(CL_OUT_OF_RESOURCES),
    NAME(CL_OUT_OF_HOST_MEMORY),
    NAME(CL_PROFILING_INFO_NOT_AVAILABLE),
    NAME(CL_MEM_COPY_OVERLAP),
    NAME(CL_IMAGE_FORMAT_MISMATCH),
    NAME(CL_IMAGE_FORMAT_NOT_SUPPORTED),
    NAME(CL_BUILD_PROGRAM_FAILURE),
    NAME(CL_MAP_FAILURE),
    NAME(CL_MISALIGNED_SUB_BUFFER_OFFSET),
    NAME(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
    NAME(CL_COMPILE_PROGRAM_FAILURE),
    NAME(CL_LINKER_NOT_AVAILABLE),
    NAME(CL_LINK_PROGRAM_FAILURE),
    NAME(CL_DEVICE_PARTITION_FAILED),
    NAME(CL_KERNEL_ARG_INFO_NOT_AVAILABLE),
    NAME(CL_INVALID_VALUE),
    NAME(CL_INVALID_DEVICE_TYPE),
    NAME(CL_INVALID_PLATFORM),
    NAME(CL_INVALID_DEVICE),
    NAME(CL_INVALID_CONTEXT),
    NAME(CL_INVALID_QUEUE_PROPERTIES),
    NAME(CL_INVALID_COMMAND_QUEUE),
    NAME(CL_INVALID_HOST_PTR),
    NAME(CL_INVALID_MEM_OBJECT),
    NAME(CL_INVALID_IMAGE_FORMAT_DESCRIPTOR),
    NAME(CL_INVALID_IMAGE_SIZE),
    NAME(CL_INVALID_SAMPLER),
    NAME(CL_INVALID_BINARY),
    NAME(CL_INVALID_BUILD_OPTIONS),
    NAME(CL_INVALID_PROGRAM),
    NAME(CL_INVALID_PROGRAM_EXECUTABLE),
    NAME(CL_INVALID_KERNEL_NAME),
    NAME(CL_INVALID_KERNEL_DEFINITION),
    NAME(CL_INVALID_KERNEL),
    NAME(CL_INVALID_ARG_INDEX),
    NAME(CL_INVALID_ARG_VALUE),
    NAME(CL_INVALID_ARG_SIZE),
    NAME(CL_INVALID_KERNEL_ARGS),
    NAME(CL_INVALID_WORK_DIMENSION),
    NAME(CL_INVALID_WORK_GROUP_SIZE),
    NAME(CL_INVALID_WORK_ITEM_SIZE),
    NAME(CL_INVALID_GLOBAL_OFFSET),
    NAME(CL_INVALID_EVENT_WAIT_LIST),
    NAME(CL_INVALID_EVENT),
    NAME(CL_INVALID_OPERATION),
    NAME(CL_INVALID_GL_OBJECT),
    NAME(CL_INVALID_BUFFER_SIZE),
    NAME(CL_INVALID_MIP_LEVEL),
    NAME(CL_INVALID_GLOBAL_WORK_SIZE),
    NAME(CL_INVALID_PROPERTY),
    NAME(CL_INVALID_IMAGE_DESCRIPTOR),
    NAME(CL_INVALID_COMPILER_OPTIONS),
    NAME(CL_INVALID_LINKER_OPTIONS),
    NAME(CL_INVALID_DEVICE_PARTITION_COUNT),
    {-1001, "CL_PLATFORM_NOT_FOUND_KHR"}, /* of cl_khr_icd, whose header need not be there */
    {-9999, "NVIDIA's error -9999"},      /* an access outside of a buffer, or a kernel that was ended */
};

const char *device_error_name(cl_int code) {
    static _Thread_local char unknown[32];
    for (size_t i = 0; i < sizeof(error_names) / sizeof(*error_names); i++) {
        if (error_names[i].code == code) {
            return error_names[i].name;
        }
    }
    snprintf(unknown, sizeof(unknown), "OpenCL error %d", (int)code);
    return unknown;
}

#define NO_MEMORY                                                                                                  \
    "the device has no memory left: choose a smaller batch_size, block_size or model, or --recompute layer"
#define LOST                                                                                                       \
    "the device was lost: its driver was reset, or ended a kernel that took too long; see the kernel's log "       \
    "(dmesg), "                                                                                                    \
    "and choose a smaller batch_size if this happens again"

static const struct error_name error_advice[] = {
    {CL_MEM_OBJECT_ALLOCATION_FAILURE, NO_MEMORY},
    {CL_OUT_OF_HOST_MEMORY, "the host, or the device, has no memory left: choose a smaller batch_size or model"},
    {CL_OUT_OF_RESOURCES, NO_MEMORY "; on a GPU that drives a display, its watchdog may have ended a kernel"},
    {CL_DEVICE_NOT_AVAILABLE, LOST},
    {CL_INVALID_CONTEXT, LOST},
    {CL_INVALID_COMMAND_QUEUE, LOST},
    {CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, LOST},
    {-9999, LOST},
};

const char *device_error_text(cl_int code) {
    static _Thread_local char text[400];
    for (size_t i = 0; i < sizeof(error_advice) / sizeof(*error_advice); i++) {
        if (error_advice[i].code == code) {
            snprintf(text, sizeof(text), "%s: %s", device_error_name(code), error_advice[i].name);
            return text;
        }
    }
    return device_error_name(code);
}
