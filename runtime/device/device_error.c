/* What OpenCL's error codes are called and mean. */
#include "runtime/device/device.h"
#include "runtime/system/array.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define NO_MEMORY                                                                                                  \
    "the device has no memory left: choose a smaller batch_size, block_size or model, or --recompute layer"
#define LOST                                                                                                       \
    "the device was lost: its driver was reset, or ended a kernel that took too long; see the kernel's log "       \
    "(dmesg), "                                                                                                    \
    "and choose a smaller batch_size if this happens again"

#define ERROR(code, advice) {code, #code, advice}

static const struct error {
    cl_int code;
    const char *name, *advice; /* what it means and what to do; NULL: the name says it */
} errors[] = {
    ERROR(CL_SUCCESS, NULL),
    ERROR(CL_DEVICE_NOT_FOUND, NULL),
    ERROR(CL_DEVICE_NOT_AVAILABLE, LOST),
    ERROR(CL_COMPILER_NOT_AVAILABLE, NULL),
    ERROR(CL_MEM_OBJECT_ALLOCATION_FAILURE, NO_MEMORY),
    ERROR(CL_OUT_OF_RESOURCES, NO_MEMORY
          "; or a kernel failed, which HCTRAIN_FINISH_KERNELS=1 in the environment names, or the watchdog "
          "of a GPU that drives a display ended it"),
    ERROR(CL_OUT_OF_HOST_MEMORY,
          "the host, or the device, has no memory left: choose a smaller batch_size or model"),
    ERROR(CL_PROFILING_INFO_NOT_AVAILABLE, NULL),
    ERROR(CL_MEM_COPY_OVERLAP, NULL),
    ERROR(CL_BUILD_PROGRAM_FAILURE, NULL),
    ERROR(CL_MAP_FAILURE, NULL),
    ERROR(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, LOST),
    ERROR(CL_INVALID_VALUE, NULL),
    ERROR(CL_INVALID_PLATFORM, NULL),
    ERROR(CL_INVALID_DEVICE, NULL),
    ERROR(CL_INVALID_CONTEXT, LOST),
    ERROR(CL_INVALID_QUEUE_PROPERTIES, NULL),
    ERROR(CL_INVALID_COMMAND_QUEUE, LOST),
    ERROR(CL_INVALID_HOST_PTR, NULL),
    ERROR(CL_INVALID_MEM_OBJECT, NULL),
    ERROR(CL_INVALID_BINARY, NULL),
    ERROR(CL_INVALID_BUILD_OPTIONS, NULL),
    ERROR(CL_INVALID_PROGRAM, NULL),
    ERROR(CL_INVALID_PROGRAM_EXECUTABLE, NULL),
    ERROR(CL_INVALID_KERNEL_NAME, NULL),
    ERROR(CL_INVALID_KERNEL_DEFINITION, NULL),
    ERROR(CL_INVALID_KERNEL, NULL),
    ERROR(CL_INVALID_ARG_INDEX, NULL),
    ERROR(CL_INVALID_ARG_VALUE, NULL),
    ERROR(CL_INVALID_ARG_SIZE, NULL),
    ERROR(CL_INVALID_KERNEL_ARGS, NULL),
    ERROR(CL_INVALID_WORK_DIMENSION, NULL),
    ERROR(CL_INVALID_WORK_GROUP_SIZE, NULL),
    ERROR(CL_INVALID_WORK_ITEM_SIZE, NULL),
    ERROR(CL_INVALID_GLOBAL_OFFSET, NULL),
    ERROR(CL_INVALID_EVENT_WAIT_LIST, NULL),
    ERROR(CL_INVALID_EVENT, NULL),
    ERROR(CL_INVALID_OPERATION, NULL),
    ERROR(CL_INVALID_BUFFER_SIZE, NULL),
    ERROR(CL_INVALID_GLOBAL_WORK_SIZE, NULL),
    ERROR(CL_INVALID_PROPERTY, NULL),
    {-1001, "CL_PLATFORM_NOT_FOUND_KHR", NULL}, /* of cl_khr_icd, whose header need not be there */
    {-9999, "NVIDIA's error -9999", LOST},      /* an access outside of a buffer, or a kernel that was ended */
};

/* A code that is not in the table, such as those for images, has the name "OpenCL error <code>" until the next
 * one. */
static struct error error_find(cl_int code) {
    static _Thread_local char unknown[32];
    for (size_t i = 0; i < COUNT(errors); i++) {
        if (errors[i].code == code) {
            return errors[i];
        }
    }
    snprintf(unknown, sizeof(unknown), "OpenCL error %d", (int)code);
    return (struct error){code, unknown, NULL};
}

const char *device_error_name(cl_int code) {
    return error_find(code).name;
}

/* The words that a driver reported last of its own accord, and the code that they explain. */
static struct {
    pthread_mutex_t lock;
    cl_int code;
    char words[400];
} driver = {.lock = PTHREAD_MUTEX_INITIALIZER};

void CL_CALLBACK device_error_notify(const char *words, const void *code, size_t bytes, void *unused) {
    (void)unused;
    if (words && code && bytes == sizeof(driver.code)) {
        pthread_mutex_lock(&driver.lock);
        memcpy(&driver.code, code, bytes);
        snprintf(driver.words, sizeof(driver.words), "%s", words);
        pthread_mutex_unlock(&driver.lock);
    }
}

const char *device_error_text(cl_int code) {
    static _Thread_local char text[sizeof(driver.words) + 400];
    const struct error error = error_find(code);
    pthread_mutex_lock(&driver.lock);
    const bool has_words = code != CL_SUCCESS && driver.code == code && *driver.words;
    snprintf(text, sizeof(text), "%s%s%s%s%s%s", error.name, has_words ? " (" : "", has_words ? driver.words : "",
             has_words ? ")" : "", error.advice ? ": " : "", error.advice ? error.advice : "");
    *driver.words = '\0'; /* they do not explain later errors */
    pthread_mutex_unlock(&driver.lock);
    return text;
}
