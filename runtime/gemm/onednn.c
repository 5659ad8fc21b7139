#include "runtime/gemm/onednn.h"
#include "runtime/system/error.h"
#include "runtime/system/library.h"
#include "runtime/system/memory.h"
#include <stdlib.h>
#include <string.h>

/* Of oneDNN's interface, the same in versions 2 and 3. */
enum { ENGINE_CPU = 1, RUNTIME_OPENCL = 256, STREAM_IN_ORDER = 1, MEMORY_BUFFER = 1, SCRATCHPAD_OF_CALLER = 1 };
enum { QUERY_CODE = 8, QUERY_SCRATCHPAD = 136, STATUS_UNIMPLEMENTED = 3 };
enum { TYPE_FP16 = 1, TYPE_BF16 = 2, TYPE_FP32 = 3 };
enum { ARGUMENT_A = 1, ARGUMENT_C = 17, ARGUMENT_B = 33, ARGUMENT_SCRATCHPAD = 80 };

#define ALIGNMENT 64 /* bytes, of a scratchpad */

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

/* Functions of the library; pointers to its objects are opaque. All of them return 0 when all is well. */
struct functions {
    const struct version *(*version)(void);
    const char *(*status_text)(int status);
    int (*engine_create)(void **engine, int kind, size_t index);
    int (*engine_create_opencl)(void **engine, cl_device_id device, cl_context context);
    int (*engine_destroy)(void *engine);
    int (*stream_create)(void **stream, void *engine, unsigned flags);
    int (*stream_create_opencl)(void **stream, void *engine, cl_command_queue queue);
    int (*stream_wait)(void *stream);
    int (*stream_destroy)(void *stream);
    int (*memory_create)(void **memory, const void *description, void *engine, void *host);
    int (*memory_create_opencl)(void **memory, const void *description, void *engine, int kind, void *buffer);
    int (*memory_destroy)(void *memory);
    int (*attributes_create)(void **attributes);
    int (*attributes_set_post_ops)(void *attributes, const void *post_ops);
    int (*attributes_set_deterministic)(void *attributes, int wanted);
    int (*attributes_destroy)(void *attributes);
    int (*post_ops_create)(void **post_ops);
    int (*post_ops_destroy)(void *post_ops);
    int (*attributes_set_scratchpad)(void *attributes, int mode);
    int (*descriptor_query)(const void *descriptor, int what, int index, void *answer);
    const void *(*descriptor_query_memory)(const void *descriptor, int what, int index);
    int (*descriptor_destroy)(void *descriptor);
    size_t (*memory_bytes)(const void *description);
    int (*primitive_create)(void **primitive, const void *descriptor);
    int (*primitive_execute)(const void *primitive, void *stream, int count, const struct argument *arguments);
    int (*primitive_destroy)(void *primitive);
    union {
        int (*in_2)(void *storage, int dimensions, const int64_t *sizes, int type, const int64_t *strides);
        int (*in_3)(void **description, int dimensions, const int64_t *sizes, int type, const int64_t *strides);
    } matrix_describe;
    int (*matrix_forget_3)(void *description);
    int (*describe_2)(void *storage, const void *a, const void *b, const void *bias, const void *c);
    union {
        int (*in_2)(void **descriptor, const void *gemm, const void *attributes, void *engine, const void *hint);
        int (*in_3)(void **descriptor, void *engine, const void *a, const void *b, const void *bias, const void *c,
                    const void *attributes);
    } descriptor_create;
    union {
        int (*in_2)(void *post_ops, float scale);
        int (*in_3)(void *post_ops, float scale, int32_t zero_point, int type);
    } post_ops_add_old;
};

/* GEMMs that are kept. A model's step has some dozens of shapes; texts of all lengths have as many as there are. */
#define MOST_GEMMS 256

struct onednn {
    struct compute *compute;
    struct onednn_gemm *gemms; /* newest first */
    size_t count;
    struct functions functions;
    struct version version;
    char version_text[32];
    bool on_host; /* the device works on the host's memory */
    void *engine, *stream;
};

struct onednn_gemm {
    struct onednn_shape shape;
    struct onednn_gemm *next;
    const struct onednn *onednn;
    union description matrices[3];
    void *primitive;  /* NULL: the library has none for this shape */
    void *scratchpad; /* the primitive's memory object and its storage; NULL: none, or on a GPU */
    void *scratchpad_storage;
    char code[64];
};

/* ---- the library */

enum need { ALWAYS, FOR_OPENCL, IN_2, IN_3, IF_THERE };

static const struct function_row {
    const char *name;
    size_t place; /* in struct functions */
    enum need need;
} rows[] = {
#define ROW(name, member, need) {"dnnl_" name, offsetof(struct functions, member), need}
    ROW("version", version, ALWAYS),
    ROW("status2str", status_text, ALWAYS),
    ROW("engine_create", engine_create, ALWAYS),
    ROW("engine_destroy", engine_destroy, ALWAYS),
    ROW("ocl_interop_engine_create", engine_create_opencl, FOR_OPENCL),
    ROW("stream_create", stream_create, ALWAYS),
    ROW("stream_wait", stream_wait, ALWAYS),
    ROW("stream_destroy", stream_destroy, ALWAYS),
    ROW("ocl_interop_stream_create", stream_create_opencl, FOR_OPENCL),
    ROW("memory_create", memory_create, ALWAYS),
    ROW("memory_destroy", memory_destroy, ALWAYS),
    ROW("ocl_interop_memory_create", memory_create_opencl, FOR_OPENCL),
    ROW("primitive_attr_create", attributes_create, ALWAYS),
    ROW("primitive_attr_set_post_ops", attributes_set_post_ops, ALWAYS),
    ROW("primitive_attr_set_deterministic", attributes_set_deterministic, IF_THERE),
    ROW("primitive_attr_destroy", attributes_destroy, ALWAYS),
    ROW("post_ops_create", post_ops_create, ALWAYS),
    ROW("post_ops_destroy", post_ops_destroy, ALWAYS),
    ROW("post_ops_append_sum", post_ops_add_old, ALWAYS),
    ROW("primitive_attr_set_scratchpad_mode", attributes_set_scratchpad, ALWAYS),
    ROW("primitive_desc_query", descriptor_query, ALWAYS),
    ROW("primitive_desc_query_md", descriptor_query_memory, ALWAYS),
    ROW("primitive_desc_destroy", descriptor_destroy, ALWAYS),
    ROW("memory_desc_get_size", memory_bytes, ALWAYS),
    ROW("primitive_create", primitive_create, ALWAYS),
    ROW("primitive_execute", primitive_execute, ALWAYS),
    ROW("primitive_destroy", primitive_destroy, ALWAYS),
    ROW("memory_desc_init_by_strides", matrix_describe, IN_2),
    ROW("matmul_desc_init", describe_2, IN_2),
    ROW("primitive_desc_create", descriptor_create, IN_2),
    ROW("memory_desc_create_with_strides", matrix_describe, IN_3),
    ROW("memory_desc_destroy", matrix_forget_3, IN_3),
    ROW("matmul_primitive_desc_create", descriptor_create, IN_3),
#undef ROW
};

static bool is_needed(const struct onednn *onednn, enum need need) {
    return need == ALWAYS || need == IF_THERE || (need == FOR_OPENCL && !onednn->on_host) ||
           (need == IN_2 && onednn->version.major == 2) || (need == IN_3 && onednn->version.major == 3);
}

/* Whether this library will do; if not, a line of why. */
static int take_functions(struct onednn *onednn, void *library) {
    const struct version *(*version)(void);
    onednn->functions = (struct functions){0}; /* nothing stays of a library that would not do */
    if (!library_find(library, "dnnl_version", &version)) {
        return error_set("has no dnnl_version");
    }
    onednn->version = *version();
    snprintf(onednn->version_text, sizeof onednn->version_text, "%d.%d.%d", onednn->version.major,
             onednn->version.minor, onednn->version.patch);
    if (onednn->version.major != 2 && onednn->version.major != 3) {
        return error_set("is of version %s; 2 and 3 are known", onednn->version_text);
    }
    if (!onednn->on_host && onednn->version.gpu_runtime != RUNTIME_OPENCL) {
        return error_set("%s was built without OpenCL", onednn->version_text);
    }
    for (size_t i = 0; i < COUNT(rows); i++) {
        void *place = (char *)&onednn->functions + rows[i].place;
        if (is_needed(onednn, rows[i].need) && !library_find(library, rows[i].name, place) &&
            rows[i].need != IF_THERE) {
            return error_set("%s has no %s", onednn->version_text, rows[i].name);
        }
    }
    return 0;
}

/* Libraries that will not do stay loaded, as OpenBLAS does: some end badly when they are unloaded. */
static int load(struct onednn *onednn) {
    static const char *const names[] = {"libdnnl.so.3", "libdnnl.so.3.6" /* Debian 13 */, "libdnnl.so.2",
                                        "libdnnl.so"};
    char reasons[1024] = "";
    for (size_t i = 0; i < COUNT(names); i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (library && take_functions(onednn, library) == 0) {
            return 0;
        }
        const size_t used = strlen(reasons);
        snprintf(reasons + used, sizeof reasons - used, "%s%s%s%s", used ? "; " : "", library ? names[i] : "",
                 library ? " " : "", library ? error_text() : dlerror());
    }
    return error_set("no oneDNN that can be used: %s", reasons);
}

const char *onednn_status_text(const struct onednn *onednn, int status) {
    return onednn->functions.status_text(status);
}

static int fail(const struct onednn *onednn, const char *what, int status) {
    return error_set("oneDNN %s: %s: %s", onednn->version_text, what, onednn_status_text(onednn, status));
}

/* ---- opening */

/* oneDNN asks what chip it is on of a program's binary and ends the process, by an exception that nobody catches,
 * where that is not the format of Intel's own compiler: rusticl's is not. */
static int check_driver(const struct device *device) {
    return device_by_intel(device)
               ? 0
               : error_set("oneDNN needs Intel's own OpenCL driver, and this is %s", device->platform_name);
}

static int create_engine(struct onednn *onednn, const struct compute *compute) {
    const struct functions *dnnl = &onednn->functions;
    int status = onednn->on_host
                     ? dnnl->engine_create(&onednn->engine, ENGINE_CPU, 0)
                     : dnnl->engine_create_opencl(&onednn->engine, compute->device.id, compute->context);
    if (status) {
        return fail(onednn, "no engine for this device", status);
    }
    status = onednn->on_host ? dnnl->stream_create(&onednn->stream, onednn->engine, STREAM_IN_ORDER)
                             : dnnl->stream_create_opencl(&onednn->stream, onednn->engine, compute->queue);
    return status ? fail(onednn, "no stream on this queue", status) : 0;
}

const char *onednn_version(const struct onednn *onednn) {
    return onednn->version_text;
}

bool onednn_repeats(const struct onednn *onednn) {
    return onednn->functions.attributes_set_deterministic != NULL;
}

/* ---- compiling GEMMs */

static const void *description_of(const struct onednn *onednn, const union description *description) {
    return onednn->version.major == 2 ? description : description->pointer;
}

static int type_number(enum element_type type) {
    return type == ELEMENT_FP32 ? TYPE_FP32 : type == ELEMENT_BF16 ? TYPE_BF16 : TYPE_FP16;
}

/* A matrix of so many rows and columns as the GEMM sees it; a transposed one lies the other way round. */
static int describe_matrix(const struct onednn *onednn, size_t rows_seen, size_t columns_seen, size_t stride,
                           bool transposed, enum element_type type, union description *description) {
    const int64_t sizes[] = {(int64_t)rows_seen, (int64_t)columns_seen};
    const int64_t steps[] = {transposed ? 1 : (int64_t)stride, transposed ? (int64_t)stride : 1};
    const int status =
        onednn->version.major == 2
            ? onednn->functions.matrix_describe.in_2(description->storage, 2, sizes, type_number(type), steps)
            : onednn->functions.matrix_describe.in_3(&description->pointer, 2, sizes, type_number(type), steps);
    return status ? fail(onednn, "no such matrix", status) : 0;
}

/* beta; sums in one order, where the library can be told; on the host a scratchpad of ours, since the library's own
 * belongs to the thread that made the gemm, and another one runs it. *attributes is to be destroyed whatever comes
 * back. */
static int make_attributes(const struct onednn *onednn, float beta, void **attributes) {
    const struct functions *dnnl = &onednn->functions;
    void *post_ops = NULL;
    int status = dnnl->attributes_create(attributes);
    if (!status && dnnl->attributes_set_deterministic) {
        status = dnnl->attributes_set_deterministic(*attributes, 1);
    }
    if (!status && onednn->on_host) {
        status = dnnl->attributes_set_scratchpad(*attributes, SCRATCHPAD_OF_CALLER);
    }
    if (!status && beta != 0.0f) {
        status = dnnl->post_ops_create(&post_ops);
        status = status                       ? status
                 : onednn->version.major == 2 ? dnnl->post_ops_add_old.in_2(post_ops, beta)
                                              : dnnl->post_ops_add_old.in_3(post_ops, beta, 0, 0);
        status = status ? status : dnnl->attributes_set_post_ops(*attributes, post_ops);
    }
    if (post_ops) {
        dnnl->post_ops_destroy(post_ops);
    }
    return status ? fail(onednn, "attributes of a GEMM", status) : 0;
}

/* The status of the library, and where it is 0 what it would compile: to be destroyed. */
static int make_descriptor(const struct onednn_gemm *gemm, const void *attributes, void **descriptor) {
    const struct onednn *onednn = gemm->onednn;
    const struct functions *dnnl = &onednn->functions;
    const void *a = description_of(onednn, &gemm->matrices[0]), *b = description_of(onednn, &gemm->matrices[1]),
               *c = description_of(onednn, &gemm->matrices[2]);
    if (onednn->version.major == 3) {
        return dnnl->descriptor_create.in_3(descriptor, onednn->engine, a, b, NULL, c, attributes);
    }
    _Alignas(16) char storage[BYTES_OF_GEMM];
    const int status = dnnl->describe_2(storage, a, b, NULL, c);
    return status ? status : dnnl->descriptor_create.in_2(descriptor, storage, attributes, onednn->engine, NULL);
}

/* On the host what a GEMM needs while it runs, if that is anything. */
static int take_scratchpad(struct onednn_gemm *gemm, const void *descriptor) {
    const struct onednn *onednn = gemm->onednn;
    const struct functions *dnnl = &onednn->functions;
    const void *description = dnnl->descriptor_query_memory(descriptor, QUERY_SCRATCHPAD, 0);
    const size_t bytes = onednn->on_host && description ? dnnl->memory_bytes(description) : 0;
    if (bytes == 0) {
        return 0;
    }
    gemm->scratchpad_storage = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (!gemm->scratchpad_storage) {
        memory_refused(bytes);
    }
    const int status =
        dnnl->memory_create(&gemm->scratchpad, description, onednn->engine, gemm->scratchpad_storage);
    return status ? fail(onednn, "scratchpad of a GEMM", status) : 0;
}

/* 0 also where the library has no such GEMM, whose primitive stays NULL. */
static int compile(struct onednn_gemm *gemm, const void *attributes) {
    const struct onednn *onednn = gemm->onednn;
    const struct functions *dnnl = &onednn->functions;
    const char *code = NULL;
    void *descriptor = NULL;
    int status = make_descriptor(gemm, attributes, &descriptor);
    if (status == STATUS_UNIMPLEMENTED) {
        return 0;
    }
    status = status ? status : dnnl->descriptor_query(descriptor, QUERY_CODE, 0, (void *)&code);
    status = status ? status : dnnl->primitive_create(&gemm->primitive, descriptor);
    status = status ? fail(onednn, "cannot compile a GEMM", status) : take_scratchpad(gemm, descriptor);
    snprintf(gemm->code, sizeof gemm->code, "%s", code ? code : "");
    if (descriptor) {
        dnnl->descriptor_destroy(descriptor);
    }
    return status ? -1 : 0;
}

static int describe_matrices(struct onednn_gemm *gemm, const struct onednn_shape *x) {
    const struct onednn *onednn = gemm->onednn;
    union description *matrices = gemm->matrices;
    return describe_matrix(onednn, x->m, x->k, x->strides[0], x->transpose_a, x->types[0], &matrices[0]) ||
                   describe_matrix(onednn, x->k, x->n, x->strides[1], x->transpose_b, x->types[1], &matrices[1]) ||
                   describe_matrix(onednn, x->m, x->n, x->strides[2], false, x->types[2], &matrices[2])
               ? -1
               : 0;
}

static void destroy(struct onednn_gemm *gemm) {
    const struct functions *dnnl = &gemm->onednn->functions;
    if (gemm->primitive) {
        dnnl->primitive_destroy(gemm->primitive);
    }
    if (gemm->scratchpad) {
        dnnl->memory_destroy(gemm->scratchpad);
    }
    for (size_t i = 0; i < 3 && gemm->onednn->version.major == 3; i++) {
        if (gemm->matrices[i].pointer) {
            dnnl->matrix_forget_3(gemm->matrices[i].pointer);
        }
    }
    free(gemm->scratchpad_storage);
    free(gemm);
}

static void forget_all(struct onednn *onednn) {
    while (onednn->gemms) {
        struct onednn_gemm *next = onednn->gemms->next;
        destroy(onednn->gemms);
        onednn->gemms = next;
    }
    onednn->count = 0;
}

static bool is_same(const struct onednn_shape *x, const struct onednn_shape *y) {
    return x->transpose_a == y->transpose_a && x->transpose_b == y->transpose_b && x->m == y->m && x->n == y->n &&
           x->k == y->k && !memcmp(x->strides, y->strides, sizeof x->strides) &&
           !memcmp(x->types, y->types, sizeof x->types) && !(x->beta < y->beta || x->beta > y->beta);
}

const struct onednn_gemm *onednn_find(struct onednn *onednn, const struct onednn_shape *shape) {
    void *attributes = NULL;
    for (const struct onednn_gemm *gemm = onednn->gemms; gemm; gemm = gemm->next) {
        if (is_same(&gemm->shape, shape)) {
            return gemm->primitive ? gemm : NULL;
        }
    }
    if (onednn->count == MOST_GEMMS && compute_settle(onednn->compute)) {
        forget_all(onednn);
    }
    struct onednn_gemm *gemm = memory_zeroed(1, sizeof *gemm);
    gemm->shape = *shape;
    gemm->onednn = onednn;
    const int status = describe_matrices(gemm, shape) || make_attributes(onednn, shape->beta, &attributes)
                           ? -1
                           : compile(gemm, attributes);
    if (attributes) {
        onednn->functions.attributes_destroy(attributes);
    }
    if (status) { /* which is not kept */
        destroy(gemm);
        return NULL;
    }
    gemm->next = onednn->gemms;
    onednn->gemms = gemm;
    onednn->count++;
    return gemm->primitive ? gemm : NULL;
}

bool onednn_has_plain_loops(const struct onednn *onednn) {
    const struct onednn_gemm *gemm = onednn->gemms;
    while (gemm && !strstr(gemm->code, "ref")) {
        gemm = gemm->next;
    }
    return gemm != NULL;
}

/* ---- opening and closing */

int onednn_open(struct compute *compute, struct onednn **opened) {
    *opened = NULL;
    struct onednn *onednn = memory_zeroed(1, sizeof *onednn);
    onednn->compute = compute;
    onednn->on_host = compute->device.native_kernels;
    if ((!onednn->on_host && check_driver(&compute->device)) || load(onednn) || create_engine(onednn, compute)) {
        onednn_close(onednn);
        return -1;
    }
    *opened = onednn;
    return 0;
}

void onednn_close(struct onednn *onednn) {
    if (onednn) {
        forget_all(onednn);
    }
    if (onednn && onednn->stream) {
        onednn->functions.stream_destroy(onednn->stream);
    }
    if (onednn && onednn->engine) {
        onednn->functions.engine_destroy(onednn->engine);
    }
    free(onednn);
}

/* ---- running them */

static int make_memory(const struct onednn *onednn, const union description *description, void *matrix,
                       void **memory) {
    const void *described = description_of(onednn, description);
    return onednn->on_host
               ? onednn->functions.memory_create(memory, described, onednn->engine, matrix)
               : onednn->functions.memory_create_opencl(memory, described, onednn->engine, MEMORY_BUFFER, matrix);
}

int onednn_run(const struct onednn_gemm *gemm, void *const matrices[3]) {
    static const int which[] = {ARGUMENT_A, ARGUMENT_B, ARGUMENT_C};
    const struct onednn *onednn = gemm->onednn;
    const struct functions *dnnl = &onednn->functions;
    struct argument arguments[4] = {[3] = {ARGUMENT_SCRATCHPAD, gemm->scratchpad}};
    int status = 0;
    for (size_t i = 0; i < 3 && !status; i++) {
        arguments[i].which = which[i];
        status = make_memory(onednn, &gemm->matrices[i], matrices[i], &arguments[i].memory);
    }
    const int count = gemm->scratchpad ? 4 : 3;
    status = status ? status : dnnl->primitive_execute(gemm->primitive, onednn->stream, count, arguments);
    if (!status && onednn->on_host) {
        status = dnnl->stream_wait(onednn->stream);
    }
    for (size_t i = 0; i < 3; i++) {
        if (arguments[i].memory) { /* the queue keeps what it still needs */
            dnnl->memory_destroy(arguments[i].memory);
        }
    }
    return status;
}
