/* OpenCL devices: finding, describing and choosing one, the environment that they read, and what their error codes
 * mean. */
#pragma once

#include "runtime/system/host.h"
#include "runtime/vulkan/driver.h"
#include <CL/cl.h>
#include <stdbool.h>
#include <stddef.h>

struct gpu_model; /* runtime/device/gpu_model.h */
enum {
    DEVICE_MOST = 256,       /* devices in a list, at most */
    DEVICE_ADDRESS_SIZE = 48 /* bytes of text */
};

/* A card's place on the PCI bus, which all drivers report alike: so the same card is known in several platforms. */
struct device_address {
    bool known;      /* the driver reports it */
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
    size_t memory_bytes;     /* the device's memory; what the host has available, if the device shares that */
    size_t max_buffer_bytes; /* the largest single buffer */
    bool shares_host_memory; /* CL_DEVICE_HOST_UNIFIED_MEMORY */
    bool native_kernels;     /* runs clEnqueueNativeKernel, on the host's own memory */
    bool is_cpu;             /* a simulator may be both CPU and GPU */
    bool is_gpu;
    bool compiles;               /* has its compiler; without it our driver for Vulkan runs cached programs only */
    unsigned compute_capability; /* NVIDIA: 86 for 8.6; else 0 */
    unsigned sub_group;          /* Intel: work-items of the smallest sub-group; else 0 */
    bool has_intel_matrix;       /* cl_intel_subgroup_matrix_multiply_accumulate */
    bool has_nvidia_options;     /* cl_nv_compiler_options */
    struct cpu_instructions matrix_cores; /* of the host's processor, if the device runs native kernels on it */
    struct device_address address;
    unsigned gpus;                 /* how many "gpu" chooses from, set by device_choose */
    const struct gpu_model *model; /* whose shape it has taken; NULL: its own */
};

/* Lists every device of every platform in the loader's order, and with_vulkan behind them those of our own driver
 * for Vulkan; the index in the list is the number that `--device N` takes. *devices is the caller's to free. An
 * empty list is no error. */
int device_list(bool with_vulkan, struct device **devices, size_t *count);

/* "0000:41:00.0"; "41:00.0" without a known domain, "" without a known address. Returns `text`. */
const char *device_address_text(const struct device_address *address, char text[DEVICE_ADDRESS_SIZE]);

/* The index of the device that stands for the card of the GPU devices[index], which several platforms may offer:
 * the vendor's own driver's, else PoCL's, clvk's, rusticl's, Clover's, that of our driver for Vulkan; the first in
 * the list among equals; only_vulkan: our driver's. Cards are distinguished by address: devices without one, and
 * two devices of one platform other than ours, are never the same card. */
size_t device_card(const struct device *devices, size_t count, size_t index, bool only_vulkan);

/* The GPUs that "gpu" assigns to the ranks of a host, in this order, as indices into the list, each card once:
 * those with memory of their own (discrete cards), or if there are none, those that share the host's. only_vulkan:
 * that "vulkan" assigns. order: [count]. Returns their number. */
size_t device_order_gpus(const struct device *devices, size_t count, bool only_vulkan, size_t *order);

/* Chooses by word: "gpu" (number local_rank of device_order_gpus, modulo their number), "cpu", "pocl", "auto" (as
 * "gpu" if there is one, else a CPU), "vulkan" (as "gpu" among devices on Vulkan, else any on Vulkan), "vulkan:N"
 * (its N-th, from 0), an index into the list, or a part of the device's or platform's name in any case. Devices on
 * Vulkan are looked for if no other matches, but not for "cpu" and "pocl"; "gpu" and "auto" take only those that
 * can compile and are not simulated by a CPU. The error lists the devices. */
int device_choose(const char *word, unsigned local_rank, struct device *chosen);

/* The same among the devices of a list, DEVICE_MOST at most. */
int device_choose_from(const struct device *devices, size_t count, const char *word, unsigned local_rank,
                       struct device *chosen);

#define POCL_PLATFORM "Portable Computing Language"

/* Whether the device is one of PoCL, which keeps what it has compiled in a cache of its own. */
bool device_is_pocl(const struct device *device);

/* Whether Intel's own driver runs the device, and not another one for the same hardware. */
bool device_by_intel(const struct device *device);

/* The compiler option, with a space before it, that gives a kernel more registers at the price of fewer threads; ""
 * if the device has none. Intel's GPUs have 128 or 256 registers a thread. REGISTERS_MANY: always 256, for kernels
 * that spill with fewer on every device, such as GEMMs. REGISTERS_AS_NEEDED: 256 if the compiler finds that the
 * kernel would spill. */
enum registers { REGISTERS_AS_NEEDED, REGISTERS_MANY };
const char *device_registers_option(const struct device *device, enum registers registers);

/* The compiler option, with a space before it, that asks for sub-groups of 16 (cl/workarounds.cl) where Intel's
 * driver has 16 and 32: its compiler takes 32 even if a work-item's half of the registers is not enough. "" on
 * other devices; where there are sub-groups of 8, too, the compiler takes fewer work-items before it spills. */
const char *device_sub_group_option(const struct device *device);

/* Why there may be no device at all, and what to do. */
const char *device_missing_text(void);

/* Why PoCL, the OpenCL for CPUs, cannot be used, and what to do; NULL if device_prepare_environment found no
 * reason. */
const char *device_pocl_problem(void);

/* The platform of our own driver for devices that have Vulkan (runtime/vulkan), which OpenCL's loader does not
 * know; NULL where there is none. The first call looks for the library beside this program and where it is
 * installed, and loads it for good. */
cl_platform_id vulkan_driver_platform(void);

/* Why there are no devices on Vulkan, or not all, and what to do; NULL: there is no problem. */
const char *vulkan_driver_problem(void);

/* The platform of the driver for CPUs of PyPI's intel-opencl-rt, which installs no ICD file that OpenCL's loader
 * finds; NULL: it is not there. */
cl_platform_id cpu_driver_platform(void);

/* Sets the environment that OpenCL implementations and libraries for CPUs read: cache folder, threads, memory. Call
 * it first in main, before any OpenCL call. What the user has set stays. */
void device_prepare_environment(void);

/* The name of an OpenCL error code, e.g. "CL_OUT_OF_RESOURCES". */
const char *device_error_name(cl_int code);

/* For errors of work that was launched: the name, in parentheses what the driver reported about this code since the
 * last call, and for codes about memory or the device itself what they mean and what to do. Valid until the next
 * call in this thread. */
const char *device_error_text(cl_int code);

/* The callback of contexts, by which drivers report more than a code: those that pass the code as private
 * information do, as runtime/vulkan. */
void CL_CALLBACK device_error_notify(const char *words, const void *code, size_t bytes, void *unused);
