#include "runtime/gemm/gemm_call.h"

bool gemm_epilogue_exists(const struct gemm_epilogue *epilogue) {
    return epilogue->bias.buffer || epilogue->activation != GEMM_NO_ACTIVATION || epilogue->residual.buffer;
}

bool gemm_call_is_plain_fp32(const struct gemm_call *call) {
    return call->a.buffer->type == ELEMENT_FP32 && call->b.buffer->type == ELEMENT_FP32 &&
           call->c.buffer->type == ELEMENT_FP32 && call->batch.count == 1 && !gemm_epilogue_exists(&call->epilogue);
}
