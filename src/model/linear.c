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

static void multiply(struct operations *operations, const struct gemm_call *call) {
    const struct matrix *x = &call->a, *w = &call->b, *y = &call->c;
    if (x->rows <= FEW_ROWS) {
        few_rows_multiply(operations, x->rows, w->rows, w->columns, (struct span){x->buffer, x->offset},
                          (struct span){w->buffer, w->offset}, (struct span){y->buffer, y->offset}, y->stride);
    } else {
        gemm_run(operations->compute, call);
    }
}

void linear_multiply(struct operations *operations, size_t rows, size_t out, size_t in, struct span x,
                     struct span w, const struct buffer *y) {
    const struct gemm_call call = forward_call(rows, out, in, x, w, y);
    multiply(operations, &call);
}

void linear_forward(struct operations *operations, const struct parameters *parameters, struct linear layer,
                    size_t rows, const struct buffer *x, const struct buffer *y, const struct buffer *activated) {
    const bool bias = layer.has_bias;
    const bool fuses = gemm_fuses(operations->compute, operations->shape.type);
    const struct span input = {x, 0}, weights = {parameters->weights_lowp, layer.weight_at};
    compute_set_module(operations->compute, "GEMMs of layers");
    if ((bias || activated) && rows > FEW_ROWS && fuses) {
        struct gemm_call call = forward_call(rows, layer.out, layer.in, input, weights, y);
        call.bias = (struct span){bias ? parameters->weights : NULL, layer.bias_at};
        call.epilogue = activated ? EPILOGUE_ACTIVATION : EPILOGUE_NONE;
        call.side = matrix_of(activated, 0, rows, layer.out);
        call.activation = shape_activation(&operations->shape);
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

/* The activation's backward pass as what follows a GEMM that made d_x. */
static void add_epilogue(struct gemm_call *call, const struct operation_shape *shape,
                         const struct buffer *activation_of) {
    const size_t rows = call->c.rows, width = call->c.columns;
    call->activation = shape_activation(shape);
    if (mlp_is_gated(shape->mlp)) {
        call->epilogue = EPILOGUE_GATES;
        call->c = (struct matrix){activation_of, 0, rows, width, 2 * width};
        call->side = (struct matrix){activation_of, width, rows, width, 2 * width};
    } else {
        call->epilogue = EPILOGUE_DERIVATIVE;
        call->side = matrix_of(activation_of, 0, rows, width);
    }
}

/* The same by a kernel of its own. */
static void run_activation_backward(struct operations *operations, size_t rows, size_t width,
                                    const struct buffer *activation_of, const struct buffer *d_x) {
    const bool gated = mlp_is_gated(operations->shape.mlp);
    compute_set_module(operations->compute, gated ? "gated MLP" : "activation");
    if (gated) {
        gated_backward(operations, rows, d_x, activation_of);
    } else {
        activation_backward(operations, rows * width, activation_of, d_x);
    }
}

void linear_backward(struct operations *operations, const struct parameters *parameters, struct linear layer,
                     size_t rows, const struct buffer *x, const struct buffer *d_y, const struct buffer *d_x,
                     const struct buffer *activation_of) {
    const bool fuses = activation_of && gemm_fuses(operations->compute, operations->shape.type);
    const struct matrix output = matrix_of(d_y, 0, rows, layer.out);
    compute_set_module(operations->compute, "GEMMs of layers");
    if (!layer.frozen) {
        gemm_run(operations->compute,
                 &(struct gemm_call){.transpose_a = true,
                                     .a = output,
                                     .b = matrix_of(x, 0, rows, layer.in),
                                     .c = matrix_of(parameters->gradients, layer.weight_at, layer.out, layer.in),
                                     .beta = parameters->accumulate});
    }
    if (layer.has_bias && !layer.frozen) {
        bias_backward(operations, rows, layer.out, layer.out, d_y,
                      (struct span){parameters->gradients, layer.bias_at}, parameters->accumulate);
    }
    struct gemm_call call = {.a = output,
                             .b = matrix_of(parameters->weights_lowp, layer.weight_at, layer.out, layer.in),
                             .c = matrix_of(d_x, 0, rows, layer.in)};
    if (fuses) {
        add_epilogue(&call, &operations->shape, activation_of);
    }
    gemm_run(operations->compute, &call);
    if (activation_of && !fuses) {
        run_activation_backward(operations, rows, layer.in, activation_of, d_x);
    }
}

/* ---- layers with several inputs */

/* The part of y or d_y. */
static struct matrix outputs_of(const struct linear_part *part, struct linear layer, size_t rows,
                                const struct buffer *y) {
    return (struct matrix){y, part->first, rows, part->count, layer.out};
}

/* The part of the weight, or of its gradient. */
static struct matrix weights_of(const struct linear_part *part, struct linear layer, const struct buffer *arena) {
    return matrix_of(arena, layer.weight_at + part->first * layer.in, part->count, layer.in);
}

void linear_forward_parts(struct operations *operations, const struct parameters *parameters, struct linear layer,
                          size_t rows, const struct linear_part *parts, size_t count, const struct buffer *y) {
    compute_set_module(operations->compute, "GEMMs of layers");
    for (const struct linear_part *part = parts; part < parts + count; part++) {
        multiply(operations, &(struct gemm_call){.transpose_b = true,
                                                 .a = matrix_of(part->x, 0, rows, layer.in),
                                                 .b = weights_of(part, layer, parameters->weights_lowp),
                                                 .c = outputs_of(part, layer, rows, y)});
    }
    if (layer.has_bias) {
        bias_forward(operations, rows, layer.out, (struct span){parameters->weights, layer.bias_at}, y);
    }
}

void linear_backward_parts(struct operations *operations, const struct parameters *parameters, struct linear layer,
                           size_t rows, const struct linear_part *parts, size_t count, const struct buffer *d_y) {
    compute_set_module(operations->compute, "GEMMs of layers");
    for (const struct linear_part *part = parts; part < parts + count; part++) {
        if (!layer.frozen) {
            gemm_run(operations->compute, &(struct gemm_call){.transpose_a = true,
                                                              .a = outputs_of(part, layer, rows, d_y),
                                                              .b = matrix_of(part->x, 0, rows, layer.in),
                                                              .c = weights_of(part, layer, parameters->gradients),
                                                              .beta = parameters->accumulate});
        }
        gemm_run(operations->compute, &(struct gemm_call){.a = outputs_of(part, layer, rows, d_y),
                                                          .b = weights_of(part, layer, parameters->weights_lowp),
                                                          .c = matrix_of(part->d_x, 0, rows, layer.in)});
    }
    if (layer.has_bias && !layer.frozen) {
        bias_backward(operations, rows, layer.out, layer.out, d_y,
                      (struct span){parameters->gradients, layer.bias_at}, parameters->accumulate);
    }
}
