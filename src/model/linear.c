#include "src/model/linear.h"
#include "runtime/gemm/gemm.h"

/* y [rows, out] = x [rows, in] w^T */
static struct gemm_call forward_call(size_t rows, size_t out, size_t in, struct span x, struct span w,
                                     const struct buffer *y) {
    return (struct gemm_call){.transpose_b = true,
                              .a = matrix_of(x.buffer, x.offset, rows, in),
                              .b = matrix_of(w.buffer, w.offset, out, in),
                              .c = matrix_of(y, 0, rows, out)};
}

void linear_multiply(struct operations *operations, size_t rows, size_t out, size_t in, struct span x,
                     struct span w, const struct buffer *y) {
    const struct gemm_call call = forward_call(rows, out, in, x, w, y);
    if (rows <= FEW_ROWS) {
        few_rows_multiply(operations, rows, out, in, x, w, y);
    } else {
        gemm_run(operations->compute, &call);
    }
}

/* Whether the activation, or its derivative, can be part of a GEMM: only GELU can. */
static bool is_gelu(const struct operations *operations) {
    const int activation = operations->shape.activation;
    return operations->shape.mlp == MLP_GELU &&
           (activation == ACTIVATION_GELU || activation == ACTIVATION_GELU_TANH);
}

void linear_forward(struct operations *operations, const struct parameters *parameters, struct linear layer,
                    size_t rows, const struct buffer *x, const struct buffer *y, const struct buffer *activated) {
    const bool bias = layer.has_bias;
    const bool fuses =
        gemm_fuses(operations->compute, operations->shape.type) && (!activated || is_gelu(operations));
    const struct span input = {x, 0}, weights = {parameters->weights_lowp, layer.weight_at};
    compute_set_module(operations->compute, "GEMMs of layers");
    if ((bias || activated) && rows > FEW_ROWS && fuses) {
        struct gemm_call call = forward_call(rows, layer.out, layer.in, input, weights, y);
        call.bias = (struct span){bias ? parameters->weights : NULL, layer.bias_at};
        call.activated = matrix_of(activated, 0, rows, layer.out);
        call.gelu_tanh = operations->shape.activation == ACTIVATION_GELU_TANH;
        gemm_run(operations->compute, &call);
        return;
    }
    linear_multiply(operations, rows, layer.out, layer.in, input, weights, y);
    if (bias) {
        bias_forward(operations, rows, layer.out, (struct span){parameters->weights, layer.bias_at}, y);
    }
    if (activated) {
        activation_forward(operations, rows * layer.out, y, activated);
    }
}

void linear_backward(struct operations *operations, const struct parameters *parameters, struct linear layer,
                     size_t rows, const struct buffer *x, const struct buffer *d_y, const struct buffer *d_x,
                     const struct buffer *gelu_of) {
    const bool fuses = gemm_fuses(operations->compute, operations->shape.type) && is_gelu(operations);
    const struct matrix output = matrix_of(d_y, 0, rows, layer.out);
    compute_set_module(operations->compute, "GEMMs of layers");
    gemm_run(operations->compute,
             &(struct gemm_call){.transpose_a = true,
                                 .a = output,
                                 .b = matrix_of(x, 0, rows, layer.in),
                                 .c = matrix_of(parameters->gradients, layer.weight_at, layer.out, layer.in),
                                 .beta = parameters->accumulate});
    if (layer.has_bias) {
        bias_backward(operations, rows, layer.out, d_y, (struct span){parameters->gradients, layer.bias_at},
                      parameters->accumulate);
    }
    gemm_run(operations->compute,
             &(struct gemm_call){.a = output,
                                 .b = matrix_of(parameters->weights_lowp, layer.weight_at, layer.out, layer.in),
                                 .c = matrix_of(d_x, 0, rows, layer.in),
                                 .gelu_of = matrix_of(fuses ? gelu_of : NULL, 0, rows, layer.in),
                                 .gelu_tanh = operations->shape.activation == ACTIVATION_GELU_TANH});
    if (gelu_of && !fuses) {
        compute_set_module(operations->compute, "GELU");
        activation_backward(operations, rows * layer.in, gelu_of, d_x);
    }
}
