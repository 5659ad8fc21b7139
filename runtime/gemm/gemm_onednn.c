/* The backend "onednn", by the library that the machine has: looked for at run time, with the C interface of
 * version 3 or 2. On Intel's GPUs, where its GEMMs are the fastest there are, it works through its OpenCL runtime
 * on the compute's queue. On CPUs it runs GEMMs of 16 bits if the CPU has instructions for them, and all when it is
 * asked for by name, as native kernels. What it does not take goes through fp32 and another backend: matrices that
 * begin where no sub-buffer may, and types that it has no GEMM of. */
#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/gemm_libraries.h"
#include "runtime/gemm/gemm_verify.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/parallel.h"
#include <stdlib.h>
#include <string.h>

/* Of oneDNN's interface, the same in versions 2 and 3. */
enum { ENGINE_CPU = 1, RUNTIME_OPENCL = 256, STREAM_IN_ORDER = 1, MEMORY_BUFFER = 1, SCRATCHPAD_OF_CALLER = 1 };
enum { QUERY_CODE = 8, QUERY_SCRATCHPAD = 136, STATUS_UNIMPLEMENTED = 3 };
enum { TYPE_FP16 = 1, TYPE_BF16 = 2, TYPE_FP32 = 3 };
enum { ARGUMENT_A = 1, ARGUMENT_C = 17, ARGUMENT_B = 33, ARGUMENT_SCRATCHPAD = 80 };

enum {
    ALIGNMENT = 64,   /* bytes, of a scratchpad */
    MOST_GEMMS = 256, /* that are kept: a model's step has some dozens of shapes, texts of all lengths any number */
};

struct version {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime, gpu_runtime;
};

struct argument {
    int which;
    void *memory;
};

/* Version 2 describes matrices and GEMMs by structures of its own (696 and 2800 bytes in 2.6), which it fills in
 * where it is given the memory; version 3 returns pointers to them. */
enum { BYTES_OF_MATRIX = 4 << 10, BYTES_OF_GEMM = 16 << 10 };

union description {
    void *pointer;
    _Alignas(16) char storage[BYTES_OF_MATRIX];
};

enum need { ALWAYS, ON_OPENCL, IN_2, IN_3, IF_THERE, NEEDS };

struct functions {
#define ROW(result, name, need, arguments) result(*name) arguments;
#include "runtime/gemm/onednn_functions.h"
#undef ROW
    int (*post_ops_append_sum_2)(void *post_ops, float scale); /* what it takes in version 2 */
};

static const struct function_row {
    const char *name;
    size_t place; /* in struct functions */
    enum need need;
} function_rows[] = {
#define ROW(result, name, need, arguments) {"dnnl_" #name, offsetof(struct functions, name), need},
#include "runtime/gemm/onednn_functions.h"
#undef ROW
};

/* What a GEMM is compiled for, as numbers that are compared by memcmp. */
struct shape {
    size_t transpose_a, transpose_b, m, n, k;
    size_t strides[3], types[3]; /* of A, B and C */
    float beta, unused;
};

struct onednn_gemm {
    struct shape shape;
    struct onednn_gemm *next;
    union description matrices[3]; /* A, B and C */
    void *primitive;               /* NULL: the library has none for this shape */
    void *scratchpad; /* the primitive's memory object for it, and its storage; NULL: none, or a GPU has it */
    void *scratchpad_storage;
};

struct gemm_onednn {
    struct compute *compute;
    struct functions functions;
    struct version version;
    char version_text[32]; /* "3.2.0" */
    bool on_host;          /* the device works on the host's memory */
    void *engine, *stream;
    struct onednn_gemm *gemms; /* newest first */
    size_t count;
    bool has_plain_loops; /* a GEMM so far is one, for want of code for the device */
    size_t alignment;     /* bytes at whose multiples a sub-buffer may begin */
    bool only_16_bits;    /* fp32 is left to another backend */
    bool has_16_bits;     /* GEMMs of the operands' type have 16 bits and passed the self-test */
    /* on the host: OpenMP keeps threads for each thread that ever ran a gemm, and PoCL has many */
    struct worker *worker;
};

static struct gemm_onednn *own_of(const struct compute *compute) {
    return gemm_state(compute)->onednn;
}

/* ---- the library */

/* Whether this library will do; if not, a line of why. */
static int take_functions(struct gemm_onednn *own, void *library) {
    own->functions = (struct functions){0}; /* nothing stays of a library that would not do */
    if (!library_find(library, "dnnl_version", &own->functions.version)) {
        return error_set("has no dnnl_version");
    }
    own->version = *own->functions.version();
    snprintf(own->version_text, sizeof own->version_text, "%d.%d.%d", own->version.major, own->version.minor,
             own->version.patch);
    if (own->version.major != 2 && own->version.major != 3) {
        return error_set("is of version %s; 2 and 3 are known", own->version_text);
    }
    if (!own->on_host && own->version.gpu_runtime != RUNTIME_OPENCL) {
        return error_set("%s was built without OpenCL", own->version_text);
    }
    const bool needed[NEEDS] = {[ALWAYS] = true,
                                [ON_OPENCL] = !own->on_host,
                                [IN_2] = own->version.major == 2,
                                [IN_3] = own->version.major == 3};
    for (size_t i = 0; i < COUNT(function_rows); i++) {
        const struct function_row *row = &function_rows[i];
        if (!library_find(library, row->name, (char *)&own->functions + row->place) && needed[row->need]) {
            return error_set("%s has no %s", own->version_text, row->name);
        }
    }
    memcpy(&own->functions.post_ops_append_sum_2, &own->functions.post_ops_append_sum,
           sizeof own->functions.post_ops_append_sum_2);
    return 0;
}

/* Libraries that will not do stay loaded, as OpenBLAS does: some end badly when they are unloaded. */
static int load(struct gemm_onednn *own) {
    char reasons[1024] = "";
    for (const char *const *name = onednn_names; *name; name++) {
        void *library = library_load((const char *const[]){*name, NULL});
        if (library && take_functions(own, library) == 0) {
            return 0;
        }
        const size_t used = strlen(reasons);
        snprintf(reasons + used, sizeof reasons - used, "%s%s%s%s", used ? "; " : "", library ? *name : "",
                 library ? " " : "", library ? error_text() : dlerror());
    }
    return error_set("no oneDNN that can be used: %s", reasons);
}

static int fail(const struct gemm_onednn *own, const char *what, int status) {
    return error_set("oneDNN %s: %s: %s", own->version_text, what, own->functions.status2str(status));
}

/* ---- compiling GEMMs */

static const void *description_of(const struct gemm_onednn *own, const union description *description) {
    return own->version.major == 2 ? description : description->pointer;
}

/* The matrices as the GEMM sees them; a transposed one lies the other way round. */
static int describe_matrices(const struct gemm_onednn *own, struct onednn_gemm *gemm) {
    static const int types[] = {[ELEMENT_FP32] = TYPE_FP32, [ELEMENT_BF16] = TYPE_BF16, [ELEMENT_FP16] = TYPE_FP16};
    const struct functions *dnnl = &own->functions;
    const struct shape *x = &gemm->shape;
    const int64_t sizes[3][2] = {{(int64_t)x->m, (int64_t)x->k},
                                 {(int64_t)x->k, (int64_t)x->n},
                                 {(int64_t)x->m, (int64_t)x->n}};
    const size_t transposed[] = {x->transpose_a, x->transpose_b, false};
    int status = 0;
    for (size_t i = 0; i < 3 && !status; i++) {
        union description *matrix = &gemm->matrices[i];
        const int64_t stride = (int64_t)x->strides[i];
        const int64_t steps[] = {transposed[i] ? 1 : stride, transposed[i] ? stride : 1};
        const int type = types[x->types[i]];
        status = own->version.major == 2
                     ? dnnl->memory_desc_init_by_strides(matrix->storage, 2, sizes[i], type, steps)
                     : dnnl->memory_desc_create_with_strides(&matrix->pointer, 2, sizes[i], type, steps);
    }
    return status ? fail(own, "no such matrix", status) : 0;
}

/* beta; sums in one order, where the library can be told; on the host a scratchpad of ours, since the library's own
 * belongs to the thread that made the gemm, and another one runs it. *attributes is to be destroyed whatever comes
 * back. */
static int make_attributes(const struct gemm_onednn *own, float beta, void **attributes) {
    const struct functions *dnnl = &own->functions;
    void *post_ops = NULL;
    int status = dnnl->primitive_attr_create(attributes);
    if (!status && dnnl->primitive_attr_set_deterministic) {
        status = dnnl->primitive_attr_set_deterministic(*attributes, 1);
    }
    if (!status && own->on_host) {
        status = dnnl->primitive_attr_set_scratchpad_mode(*attributes, SCRATCHPAD_OF_CALLER);
    }
    if (!status && beta != 0.0f && !(status = dnnl->post_ops_create(&post_ops))) {
        status = own->version.major == 2 ? dnnl->post_ops_append_sum_2(post_ops, beta)
                                         : dnnl->post_ops_append_sum(post_ops, beta, 0, 0);
        status = status ? status : dnnl->primitive_attr_set_post_ops(*attributes, post_ops);
        dnnl->post_ops_destroy(post_ops);
    }
    return status ? fail(own, "attributes of a GEMM", status) : 0;
}

/* 0 also where the library has no such GEMM, whose primitive stays NULL. */
static int compile(struct gemm_onednn *own, struct onednn_gemm *gemm, const void *attributes) {
    const struct functions *dnnl = &own->functions;
    const void *a = description_of(own, &gemm->matrices[0]), *b = description_of(own, &gemm->matrices[1]),
               *c = description_of(own, &gemm->matrices[2]);
    const char *code = NULL;
    void *descriptor = NULL;
    int status;
    if (own->version.major == 3) {
        status = dnnl->matmul_primitive_desc_create(&descriptor, own->engine, a, b, NULL, c, attributes);
    } else {
        _Alignas(16) char storage[BYTES_OF_GEMM];
        status = dnnl->matmul_desc_init(storage, a, b, NULL, c);
        status = status ? status : dnnl->primitive_desc_create(&descriptor, storage, attributes, own->engine, NULL);
    }
    if (status == STATUS_UNIMPLEMENTED) {
        return 0;
    }
    status = status ? status : dnnl->primitive_desc_query(descriptor, QUERY_CODE, 0, (void *)&code);
    status = status ? status : dnnl->primitive_create(&gemm->primitive, descriptor);
    own->has_plain_loops |= !status && code && strstr(code, "ref");
    /* what a GEMM needs while it runs, if that is anything */
    const void *scratchpad = status ? NULL : dnnl->primitive_desc_query_md(descriptor, QUERY_SCRATCHPAD, 0);
    const size_t bytes = own->on_host && scratchpad ? dnnl->memory_desc_get_size(scratchpad) : 0;
    if (bytes) {
        gemm->scratchpad_storage = aligned_alloc(ALIGNMENT, groups_for(bytes, ALIGNMENT) * ALIGNMENT);
        if (!gemm->scratchpad_storage) {
            memory_refused(bytes);
        }
        status = dnnl->memory_create(&gemm->scratchpad, scratchpad, own->engine, gemm->scratchpad_storage);
    }
    if (descriptor) {
        dnnl->primitive_desc_destroy(descriptor);
    }
    return status ? fail(own, "cannot compile a GEMM", status) : 0;
}

static void destroy(const struct gemm_onednn *own, struct onednn_gemm *gemm) {
    const struct functions *dnnl = &own->functions;
    if (gemm->primitive) {
        dnnl->primitive_destroy(gemm->primitive);
    }
    if (gemm->scratchpad) {
        dnnl->memory_destroy(gemm->scratchpad);
    }
    for (size_t i = 0; i < 3 && own->version.major == 3; i++) {
        if (gemm->matrices[i].pointer) {
            dnnl->memory_desc_destroy(gemm->matrices[i].pointer);
        }
    }
    free(gemm->scratchpad_storage);
    free(gemm);
}

static void forget_all(struct gemm_onednn *own) {
    while (own->gemms) {
        struct onednn_gemm *next = own->gemms->next;
        destroy(own, own->gemms);
        own->gemms = next;
    }
    own->count = 0;
}

/* The GEMM of a shape, compiled at the first need and kept; valid until the next call. NULL where the library has
 * none such for the device, or cannot compile it. */
static const struct onednn_gemm *find(struct gemm_onednn *own, const struct shape *shape) {
    void *attributes = NULL;
    for (const struct onednn_gemm *gemm = own->gemms; gemm; gemm = gemm->next) {
        if (!memcmp(&gemm->shape, shape, sizeof *shape)) {
            return gemm->primitive ? gemm : NULL;
        }
    }
    if (own->count == MOST_GEMMS && compute_settle(own->compute)) {
        forget_all(own);
    }
    struct onednn_gemm *gemm = memory_zeroed(1, sizeof *gemm);
    gemm->shape = *shape;
    const int status = describe_matrices(own, gemm) || make_attributes(own, shape->beta, &attributes)
                           ? -1
                           : compile(own, gemm, attributes);
    if (attributes) {
        own->functions.primitive_attr_destroy(attributes);
    }
    if (status) { /* which is not kept */
        destroy(own, gemm);
        return NULL;
    }
    gemm->next = own->gemms;
    own->gemms = gemm;
    own->count++;
    return gemm->primitive ? gemm : NULL;
}

/* ---- which GEMMs it takes */

/* Whether the library runs GEMMs of this type, which is 16 bits: those that the self-test was about. */
static bool takes_type(const struct compute *compute, enum element_type type) {
    return own_of(compute)->has_16_bits && type == gemm_state(compute)->operands;
}

/* The GEMM for a call that oneDNN is to run; NULL: it cannot, or another backend is faster. */
static const struct onednn_gemm *gemm_for(struct compute *compute, const struct gemm_call *call) {
    struct gemm_onednn *own = own_of(compute);
    const enum element_type a = call->a.buffer->type, b = call->b.buffer->type, c = call->c.buffer->type;
    const bool is_fp32 = a == ELEMENT_FP32 && b == ELEMENT_FP32 && c == ELEMENT_FP32;
    const bool has_type =
        is_fp32 ? !own->only_16_bits : a == b && (c == a || c == ELEMENT_FP32) && takes_type(compute, a);
    const struct matrix *matrices[] = {&call->a, &call->b, &call->c};
    if (gemm_call_has_epilogue(call) || !has_type) {
        return NULL;
    }
    for (size_t i = 0; i < 3; i++) { /* a sub-buffer begins at multiples of the alignment */
        const struct buffer *buffer = matrices[i]->buffer;
        if (!buffer->host && matrices[i]->offset * element_size(buffer->type) % own->alignment) {
            return NULL;
        }
    }
    const struct shape shape = {
        .transpose_a = call->transpose_a,
        .transpose_b = call->transpose_b,
        .m = call->m,
        .n = call->n,
        .k = call->k,
        .strides = {call->a.stride, call->b.stride, call->c.stride},
        .types = {a, b, c},
        .beta = call->beta,
    };
    return find(own, &shape);
}

static bool onednn_takes(struct compute *compute, const struct gemm_call *call) {
    return gemm_for(compute, call) != NULL;
}

/* ---- running */

/* matrices[i] is the first element of A, B or C: on a GPU a cl_mem, and the GEMM is only put into the queue; on the
 * host an address, and the GEMM is done on return, by one thread at a time. The library's status. */
static int execute(const struct gemm_onednn *own, const struct onednn_gemm *gemm, void *const matrices[3]) {
    const struct functions *dnnl = &own->functions;
    struct argument arguments[] = {{ARGUMENT_A, NULL},
                                   {ARGUMENT_B, NULL},
                                   {ARGUMENT_C, NULL},
                                   {ARGUMENT_SCRATCHPAD, gemm->scratchpad}};
    int status = 0;
    for (size_t i = 0; i < 3 && !status; i++) {
        const void *description = description_of(own, &gemm->matrices[i]);
        void **memory = &arguments[i].memory;
        status = own->on_host ? dnnl->memory_create(memory, description, own->engine, matrices[i])
                              : dnnl->ocl_interop_memory_create(memory, description, own->engine, MEMORY_BUFFER,
                                                                matrices[i]);
    }
    const int count = gemm->scratchpad ? 4 : 3;
    status = status ? status : dnnl->primitive_execute(gemm->primitive, own->stream, count, arguments);
    if (!status && own->on_host) {
        status = dnnl->stream_wait(own->stream);
    }
    for (size_t i = 0; i < 3; i++) {
        if (arguments[i].memory) { /* the queue keeps what it still needs */
            dnnl->memory_destroy(arguments[i].memory);
        }
    }
    return status;
}

/* The matrix from its first element on, which the caller releases; NULL with a reason. */
static cl_mem view_of(const struct matrix *matrix) {
    const size_t element = element_size(matrix->buffer->type);
    const cl_buffer_region region = {matrix->offset * element,
                                     ((matrix->rows - 1) * matrix->stride + matrix->columns) * element};
    cl_int code;
    cl_mem view = clCreateSubBuffer(matrix->buffer->memory, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
    if (!view) {
        error_set("a sub-buffer: %s", device_error_text(code));
    }
    return view;
}

static void run_on_gpu(struct compute *compute, const struct onednn_gemm *gemm, const struct gemm_call *x) {
    const struct gemm_onednn *own = own_of(compute);
    const cl_event begin = gemm_call_mark(compute);
    cl_mem views[3] = {view_of(&x->a), view_of(&x->b), view_of(&x->c)};
    const bool there = views[0] && views[1] && views[2];
    const int status = there ? execute(own, gemm, (void *const *)views) : 0;
    for (size_t i = 0; i < 3; i++) {
        if (views[i]) {
            clReleaseMemObject(views[i]); /* the queue keeps what it still needs */
        }
    }
    if (status || !there) {
        compute_fail(compute, "cannot launch %s: %s%s", x->name, there ? "oneDNN: " : "",
                     there ? own->functions.status2str(status) : error_text());
    }
    gemm_call_profile(compute, x, begin, gemm_call_mark(compute));
}

/* What the native kernel on the host gets. */
struct work {
    struct gemm_places places;
    const struct gemm_onednn *own;
    const struct onednn_gemm *gemm;
    void *matrices[3];
};

static void run_here(void *argument) {
    const struct work *work = argument;
    const struct gemm_onednn *own = work->own;
    const int status = execute(own, work->gemm, work->matrices);
    if (status) {
        compute_fail_natively(own->compute, memory_format("a matrix multiplication failed: oneDNN %s: %s",
                                                          own->version_text, own->functions.status2str(status)));
    }
}

static void CL_CALLBACK work_run(void *work) {
    worker_do(((struct work *)work)->own->worker, run_here, work);
}

/* Also for the self-test, which is not asked before whether the library takes the call. */
static void onednn_run(struct compute *compute, const struct gemm_call *call) {
    const struct onednn_gemm *gemm = gemm_for(compute, call);
    if (!gemm) {
        compute_fail(compute, "no such GEMM for this device");
        return;
    }
    gemm_call_begin(compute, call); /* true: no compute is dry here */
    if (call->c.buffer->host) {
        struct work work = {.own = own_of(compute),
                            .gemm = gemm,
                            .matrices = {matrix_address(&call->a), matrix_address(&call->b),
                                         matrix_address(&call->c)}};
        gemm_call_run_native(compute, call, work_run, &work.places, sizeof work);
    } else {
        run_on_gpu(compute, gemm, call);
    }
}

/* ---- self-test */

/* What layers need of this type: forward, the input's gradient, and the weights' in fp32, added to what is there.
 * The library is not asked again for 16 bits that fail. */
static int self_test(struct compute *compute, enum element_type type) {
    struct gemm_onednn *own = own_of(compute);
    const size_t boundary = own->alignment;
    const struct gemm_case cases[] = {
        {false, true, 96, 80, 160, {type, type, type}, .pads = {0, 0, 8}, .offsets = {boundary, 0, boundary}},
        {false, false, 93, 72, 64, {type, type, type}, .beta = 0},
        {true, false, 96, 40, 77, {type, type, ELEMENT_FP32}, .beta = 1, .offsets = {0, boundary, 0}},
    };
    own->has_16_bits = type != ELEMENT_FP32;
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (gemm_verify_case(compute, onednn_run, &cases[i])) {
            compute_forget(compute);
            own->has_16_bits = false;
            return error_prefix("self-test with %s", element_name(type));
        }
    }
    return 0;
}

static int check_loops(const struct gemm_onednn *own) {
    if (own->has_plain_loops) {
        return error_set("oneDNN %s has only plain loops for this device", own->version_text);
    }
    return 0;
}

/* ---- opening */

/* GEMMs of 16 bits may fail: those are fp32 then, and said to be. A library that cannot be told to give the same
 * bits each time may add in another order. */
static int test_on_gpu(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    const struct gemm_onednn *own = own_of(compute);
    struct matrix_cores cores;
    if (self_test(compute, ELEMENT_FP32) || (state->automatic && check_loops(own))) {
        return -1;
    }
    if (state->automatic && !own->functions.primitive_attr_set_deterministic) {
        return error_set("oneDNN %s cannot be told to give the same bits each time (3.4 and later can)",
                         own->version_text);
    }
    if (state->operands == ELEMENT_FP32 || self_test(compute, state->operands) == 0) {
        state->matrix_cores = matrix_cores_find(&compute->device, &cores) == 0 ? "oneDNN" : NULL;
        return 0;
    }
    if (state->automatic) {
        return -1;
    }
    gemm_keep_reason(state->refusal);
    return 0;
}

/* GEMMs of 16 bits are fp32 where they do not work, unless they are why the library was opened; on a CPU that has
 * no instructions for them nobody is told. Whether it can be told to give the same bits each time is not asked: it
 * says that it does in the same environment, but for what adds by atomic operations, and on CPUs GEMMs do not. */
static int test_on_host(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    struct gemm_onednn *own = own_of(compute);
    const char *instructions = compute->device.matrix_cores.names[state->operands];
    if (!own->only_16_bits && self_test(compute, ELEMENT_FP32)) {
        return -1;
    }
    if (state->operands == ELEMENT_FP32) {
        return 0;
    }
    const int status = self_test(compute, state->operands) || (*instructions && check_loops(own)) ? -1 : 0;
    own->has_16_bits = status == 0;
    if (status && *instructions) {
        gemm_keep_reason(state->refusal);
        return state->automatic ? -1 : 0;
    }
    state->matrix_cores = *instructions ? instructions : NULL;
    return 0;
}

static void backend_close(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    struct gemm_onednn *own = state->onednn;
    forget_all(own);
    if (own->stream) {
        own->functions.stream_destroy(own->stream);
    }
    if (own->engine) {
        own->functions.engine_destroy(own->engine);
    }
    worker_stop(own->worker);
    free(own);
    state->onednn = NULL;
}

/* oneDNN asks what chip it is on of a program's binary and ends the process, by an exception that nobody catches,
 * where that is not the format of Intel's own compiler: rusticl's is not. */
static int open_library(struct compute *compute) {
    struct gemm_onednn *own = own_of(compute);
    const struct device *device = &compute->device;
    cl_uint bits = 0;
    if (!own->on_host && !device_by_intel(device)) {
        return error_set("oneDNN needs Intel's own OpenCL driver, and this is %s", device->platform_name);
    }
    if (clGetDeviceInfo(device->id, CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof bits, &bits, NULL) || bits < 8) {
        return error_set("the device does not say where parts of a buffer may begin");
    }
    own->alignment = bits / 8;
    if (load(own)) {
        return -1;
    }
    const struct functions *dnnl = &own->functions;
    int status = own->on_host ? dnnl->engine_create(&own->engine, ENGINE_CPU, 0)
                              : dnnl->ocl_interop_engine_create(&own->engine, device->id, compute->context);
    if (status) {
        return fail(own, "no engine for this device", status);
    }
    status = own->on_host ? dnnl->stream_create(&own->stream, own->engine, STREAM_IN_ORDER)
                          : dnnl->ocl_interop_stream_create(&own->stream, own->engine, compute->queue);
    if (status) {
        return fail(own, "no stream on this queue", status);
    }
    if (!own->on_host) {
        gemm_state(compute)->fp32 = &gemm_backend_clblast;
        return gemm_backend_clblast.open(compute) ? -1 : test_on_gpu(compute);
    }
    if (worker_start(&own->worker)) {
        return -1;
    }
    const bool has_blas = gemm_backend_cblas.open(compute) == 0;
    gemm_state(compute)->fp32 = has_blas ? &gemm_backend_cblas : &gemm_backend_portable;
    return test_on_host(compute);
}

static int backend_open(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    if (compute->dry || compute->device.model) {
        return error_set("what oneDNN launches is its own: it cannot be recorded for a device that is not here");
    }
    struct gemm_onednn *own = state->onednn = memory_zeroed(1, sizeof *own);
    own->compute = compute;
    own->on_host = compute->device.native_kernels;
    own->only_16_bits = state->automatic && own->on_host;
    if (open_library(compute)) {
        backend_close(compute);
        return -1;
    }
    snprintf(state->runs_on, sizeof state->runs_on, "the %s, library %s", compute->device.is_gpu ? "GPU" : "CPU",
             state->onednn->version_text);
    return 0;
}

const struct gemm_backend gemm_backend_onednn = {.name = "onednn",
                                                 .open = backend_open,
                                                 .run = onednn_run,
                                                 .close = backend_close,
                                                 .takes = onednn_takes,
                                                 .takes_type = takes_type,
                                                 .uses_matrix_cores = true};
