/* One OpenCL device at work: context, one in-order queue, buffers, kernels.
 *
 * Launches return nothing: the first failure is kept in the compute, later launches do nothing, and compute_finish,
 * buffer_read and compute_check report it. So a forward pass reads from top to bottom and is checked once. */
#pragma once

#include "runtime/device/device.h"
#include "runtime/system/element.h"
#include "runtime/system/host_memory.h"
#include "runtime/system/progress.h"
#include <CL/cl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct profiler; /* runtime/device/profiler.h */

struct compute_options {
    const char *device;            /* as device_choose takes it; NULL is "auto" */
    const char *gemm;              /* backend for gemm_compute_open, "auto" or one of gemm.h; NULL: auto */
    enum element_type operands;    /* of most GEMMs, which "auto" depends on */
    unsigned local_rank;           /* picks the GPU */
    bool profile;                  /* measure the time of every launch */
    const char *cache_dir;         /* for compiled programs, as program_cache_locate takes it; "": none */
    const struct gpu_model *model; /* take the shape of this device (gpu_model.h); NULL: the device's own */
    bool verify;                   /* compare attention with sums on the host before it is used */
    bool log_launches;             /* keep a launch log */
    bool dry; /* open no device, run nothing, only log launches; needs a model. Reads give zeros */
};

struct kernel {
    cl_kernel handle;
    char name[64]; /* also the name in profiles */
};

struct compute {
    struct device device;
    cl_context context;
    cl_command_queue queue;
    unsigned lanes;                 /* work-items that share one row: 1 on CPUs, 64 elsewhere */
    unsigned vector;                /* the widest that kernels use: 1, 2, 4, 8 or 16 */
    struct profiler *profiler;      /* NULL unless profiling */
    struct launch_log *launch_log;  /* NULL unless it is kept */
    bool verify;                    /* as in compute_options */
    bool finishes_kernels;          /* waits for each kernel: HCTRAIN_FINISH_KERNELS=1 in the environment */
    bool dry;                       /* nothing runs, see compute_options */
    const char *module;             /* of the model that launches are of, for the launch log: a literal, or NULL */
    struct built_program *programs; /* all that were built */
    struct found_kernel *kernels;   /* all that kernel_find has created */
    char *cache_dir;                /* NULL: no cache */
    char *failure;                  /* text of the first failure, NULL while there is none */
    bool lost;                      /* the device failed and may still be working, see compute_settle */
    size_t allocated_bytes;         /* in live buffers */
    unsigned programs_compiled;     /* from source, since opening */
    unsigned programs_expected;     /* that number when those are compiled that are known to be wanted */
    unsigned programs_cached;       /* taken from the cache on disk, since opening */
    unsigned programs_refused;      /* by PoCL with cl/pocl_builtins.cl, so compiled once more, since opening */
    struct progress compiling;      /* the line that a user sees; silent in all processes of a host but one */
    double compiling_seconds;       /* so far */
    _Atomic(char *) native_failure; /* of a native kernel, until compute_check makes it the failure */
    void *attached;                 /* state of a module above this one, such as runtime/gemm */
    void (*close_attached)(struct compute *compute); /* called by compute_close; NULL: nothing is attached */
};

/* Opens the device without GEMMs, which gemm_open (runtime/gemm/gemm.h) adds; gemm_compute_open does both. *opened
 * is the caller's to compute_close, NULL on failure. */
int compute_open(struct compute **opened, const struct compute_options *options);
void compute_close(struct compute *compute);

/* Keeps the failure (the first one wins). */
void compute_fail(struct compute *compute, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for native kernels, from any thread: compute_check makes it the failure. Takes `text` over. */
void compute_fail_natively(struct compute *compute, char *text);

/* Drops the kept failure, for trials that may fail. */
void compute_forget(struct compute *compute);

/* 0, or -1 with the kept failure as the error text. Does not wait. */
int compute_check(struct compute *compute);

/* Submits all launches so far to the device; without it drivers may hold them back until the host waits. */
void compute_flush(struct compute *compute);

/* After a launch, also of a library's kernel: waits for it if finishes_kernels is set, so an error can name it. */
void compute_finish_kernel(struct compute *compute, const char *name);

/* Waits for all work; then as compute_check. Collects the profile of what ran. */
int compute_finish(struct compute *compute);

/* Waits for all work of a queue of this device; true: what the work used may be freed. A device that failed may
 * still be working and cannot be waited for. Then nothing may be freed, and the process ends without the clean-up
 * of libraries. */
bool compute_settle_queue(struct compute *compute, cl_command_queue queue);
bool compute_settle(struct compute *compute); /* the same for the compute's own queue */

/* ---- buffers */

struct buffer {
    cl_mem memory;
    size_t bytes;
    void *host;               /* the storage, if the device works on host memory; else NULL */
    struct host_memory pages; /* the same */
    bool shareable;           /* other processes of the host can map it */
    enum element_type type;   /* of its elements; ELEMENT_FP32 unless set */
};

/* A place inside a buffer, counted in elements of the type that the reader expects. */
struct span {
    const struct buffer *buffer;
    size_t offset;
};

/* Creates a zeroed buffer; bytes == 0 makes a minimal one. On devices that run native kernels the storage is
 * page-aligned memory of this process, with no copy and no limit of the driver on the total. */
int buffer_create(struct compute *compute, struct buffer *buffer, size_t bytes);

/* The same; if `shareable`, with `pages` that other processes can map (host_memory.h) where the device works on
 * host memory. */
int buffer_create_shareable(struct compute *compute, struct buffer *buffer, size_t bytes, bool shareable);
void buffer_release(struct compute *compute, struct buffer *buffer);

/* Copies between host and buffer, complete on return; reads wait for all work before them. Offsets and sizes are in
 * bytes; a range outside of the buffer is a failure. */
int buffer_write(struct compute *compute, const struct buffer *buffer, size_t offset, const void *data,
                 size_t bytes);
int buffer_read(struct compute *compute, const struct buffer *buffer, size_t offset, void *data, size_t bytes);

/* The same of elements [first, first + count) of a buffer of fp32 or bf16, to or from floats, which bf16 rounds to
 * nearest even. */
int buffer_write_floats(struct compute *compute, const struct buffer *buffer, uint64_t first, const float *values,
                        uint64_t count);
int buffer_read_floats(struct compute *compute, const struct buffer *buffer, uint64_t first, float *values,
                       uint64_t count);

/* Launches: set a range to zero bytes, or copy between buffers. */
void buffer_zero(struct compute *compute, const struct buffer *buffer, size_t offset, size_t bytes);
void buffer_copy(struct compute *compute, const struct buffer *from, size_t from_offset, const struct buffer *to,
                 size_t to_offset, size_t bytes);

/* Copies `count` elements from one buffer to another whose types differ or not: from fp32 numbers are rounded to
 * nearest even (NaN stays NaN), to fp32 they go exactly; the other direction of the two 16-bit types is a failure.
 * A launch; its kernels are built at the first need. */
void convert_elements(struct compute *compute, struct span from, struct span to, size_t count);

/* ---- programs and kernels */

/* Compiles the first of `files` (of cl/, NULL at the end) with these options, -DVEC_MAX=<vector>, and
 * -DLANES=<lanes> unless the options have one; or takes the program from those built before or from the cache on
 * disk, where its key is device, driver, options and text. Lines `#include "NAME"` are replaced by files of cl/,
 * each of them once. In `#include "norm_*.cl"` NAME is the first of the other files that match; without one the
 * line goes. The error of a compiler has its log. The caller releases *program. */
int program_build(struct compute *compute, const char *const *files, const char *options, cl_program *program);

/* Takes from the cache, or compiles, programs that program_build will be asked for: several at a time, but for
 * drivers that cannot. What does not compile is left to program_build, which has the reason. */
struct program_request {
    const char *const *files;
    const char *options;
};
void programs_prepare(struct compute *compute, const struct program_request *requests, size_t count);
void programs_release(struct compute *compute); /* for compute_close; with the kernels of kernel_find */

int kernel_create(struct compute *compute, cl_program program, const char *name, struct kernel *kernel);

void kernel_release(struct kernel *kernel);

/* The kernel of this name, which is built at the first call with these files and options, and kept until
 * compute_close. A failure is kept in the compute, so that launches of the empty kernel that is returned then do
 * nothing. */
const struct kernel *kernel_find(struct compute *compute, const char *const *files, const char *options,
                                 const char *name);

/* An argument of a kernel. For a buffer it also says how often the kernel reads and writes `elements` of the
 * buffer's type from `offset` on. The launch log counts with it the bytes that pass between memory and device: an
 * element that one launch needs several times counts once where caches can be expected to keep it. */
struct kernel_argument {
    size_t bytes;
    union {
        cl_mem memory;
        cl_int i32;
        cl_uint u32;
        cl_ulong u64;
        cl_float f32, f32x4[4];
    } value;
    const struct buffer *buffer; /* NULL: no buffer, or not to be logged */
    size_t offset, elements;
    unsigned reads, writes;
};

#define ARG_I32(x) ((struct kernel_argument){.bytes = sizeof(cl_int), .value.i32 = (cl_int)(x)})
#define ARG_U32(x) ((struct kernel_argument){.bytes = sizeof(cl_uint), .value.u32 = (cl_uint)(x)})
#define ARG_U64(x) ((struct kernel_argument){.bytes = sizeof(cl_ulong), .value.u64 = (cl_ulong)(x)})
#define ARG_F32(x) ((struct kernel_argument){.bytes = sizeof(cl_float), .value.f32 = (cl_float)(x)})
#define ARG_F32X4(x, y, z, w)                                                                                      \
    ((struct kernel_argument){.bytes = sizeof(cl_float4), .value.f32x4 = {(x), (y), (z), (w)}})

#define ARG_MEMORY_(b, at, count, in, out)                                                                         \
    ((struct kernel_argument){sizeof(cl_mem), {.memory = (b)->memory}, (b), (at), (count), (in), (out)})
#define ARG_IN(b, count)     ARG_MEMORY_(b, 0, count, 1, 0)
#define ARG_OUT(b, count)    ARG_MEMORY_(b, 0, count, 0, 1)
#define ARG_IN_OUT(b, count) ARG_MEMORY_(b, 0, count, 1, 1)
#define ARG_UNUSED(b)        ARG_MEMORY_(b, 0, 0, 0, 0) /* a pointer that the kernel does not follow */

/* A span is two kernel parameters: the pointer and `ulong` offset in elements. */
#define ARG_SPAN_(s, count, in, out) ARG_MEMORY_((s).buffer, (s).offset, count, in, out), ARG_U64((s).offset)
#define ARG_SPAN_IN(s, count)        ARG_SPAN_(s, count, 1, 0)
#define ARG_SPAN_OUT(s, count)       ARG_SPAN_(s, count, 0, 1)
#define ARG_SPAN_IN_OUT(s, count)    ARG_SPAN_(s, count, 1, 1)
#define ARG_SPAN_UNUSED(s)           ARG_SPAN_(s, 0, 0, 0)

/* One run of a kernel. */
struct launch {
    const struct kernel *kernel;
    size_t groups, local; /* work-groups, and work-items of each (1-D) */
    double flops;         /* of its GEMMs, for profiles and the launch log; 0: not known */
    double padded_flops;  /* flops with the padding of tiles; may be 0 where flops is */
    bool on_matrix_cores; /* its flops are the matrix cores' */
};

#define ARGUMENTS_(...)                                                                                            \
    (const struct kernel_argument[]){__VA_ARGS__},                                                                 \
        sizeof((struct kernel_argument[]){__VA_ARGS__}) / sizeof(struct kernel_argument)

/* Launches `groups` work-groups of `local` work-items. */
#define KERNEL_RUN(compute, kernel, groups, local, ...)                                                            \
    kernel_run((compute), &(struct launch){(kernel), (groups), (local), 0.0, 0.0, false}, ARGUMENTS_(__VA_ARGS__))

/* The same of a struct launch *. */
#define KERNEL_LAUNCH(compute, launch, ...) kernel_run((compute), (launch), ARGUMENTS_(__VA_ARGS__))

/* While a launch log is kept, an extent that is not inside of its buffer is a failure. */
void kernel_run(struct compute *compute, const struct launch *launch, const struct kernel_argument *arguments,
                size_t count);

/* ---- the launch log: what was put into the queue, in order. src/bench adds it up. */

struct launch_entry {
    char name[64];        /* of the kernel, or buffer_write and the like */
    const char *module;   /* of the model, as compute_set_module set it; never NULL */
    size_t groups;        /* work-groups; 0: a copy, a fill or only a wait */
    size_t local;         /* work-items of each group */
    double read, written; /* bytes of device memory, as struct kernel_argument counts them */
    double flops;         /* of GEMMs */
    double padded_flops;  /* flops with the padding of tiles */
    bool on_matrix_cores; /* its flops are the matrix cores' */
    bool launches;        /* the device works; false: the host only waits */
    bool waits;           /* the host waits for it */
};

struct launch_log {
    struct launch_entry *entries;
    size_t count, capacity;
};

/* Adds an entry of the module that was set last, if a launch log is kept. For what is put into the queue in other
 * ways than by kernel_run and the functions above. */
void compute_log(struct compute *compute, const struct launch_entry *entry);

/* Sets the module of the model that launches are of from now on, for the launch log: a literal such as
 * "attention". */
static inline void compute_set_module(struct compute *compute, const char *module) {
    compute->module = module;
}
