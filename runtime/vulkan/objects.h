/* What OpenCL's handles are here. Each begins with the table through which OpenCL's loader calls this driver.
 * Objects of a context change only under the context's lock; functions in headers of this folder are called with it
 * held unless they say otherwise. The driver is for hctrain and CLBlast, which pass one device, no properties, and
 * a place for each error code. */
#pragma once

#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#include "runtime/system/embedded_text.h"
#include "runtime/vulkan/answers.h"
#include "runtime/vulkan/driver.h"
#include <CL/cl.h>
#include <CL/cl_icd.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <vulkan/vulkan.h>

/* OpenCL's calls that hctrain's programs and CLBlast make: vulkan_clFinish and so on, which the loader finds in the
 * table. */
/* clang-format off */
#define VULKAN_CALLS(CALL) \
    CALL(clGetDeviceInfo) CALL(clCreateContext) CALL(clReleaseContext) CALL(clCreateCommandQueue) \
    CALL(clReleaseCommandQueue) CALL(clGetCommandQueueInfo) CALL(clCreateBuffer) CALL(clReleaseMemObject) \
    CALL(clGetMemObjectInfo) CALL(clCreateProgramWithSource) CALL(clCreateProgramWithBinary) \
    CALL(clRetainProgram) CALL(clReleaseProgram) CALL(clBuildProgram) CALL(clGetProgramInfo) \
    CALL(clGetProgramBuildInfo) CALL(clCreateKernel) CALL(clReleaseKernel) CALL(clSetKernelArg) \
    CALL(clGetKernelWorkGroupInfo) CALL(clWaitForEvents) CALL(clGetEventInfo) CALL(clRetainEvent) \
    CALL(clReleaseEvent) CALL(clGetEventProfilingInfo) CALL(clFlush) CALL(clFinish) CALL(clEnqueueReadBuffer) \
    CALL(clEnqueueWriteBuffer) CALL(clEnqueueCopyBuffer) CALL(clEnqueueFillBuffer) CALL(clEnqueueMapBuffer) \
    CALL(clEnqueueUnmapMemObject) CALL(clEnqueueNDRangeKernel) CALL(clEnqueueMarkerWithWaitList)
/* clang-format on */
#define DECLARE(name) extern __typeof__(name) vulkan_##name;
VULKAN_CALLS(DECLARE)
extern const cl_icd_dispatch vulkan_dispatch;

enum {
    BATCH_COMMANDS = 32,     /* commands that are submitted together, at most */
    BATCH_EARLY = 4,         /* so many where the device has nothing to do */
    BATCHES = 8,             /* under way or being recorded, at most */
    KERNEL_ARGUMENTS = 64,   /* of a kernel, at most */
    PLAIN_BYTES = 1024,      /* of a kernel's arguments that are no buffers, at most */
    STAGING_BYTES = 8 << 20, /* of a queue */
};

struct _cl_platform_id {
    const cl_icd_dispatch *dispatch;
};
extern struct _cl_platform_id vulkan_platform;

/* The formats of numbers that kernels may use on a device, as features to enable. */
struct device_features {
    VkPhysicalDeviceFeatures2 base;
    VkPhysicalDeviceVulkan11Features v11;
    VkPhysicalDeviceVulkan12Features v12;
};

struct _cl_device_id {
    const cl_icd_dispatch *dispatch;
    VkPhysicalDevice physical;
    VkPhysicalDeviceProperties properties;
    VkPhysicalDeviceMemoryProperties memories;
    struct device_features features; /* those that it has, and that are used */
    VkDeviceSize largest_buffer;     /* bytes, a multiple of 16 */
    uint32_t units;                  /* compute units */
    char driver[VK_MAX_DRIVER_NAME_SIZE + VK_MAX_DRIVER_INFO_SIZE + 32];
    bool has_address;
    bool uses_addresses;     /* kernels get buffers as addresses, not as bindings */
    bool rounds_to_even;     /* numbers of 16 bits, with VULKAN_ROUNDING_OPTION */
    bool enables_reflection; /* VK_KHR_shader_non_semantic_info is to be enabled */
    cl_uint address[4];      /* on the PCI bus: domain, bus, device, function */
    uint32_t family;         /* of queues that compute */
    uint32_t time_bits;      /* of its timestamps, 0 without */
};

struct _cl_context {
    const cl_icd_dispatch *dispatch;
    unsigned references; /* also of its queues, buffers and programs */
    cl_device_id device;
    pthread_mutex_t lock;
    VkDevice handle;
    VkQueue queue;           /* on which all command queues submit */
    cl_command_queue queues; /* a list */
    cl_mem visible;          /* a list of the buffers that the host sees */
    cl_mem nothing;          /* what kernels get for a buffer that is NULL */
    bool lost;               /* the device is, or commands for it are */
    bool settled;            /* and does nothing any more with what it was given */
    void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *); /* the owner's callback for errors */
    void *notified;
};

/* Commands that are submitted together, and what they need until they are done. */
struct batch {
    VkCommandBuffer commands;
    VkDescriptorPool sets;
    VkQueryPool times; /* two for each command; NULL where the queue does not profile */
    uint64_t value;    /* of the queue's semaphore when done; 0: not in use */
    unsigned count;
    cl_event timed[BATCH_COMMANDS]; /* whose times are to be read; kept until then */
};

struct _cl_command_queue {
    const cl_icd_dispatch *dispatch;
    unsigned references; /* also of events */
    cl_context context;
    cl_command_queue next;
    bool profiles;
    VkCommandPool pool;
    VkSemaphore done;   /* counts batches */
    uint64_t submitted; /* the number of the last batch that was */
    bool recording;     /* batch number submitted + 1 */
    struct batch batches[BATCHES];
    cl_mem staging, plain; /* seen by the host: for copies, and for arguments that are no push constants */
    size_t staged;         /* bytes of staging that commands use which are under way */
};

struct _cl_event {
    const cl_icd_dispatch *dispatch;
    unsigned references;
    cl_command_queue queue;
    uint64_t batch; /* done when this batch is */
    bool has_times;
    cl_ulong start, end; /* nanoseconds of the device's clock */
};

struct _cl_mem {
    const cl_icd_dispatch *dispatch;
    cl_context context;
    cl_mem next; /* in the context's list of those that the host sees */
    VkBuffer buffer;
    VkDeviceMemory memory;
    size_t bytes;
    uint64_t address; /* on devices that use them */
    char *host;       /* where the host sees it, or NULL */
};

/* How a kernel gets an argument: not at all where it does not use it. */
enum argument_kind { ARGUMENT_UNUSED, ARGUMENT_BUFFER, ARGUMENT_PUSHED, ARGUMENT_PLAIN };

struct argument {
    enum argument_kind kind;
    bool is_address;       /* a pushed or plain one that is a buffer's address */
    uint32_t binding;      /* of a buffer, or of the one that has all plain arguments */
    uint32_t offset, size; /* bytes of the others, in the push constants or that buffer */
};

/* A kernel as the compiler describes it. */
struct entry {
    uint32_t id; /* of the SPIR-V instruction that describes it */
    char name[64];
    unsigned count; /* of arguments */
    struct argument arguments[KERNEL_ARGUMENTS];
    uint32_t required[3];  /* the work-group's size, 0 where any will do */
    uint32_t plain_bytes;  /* of the buffer of plain arguments, 0 without */
    bool plain_is_uniform; /* it is a uniform buffer, else a storage buffer */
    uint32_t plain_binding;
};

struct module {
    struct entry *entries;
    unsigned count;
    uint32_t push_bytes; /* of push constants, of all kernels */
    bool has_offset;     /* the push constants have the global offset: three 32-bit numbers */
    uint32_t offset_at;  /* bytes */
};

struct _cl_program {
    const cl_icd_dispatch *dispatch;
    unsigned references; /* also of kernels */
    cl_context context;
    char *text;      /* the source, or NULL */
    char *log;       /* of the last build, or NULL */
    uint32_t *words; /* SPIR-V, or NULL */
    size_t bytes;
    struct module module;
    VkShaderModule shader; /* once it is built */
};

/* A kernel for one size of work-groups. */
struct pipeline {
    struct pipeline *next;
    uint32_t local[3];
    VkPipeline handle;
};

struct _cl_kernel {
    const cl_icd_dispatch *dispatch;
    cl_program program;
    const struct entry *entry;
    VkDescriptorSetLayout set;
    VkPipelineLayout layout;
    struct pipeline *pipelines;
    cl_mem buffers[KERNEL_ARGUMENTS];
    unsigned char pushed[PLAIN_BYTES], plain[PLAIN_BYTES];
};

/* OpenCL's code for a result of Vulkan. An error is reported in these words to the context's owner, and the context
 * remembers that its device is lost. */
cl_int vulkan_failed(cl_context context, VkResult result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Reports in words to the context's owner, if it wants to know, why a call returns this code. Returns the code. */
cl_int vulkan_report(cl_context context, cl_int code, const char *words);

/* After a call that makes an object: Vulkan leaves the handle undefined where the call fails. */
#define VULKAN_MADE(result, handle) ((result) ? ((handle) = VK_NULL_HANDLE, (result)) : VK_SUCCESS)

/* "VK_ERROR_DEVICE_LOST". */
const char *vulkan_result_name(VkResult result);

/* ---- buffers: each has memory of its own, the device's unless the host is to see it. buffers.c */

/* *created is NULL on failure. With CL_MEM_ALLOC_HOST_PTR the host sees the buffer. It does not keep the
 * context. */
cl_int vulkan_buffer_create(cl_context context, cl_mem_flags flags, size_t bytes, cl_mem *created);

/* Frees a buffer that no command uses any more. NULL is allowed. */
void vulkan_buffer_destroy(cl_mem memory);

/* ---- commands in order: recorded in batches, submitted without waiting, counted by a semaphore. queue.c */

/* Opens a batch unless one is open. Waits only where all batches are under way; then staging memory begins anew. */
cl_int vulkan_open_batch(cl_command_queue queue);

/* Begins a command: what is recorded into *commands afterwards sees all that commands before it wrote. Waits only
 * where all batches are under way. */
cl_int vulkan_begin(cl_command_queue queue, VkCommandBuffer *commands);

/* Ends the command that vulkan_begin began, and submits it with others when there are enough. *event becomes its
 * event, unless event is NULL. */
cl_int vulkan_end(cl_command_queue queue, cl_event *event);

/* The batch that commands are recorded into; only between the two. */
struct batch *vulkan_recording(cl_command_queue queue);

/* Gives the device what is recorded. */
cl_int vulkan_submit(cl_command_queue queue);

/* Waits until a batch is done, without the lock meanwhile, which is held again afterwards. */
cl_int vulkan_wait(cl_command_queue queue, uint64_t batch);

/* The same for all commands of the queue. */
cl_int vulkan_wait_all(cl_command_queue queue);

/* Takes the lock of the queue's context, also where it fails (vulkan_unlock gives it back), and lets what is put
 * into the queue from here on come after commands of this context's queues, without waiting: all are given to one
 * queue of the device, on which the barrier before a command keeps it behind whatever was given earlier. */
cl_int vulkan_lock_after(cl_command_queue queue, cl_uint count, const cl_event *events);

/* Gives the lock back. Returns the code. */
cl_int vulkan_unlock(cl_command_queue queue, cl_int code);

/* Waits for commands of this context's queues, one after the other. */
cl_int vulkan_wait_events(cl_uint count, const cl_event *events);

/* Whether a batch is done: 1 or 0, or a negative code. */
cl_int vulkan_is_done(cl_command_queue queue, uint64_t batch);

/* Waits for all commands of all queues of the context. Afterwards the device uses nothing that was given to it,
 * even where it is lost. */
cl_int vulkan_settle(cl_context context);

/* ---- clspv, the compiler of OpenCL C to SPIR-V for Vulkan: a program on PATH, or the library of PyPI's pyclspv,
 * which Python calls; it needs no lock. compiler.c */

/* The scripts of this folder: clspv.py. */
extern const struct embedded_text vulkan_scripts[];

/* Whether there is a compiler. The first call looks for it. */
bool vulkan_has_compiler(void);

/* Compiles text with OpenCL's build options for the device. *words [*bytes / 4] is NULL where that fails; *log says
 * why, or is what the compiler printed, or NULL. The caller frees both. CL_SUCCESS,
 * CL_COMPILER_NOT_AVAILABLE where there is no compiler, or CL_BUILD_PROGRAM_FAILURE. */
cl_int vulkan_compile(cl_device_id device, const char *text, const char *options, uint32_t **words, size_t *bytes,
                      char **log);

/* ---- kernels and arguments of a SPIR-V module, as clspv describes them in it by NonSemantic.ClspvReflection
 * instructions; they need no lock. reflection.c */

/* Reads a module that may be anything, such as a damaged file. -1 with *problem, a constant text, where it is no
 * module, or one that needs what is not known here. Freed with vulkan_module_release. */
int vulkan_reflect(const uint32_t *words, size_t bytes, struct module *module, const char **problem);
void vulkan_module_release(struct module *module);

/* What clspv's modules use, with NULL behind the last name. Nothing else is enabled, since some features cost
 * speed. */
extern const struct module_feature {
    uint32_t capability; /* of a module that needs the feature; 0: every module does */
    size_t offset;       /* in struct device_features */
    const char *name;
} vulkan_features[];

/* NULL where the device has what the module needs, else what it lacks. The module is one that vulkan_reflect has
 * read. */
const char *vulkan_missing(const uint32_t *words, size_t bytes, const struct device_features *features);
