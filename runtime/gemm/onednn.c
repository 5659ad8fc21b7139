#include "runtime/gemm/onednn.h"
#include "runtime/system/error.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* Of oneDNN's interface, the same in versions 2 and 3. */
enum { ENGINE_CPU = 1, RUNTIME_OPENCL = 256, STREAM_IN_ORDER = 1, MEMORY_BUFFER = 1, QUERY_CODE = 8 };
enum { TYPE_FP16 = 1, TYPE_BF16 = 2, TYPE_FP32 = 3 };
enum { ARGUMENT_A = 1, ARGUMENT_C = 17, ARGUMENT_B = 33 };

struct version {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime, gpu_runtime;
};

struct argument {
    int which;
    void *memory;
};

/* Version 2 describes matrices and products by structures of its own (696 and 2800 bytes in 2.6), which it fills in where it
 * is given the room; version 3 returns pointers to them. */
enum { ROOM_OF_MATRIX = 4 << 10, ROOM_OF_PRODUCT = 16 << 10 };

union description {
    void *pointer;
    _Alignas(16) char room[ROOM_OF_MATRIX];
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
    int (*plan_query)(const void *plan, int what, int index, void *answer);
    int (*plan_destroy)(void *plan);
    int (*primitive_create)(void **primitive, const void *plan);
    int (*primitive_execute)(const void *primitive, void *stream, int count, const struct argument *arguments);
    int (*primitive_destroy)(void *primitive);
    union {
        int (*in_2)(void *room, int dimensions, const int64_t *sizes, int type, const int64_t *strides);
        int (*in_3)(void **description, int dimensions, const int64_t *sizes, int type, const int64_t *strides);
    } describe;
    int (*description_destroy_3)(void *description);
    int (*product_2)(void *room, const void *a, const void *b, const void *bias, const void *c);
    union {
        int (*in_2)(void **plan, const void *product, const void *attributes, void *engine, const void *hint);
        int (*in_3)(void **plan, void *engine, const void *a, const void *b, const void *bias, const void *c,
                    const void *attributes);
    } plan;
    union {
        int (*in_2)(void *post_ops, float scale);
        int (*in_3)(void *post_ops, float scale, int32_t zero_point, int type);
    } add_old;
};

struct onednn {
    struct functions call;
    struct version version;
    char version_text[32];
    bool on_host; /* the device works on the host's memory */
    void *engine, *stream;
};

struct onednn_product {
    const struct onednn *onednn;
    union description matrices[3];
    void *primitive;
    char code[64];
};

/* ---- the library */

enum need { ALWAYS, FOR_OPENCL, IN_2, IN_3, IF_THERE };

static const struct function_row {
    const char *name;
    size_t place; /* in struct functions */
    enum need need;
} rows[] = {
#define ROW(name, member, need)                                                                                    \
    { "dnnl_" name, offsetof(struct functions, member), need }
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
    ROW("post_ops_append_sum", add_old, ALWAYS),
    ROW("primitive_desc_query", plan_query, ALWAYS),
    ROW("primitive_desc_destroy", plan_destroy, ALWAYS),
    ROW("primitive_create", primitive_create, ALWAYS),
    ROW("primitive_execute", primitive_execute, ALWAYS),
    ROW("primitive_destroy", primitive_destroy, ALWAYS),
    ROW("memory_desc_init_by_strides", describe, IN_2),
    ROW("matmul_desc_init", product_2, IN_2),
    ROW("primitive_desc_create", plan, IN_2),
    ROW("memory_desc_create_with_strides", describe, IN_3),
    ROW("memory_desc_destroy", description_destroy_3, IN_3),
    ROW("matmul_primitive_desc_create", plan, IN_3),
#undef ROW
};

static bool is_needed(const struct onednn *onednn, enum need need) {
    return need == ALWAYS || need == IF_THERE || (need == FOR_OPENCL && !onednn->on_host) ||
           (need == IN_2 && onednn->version.major == 2) || (need == IN_3 && onednn->version.major == 3);
}

/* Object and function pointers have one size on every POSIX system. */
static bool take(struct onednn *onednn, void *library, const struct function_row *row) {
    void *symbol = dlsym(library, row->name);
    if (!symbol) {
        return row->need == IF_THERE;
    }
    memcpy((char *)&onednn->call + row->place, &symbol, sizeof symbol);
    return true;
}

/* Whether this library will do; if not, a line of why. */
static int take_functions(struct onednn *onednn, void *library) {
    const struct version *(*version)(void);
    void *symbol = dlsym(library, "dnnl_version");
    if (!symbol) {
        return error_set("has no dnnl_version");
    }
    memcpy(&version, &symbol, sizeof version);
    onednn->version = *version();
    snprintf(onednn->version_text, sizeof onednn->version_text, "%d.%d.%d", onednn->version.major,
             onednn->version.minor, onednn->version.patch);
    if (onednn->version.major != 2 && onednn->version.major != 3) {
        return error_set("is of version %s; 2 and 3 are known", onednn->version_text);
    }
    if (!onednn->on_host && onednn->version.gpu_runtime != RUNTIME_OPENCL) {
        return error_set("%s was built without OpenCL", onednn->version_text);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (is_needed(onednn, rows[i].need) && !take(onednn, library, &rows[i])) {
            return error_set("%s has no %s", onednn->version_text, rows[i].name);
        }
    }
    return 0;
}

/* Libraries that will not do stay loaded, as OpenBLAS does: some end badly when they are unloaded. */
static int load(struct onednn *onednn) {
    static const char *const names[] = {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"};
    char reasons[512] = "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        const size_t used = strlen(reasons);
        if (library && take_functions(onednn, library) == 0) {
            return 0;
        }
        if (library) {
            snprintf(reasons + used, sizeof reasons - used, "; %s %s", names[i], error_text());
        }
    }
    return error_set("no oneDNN that can be used%s%s", *reasons ? reasons : ": libdnnl.so.3 or .2 is not there",
                     onednn->on_host ? "" : " (Debian's libdnnl2 has OpenCL)");
}

static int fail(const struct onednn *onednn, const char *what, int status) {
    return error_set("oneDNN %s: %s: %s", onednn->version_text, what, onednn->call.status_text(status));
}

/* ---- opening */

/* oneDNN asks what chip it is on of a program's binary and ends the process, by an exception that nobody catches, where that
 * is not the format of Intel's own compiler: rusticl's is not. */
bool onednn_bears(const struct device *device) {
    return strncmp(device->platform_name, "Intel", strlen("Intel")) == 0;
}

static int check_driver(const struct device *device) {
    return onednn_bears(device)
               ? 0
               : error_set("oneDNN needs Intel's own OpenCL driver, and this is %s", device->platform_name);
}

static int create_engine(struct onednn *onednn, const struct compute *compute) {
    const struct functions *call = &onednn->call;
    int status = onednn->on_host
                     ? call->engine_create(&onednn->engine, ENGINE_CPU, 0)
                     : call->engine_create_opencl(&onednn->engine, compute->device.id, compute->context);
    if (status) {
        return fail(onednn, "no engine for this device", status);
    }
    status = onednn->on_host ? call->stream_create(&onednn->stream, onednn->engine, STREAM_IN_ORDER)
                             : call->stream_create_opencl(&onednn->stream, onednn->engine, compute->queue);
    return status ? fail(onednn, "no stream on this queue", status) : 0;
}

int onednn_open(struct compute *compute, struct onednn **opened) {
    *opened = NULL;
    struct onednn *onednn = calloc(1, sizeof *onednn);
    if (!onednn) {
        return error_set("out of memory");
    }
    onednn->on_host = compute->device.native_kernels;
    if ((!onednn->on_host && check_driver(&compute->device)) || load(onednn) || create_engine(onednn, compute)) {
        onednn_close(onednn);
        return -1;
    }
    *opened = onednn;
    return 0;
}

void onednn_close(struct onednn *onednn) {
    if (onednn && onednn->stream) {
        onednn->call.stream_destroy(onednn->stream);
    }
    if (onednn && onednn->engine) {
        onednn->call.engine_destroy(onednn->engine);
    }
    free(onednn);
}

const char *onednn_version(const struct onednn *onednn) {
    return onednn->version_text;
}

/* ---- making products */

static const void *description_of(const struct onednn *onednn, const union description *description) {
    return onednn->version.major == 2 ? description : description->pointer;
}

static int type_number(enum element_type type) {
    return type == ELEMENT_FP32 ? TYPE_FP32 : type == ELEMENT_BF16 ? TYPE_BF16 : TYPE_FP16;
}

/* A matrix of so many rows and columns as the product sees it; a transposed one lies the other way round. */
static int describe(const struct onednn *onednn, size_t rows_seen, size_t columns_seen, size_t stride,
                    bool transposed, enum element_type type, union description *description) {
    const int64_t sizes[] = {(int64_t)rows_seen, (int64_t)columns_seen};
    const int64_t steps[] = {transposed ? 1 : (int64_t)stride, transposed ? (int64_t)stride : 1};
    const int status = onednn->version.major == 2
                           ? onednn->call.describe.in_2(description->room, 2, sizes, type_number(type), steps)
                           : onednn->call.describe.in_3(&description->pointer, 2, sizes, type_number(type), steps);
    return status ? fail(onednn, "no such matrix", status) : 0;
}

/* Sums in one order, where the library can be told; beta. *attributes is to be destroyed whatever comes back. */
static int make_attributes(const struct onednn *onednn, float beta, void **attributes) {
    const struct functions *call = &onednn->call;
    void *post_ops = NULL;
    int status = call->attributes_create(attributes);
    if (!status && call->attributes_set_deterministic) {
        status = call->attributes_set_deterministic(*attributes, 1);
    }
    if (!status && beta != 0.0f) {
        status = call->post_ops_create(&post_ops);
        status = status                       ? status
                 : onednn->version.major == 2 ? call->add_old.in_2(post_ops, beta)
                                              : call->add_old.in_3(post_ops, beta, 0, 0);
        status = status ? status : call->attributes_set_post_ops(*attributes, post_ops);
    }
    if (post_ops) {
        call->post_ops_destroy(post_ops);
    }
    return status ? fail(onednn, "attributes of a product", status) : 0;
}

static int make_plan(const struct onednn *onednn, const struct onednn_product *product, const void *attributes,
                     void **plan) {
    const struct functions *call = &onednn->call;
    const void *a = description_of(onednn, &product->matrices[0]),
               *b = description_of(onednn, &product->matrices[1]),
               *c = description_of(onednn, &product->matrices[2]);
    if (onednn->version.major == 3) {
        return call->plan.in_3(plan, onednn->engine, a, b, NULL, c, attributes);
    }
    _Alignas(16) char room[ROOM_OF_PRODUCT];
    const int status = call->product_2(room, a, b, NULL, c);
    return status ? status : call->plan.in_2(plan, room, attributes, onednn->engine, NULL);
}

static int compile(const struct onednn *onednn, struct onednn_product *product, const void *attributes) {
    const struct functions *call = &onednn->call;
    const char *code = NULL;
    void *plan = NULL;
    int status = make_plan(onednn, product, attributes, &plan);
    status = status ? status : call->plan_query(plan, QUERY_CODE, 0, (void *)&code);
    if (!status) {
        snprintf(product->code, sizeof product->code, "%s", code ? code : "");
        status = call->primitive_create(&product->primitive, plan);
    }
    if (plan) {
        call->plan_destroy(plan);
    }
    return status ? fail(onednn, "no such product for this device", status) : 0;
}

int onednn_product_create(struct onednn *onednn, const struct onednn_shape *shape,
                          struct onednn_product **created) {
    void *attributes = NULL;
    struct onednn_product *product = calloc(1, sizeof *product);
    *created = NULL;
    if (!product) {
        return error_set("out of memory");
    }
    product->onednn = onednn;
    const int status = describe(onednn, shape->m, shape->k, shape->strides[0], shape->transpose_a, shape->types[0],
                                &product->matrices[0]) ||
                               describe(onednn, shape->k, shape->n, shape->strides[1], shape->transpose_b,
                                        shape->types[1], &product->matrices[1]) ||
                               describe(onednn, shape->m, shape->n, shape->strides[2], false, shape->types[2],
                                        &product->matrices[2]) ||
                               make_attributes(onednn, shape->beta, &attributes) ||
                               compile(onednn, product, attributes)
                           ? -1
                           : 0;
    if (attributes) {
        onednn->call.attributes_destroy(attributes);
    }
    if (status) {
        onednn_product_destroy(product);
        return -1;
    }
    *created = product;
    return 0;
}

void onednn_product_destroy(struct onednn_product *product) {
    if (!product) {
        return;
    }
    const struct functions *call = &product->onednn->call;
    if (product->primitive) {
        call->primitive_destroy(product->primitive);
    }
    for (size_t i = 0; i < 3 && product->onednn->version.major == 3; i++) {
        if (product->matrices[i].pointer) {
            call->description_destroy_3(product->matrices[i].pointer);
        }
    }
    free(product);
}

const char *onednn_product_code(const struct onednn_product *product) {
    return product->code;
}

/* ---- running them */

static int make_memory(const struct onednn *onednn, const union description *description, void *matrix,
                       void **memory) {
    const void *described = description_of(onednn, description);
    return onednn->on_host
               ? onednn->call.memory_create(memory, described, onednn->engine, matrix)
               : onednn->call.memory_create_opencl(memory, described, onednn->engine, MEMORY_BUFFER, matrix);
}

int onednn_product_run(const struct onednn_product *product, void *const matrices[3]) {
    static const int which[] = {ARGUMENT_A, ARGUMENT_B, ARGUMENT_C};
    const struct onednn *onednn = product->onednn;
    struct argument arguments[3] = {0};
    int status = 0;
    for (size_t i = 0; i < 3 && !status; i++) {
        arguments[i].which = which[i];
        status = make_memory(onednn, &product->matrices[i], matrices[i], &arguments[i].memory);
    }
    status = status ? status : onednn->call.primitive_execute(product->primitive, onednn->stream, 3, arguments);
    if (!status && onednn->on_host) {
        status = onednn->call.stream_wait(onednn->stream);
    }
    for (size_t i = 0; i < 3; i++) {
        if (arguments[i].memory) { /* the queue keeps what it still needs */
            onednn->call.memory_destroy(arguments[i].memory);
        }
    }
    return status ? fail(onednn, "product", status) : 0;
}
