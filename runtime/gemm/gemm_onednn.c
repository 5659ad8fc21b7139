/* oneDNN: on Intel's GPUs, where it has the fastest products there are, and by name on CPUs. What it does not take goes
 * through fp32 and CLBlast: matrices that begin where no sub-buffer may, and types that it has no product of. */
#include "runtime/device/profiler.h"
#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/gemm_check.h"
#include "runtime/gemm/onednn.h"
#include "runtime/system/error.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct kept_product {
    struct onednn_shape shape;
    struct onednn_product *product; /* NULL: the library has none */
    struct kept_product *next;
};

struct gemm_onednn {
    struct onednn *library;
    struct kept_product *products; /* newest first; a model has some dozens of shapes */
    size_t alignment;              /* bytes at whose multiples a sub-buffer may begin */
    atomic_bool failed;            /* a product on the host, where nobody waits for it */
};

/* ---- products by shape */

static struct onednn_shape shape_of(const struct gemm_call *call) {
    return (struct onednn_shape){
        .transpose_a = call->transpose_a,
        .transpose_b = call->transpose_b,
        .m = call->m,
        .n = call->n,
        .k = call->k,
        .strides = {call->a.stride, call->b.stride, call->c.stride},
        .types = {call->a.buffer->type, call->b.buffer->type, call->c.buffer->type},
        .beta = call->beta,
    };
}

static bool is_same(const struct onednn_shape *x, const struct onednn_shape *y) {
    return x->transpose_a == y->transpose_a && x->transpose_b == y->transpose_b && x->m == y->m && x->n == y->n &&
           x->k == y->k && !memcmp(x->strides, y->strides, sizeof x->strides) &&
           !memcmp(x->types, y->types, sizeof x->types) && !(x->beta < y->beta || x->beta > y->beta);
}

/* The product for a shape, compiled at the first need; NULL with a reason where the library has none. */
static struct onednn_product *find_product(struct gemm_onednn *onednn, const struct gemm_call *call) {
    const struct onednn_shape shape = shape_of(call);
    for (const struct kept_product *kept = onednn->products; kept; kept = kept->next) {
        if (is_same(&kept->shape, &shape)) {
            return kept->product ? kept->product : (error_set("oneDNN has no such product"), NULL);
        }
    }
    struct kept_product *kept = malloc(sizeof *kept);
    if (!kept) {
        error_set("out of memory");
        return NULL;
    }
    *kept = (struct kept_product){.shape = shape, .next = onednn->products};
    onednn->products = kept;
    onednn_product_create(onednn->library, &shape, &kept->product);
    return kept->product;
}

/* ---- running on a GPU */

static bool begins_well(const struct gemm_onednn *onednn, const struct matrix *matrix) {
    return matrix->buffer->host || matrix->offset * element_size(matrix->buffer->type) % onednn->alignment == 0;
}

/* The matrix from its first element on, which the caller releases; NULL with a reason. */
static cl_mem view_of(const struct matrix *matrix, size_t rows, size_t columns) {
    const size_t element = element_size(matrix->buffer->type);
    const cl_buffer_region region = {matrix->offset * element, ((rows - 1) * matrix->stride + columns) * element};
    cl_int code;
    cl_mem view = clCreateSubBuffer(matrix->buffer->memory, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
    if (!view) {
        error_set("a part of a buffer: %s", device_error_text(code));
    }
    return view;
}

static int run_on_views(const struct onednn_product *product, const struct gemm_call *x) {
    cl_mem views[3] = {view_of(&x->a, x->transpose_a ? x->k : x->m, x->transpose_a ? x->m : x->k),
                       view_of(&x->b, x->transpose_b ? x->n : x->k, x->transpose_b ? x->k : x->n),
                       view_of(&x->c, x->m, x->n)};
    const int status = views[0] && views[1] && views[2] ? onednn_product_run(product, (void *const *)views) : -1;
    for (size_t i = 0; i < 3; i++) {
        if (views[i]) {
            clReleaseMemObject(views[i]); /* the queue keeps what it still needs */
        }
    }
    return status;
}

static cl_event mark(struct compute *compute) {
    cl_event marker = NULL;
    if (!compute->profiler || clEnqueueMarkerWithWaitList(compute->queue, 0, NULL, &marker) != CL_SUCCESS) {
        return NULL;
    }
    return marker;
}

static void run_on_gpu(struct compute *compute, const struct onednn_product *product,
                       const struct gemm_call *call) {
    const cl_event begin = mark(compute);
    if (run_on_views(product, call)) {
        compute_fail(compute, "cannot launch %s: %s", call->name, error_text());
    }
    const cl_event end = mark(compute);
    if (begin && end) {
        profiler_add(compute->profiler, call->name, gemm_call_flops(call), begin, end);
    } else if (begin) {
        clReleaseEvent(begin);
    }
}

/* ---- running on the host, as a native kernel */

struct work {
    struct gemm_onednn *onednn;
    const struct onednn_product *product;
    void *matrices[3];
    void *places
        [3]; /* OpenCL puts the addresses of the memory objects here; not used, since they are our own pages */
};

static void CL_CALLBACK work_run(void *argument) {
    const struct work *work = argument;
    if (onednn_product_run(work->product, work->matrices)) {
        atomic_store(&work->onednn->failed, true);
    }
}

static void *address_of(const struct matrix *matrix) {
    return (char *)matrix->buffer->host + matrix->offset * element_size(matrix->buffer->type);
}

static void run_on_host(struct compute *compute, const struct onednn_product *product,
                        const struct gemm_call *call) {
    const struct gemm_state *state = compute->gemm_state;
    struct work work = {state->onednn,
                        product,
                        {address_of(&call->a), address_of(&call->b), address_of(&call->c)},
                        {NULL}};
    cl_event event = NULL;
    const struct gemm_memory memory = gemm_call_memory(call);
    const void *places[] = {&work.places[0], &work.places[1], &work.places[2]};
    const cl_int code = clEnqueueNativeKernel(compute->queue, work_run, &work, sizeof work, memory.count,
                                              memory.objects, places, 0, NULL, compute->profiler ? &event : NULL);
    if (code != CL_SUCCESS) {
        compute_fail(compute, "cannot launch %s: %s", call->name, device_error_text(code));
    } else if (compute->profiler) {
        profiler_add(compute->profiler, call->name, gemm_call_flops(call), NULL, event);
    }
}

/* ---- the backend */

static bool can_run(struct compute *compute, const struct gemm_call *call) {
    const struct gemm_state *state = compute->gemm_state;
    struct gemm_onednn *onednn = state->onednn;
    return !gemm_call_has_epilogue(call) && begins_well(onednn, &call->a) && begins_well(onednn, &call->b) &&
           begins_well(onednn, &call->c) && find_product(onednn, call);
}

static void run_own(struct compute *compute, const struct gemm_call *call) {
    const struct gemm_state *state = compute->gemm_state;
    if (atomic_load(&state->onednn->failed)) {
        compute_fail(compute, "a product before %s failed: oneDNN is out of memory", call->name);
        return;
    }
    const struct onednn_product *product = find_product(state->onednn, call);
    if (!product) {
        compute_fail(compute, "%s: %s", call->name, error_text());
    } else if (gemm_call_begin(compute, call)) {
        (call->c.buffer->host ? run_on_host : run_on_gpu)(compute, product, call);
    }
}

static void backend_run(struct compute *compute, const struct gemm_call *call) {
    if (can_run(compute, call)) {
        run_own(compute, call);
    } else {
        gemm_backend_clblast.run(compute, call); /* of fp32 */
    }
}

/* ---- opening */

static void run_checked(void *compute, const struct gemm_call *call) {
    run_own(compute, call);
}

/* What layers need of this type: forward, the input's gradient, and the weights' in fp32, added to what is there. */
static int self_test(struct compute *compute, enum element_type type) {
    const struct gemm_runner runner = {compute, run_checked, compute};
    const struct gemm_state *state = compute->gemm_state;
    const size_t boundary = state->onednn->alignment;
    const struct gemm_case cases[] = {
        {false, true, 96, 80, 160, {type, type, type}, .pads = {0, 0, 8}, .offsets = {boundary, 0, boundary}},
        {false, false, 93, 72, 64, {type, type, type}, .beta = 0},
        {true, false, 96, 40, 77, {type, type, ELEMENT_FP32}, .offsets = {0, boundary, 0}, .beta = 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (gemm_check(&runner, &cases[i])) {
            compute_forget(compute);
            return error_prefix("self-test with %s", element_name(type));
        }
    }
    return 0;
}

/* A library that is older than the GPU falls back to loops without its units. */
static int check_code(const struct gemm_onednn *onednn) {
    for (const struct kept_product *kept = onednn->products; kept; kept = kept->next) {
        if (kept->product && strstr(onednn_product_code(kept->product), "ref")) {
            return error_set("oneDNN %s has only plain loops for this device", onednn_version(onednn->library));
        }
    }
    return 0;
}

static void describe(struct gemm_state *state, bool is_gpu) {
    const struct onednn *library = state->onednn->library;
    snprintf(state->unit, sizeof state->unit, "the %s, version %s", is_gpu ? "GPU" : "CPU",
             onednn_version(library));
    state->works_on = is_gpu ? "oneDNN" : NULL;
    state->tuned = false; /* that is about what goes to CLBlast */
}

static void backend_close(struct compute *compute) {
    struct gemm_state *state = compute->gemm_state;
    while (state->onednn && state->onednn->products) {
        struct kept_product *kept = state->onednn->products;
        state->onednn->products = kept->next;
        onednn_product_destroy(kept->product);
        free(kept);
    }
    if (state->onednn) {
        onednn_close(state->onednn->library);
    }
    free(state->onednn);
    state->onednn = NULL;
    gemm_backend_clblast.close(compute);
}

static int open_library(struct compute *compute, struct gemm_onednn *onednn) {
    const struct gemm_state *state = compute->gemm_state;
    cl_uint bits = 0;
    if (clGetDeviceInfo(compute->device.id, CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof bits, &bits, NULL) || bits < 8) {
        return error_set("the device does not say where parts of a buffer may begin");
    }
    onednn->alignment = bits / 8;
    return onednn_open(compute, &onednn->library) || self_test(compute, state->operands) ||
                   (state->automatic && check_code(onednn))
               ? -1
               : 0;
}

static int backend_open(struct compute *compute) {
    struct gemm_state *state = compute->gemm_state;
    if (compute->dry || compute->device.model) {
        return error_set("what oneDNN launches is its own: it cannot be recorded for a device that is not here");
    }
    state->onednn = calloc(1, sizeof *state->onednn);
    if (!state->onednn) {
        return error_set("out of memory");
    }
    if (open_library(compute, state->onednn) || gemm_backend_clblast.open(compute)) {
        backend_close(compute);
        return -1;
    }
    describe(state, compute->device.is_gpu);
    return 0;
}

const struct gemm_backend gemm_backend_onednn = {.name = "onednn",
                                                 .open = backend_open,
                                                 .run = backend_run,
                                                 .close = backend_close,
                                                 .takes = can_run,
                                                 .on_units = true};
