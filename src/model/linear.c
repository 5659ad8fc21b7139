#include "src/model/linear.h"
#include "runtime/gemm/gemm.h"

void linear_multiply(struct operations *operations, size_t rows, size_t out, size_t in, struct span x,
                     struct span w, const struct buffer *y) {
    if (rows <= FEW_ROWS) {
        few_rows_multiply(operations, rows, out, in, x, w, y);
    } else {
        gemm_run(operations->compute, false, true, rows, out, in, 1.0f, (struct matrix){x.buffer, x.offset, in},
                 (struct matrix){w.buffer, w.offset, in}, 0.0f, (struct matrix){y, 0, out});
    }
}

void linear_forward(struct operations *operations, const struct parameters *parameters, struct linear layer,
                    size_t rows, const struct buffer *x, const struct buffer *y, const struct buffer *activated) {
    const bool bias = operations->shape.bias;
    if ((bias || activated) && rows > FEW_ROWS && gemm_fuses(operations->compute, operations->shape.type)) {
        const struct gemm_epilogue epilogue = {
            .bias = {bias ? parameters->weights : NULL, layer.bias_at},
            .activation = !activated                    ? GEMM_NO_ACTIVATION
                          : operations->shape.gelu_tanh ? GEMM_GELU_TANH
                                                        : GEMM_GELU,
            .activated = {activated, 0, layer.out},
        };
        gemm_run_fused(operations->compute, false, true, rows, layer.out, layer.in, 1.0f,
                       (struct matrix){x, 0, layer.in},
                       (struct matrix){parameters->operands, layer.weight_at, layer.in}, 0.0f,
                       (struct matrix){y, 0, layer.out}, &epilogue);
        return;
    }
    linear_multiply(operations, rows, layer.out, layer.in, (struct span){x, 0},
                    (struct span){parameters->operands, layer.weight_at}, y);
    if (bias) {
        bias_forward(operations, rows, layer.out, (struct span){parameters->weights, layer.bias_at}, y);
    }
    if (activated) {
        gelu_forward(operations, rows * layer.out, y, activated);
    }
}

void linear_backward(struct operations *operations, const struct parameters *parameters, struct linear layer,
                     size_t rows, const struct buffer *x, const struct buffer *d_y, const struct buffer *d_x) {
    const struct matrix output = {d_y, 0, layer.out};
    gemm_run(operations->compute, true, false, layer.out, layer.in, rows, 1.0f, output,
             (struct matrix){x, 0, layer.in}, 1.0f,
             (struct matrix){parameters->gradients, layer.weight_at, layer.in});
    if (operations->shape.bias) {
        bias_backward(operations, rows, layer.out, d_y, (struct span){parameters->gradients, layer.bias_at});
    }
    gemm_run(operations->compute, false, false, rows, layer.in, layer.out, 1.0f, output,
             (struct matrix){parameters->operands, layer.weight_at, layer.in}, 0.0f,
             (struct matrix){d_x, 0, layer.in});
}
