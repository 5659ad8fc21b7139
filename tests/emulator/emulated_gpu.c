/* An OpenCL driver for GPUs that are not there. Kernels are compiled by clang to PTX, as for an NVIDIA GPU, and run
 * by the interpreter (ptx.h) on the host. Devices have the names, numbers and extensions by which hctrain knows
 * vendors' GPUs, so that its programs and tests take the same ways as on these: with NVIDIA's instructions for
 * matrix cores as they stand, those of AMD and Intel as functions of the interpreter (ptx_matrix.c).
 *
 * Environment:
 *   EMULATED_GPU_SEED    a number: lanes and warps do not keep in step, but change at random from this seed
 *   EMULATED_GPU_CHANGE  a file: two texts, with a line "----" behind each. Where the first one is in a program's
 *                        text, the second one takes its place before it is compiled, and "found" is appended to
 *                        the file
 *   EMULATED_GPU_LOG     any value: each launch is printed with its time
 *
 * A fault in a kernel is printed, and the launch fails with CL_OUT_OF_RESOURCES. */
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/vulkan/answers.h"
#include "tests/emulator/emulated_compiler.h"
#include "tests/emulator/ptx_machine.h"
#include <CL/cl.h>
#include <CL/cl_icd.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PUBLIC __attribute__((visibility("default")))

enum { GUARD = 256, FRESH = 0xff, ARGUMENTS_MOST = PTX_PARAMETERS_MOST };

/* ---- devices */

struct _cl_platform_id {
    const cl_icd_dispatch *dispatch;
    const char *name, *extensions;
    const char *before; /* what stands before a program's text, for the vendor's built-in functions */
};

struct _cl_device_id {
    const cl_icd_dispatch *dispatch;
    struct _cl_platform_id *platform;
    const char *name;
    unsigned lanes;      /* of a warp, wave, sub-group */
    unsigned capability; /* NVIDIA's, 80 for 8.0 */
    size_t local_bytes, most_items;
};

static const cl_icd_dispatch dispatch;

/* What libclc has not got for NVIDIA's GPUs. */
#define BEFORE                                                                                                     \
    "inline float emulated_exp2(float x) {\n"                                                                      \
    "    float y;\n"                                                                                               \
    "    __asm__(\"ex2.approx.f32 %0, %1;\" : \"=f\"(y) : \"f\"(x));\n"                                            \
    "    return y;\n"                                                                                              \
    "}\n"                                                                                                          \
    "#define native_exp2 emulated_exp2\n"

/* The compiler for AMD has these built in. A wave's lanes keep in step there; the fence is what says where the
 * kernel relies on it. fp16 is passed as its bits. */
static const char amd_before[] = BEFORE
    "float8 emulated_wmma_bf16(short16 a, short16 b, float8 c), emulated_wmma_fp16(short16 a, short16 b, float8 "
    "c);\n"
    "float8 emulated_wmma12_bf16(short8 a, short8 b, float8 c), emulated_wmma12_fp16(short8 a, short8 b, float8 "
    "c);\n"
    "float4 emulated_mfma_bf16(short4 a, short4 b, float4 c), emulated_mfma_fp16(short4 a, short4 b, float4 c);\n"
    "float4 emulated_mfma8_bf16(short2 a, short2 b, float4 c);\n"
    "int emulated_take(int x, int lane);\n"
    "uint emulated_perm(uint a, uint b, uint bytes) {\n"
    "    const uchar8 both = (uchar8)(as_uchar4(b), as_uchar4(a));\n"
    "    const uchar *from = (const uchar *)&both;\n"
    "    return as_uint((uchar4)(from[bytes & 7], from[bytes >> 8 & 7], from[bytes >> 16 & 7], from[bytes >> 24 & "
    "7]));\n"
    "}\n"
    "#define as_half4 as_short4\n"
    "#define as_half8 as_short8\n"
    "#define as_half16 as_short16\n"
    "#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32 emulated_wmma_bf16\n"
    "#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32 emulated_wmma_fp16\n"
    "#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12 emulated_wmma12_bf16\n"
    "#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12 emulated_wmma12_fp16\n"
    "#define __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, x, y, z) emulated_mfma_bf16(a, b, c)\n"
    "#define __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, x, y, z) emulated_mfma_fp16(a, b, c)\n"
    "#define __builtin_amdgcn_mfma_f32_16x16x8bf16(a, b, c, x, y, z) emulated_mfma8_bf16(a, b, c)\n"
    "#define __builtin_amdgcn_ds_bpermute(address, x) emulated_take(x, (address) / 4)\n"
    "#define __builtin_amdgcn_permlanex16(old, x, low, high, fetch, bound) \\\n"
    "    as_uint(emulated_take(as_int(x), (int)(get_local_id(0) % WARP_SIZE ^ 16)))\n"
    "#define __builtin_amdgcn_readfirstlane(x) (x)\n"
    "#define __builtin_amdgcn_perm emulated_perm\n"
    "#define __builtin_amdgcn_fence(order, scope)\n"
    "#define __builtin_amdgcn_wave_barrier() __asm__ volatile(\"bar.warp.sync 0xffffffff;\" ::: \"memory\")\n"
    "#define __builtin_amdgcn_sched_barrier(mask)\n";

static const char intel_before[] =
    BEFORE "#if WARP_SIZE == 8\n"
           "typedef int8 emulated_a;\n"
           "#else\n"
           "typedef short8 emulated_a;\n"
           "#endif\n"
           "float8 intel_sub_group_bf16_bf16_matrix_mad_k16(emulated_a a, int8 b, float8 c);\n"
           "float8 intel_sub_group_f16_f16_matrix_mad_k16(emulated_a a, int8 b, float8 c);\n"
           "float intel_sub_group_shuffle_xor(float x, uint bit);\n"
           "#ifdef WARP_SIZE\n" /* 8 rows of a number for each lane, from where the first lane says */
           "int emulated_take(int x, int lane);\n"
           "#define EMULATED_BLOCK_READ(name, type) \\\n"
           "    type##8 name(const __local type *from) { \\\n"
           "        const size_t first = (uint)emulated_take((int)(size_t)from, 0); \\\n"
           "        const __local type *own = (const __local type *)first + get_local_id(0) % WARP_SIZE; \\\n"
           "        type##8 rows; \\\n"
           "        __attribute__((opencl_unroll_hint(8))) for (uint i = 0; i < 8; i++) \\\n"
           "            rows[i] = own[i * WARP_SIZE]; \\\n"
           "        return rows; \\\n"
           "    }\n"
           "EMULATED_BLOCK_READ(intel_sub_group_block_read8, uint)\n"
           "EMULATED_BLOCK_READ(intel_sub_group_block_read_us8, ushort)\n"
           "#endif\n"
           "#define sub_group_barrier(flags) __asm__ volatile(\"bar.warp.sync 0xffffffff;\" ::: \"memory\")\n";

static struct _cl_platform_id nvidia = {&dispatch, "NVIDIA CUDA", "cl_nv_compiler_options", ""},
                              amd = {&dispatch, "AMD Accelerated Parallel Processing", "", amd_before},
                              intel = {
                                  &dispatch, "Intel(R) OpenCL Graphics",
                                  "cl_intel_subgroup_matrix_multiply_accumulate cl_intel_required_subgroup_size",
                                  intel_before};
static struct _cl_platform_id *const platforms[] = {&nvidia, &amd, &intel};

static struct _cl_device_id devices[] = {
    {&dispatch, &nvidia, "emulated sm_80", 32, 80, 48 << 10, 1024},
    {&dispatch, &amd, "gfx908", 64, 0, 64 << 10, 256},
    {&dispatch, &amd, "gfx90a", 64, 0, 64 << 10, 256},
    {&dispatch, &amd, "gfx1100", 32, 0, 64 << 10, 256},
    {&dispatch, &amd, "gfx1201", 32, 0, 64 << 10, 256},
    {&dispatch, &intel, "emulated Arc", 8, 0, 64 << 10, 1024},
    {&dispatch, &intel, "emulated Data Center GPU Max", 16, 0, 128 << 10, 1024},
};

/* ---- platforms and devices */

static cl_int set(cl_int *code, cl_int value) {
    if (code) {
        *code = value;
    }
    return value;
}

static cl_int CL_API_CALL get_platforms(cl_uint capacity, cl_platform_id *found, cl_uint *count) {
    set((cl_int *)count, (cl_int)COUNT(platforms));
    for (cl_uint i = 0; found && i < capacity && i < COUNT(platforms); i++) {
        found[i] = platforms[i];
    }
    return CL_SUCCESS;
}

static cl_int CL_API_CALL platform_info(cl_platform_id platform, cl_platform_info what, size_t capacity,
                                        void *value, size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    switch (what) {
    case CL_PLATFORM_NAME:
    case CL_PLATFORM_VENDOR:
        return answer_text(to, platform->name);
    case CL_PLATFORM_VERSION:
        return answer_text(to, "OpenCL 1.2 emulated");
    case CL_PLATFORM_EXTENSIONS:
        return answer_text(to, "cl_khr_icd");
    case CL_PLATFORM_ICD_SUFFIX_KHR:
        return answer_text(to, "HCTRAIN");
    default:
        return CL_INVALID_VALUE;
    }
}

static cl_int CL_API_CALL list_devices(cl_platform_id platform, cl_device_type type, cl_uint capacity,
                                       cl_device_id *found, cl_uint *count) {
    cl_uint all = 0;
    for (size_t i = 0; i < COUNT(devices); i++) {
        if (devices[i].platform == platform && type & (CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_DEFAULT)) {
            if (found && all < capacity) {
                found[all] = &devices[i];
            }
            all++;
        }
    }
    set((cl_int *)count, (cl_int)all);
    return all ? CL_SUCCESS : CL_DEVICE_NOT_FOUND;
}

enum { CAPABILITY_MAJOR = 0x4000, CAPABILITY_MINOR = 0x4001, SUB_GROUP_SIZES = 0x4108 };

static cl_int CL_API_CALL device_info(cl_device_id device, cl_device_info what, size_t capacity, void *value,
                                      size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    const size_t most = device->most_items;
    switch (what) {
    case CL_DEVICE_NAME:
        return answer_text(to, device->name);
    case CL_DEVICE_VENDOR:
        return answer_text(to, device->platform->name);
    case CL_DRIVER_VERSION:
        return answer_text(to, "emulated");
    case CL_DEVICE_VERSION:
        return answer_text(to, "OpenCL 1.2 emulated");
    case CL_DEVICE_OPENCL_C_VERSION:
        return answer_text(to, "OpenCL C 1.2 ");
    case CL_DEVICE_EXTENSIONS:
        return answer_text(to, device->platform->extensions);
    case CL_DEVICE_TYPE:
        return ANSWER(to, cl_device_type, CL_DEVICE_TYPE_GPU);
    case CL_DEVICE_PLATFORM:
        return ANSWER(to, cl_platform_id, device->platform);
    case CL_DEVICE_HOST_UNIFIED_MEMORY:
        return ANSWER(to, cl_bool, CL_FALSE);
    case CL_DEVICE_COMPILER_AVAILABLE:
    case CL_DEVICE_AVAILABLE:
        return ANSWER(to, cl_bool, CL_TRUE);
    case CL_DEVICE_EXECUTION_CAPABILITIES:
        return ANSWER(to, cl_device_exec_capabilities, CL_EXEC_KERNEL);
    case CL_DEVICE_MAX_COMPUTE_UNITS:
        return ANSWER(to, cl_uint, 4);
    case CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT:
        return ANSWER(to, cl_uint, 1);
    case CL_DEVICE_MAX_WORK_GROUP_SIZE:
        return ANSWER(to, size_t, most);
    case CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS:
        return ANSWER(to, cl_uint, 3);
    case CL_DEVICE_MAX_WORK_ITEM_SIZES:
        return answer_bytes(to, (size_t[]){most, most, most}, 3 * sizeof(size_t));
    case CL_DEVICE_LOCAL_MEM_SIZE:
        return ANSWER(to, cl_ulong, device->local_bytes);
    case CL_DEVICE_GLOBAL_MEM_SIZE:
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE:
        return ANSWER(to, cl_ulong, (cl_ulong)1 << 31);
    case CAPABILITY_MAJOR:
        return device->capability ? ANSWER(to, cl_uint, device->capability / 10) : CL_INVALID_VALUE;
    case CAPABILITY_MINOR:
        return device->capability ? ANSWER(to, cl_uint, device->capability % 10) : CL_INVALID_VALUE;
    case SUB_GROUP_SIZES:
        return device->platform == &intel ? ANSWER(to, size_t, device->lanes) : CL_INVALID_VALUE;
    default:
        return CL_INVALID_VALUE;
    }
}

/* ---- contexts, queues, events */

struct _cl_context {
    const cl_icd_dispatch *dispatch;
    cl_device_id device;
};

struct _cl_command_queue {
    const cl_icd_dispatch *dispatch;
    cl_context context;
    cl_command_queue_properties properties;
};

struct _cl_event {
    const cl_icd_dispatch *dispatch;
    cl_command_queue queue;
    atomic_uint references;
    cl_ulong start, end;
};

static cl_context CL_API_CALL create_context(const cl_context_properties *properties, cl_uint count,
                                             const cl_device_id *chosen,
                                             void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *),
                                             void *data, cl_int *code) {
    cl_context context = memory_zeroed(1, sizeof *context);
    *context = (struct _cl_context){&dispatch, chosen[0]};
    set(code, CL_SUCCESS);
    return context;
}

static cl_int CL_API_CALL release_context(cl_context context) {
    free(context);
    return CL_SUCCESS;
}

static cl_int CL_API_CALL context_info(cl_context context, cl_context_info what, size_t capacity, void *value,
                                       size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    return what == CL_CONTEXT_DEVICES ? ANSWER(to, cl_device_id, context->device) : CL_INVALID_VALUE;
}

static cl_command_queue CL_API_CALL create_queue(cl_context context, cl_device_id device,
                                                 cl_command_queue_properties properties, cl_int *code) {
    cl_command_queue queue = memory_zeroed(1, sizeof *queue);
    *queue = (struct _cl_command_queue){&dispatch, context, properties};
    set(code, CL_SUCCESS);
    return queue;
}

static cl_int CL_API_CALL release_queue(cl_command_queue queue) {
    free(queue);
    return CL_SUCCESS;
}

static cl_int CL_API_CALL queue_info(cl_command_queue queue, cl_command_queue_info what, size_t capacity,
                                     void *value, size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    return what == CL_QUEUE_CONTEXT      ? ANSWER(to, cl_context, queue->context)
           : what == CL_QUEUE_DEVICE     ? ANSWER(to, cl_device_id, queue->context->device)
           : what == CL_QUEUE_PROPERTIES ? ANSWER(to, cl_command_queue_properties, queue->properties)
                                         : CL_INVALID_VALUE;
}

static cl_ulong now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (cl_ulong)time.tv_sec * 1000000000U + (cl_ulong)time.tv_nsec;
}

/* The event of a command that began at `start` and is done. */
static cl_int done(cl_command_queue queue, cl_event *event, cl_ulong start) {
    if (event) {
        *event = memory_zeroed(1, sizeof **event);
        (*event)->dispatch = &dispatch;
        (*event)->queue = queue;
        (*event)->references = 1;
        (*event)->start = start;
        (*event)->end = now();
    }
    return CL_SUCCESS;
}

static cl_int CL_API_CALL wait_for_events(cl_uint count, const cl_event *events) {
    return CL_SUCCESS;
}

static cl_int CL_API_CALL event_info(cl_event event, cl_event_info what, size_t capacity, void *value,
                                     size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    return what == CL_EVENT_COMMAND_EXECUTION_STATUS ? ANSWER(to, cl_int, CL_COMPLETE)
           : what == CL_EVENT_COMMAND_QUEUE          ? ANSWER(to, cl_command_queue, event->queue)
                                                     : CL_INVALID_VALUE;
}

static cl_int CL_API_CALL retain_event(cl_event event) {
    atomic_fetch_add(&event->references, 1);
    return CL_SUCCESS;
}

static cl_int CL_API_CALL release_event(cl_event event) {
    if (atomic_fetch_sub(&event->references, 1) == 1) {
        free(event);
    }
    return CL_SUCCESS;
}

static cl_int CL_API_CALL profiling_info(cl_event event, cl_profiling_info what, size_t capacity, void *value,
                                         size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    return ANSWER(to, cl_ulong, what == CL_PROFILING_COMMAND_END ? event->end : event->start);
}

static cl_int CL_API_CALL finish(cl_command_queue queue) {
    return CL_SUCCESS;
}

static cl_int CL_API_CALL enqueue_marker(cl_command_queue queue, cl_uint count, const cl_event *events,
                                         cl_event *event) {
    return done(queue, event, now());
}

/* ---- buffers, with bytes around them that belong to nobody */

struct _cl_mem {
    const cl_icd_dispatch *dispatch;
    cl_context context;
    char *memory; /* NULL for a part of another buffer */
    char *data;
    size_t bytes;
    struct ptx_touched *touched; /* of `memory` from this buffer on */
};

static cl_mem CL_API_CALL create_buffer(cl_context context, cl_mem_flags flags, size_t bytes, void *host,
                                        cl_int *code) {
    cl_mem buffer = memory_zeroed(1, sizeof *buffer);
    const size_t whole = (bytes + 3 * GUARD) / GUARD * GUARD;
    *buffer = (struct _cl_mem){&dispatch, context, aligned_alloc(GUARD, whole),
                               NULL,      bytes,   memory_zeroed(ptx_touched_size(bytes), 1)};
    if (!buffer->memory) {
        free(buffer->touched);
        free(buffer);
        set(code, CL_MEM_OBJECT_ALLOCATION_FAILURE);
        return NULL;
    }
    memset(buffer->memory, FRESH, whole);
    buffer->data = buffer->memory + GUARD;
    if (flags & (CL_MEM_COPY_HOST_PTR | CL_MEM_USE_HOST_PTR)) {
        memcpy(buffer->data, host, bytes);
    }
    set(code, CL_SUCCESS);
    return buffer;
}

static cl_mem CL_API_CALL create_sub_buffer(cl_mem whole, cl_mem_flags flags, cl_buffer_create_type type,
                                            const void *info, cl_int *code) {
    const cl_buffer_region *region = info;
    if (region->origin > whole->bytes || region->size > whole->bytes - region->origin || region->origin % GUARD) {
        set(code, CL_INVALID_VALUE);
        return NULL;
    }
    cl_mem part = memory_zeroed(1, sizeof *part);
    *part = (struct _cl_mem){&dispatch,    whole->context,
                             NULL,         whole->data + region->origin,
                             region->size, ptx_touched_from(whole->touched, region->origin)};
    set(code, CL_SUCCESS);
    return part;
}

static cl_int CL_API_CALL release_buffer(cl_mem buffer) {
    if (buffer->memory) {
        free(buffer->touched);
    }
    free(buffer->memory);
    free(buffer);
    return CL_SUCCESS;
}

static cl_int CL_API_CALL buffer_info(cl_mem buffer, cl_mem_info what, size_t capacity, void *value,
                                      size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    return what == CL_MEM_SIZE ? ANSWER(to, size_t, buffer->bytes) : CL_INVALID_VALUE;
}

static bool is_inside(cl_mem buffer, size_t at, size_t bytes) {
    return at <= buffer->bytes && bytes <= buffer->bytes - at;
}

static cl_int CL_API_CALL read_buffer(cl_command_queue queue, cl_mem buffer, cl_bool waits, size_t at, size_t bytes,
                                      void *to, cl_uint count, const cl_event *events, cl_event *event) {
    if (!is_inside(buffer, at, bytes)) {
        return CL_INVALID_VALUE;
    }
    memcpy(to, buffer->data + at, bytes);
    return done(queue, event, now());
}

static cl_int CL_API_CALL write_buffer(cl_command_queue queue, cl_mem buffer, cl_bool waits, size_t at,
                                       size_t bytes, const void *from, cl_uint count, const cl_event *events,
                                       cl_event *event) {
    if (!is_inside(buffer, at, bytes)) {
        return CL_INVALID_VALUE;
    }
    memcpy(buffer->data + at, from, bytes);
    return done(queue, event, now());
}

static cl_int CL_API_CALL copy_buffer(cl_command_queue queue, cl_mem from, cl_mem to, size_t from_at, size_t to_at,
                                      size_t bytes, cl_uint count, const cl_event *events, cl_event *event) {
    if (!is_inside(from, from_at, bytes) || !is_inside(to, to_at, bytes)) {
        return CL_INVALID_VALUE;
    }
    memmove(to->data + to_at, from->data + from_at, bytes);
    return done(queue, event, now());
}

static cl_int CL_API_CALL fill_buffer(cl_command_queue queue, cl_mem buffer, const void *pattern, size_t size,
                                      size_t at, size_t bytes, cl_uint count, const cl_event *events,
                                      cl_event *event) {
    if (!is_inside(buffer, at, bytes) || bytes % size) {
        return CL_INVALID_VALUE;
    }
    for (size_t i = 0; i < bytes; i += size) {
        memcpy(buffer->data + at + i, pattern, size);
    }
    return done(queue, event, now());
}

static void *CL_API_CALL map_buffer(cl_command_queue queue, cl_mem buffer, cl_bool waits, cl_map_flags flags,
                                    size_t at, size_t bytes, cl_uint count, const cl_event *events, cl_event *event,
                                    cl_int *code) {
    set(code, is_inside(buffer, at, bytes) ? done(queue, event, now()) : CL_INVALID_VALUE);
    return is_inside(buffer, at, bytes) ? buffer->data + at : NULL;
}

static cl_int CL_API_CALL unmap_buffer(cl_command_queue queue, cl_mem buffer, void *mapped, cl_uint count,
                                       const cl_event *events, cl_event *event) {
    return done(queue, event, now());
}

/* ---- programs: a text, and the PTX that clang makes of it, which also is the binary */

struct _cl_program {
    const cl_icd_dispatch *dispatch;
    atomic_uint references; /* also of kernels */
    cl_context context;
    char *text, *ptx, *log;
    struct ptx_module *module;
};

static cl_program create_program(cl_context context, cl_int *code) {
    cl_program program = memory_zeroed(1, sizeof *program);
    program->dispatch = &dispatch;
    program->references = 1;
    program->context = context;
    set(code, CL_SUCCESS);
    return program;
}

static cl_program CL_API_CALL create_with_source(cl_context context, cl_uint count, const char **texts,
                                                 const size_t *lengths, cl_int *code) {
    cl_program program = create_program(context, code);
    size_t bytes;
    FILE *all = memory_open_stream(&program->text, &bytes);
    for (cl_uint i = 0; i < count; i++) {
        fwrite(texts[i], 1, lengths && lengths[i] ? lengths[i] : strlen(texts[i]), all);
    }
    memory_close_stream(all);
    return program;
}

static cl_program CL_API_CALL create_with_binary(cl_context context, cl_uint count, const cl_device_id *chosen,
                                                 const size_t *lengths, const unsigned char **binaries,
                                                 cl_int *status, cl_int *code) {
    cl_program program = create_program(context, code);
    program->ptx = memory_string_part((const char *)binaries[0], lengths[0]);
    set(status, CL_SUCCESS);
    return program;
}

static cl_int CL_API_CALL retain_program(cl_program program) {
    atomic_fetch_add(&program->references, 1);
    return CL_SUCCESS;
}

static cl_int CL_API_CALL release_program(cl_program program) {
    if (atomic_fetch_sub(&program->references, 1) > 1) {
        return CL_SUCCESS;
    }
    if (program->module) {
        ptx_free(program->module);
    }
    free(program->text);
    free(program->ptx);
    free(program->log);
    free(program);
    return CL_SUCCESS;
}

static cl_int CL_API_CALL build(cl_program program, cl_uint count, const cl_device_id *chosen, const char *options,
                                void(CL_CALLBACK *notify)(cl_program, void *), void *data) {
    if (program->text) {
        free(program->log);
        program->ptx =
            emulated_compile(program->context->device->platform->before, program->text, options, &program->log);
        if (!program->ptx) {
            return CL_BUILD_PROGRAM_FAILURE;
        }
    }
    program->module = ptx_parse(program->ptx, program->context->device->lanes);
    if (!program->module) {
        fprintf(stderr, "emulated GPU: %s\n", error_text());
        free(program->log);
        program->log = memory_string(error_text());
    }
    return program->module ? CL_SUCCESS : CL_BUILD_PROGRAM_FAILURE;
}

static cl_int CL_API_CALL build_info(cl_program program, cl_device_id device, cl_program_build_info what,
                                     size_t capacity, void *value, size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    return what == CL_PROGRAM_BUILD_LOG ? answer_text(to, program->log ? program->log : "") : CL_INVALID_VALUE;
}

static cl_int CL_API_CALL program_info(cl_program program, cl_program_info what, size_t capacity, void *value,
                                       size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    const size_t size = program->ptx ? strlen(program->ptx) : 0;
    if (what == CL_PROGRAM_BINARIES) {
        unsigned char *place = value && capacity >= sizeof place ? *(unsigned char **)value : NULL;
        if (place) {
            memcpy(place, program->ptx, size);
        }
        return answer_bytes((struct answer){0, NULL, bytes}, NULL, sizeof place);
    }
    return what == CL_PROGRAM_NUM_DEVICES    ? ANSWER(to, cl_uint, 1)
           : what == CL_PROGRAM_DEVICES      ? ANSWER(to, cl_device_id, program->context->device)
           : what == CL_PROGRAM_BINARY_SIZES ? ANSWER(to, size_t, size)
                                             : CL_INVALID_VALUE;
}

/* ---- kernels */

struct _cl_kernel {
    const cl_icd_dispatch *dispatch;
    cl_program program;
    const struct ptx_kernel *code;
    char *parameters;
    struct ptx_range ranges[ARGUMENTS_MOST]; /* of arguments that are buffers */
    bool is_set[ARGUMENTS_MOST];
};

static cl_kernel CL_API_CALL create_kernel(cl_program program, const char *name, cl_int *code) {
    const struct ptx_kernel *found = program->module ? ptx_kernel_find(program->module, name) : NULL;
    set(code, found ? CL_SUCCESS : CL_INVALID_KERNEL_NAME);
    if (!found) {
        return NULL;
    }
    cl_kernel kernel = memory_zeroed(1, sizeof *kernel);
    kernel->dispatch = &dispatch;
    kernel->program = program;
    kernel->code = found;
    kernel->parameters = memory_zeroed(found->parameter_bytes, 1);
    retain_program(program);
    return kernel;
}

static cl_int CL_API_CALL release_kernel(cl_kernel kernel) {
    cl_program program = kernel->program;
    free(kernel->parameters);
    free(kernel);
    return release_program(program);
}

static cl_int CL_API_CALL set_argument(cl_kernel kernel, cl_uint index, size_t bytes, const void *value) {
    if (index >= kernel->code->parameter_count) {
        return CL_INVALID_ARG_INDEX;
    }
    const struct parameter *parameter = &kernel->code->parameters[index];
    if (bytes != parameter->bytes) {
        return CL_INVALID_ARG_SIZE;
    }
    char *to = kernel->parameters + parameter->at;
    kernel->is_set[index] = true;
    if (parameter->is_pointer) {
        const cl_mem buffer = value ? *(const cl_mem *)value : NULL;
        const char *data = buffer ? buffer->data : NULL;
        kernel->ranges[index] =
            (struct ptx_range){data, buffer ? buffer->bytes : 0, buffer ? buffer->touched : NULL};
        memcpy(to, &data, sizeof data);
    } else if (value) {
        memcpy(to, value, bytes);
    } else {
        return CL_INVALID_ARG_VALUE;
    }
    return CL_SUCCESS;
}

static cl_int CL_API_CALL kernel_group_info(cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info what,
                                            size_t capacity, void *value, size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    const cl_device_id own = kernel->program->context->device;
    return what == CL_KERNEL_WORK_GROUP_SIZE                      ? ANSWER(to, size_t, own->most_items)
           : what == CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE ? ANSWER(to, size_t, own->lanes)
           : what == CL_KERNEL_LOCAL_MEM_SIZE                     ? ANSWER(to, cl_ulong, kernel->code->shared_bytes)
                                                                  : CL_INVALID_VALUE;
}

static atomic_uint launches = 1;

static cl_int check_launch(cl_kernel kernel, cl_uint dimensions, const size_t *global, const size_t *local) {
    const cl_device_id device = kernel->program->context->device;
    size_t items = 1;
    for (size_t i = 0; i < kernel->code->parameter_count; i++) {
        if (!kernel->is_set[i]) {
            return CL_INVALID_KERNEL_ARGS;
        }
    }
    for (cl_uint i = 0; i < dimensions; i++) {
        if (!local || !local[i] || !global[i] || global[i] % local[i]) {
            return CL_INVALID_WORK_GROUP_SIZE;
        }
        items *= local[i];
    }
    return items > device->most_items                         ? CL_INVALID_WORK_GROUP_SIZE
           : kernel->code->shared_bytes > device->local_bytes ? CL_OUT_OF_RESOURCES
                                                              : CL_SUCCESS;
}

static cl_int CL_API_CALL enqueue_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                                         const size_t *offset, const size_t *global, const size_t *local,
                                         cl_uint count, const cl_event *events, cl_event *event) {
    const cl_ulong start = now();
    const char *seed = getenv("EMULATED_GPU_SEED");
    const cl_int code = check_launch(kernel, dimensions, global, local);
    if (code != CL_SUCCESS) {
        return code;
    }
    struct ptx_launch launch = {.kernel = kernel->code,
                                .groups = {1, 1, 1},
                                .items = {1, 1, 1},
                                .parameters = kernel->parameters,
                                .ranges = kernel->ranges,
                                .range_count = kernel->code->parameter_count,
                                .number = atomic_fetch_add(&launches, 1),
                                .seed = seed ? strtoull(seed, NULL, 10) : 0};
    for (cl_uint i = 0; i < dimensions; i++) {
        launch.groups[i] = global[i] / local[i];
        launch.items[i] = local[i];
    }
    const int status = ptx_run(&launch);
    if (status) {
        fprintf(stderr, "emulated GPU: %s\n", error_text());
    }
    if (getenv("EMULATED_GPU_LOG")) {
        fprintf(stderr, "emulated GPU: %8.3f ms %zu x %zu %s\n", (double)(now() - start) * 1e-6, launch.groups[0],
                launch.items[0], kernel->code->name);
    }
    return status ? CL_OUT_OF_RESOURCES : done(queue, event, start);
}

/* ---- the table through which OpenCL's loader calls this driver (cl_khr_icd) */

static const cl_icd_dispatch dispatch = {
    .clGetPlatformInfo = platform_info,
    .clGetDeviceIDs = list_devices,
    .clGetDeviceInfo = device_info,
    .clCreateContext = create_context,
    .clReleaseContext = release_context,
    .clGetContextInfo = context_info,
    .clCreateCommandQueue = create_queue,
    .clReleaseCommandQueue = release_queue,
    .clGetCommandQueueInfo = queue_info,
    .clCreateBuffer = create_buffer,
    .clCreateSubBuffer = create_sub_buffer,
    .clReleaseMemObject = release_buffer,
    .clGetMemObjectInfo = buffer_info,
    .clCreateProgramWithSource = create_with_source,
    .clCreateProgramWithBinary = create_with_binary,
    .clRetainProgram = retain_program,
    .clReleaseProgram = release_program,
    .clBuildProgram = build,
    .clGetProgramInfo = program_info,
    .clGetProgramBuildInfo = build_info,
    .clCreateKernel = create_kernel,
    .clReleaseKernel = release_kernel,
    .clSetKernelArg = set_argument,
    .clGetKernelWorkGroupInfo = kernel_group_info,
    .clWaitForEvents = wait_for_events,
    .clGetEventInfo = event_info,
    .clRetainEvent = retain_event,
    .clReleaseEvent = release_event,
    .clGetEventProfilingInfo = profiling_info,
    .clFlush = finish,
    .clFinish = finish,
    .clEnqueueReadBuffer = read_buffer,
    .clEnqueueWriteBuffer = write_buffer,
    .clEnqueueCopyBuffer = copy_buffer,
    .clEnqueueFillBuffer = fill_buffer,
    .clEnqueueMapBuffer = map_buffer,
    .clEnqueueUnmapMemObject = unmap_buffer,
    .clEnqueueNDRangeKernel = enqueue_kernel,
    .clEnqueueMarkerWithWaitList = enqueue_marker,
};

PUBLIC void *CL_API_CALL clGetExtensionFunctionAddress(const char *name) {
    cl_int(CL_API_CALL * list)(cl_uint, cl_platform_id *, cl_uint *) = get_platforms;
    void *found = NULL;
    if (strcmp(name, "clIcdGetPlatformIDsKHR") == 0) {
        memcpy(&found, &list, sizeof found);
    }
    return found;
}

/* Loaders ask for it by name, too. */
PUBLIC cl_int CL_API_CALL clIcdGetPlatformIDsKHR(cl_uint capacity, cl_platform_id *found, cl_uint *count) {
    return get_platforms(capacity, found, count);
}

PUBLIC cl_int CL_API_CALL clGetPlatformInfo(cl_platform_id platform, cl_platform_info what, size_t capacity,
                                            void *value, size_t *bytes) {
    return platform_info(platform, what, capacity, value, bytes);
}
