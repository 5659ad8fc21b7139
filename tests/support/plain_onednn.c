/* A oneDNN of version 3.9 whose GEMMs are plain loops for every type, built as libdnnl.so.3: with it in
 * LD_LIBRARY_PATH tests see what becomes of GEMMs of 16 bits on CPUs that have no instructions for them. It has
 * what runtime/gemm/onednn_functions.h lists for CPUs. The environment's PLAIN_ONEDNN makes it worse: "ref" calls
 * its code a reference, "wrong" adds one to every GEMM, "wrong 16" to those of 16 bits, "lacking" has none of
 * these. GEMMs fail when several threads execute them on one stream: the real library would start as many threads
 * for each. */
#include "runtime/system/element.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* oneDNN's own header has the prototypes, with parameters that are of no use here. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { SUCCESS = 0, OUT_OF_MEMORY = 1, UNIMPLEMENTED = 3, RUNTIME_ERROR = 5 };
enum { TYPE_FP16 = 1, TYPE_BF16 = 2 };
enum { ARGUMENT_A = 1, ARGUMENT_C = 17, ARGUMENT_B = 33 };
enum { QUERY_CODE = 8 };

struct version {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime, gpu_runtime;
};

struct description {
    int64_t sizes[2], steps[2];
    int type;
};

struct memory {
    struct description description;
    void *data;
};

struct attributes {
    float beta; /* of what is there already */
};

struct product {
    struct description a, b, c;
    float beta;
};

struct stream {
    pthread_mutex_t lock;
    pthread_t user;
    bool is_used;
};

struct argument {
    int which;
    struct memory *memory;
};

static bool is_worse(const char *how) {
    const char *wanted = getenv("PLAIN_ONEDNN");
    return wanted && !strcmp(wanted, how);
}

static int make(size_t bytes, const void *initial, void **made) {
    *made = malloc(bytes);
    if (*made) {
        memcpy(*made, initial, bytes);
    }
    return *made ? SUCCESS : OUT_OF_MEMORY;
}

/* ---- elements */

static enum element_type element_of(const struct description *x) {
    return x->type == TYPE_FP16 ? ELEMENT_FP16 : x->type == TYPE_BF16 ? ELEMENT_BF16 : ELEMENT_FP32;
}

static size_t place_of(const struct memory *x, int64_t row, int64_t column) {
    return (size_t)(row * x->description.steps[0] + column * x->description.steps[1]);
}

static float read_element(const struct memory *x, int64_t row, int64_t column) {
    return element_at(x->data, place_of(x, row, column), element_of(&x->description));
}

static void write_element(const struct memory *x, int64_t row, int64_t column, float value) {
    const enum element_type type = element_of(&x->description);
    const size_t place = place_of(x, row, column);
    if (type == ELEMENT_FP32) {
        ((float *)x->data)[place] = value;
    } else {
        ((uint16_t *)x->data)[place] = element_encode(value, type);
    }
}

static bool is_wrong(const struct description *operand) {
    return is_worse("wrong") || (is_worse("wrong 16") && element_of(operand) != ELEMENT_FP32);
}

static void multiply(const struct product *product, const struct memory *a, const struct memory *b,
                     const struct memory *c) {
    for (int64_t i = 0; i < product->c.sizes[0]; i++) {
        for (int64_t j = 0; j < product->c.sizes[1]; j++) {
            float sum = is_wrong(&a->description) ? 1.0f : 0.0f;
            for (int64_t p = 0; p < product->a.sizes[1]; p++) {
                sum += read_element(a, i, p) * read_element(b, p, j);
            }
            write_element(c, i, j, product->beta != 0.0f ? sum + product->beta * read_element(c, i, j) : sum);
        }
    }
}

/* Whether all that a stream is given comes from one thread. */
static bool is_same_thread(struct stream *stream) {
    pthread_mutex_lock(&stream->lock);
    if (!stream->is_used) {
        stream->user = pthread_self();
        stream->is_used = true;
    }
    const bool same = pthread_equal(stream->user, pthread_self());
    pthread_mutex_unlock(&stream->lock);
    return same;
}

/* ---- the library */

#define RELEASES(name)                                                                                             \
    int name(void *made) {                                                                                         \
        free(made);                                                                                                \
        return SUCCESS;                                                                                            \
    }
RELEASES(dnnl_engine_destroy)
RELEASES(dnnl_stream_destroy)
RELEASES(dnnl_memory_destroy)
RELEASES(dnnl_primitive_attr_destroy)
RELEASES(dnnl_post_ops_destroy)
RELEASES(dnnl_memory_desc_destroy)
RELEASES(dnnl_primitive_desc_destroy)
RELEASES(dnnl_primitive_destroy)

const struct version *dnnl_version(void) {
    static const struct version version = {3, 9, 0, "", 2, 0};
    return &version;
}

const char *dnnl_status2str(int status) {
    return status == UNIMPLEMENTED ? "unimplemented" : status == RUNTIME_ERROR ? "several threads" : "no memory";
}

int dnnl_engine_create(void **engine, int kind, size_t index) {
    return make(sizeof kind, &kind, engine);
}

int dnnl_stream_create(void **stream, void *engine, unsigned flags) {
    const struct stream made = {.lock = PTHREAD_MUTEX_INITIALIZER};
    return make(sizeof made, &made, stream);
}

int dnnl_stream_wait(void *stream) {
    return SUCCESS;
}

int dnnl_memory_create(void **memory, const void *description, void *engine, void *host) {
    const struct memory made = {*(const struct description *)description, host};
    return make(sizeof made, &made, memory);
}

int dnnl_primitive_attr_create(void **attributes) {
    const struct attributes none = {0};
    return make(sizeof none, &none, attributes);
}

int dnnl_primitive_attr_set_post_ops(struct attributes *attributes, const float *beta) {
    attributes->beta = *beta;
    return SUCCESS;
}

int dnnl_primitive_attr_set_deterministic(void *attributes, int wanted) {
    return SUCCESS;
}

int dnnl_primitive_attr_set_scratchpad_mode(void *attributes, int mode) {
    return SUCCESS;
}

int dnnl_post_ops_create(void **post_ops) {
    const float none = 0.0f;
    return make(sizeof none, &none, post_ops);
}

int dnnl_post_ops_append_sum(float *post_ops, float scale, int32_t zero_point, int type) {
    *post_ops = scale;
    return SUCCESS;
}

int dnnl_memory_desc_create_with_strides(void **description, int dimensions, const int64_t *sizes, int type,
                                         const int64_t *strides) {
    const struct description made = {{sizes[0], sizes[1]}, {strides[0], strides[1]}, type};
    return make(sizeof made, &made, description);
}

size_t dnnl_memory_desc_get_size(const void *description) {
    return 0;
}

int dnnl_matmul_primitive_desc_create(void **descriptor, void *engine, const struct description *a,
                                      const struct description *b, const void *bias, const struct description *c,
                                      const struct attributes *attributes) {
    const struct product made = {*a, *b, *c, attributes->beta};
    *descriptor = NULL;
    return is_worse("lacking") && element_of(a) != ELEMENT_FP32 ? UNIMPLEMENTED
                                                                : make(sizeof made, &made, descriptor);
}

int dnnl_primitive_desc_query(const void *descriptor, int what, int index, const char **answer) {
    *answer = is_worse("ref") ? "ref:any" : "plain";
    return what == QUERY_CODE ? SUCCESS : UNIMPLEMENTED;
}

const void *dnnl_primitive_desc_query_md(const void *descriptor, int what, int index) {
    return NULL;
}

int dnnl_primitive_create(void **primitive, const void *descriptor) {
    return make(sizeof(struct product), descriptor, primitive);
}

int dnnl_primitive_execute(const struct product *product, struct stream *stream, int count,
                           const struct argument *arguments) {
    const struct memory *a = NULL, *b = NULL, *c = NULL;
    for (int i = 0; i < count; i++) {
        const struct memory **place = arguments[i].which == ARGUMENT_A   ? &a
                                      : arguments[i].which == ARGUMENT_B ? &b
                                                                         : &c;
        *place = arguments[i].memory;
    }
    if (!is_same_thread(stream)) {
        return RUNTIME_ERROR;
    }
    multiply(product, a, b, c);
    return SUCCESS;
}
