/* The backend "onednn": on Intel's GPUs, where its GEMMs are the fastest there are; on CPUs GEMMs of 16 bits if the
 * CPU has instructions for them, and all when it is asked for by name. What it does not take goes through fp32 and
 * another backend: matrices that begin where no sub-buffer may, and types that it has no GEMM of. */
#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/gemm_verify.h"
#include "runtime/gemm/matrix_cores.h"
#include "runtime/gemm/onednn.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/worker.h"
#include <stdlib.h>
#include <string.h>

struct gemm_onednn {
    struct onednn *library;
    size_t alignment;                /* bytes at whose multiples a sub-buffer may begin */
    const struct gemm_backend *rest; /* what runs the other GEMMs; NULL: it is not open */
    bool only_16_bits;               /* fp32 is left to `rest` */
    bool has_16_bits;                /* GEMMs of the operands' type have 16 bits and passed the self-test */
    struct worker
        *worker; /* on the host: OpenMP keeps threads for each thread that ever ran a gemm, and PoCL has many */
};

static struct gemm_onednn *own_of(const struct compute *compute) {
    const struct gemm_state *state = gemm_state(compute);
    return state->onednn;
}

/* ---- shapes */

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

/* ---- running on a GPU */

static bool begins_well(const struct compute *compute, const struct matrix *matrix) {
    const size_t alignment = own_of(compute)->alignment;
    return matrix->buffer->host || matrix->offset * element_size(matrix->buffer->type) % alignment == 0;
}

/* The matrix from its first element on, which the caller releases; NULL with a reason. */
static cl_mem view_of(const struct matrix *matrix, size_t rows, size_t columns) {
    const size_t element = element_size(matrix->buffer->type);
    const cl_buffer_region region = {matrix->offset * element, ((rows - 1) * matrix->stride + columns) * element};
    cl_int code;
    cl_mem view = clCreateSubBuffer(matrix->buffer->memory, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
    if (!view) {
        error_set("a sub-buffer: %s", device_error_text(code));
    }
    return view;
}

static int run_on_views(const struct compute *compute, const struct onednn_gemm *gemm, const struct gemm_call *x) {
    cl_mem views[3] = {view_of(&x->a, x->transpose_a ? x->k : x->m, x->transpose_a ? x->m : x->k),
                       view_of(&x->b, x->transpose_b ? x->n : x->k, x->transpose_b ? x->k : x->n),
                       view_of(&x->c, x->m, x->n)};
    const bool there = views[0] && views[1] && views[2];
    const int status = there ? onednn_run(gemm, (void *const *)views) : 0;
    for (size_t i = 0; i < 3; i++) {
        if (views[i]) {
            clReleaseMemObject(views[i]); /* the queue keeps what it still needs */
        }
    }
    if (status) {
        return error_set("oneDNN: %s", onednn_status_text(own_of(compute)->library, status));
    }
    return there ? 0 : -1;
}

static void run_on_gpu(struct compute *compute, const struct onednn_gemm *gemm, const struct gemm_call *call) {
    const cl_event begin = gemm_call_mark(compute);
    if (run_on_views(compute, gemm, call)) {
        compute_fail(compute, "cannot launch %s: %s", call->name, error_text());
    }
    gemm_call_profile(compute, call, begin, gemm_call_mark(compute));
}

/* ---- running on the host, as a native kernel */

struct work {
    struct gemm_places places;
    struct compute *compute;
    const struct onednn_gemm *gemm;
    void *matrices[3];
};

static void run_here(void *argument) {
    const struct work *work = argument;
    const struct onednn *library = own_of(work->compute)->library;
    const int status = onednn_run(work->gemm, work->matrices);
    if (status) {
        compute_fail_natively(work->compute,
                              memory_format("a matrix multiplication failed: oneDNN %s: %s",
                                            onednn_version(library), onednn_status_text(library, status)));
    }
}

static void CL_CALLBACK work_run(void *argument) {
    const struct work *work = argument;
    worker_do(own_of(work->compute)->worker, run_here, argument);
}

static void *address_of(const struct matrix *matrix) {
    return (char *)matrix->buffer->host + matrix->offset * element_size(matrix->buffer->type);
}

static void run_on_host(struct compute *compute, const struct onednn_gemm *gemm, const struct gemm_call *call) {
    struct work work = {{{NULL}},
                        compute,
                        gemm,
                        {address_of(&call->a), address_of(&call->b), address_of(&call->c)}};
    gemm_call_run_native(compute, call, work_run, &work.places, sizeof work);
}

/* ---- the backend */

/* Whether the library runs GEMMs of this type, which is 16 bits: those that the self-test was about. */
static bool takes_type(const struct compute *compute, enum element_type type) {
    const struct gemm_state *state = gemm_state(compute);
    return own_of(compute)->has_16_bits && type == state->operands;
}

static bool takes_types(const struct compute *compute, const struct gemm_call *call) {
    const enum element_type a = call->a.buffer->type, b = call->b.buffer->type, c = call->c.buffer->type;
    if (a == ELEMENT_FP32 && b == ELEMENT_FP32 && c == ELEMENT_FP32) {
        return !own_of(compute)->only_16_bits;
    }
    return a == b && (c == a || c == ELEMENT_FP32) && takes_type(compute, a);
}

/* The GEMM for a call that oneDNN is to run; NULL: it cannot, or another backend is faster. */
static const struct onednn_gemm *gemm_for(struct compute *compute, const struct gemm_call *call) {
    const bool can = !gemm_call_has_epilogue(call) && takes_types(compute, call) &&
                     begins_well(compute, &call->a) && begins_well(compute, &call->b) &&
                     begins_well(compute, &call->c);
    const struct onednn_shape shape = shape_of(call);
    return can ? onednn_find(own_of(compute)->library, &shape) : NULL;
}

static bool backend_takes(struct compute *compute, const struct gemm_call *call) {
    return gemm_for(compute, call) != NULL;
}

static void run_gemm(struct compute *compute, const struct onednn_gemm *gemm, const struct gemm_call *call) {
    if (gemm_call_begin(compute, call)) {
        (call->c.buffer->host ? run_on_host : run_on_gpu)(compute, gemm, call);
    }
}

static void backend_run(struct compute *compute, const struct gemm_call *call) {
    const struct onednn_gemm *gemm = gemm_for(compute, call);
    if (gemm) {
        run_gemm(compute, gemm, call);
    } else {
        own_of(compute)->rest->run(compute, call); /* of fp32 */
    }
}

/* The library itself is tested when it is opened. */
static size_t take_large(struct compute *compute, bool forced) {
    const struct gemm_backend *rest = own_of(compute)->rest;
    return rest->take_large ? rest->take_large(compute, forced) : 0;
}

/* ---- self-test */

static void run_tested(void *compute, const struct gemm_call *call) {
    const struct onednn_gemm *gemm = gemm_for(compute, call);
    if (gemm) {
        run_gemm(compute, gemm, call);
    } else {
        compute_fail(compute, "no such GEMM for this device");
    }
}

/* What layers need of this type: forward, the input's gradient, and the weights' in fp32, added to what is there.
 * The library is not asked again for 16 bits that fail. */
static int self_test(struct compute *compute, enum element_type type) {
    struct gemm_onednn *own = own_of(compute);
    const struct gemm_runner runner = {compute, run_tested, compute};
    const size_t boundary = own->alignment;
    const struct gemm_case cases[] = {
        {false, true, 96, 80, 160, {type, type, type}, .pads = {0, 0, 8}, .offsets = {boundary, 0, boundary}},
        {false, false, 93, 72, 64, {type, type, type}, .beta = 0},
        {true, false, 96, 40, 77, {type, type, ELEMENT_FP32}, .offsets = {0, boundary, 0}, .beta = 1},
    };
    own->has_16_bits = type != ELEMENT_FP32;
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (gemm_verify_case(&runner, &cases[i])) {
            compute_forget(compute);
            own->has_16_bits = false;
            return error_prefix("self-test with %s", element_name(type));
        }
    }
    return 0;
}

static int check_loops(const struct gemm_onednn *own) {
    return onednn_has_plain_loops(own->library)
               ? error_set("oneDNN %s has only plain loops for this device", onednn_version(own->library))
               : 0;
}

/* ---- opening: on a GPU */

/* One that cannot be told to may add in another order each time. */
static int check_repeats(const struct gemm_onednn *own) {
    return onednn_repeats(own->library)
               ? 0
               : error_set("oneDNN %s cannot be told to give the same bits each time (3.4 and later can)",
                           onednn_version(own->library));
}

static bool has_matrix_cores(const struct compute *compute) {
    struct matrix_cores cores;
    return matrix_cores_find(&compute->device, &cores) == 0;
}

/* GEMMs of 16 bits may fail: those are fp32 then, and said to be. */
static int test_on_gpu(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    const struct gemm_onednn *own = own_of(compute);
    if (self_test(compute, ELEMENT_FP32) || (state->automatic && (check_loops(own) || check_repeats(own)))) {
        return -1;
    }
    if (state->operands == ELEMENT_FP32 || self_test(compute, state->operands) == 0) {
        state->matrix_cores = has_matrix_cores(compute) ? "oneDNN" : NULL;
        return 0;
    }
    if (state->automatic) {
        return -1;
    }
    gemm_keep_reason(state->refusal);
    return 0;
}

/* ---- opening: on a CPU */

/* GEMMs of 16 bits are fp32 where they do not work, unless they are why the library was opened; on a CPU that has
 * no instructions for them nobody is told. Whether it can be told to give the same bits each time is not asked: it
 * says that it does in the same environment, but for what adds by atomic operations, and on CPUs GEMMs do not. */
static int test_on_host(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    struct gemm_onednn *own = own_of(compute);
    const char *units = compute->device.matrix_cores.names[state->operands];
    if (!own->only_16_bits && self_test(compute, ELEMENT_FP32)) {
        return -1;
    }
    if (state->operands == ELEMENT_FP32) {
        return 0;
    }
    const int status = self_test(compute, state->operands) || (*units && check_loops(own)) ? -1 : 0;
    own->has_16_bits = status == 0;
    if (status && *units) {
        gemm_keep_reason(state->refusal);
        return state->automatic ? -1 : 0;
    }
    state->matrix_cores = *units ? units : NULL;
    return 0;
}

/* ---- opening */

static void backend_close(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    struct gemm_onednn *own = state->onednn;
    if (own) {
        onednn_close(own->library);
        worker_stop(own->worker);
    }
    if (own && own->rest && own->rest->close) {
        own->rest->close(compute);
    }
    free(own);
    state->onednn = NULL;
}

/* The host's BLAS may be missing. */
static int open_rest(struct compute *compute) {
    struct gemm_onednn *own = own_of(compute);
    own->rest = !compute->device.native_kernels         ? &gemm_backend_clblast
                : gemm_backend_cblas.open(compute) == 0 ? &gemm_backend_cblas
                                                        : &gemm_backend_portable;
    return own->rest == &gemm_backend_cblas ? 0 : own->rest->open(compute);
}

static int open_library(struct compute *compute) {
    struct gemm_onednn *own = own_of(compute);
    const bool on_host = compute->device.native_kernels;
    cl_uint bits = 0;
    if (clGetDeviceInfo(compute->device.id, CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof bits, &bits, NULL) || bits < 8) {
        return error_set("the device does not say where parts of a buffer may begin");
    }
    own->alignment = bits / 8;
    if (onednn_open(compute, &own->library) || (on_host && worker_start(&own->worker)) || open_rest(compute)) {
        return -1;
    }
    return on_host ? test_on_host(compute) : test_on_gpu(compute);
}

static int backend_open(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    if (compute->dry || compute->device.model) {
        return error_set("what oneDNN launches is its own: it cannot be recorded for a device that is not here");
    }
    state->onednn = memory_zeroed(1, sizeof *state->onednn);
    state->onednn->only_16_bits = state->automatic && compute->device.native_kernels;
    if (open_library(compute)) {
        backend_close(compute);
        return -1;
    }
    snprintf(state->runs_on, sizeof state->runs_on, "the %s, library %s", compute->device.is_gpu ? "GPU" : "CPU",
             onednn_version(state->onednn->library));
    return 0;
}

const struct gemm_backend gemm_backend_onednn = {.name = "onednn",
                                                 .open = backend_open,
                                                 .run = backend_run,
                                                 .close = backend_close,
                                                 .takes = backend_takes,
                                                 .takes_type = takes_type,
                                                 .take_large = take_large,
                                                 .uses_matrix_cores = true};
