#include "runtime/gemm/gemm_call.h"
#include "runtime/device/recorder.h"
#include <string.h>

bool gemm_call_has_epilogue(const struct gemm_call *call) {
    return call->bias.buffer || call->activated.buffer || call->gelu_of.buffer;
}

bool gemm_call_is_plain_fp32(const struct gemm_call *call) {
    return call->a.buffer->type == ELEMENT_FP32 && call->b.buffer->type == ELEMENT_FP32 &&
           call->c.buffer->type == ELEMENT_FP32 && !gemm_call_has_epilogue(call);
}

double gemm_call_flops(const struct gemm_call *call) {
    return 2.0 * (double)call->m * (double)call->n * (double)call->k;
}

struct gemm_memory gemm_call_memory(const struct gemm_call *call) {
    const cl_mem all[] = {call->a.buffer->memory, call->b.buffer->memory, call->c.buffer->memory};
    struct gemm_memory memory = {0};
    for (size_t i = 0; i < 3; i++) {
        bool listed = false;
        for (cl_uint j = 0; j < memory.count; j++) {
            listed = listed || memory.objects[j] == all[i];
        }
        if (!listed) {
            memory.objects[memory.count++] = all[i];
        }
    }
    return memory;
}

bool gemm_call_begin(struct compute *compute, const struct gemm_call *call) {
    const double outputs = (double)call->m * (double)call->n * (double)element_size(call->c.buffer->type);
    struct record record = {
        .read = (double)call->m * (double)call->k * (double)element_size(call->a.buffer->type) +
                (double)call->n * (double)call->k * (double)element_size(call->b.buffer->type) +
                (call->beta != 0.0f ? outputs : 0.0),
        .written = outputs,
        .flops = gemm_call_flops(call),
        .launches = true,
    };
    memcpy(record.name, call->name, sizeof record.name);
    compute_record(compute, &record);
    return !compute->dry;
}
