/* One OpenCL device at work: context, one in-order queue, buffers, kernels.
 *
 * Launches return nothing: the first failure is kept in the compute, later launches do nothing, and compute_finish,
 * buffer_read and compute_check report it. So a forward pass reads from top to bottom and is checked once. */
#pragma once

#include "runtime/device/device.h"
#include "runtime/system/element.h"
#include <CL/cl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct gemm_backend; /* runtime/gemm/gemm.h */
struct profiler;     /* runtime/device/profiler.h */

struct compute_options {
    const char *device; /* as device_choose takes it; NULL is "auto" */
    const char *gemm;   /* for gemm_compute_open: "auto", "clblast", "cblas", "mma" or "portable"; NULL is "auto" */
    enum element_type operands; /* of most matrix products, which "auto" depends on */
    unsigned local_rank;        /* picks the GPU */
    bool profile;               /* record the time of every launch */
    const char *cache_dir; /* compiled programs; NULL is $XDG_CACHE_HOME/hctrain or ~/.cache/hctrain, "" is none */
    bool untuned;          /* CLBlast with its own parameters, whatever the cache folder has, see gemm_tune.h */
};

struct kernel {
    cl_kernel handle;
    char name[64]; /* also the name in profiles */
};

struct compute {
    struct device device;
    cl_context context;
    cl_command_queue queue;
    unsigned lanes;                  /* work-items that share one row: 1 on CPUs, 64 elsewhere */
    unsigned vector;                 /* the widest that kernels use: 1, 2, 4, 8 or 16 */
    const struct gemm_backend *gemm; /* NULL before gemm_open */
    void *gemm_state;                /* of runtime/gemm/gemm.c and the backend */
    struct profiler *profiler;       /* NULL unless profiling */
    struct kernel to_fp32[ELEMENT_FP16 + 1],
        from_fp32[ELEMENT_FP16 + 1]; /* built at the first need, see convert.h */
    struct built_program *programs;  /* all so far, for those who ask for one again */
    char *cache_dir;                 /* NULL: no cache */
    char *failure;                   /* the first failure's text, NULL while all is well */
    bool lost;                       /* the device failed and may still be working, see compute_settle */
    size_t allocated_bytes;          /* in live buffers */
    unsigned programs_compiled;      /* from source, since opening */
    unsigned programs_cached;        /* taken from the cache on disk, since opening */
    void (*gemm_close)(struct compute *compute); /* set by gemm_open, called by compute_close; NULL: nothing */
};

/* Opens the device, without products: gemm_open (runtime/gemm/gemm.h) adds them, gemm_compute_open does both. On
 * success *opened is owned by the caller (compute_close). */
int compute_open(struct compute **opened, const struct compute_options *options);
void compute_close(struct compute *compute);

/* Keeps the failure (the first one wins). */
void compute_fail(struct compute *compute, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Drops the kept failure, for trials that may fail. */
void compute_forget(struct compute *compute);

/* 0, or -1 with the kept failure as the error text. Does not wait. */
int compute_check(struct compute *compute);

/* Waits for all work; then as compute_check. Collects the profile of what ran. */
int compute_finish(struct compute *compute);

/* Waits for all work of a queue of this device before something is freed that the work may use: whether that may
 * be. A device that fails can still be working, and cannot be waited for then: what it may use has to stay, so the
 * functions that release leave all as it is, and the process ends without the libraries' last clean-up. */
bool compute_settle_queue(struct compute *compute, cl_command_queue queue);

/* The same for the compute's own queue. */
bool compute_settle(struct compute *compute);

/* ---- buffers */

struct buffer {
    cl_mem memory;
    size_t bytes;
    void *host;             /* the storage itself where the device works on host memory, else NULL */
    enum element_type type; /* of what matrix products read and write there; ELEMENT_FP32 unless set */
};

/* A place inside a buffer, counted in elements of the type that the reader expects. */
struct span {
    const struct buffer *buffer;
    size_t offset;
};

/* Creates a zeroed buffer. bytes == 0 makes a minimal one. On devices that run native kernels the storage is
 * page-aligned host memory of ours (no copy, no driver limit on the total). Fails in words when the device cannot.
 */
int buffer_create(struct compute *compute, struct buffer *buffer, size_t bytes);
void buffer_release(struct compute *compute, struct buffer *buffer);

/* Copies between host and buffer; the transfer is complete on return (reads wait for all work before them).
 * Offsets and sizes in bytes; a range outside of the buffer is a failure. */
int buffer_write(struct compute *compute, const struct buffer *buffer, size_t offset, const void *data,
                 size_t bytes);
int buffer_read(struct compute *compute, const struct buffer *buffer, size_t offset, void *data, size_t bytes);

/* Launches: set a range to zero bytes, or copy between buffers. */
void buffer_zero(struct compute *compute, const struct buffer *buffer, size_t offset, size_t bytes);
void buffer_copy(struct compute *compute, const struct buffer *from, size_t from_offset, const struct buffer *to,
                 size_t to_offset, size_t bytes);

/* ---- programs and kernels */

/* Compiles the concatenation of embedded files of cl/ (NULL-terminated list of names) with these options, or takes
 * it from what was built before or from the cache on disk (keyed by device, driver, options and text; written to a
 * temporary name and renamed, so ranks do not race). -DVEC_MAX=<vector> is added, and -DLANES=<lanes> unless the
 * options have one. A compile error carries the build log. The caller releases *program. */
int program_build(struct compute *compute, const char *const *files, const char *options, cl_program *program);
void programs_release(struct compute *compute); /* the compute's own hold on them, as it closes */

int kernel_create(struct compute *compute, cl_program program, const char *name, struct kernel *kernel);
void kernel_release(struct kernel *kernel);

struct kernel_argument {
    size_t bytes;
    union {
        cl_mem memory;
        cl_int i32;
        cl_uint u32;
        cl_ulong u64;
        cl_float f32;
    } value;
};

#define ARG_BUFFER(b) ((struct kernel_argument){sizeof(cl_mem), {.memory = (b)->memory}})
#define ARG_I32(x)    ((struct kernel_argument){sizeof(cl_int), {.i32 = (cl_int)(x)}})
#define ARG_U32(x)    ((struct kernel_argument){sizeof(cl_uint), {.u32 = (cl_uint)(x)}})
#define ARG_U64(x)    ((struct kernel_argument){sizeof(cl_ulong), {.u64 = (cl_ulong)(x)}})
#define ARG_F32(x)    ((struct kernel_argument){sizeof(cl_float), {.f32 = (cl_float)(x)}})
/* A span is two kernel parameters: the pointer and `ulong` offset in elements. */
#define ARG_SPAN(s) ARG_BUFFER((s).buffer), ARG_U64((s).offset)

/* Launches `groups` work-groups of `local` work-items (1-D). */
#define KERNEL_RUN(compute, kernel, groups, local, ...)                                                            \
    kernel_run((compute), (kernel), (groups), (local), (const struct kernel_argument[]){__VA_ARGS__},              \
               sizeof((struct kernel_argument[]){__VA_ARGS__}) / sizeof(struct kernel_argument))

void kernel_run(struct compute *compute, const struct kernel *kernel, size_t groups, size_t local,
                const struct kernel_argument *arguments, size_t count);
