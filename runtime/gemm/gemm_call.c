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

bool gemm_call_begin(struct compute *compute, const struct gemm_call *call) {
    const double outputs = (double)call->m * (double)call->n * sizeof(float);
    struct record record = {
        .read = ((double)call->m + (double)call->n) * (double)call->k * sizeof(float) +
                (call->beta != 0.0f ? outputs : 0.0),
        .written = outputs,
        .flops = gemm_call_flops(call),
        .launches = true,
    };
    memcpy(record.name, call->name, sizeof record.name);
    compute_record(compute, &record);
    return !compute->dry;
}
