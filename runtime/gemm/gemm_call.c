#include "runtime/gemm/gemm_call.h"

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
