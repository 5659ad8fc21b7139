#include "runtime/gemm/gemm_call.h"
#include "runtime/device/compute.h"
#include "runtime/device/profiler.h"
#include "runtime/system/error.h"
#include <string.h>

bool gemm_call_has_epilogue(const struct gemm_call *call) {
    return call->bias.buffer || call->epilogue != EPILOGUE_NONE;
}

bool gemm_call_is_plain_fp32(const struct gemm_call *call) {
    return call->a.buffer->type == ELEMENT_FP32 && call->b.buffer->type == ELEMENT_FP32 &&
           call->c.buffer->type == ELEMENT_FP32 && !gemm_call_has_epilogue(call);
}

struct kernel gemm_call_named(const struct gemm_call *call, const struct kernel *kernel) {
    struct kernel named = *kernel;
    memcpy(named.name, call->name, sizeof named.name);
    return named;
}

size_t gemm_call_count(const struct gemm_call *call) {
    return call->batch > 1 ? call->batch : 1;
}

double gemm_call_flops(const struct gemm_call *call) {
    return 2.0 * (double)call->m * (double)call->n * (double)call->k * (double)gemm_call_count(call);
}

bool gemm_reserve(struct compute *compute, struct buffer *buffer, size_t bytes, const char *what) {
    if (buffer->bytes < bytes) {
        buffer_release(compute, buffer);
        if (buffer_create(compute, buffer, bytes)) {
            compute_fail(compute, "no memory for %s of a GEMM: %s", what, error_text());
            return false;
        }
    }
    return true;
}

bool gemm_call_begin(struct compute *compute, const struct gemm_call *call) {
    const double outputs = (double)call->m * (double)call->n * (double)element_size(call->c.buffer->type);
    struct launch_entry record = {
        .read = (double)call->m * (double)call->k * (double)element_size(call->a.buffer->type) +
                (double)call->n * (double)call->k * (double)element_size(call->b.buffer->type) +
                (call->beta != 0.0f ? outputs : 0.0),
        .written = outputs,
        .flops = gemm_call_flops(call),
        .launches = true,
    };
    memcpy(record.name, call->name, sizeof record.name);
    compute_log(compute, &record);
    return !compute->dry;
}

cl_event gemm_call_mark(struct compute *compute) {
    cl_event marker = NULL;
    if (!compute->profiler || clEnqueueMarkerWithWaitList(compute->queue, 0, NULL, &marker) != CL_SUCCESS) {
        return NULL;
    }
    return marker;
}

void gemm_call_profile(struct compute *compute, const struct gemm_call *call, cl_event begin, cl_event end) {
    if (end) {
        profiler_add(compute->profiler, call->name, gemm_call_flops(call), begin, end);
    } else if (begin) {
        clReleaseEvent(begin);
    }
}

/* The memory objects of the call, each once: PoCL 3.1 leaves places unset when its list names one twice. */
static cl_uint list_memory(const struct gemm_call *call, cl_mem memory[3]) {
    const cl_mem all[] = {call->a.buffer->memory, call->b.buffer->memory, call->c.buffer->memory};
    cl_uint count = 0;
    for (size_t i = 0; i < 3; i++) {
        bool listed = false;
        for (cl_uint j = 0; j < count; j++) {
            listed = listed || memory[j] == all[i];
        }
        if (!listed) {
            memory[count++] = all[i];
        }
    }
    return count;
}

void gemm_call_run_native(struct compute *compute, const struct gemm_call *call, void(CL_CALLBACK *run)(void *work),
                          struct gemm_places *work, size_t bytes) {
    const void *places[] = {&work->addresses[0], &work->addresses[1], &work->addresses[2]};
    cl_event event = NULL;
    cl_mem memory[3];
    const cl_uint count = list_memory(call, memory);
    const cl_int code = clEnqueueNativeKernel(compute->queue, run, work, bytes, count, memory, places, 0, NULL,
                                              compute->profiler ? &event : NULL);
    if (code != CL_SUCCESS) {
        compute_fail(compute, "cannot launch %s: %s", call->name, device_error_text(code));
    } else {
        gemm_call_profile(compute, call, NULL, event);
    }
}
