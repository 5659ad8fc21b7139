#include "src/model/linear.h"

void linear_multiply(struct operations *operations, struct matrix x, struct matrix w, struct matrix y) {
    if (x.rows <= FEW_ROWS) {
        few_rows_multiply(operations, x.rows, w.rows, w.columns, (struct span){x.buffer, x.offset},
                          (struct span){w.buffer, w.offset}, (struct span){y.buffer, y.offset}, y.stride);
    } else {
        gemm_run(operations->compute, &(struct gemm_call){.transpose_b = true, .a = x, .b = w, .c = y});
    }
}

void linear_input_backward(struct compute *compute, struct matrix d_y, struct matrix w, struct matrix d_x,
                           bool adds) {
    gemm_run(compute, &(struct gemm_call){.a = d_y, .b = w, .c = d_x, .beta = adds});
}

void linear_matrix_backward(struct compute *compute, struct matrix a, struct matrix b, struct matrix gradient,
                            bool adds) {
    gemm_run(compute, &(struct gemm_call){.transpose_a = true, .a = a, .b = b, .c = gradient, .beta = adds});
}

/* The input's part of y or d_y, and of the weight or its gradient. */
static struct matrix outputs_of(const struct linear_input *input, const struct linear *layer, size_t rows,
                                const struct buffer *y) {
    return (struct matrix){y, input->first, rows, input->count, layer->out};
}

static struct matrix weights_of(const struct linear_input *input, const struct linear *layer,
                                const struct buffer *arena) {
    return matrix_of(arena, layer->weight_at + input->first * layer->in, input->count, layer->in);
}

void linear_forward(struct operations *operations, const struct parameters *parameters, const struct linear *layer,
                    size_t rows, const struct linear_input *inputs, size_t count, const struct buffer *y,
                    const struct buffer *activated) {
    const struct span bias = {layer->has_bias ? parameters->weights : NULL, layer->bias_at};
    compute_set_module(operations->compute, "GEMMs of layers");
    if ((bias.buffer || activated) && count == 1 && rows > FEW_ROWS &&
        gemm_fuses(operations->compute, operations->shape.type)) {
        gemm_run(operations->compute,
                 &(struct gemm_call){.transpose_b = true,
                                     .a = matrix_of(inputs->x, 0, rows, layer->in),
                                     .b = weights_of(inputs, layer, parameters->weights_lowp),
                                     .c = outputs_of(inputs, layer, rows, y),
                                     .bias = bias,
                                     .epilogue = activated ? EPILOGUE_ACTIVATION : EPILOGUE_NONE,
                                     .side = matrix_of(activated, 0, rows, layer->out),
                                     .activation = shape_activation(&operations->shape)});
        return;
    }
    for (const struct linear_input *input = inputs; input < inputs + count; input++) {
        linear_multiply(operations, matrix_of(input->x, 0, rows, layer->in),
                        weights_of(input, layer, parameters->weights_lowp), outputs_of(input, layer, rows, y));
    }
    if (bias.buffer) {
        bias_forward(operations, rows, layer->out, bias, y);
    }
    if (activated) {
        activation_forward(operations, rows * layer->out, y, activated);
    }
}

/* d_y W -> d_x, and the activation's backward pass, in the GEMM's epilogue or by a kernel of its own. */
static void activated_input_backward(struct operations *operations, struct matrix d_y, struct matrix w,
                                     struct matrix d_x, const struct buffer *activation_of) {
    const bool gated = mlp_is_gated(operations->shape.mlp);
    const size_t rows = d_x.rows, width = d_x.columns;
    if (!gemm_fuses(operations->compute, operations->shape.type)) {
        linear_input_backward(operations->compute, d_y, w, d_x, false);
        compute_set_module(operations->compute, gated ? "gated MLP" : "activation");
        if (gated) {
            gated_backward(operations, rows, d_x.buffer, activation_of);
        } else {
            activation_backward(operations, rows * width, activation_of, d_x.buffer);
        }
        return;
    }
    struct gemm_call call = {.a = d_y, .b = w, .c = d_x, .activation = shape_activation(&operations->shape)};
    if (gated) {
        call.epilogue = EPILOGUE_GATES;
        call.c = (struct matrix){activation_of, 0, rows, width, 2 * width};
        call.side = (struct matrix){activation_of, width, rows, width, 2 * width};
    } else {
        call.epilogue = EPILOGUE_DERIVATIVE;
        call.side = matrix_of(activation_of, 0, rows, width);
    }
    gemm_run(operations->compute, &call);
}

void linear_backward(struct operations *operations, const struct parameters *parameters, const struct linear *layer,
                     size_t rows, const struct linear_input *inputs, size_t count, const struct buffer *d_y,
                     const struct buffer *activation_of) {
    compute_set_module(operations->compute, "GEMMs of layers");
    if (layer->has_bias && !layer->frozen) {
        bias_backward(operations, rows, layer->out, layer->out, d_y,
                      (struct span){parameters->gradients, layer->bias_at}, parameters->accumulate);
    }
    for (const struct linear_input *input = inputs; input < inputs + count; input++) {
        const struct matrix output = outputs_of(input, layer, rows, d_y);
        const struct matrix w = weights_of(input, layer, parameters->weights_lowp);
        const struct matrix d_x = matrix_of(input->d_x, 0, rows, layer->in);
        if (!layer->frozen) {
            linear_matrix_backward(operations->compute, output, matrix_of(input->x, 0, rows, layer->in),
                                   weights_of(input, layer, parameters->gradients), parameters->accumulate);
        }
        if (activation_of) {
            activated_input_backward(operations, output, w, d_x, activation_of);
        } else {
            linear_input_backward(operations->compute, output, w, d_x, false);
        }
    }
}
