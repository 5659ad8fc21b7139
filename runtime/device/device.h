/* OpenCL devices: finding, describing and choosing one, the environment that they read, and what their error codes
 * mean. */
#pragma once

#include "runtime/system/cpu_units.h"
#include <CL/cl.h>
#include <stdbool.h>
#include <stddef.h>

struct gpu_model; /* runtime/device/gpu_model.h */
enum {
    DEVICE_MOST = 256,       /* devices in a list, at most */
    DEVICE_ADDRESS_SIZE = 48 /* bytes of text */
};

/* A card's place on the PCI bus, which every driver tells alike: so the same card is known in several platforms. */
struct device_address {
    bool known;      /* the driver tells it */
    bool has_domain; /* and its domain */
    unsigned domain, bus, device, function;
};

struct device {
    cl_platform_id platform;
    cl_device_id id;
    char name[256];
    char platform_name[256];
    char version[256];      /* CL_DEVICE_VERSION */
    char driver[256];       /* CL_DRIVER_VERSION */
    unsigned compute_units; /* what runs a work-group: multiprocessors, compute units, Xe cores, CPU cores */
    unsigned vector_width;  /* native float vector width, at least 1 */
    size_t max_work_group;  /* work-items */
    size_t local_bytes;
    size_t memory_bytes;     /* what a process may plan to use: the device's memory; for devices that share the
                                host's memory, what the host has available now */
    size_t max_buffer_bytes; /* the largest single buffer */
    bool shares_host_memory; /* CL_DEVICE_HOST_UNIFIED_MEMORY */
    bool native_kernels;     /* runs clEnqueueNativeKernel, on the host's own memory */
    bool is_cpu;             /* a simulator may be both CPU and GPU */
    bool is_gpu;
    bool compiles; /* its compiler is there; our own driver's may be missing, and what is in the cache suffices */
    unsigned compute_capability; /* NVIDIA: 86 for 8.6; else 0 */
    unsigned sub_group;          /* Intel: work-items of the smallest sub-group; else 0 */
    bool has_intel_matrix;       /* cl_intel_subgroup_matrix_multiply_accumulate */
    bool has_nvidia_options;     /* cl_nv_compiler_options */
    struct cpu_units units; /* of the host's processor, where the device runs native kernels on it; else none */
    struct device_address address;
    unsigned gpus;                 /* GPUs that "gpu" deals out, set by device_choose */
    const struct gpu_model *model; /* whose shape it has taken; NULL: its own */
};

/* Lists every device of every platform in the loader's order, and with_vulkan behind them those of our own driver for
 * Vulkan; the index in the list is the number that `--device N` takes. *devices is allocated, the caller frees it. No
 * platform at all is an empty list, not an error. */
int device_list(bool with_vulkan, struct device **devices, size_t *count);

/* "0000:41:00.0", "41:00.0" where the driver does not tell the domain, "" where it tells nothing. Returns `text`. */
const char *device_address_text(const struct device_address *address, char text[DEVICE_ADDRESS_SIZE]);

/* The device in the list, by its index, that stands for the card of the GPU devices[index], which may be offered by
 * several platforms: the vendor's own driver, else PoCL's, clvk's, rusticl's, Clover's, our own on Vulkan; the first in
 * the list among equals. Cards are told apart by address; two devices of one platform, and those without an address,
 * are never the same. What is no GPU stands for itself. */
size_t device_card(const struct device *devices, size_t count, size_t index);

/* The GPUs that the word "gpu" deals out to the ranks of a host, in this order, as indices into the list, each card
 * once: those with memory of their own (discrete cards); if there are none, those that share the host's. order:
 * [count]. Their number. */
size_t device_order_gpus(const struct device *devices, size_t count, size_t *order);

/* Chooses by word: "gpu" (the GPU of device_order_gpus with the number local_rank modulo theirs), "cpu", "pocl",
 * "auto" (as "gpu" if there is one, else a CPU device), "vulkan" (as "gpu" among those of our driver for Vulkan, else
 * what else it has), "vulkan:N" (its N-th, from 0), a flat index, or a case-insensitive substring of the device or
 * platform name. Devices on Vulkan are looked for where no other answers the word, but not for "cpu" and "pocl"; for
 * "gpu" and "auto" only those that can compile, and none that a CPU simulates. Fails with a message that lists the
 * devices there are. */
int device_choose(const char *word, unsigned local_rank, struct device *chosen);

/* The same among the devices of a list, DEVICE_MOST at most. */
int device_choose_from(const struct device *devices, size_t count, const char *word, unsigned local_rank,
                       struct device *chosen);

/* Whether Intel's own driver runs the device, and not another one for the same hardware. */
bool device_by_intel(const struct device *device);

/* The option, with a space before it, by which the device's compiler gives a kernel more registers at the price of fewer
 * threads; "" where it has none, or needs none. Intel's driver for GPUs has 128 registers a thread or 256: always the latter
 * for kernels that spill with less on every device, such as matrix products, and for others where its compiler finds that
 * they would. (A device that always has 128, or whose compiler never finds it, ignores the option.) */
enum registers { REGISTERS_AS_NEEDED, REGISTERS_MANY };
const char *device_registers_option(const struct device *device, enum registers registers);

/* Why there may be no device at all, and what to do. */
const char *device_missing_text(void);

/* Why PoCL, the OpenCL for CPUs, cannot be used, and what to do; NULL where device_prepare_environment found nothing
 * that keeps it from that. */
const char *device_pocl_problem(void);

/* Makes CPU implementations behave as libraries should (cache folder, memory and thread settings that they read
 * from the environment). Call it first in main, before any OpenCL call; settings that the user made are kept. */
void device_prepare_environment(void);

/* The name of an OpenCL error code, e.g. "CL_OUT_OF_RESOURCES". */
const char *device_error_name(cl_int code);

/* The name, and for codes that tell of memory or of the device itself what they mean and what to do, for errors of
 * work that was launched: "CL_OUT_OF_RESOURCES: ...". Behind the name stands what the driver said of this code since the
 * last call, if anything. Valid until the next call in this thread. */
const char *device_error_text(cl_int code);

/* What contexts are created with, so that drivers can say more than a code: they do where the private information is the
 * code, as in runtime/vulkan. */
void CL_CALLBACK device_error_notify(const char *words, const void *code, size_t bytes, void *unused);
