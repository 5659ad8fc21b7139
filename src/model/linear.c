#include "src/model/linear.h"
#include "runtime/system/memory.h"

static struct span span_of(struct matrix matrix) {
    return (struct span){matrix.buffer, matrix.offset};
}

void linear_gemm(struct operations *operations, struct matrix a, struct matrix b, struct matrix c, bool adds) {
    gemm_run(operations->compute, &(struct gemm_call){.transpose_b = true, .a = a, .b = b, .c = c, .beta = adds});
}

void linear_multiply(struct operations *operations, struct matrix x, struct matrix w, struct matrix y) {
    if (x.rows <= FEW_ROWS) {
        few_rows_multiply(operations, x.rows, w.rows, w.columns, span_of(x), span_of(w), span_of(y), y.stride);
    } else {
        linear_gemm(operations, x, w, y, false);
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

static struct matrix weights_of(const struct linear_input *input, const struct linear *layer, struct span weights) {
    return matrix_of(weights.buffer, weights.offset + input->first * layer->in, input->count, layer->in);
}

/* The layer's weights as GEMMs read them, which narrow ones are expanded to. */
static struct span read_weights(struct operations *operations, const struct parameters *parameters,
                                const struct linear *layer) {
    if (!layer->narrow) {
        return (struct span){parameters->weights_lowp, layer->weight_at};
    }
    compute_set_module(operations->compute, "narrow weights");
    narrow_expand(operations, parameters->narrow, (layer->weight_at - parameters->narrow_from) / NARROW_BLOCK,
                  layer->out, layer->in, parameters->expanded);
    return (struct span){parameters->expanded, 0};
}

/* ---- adapters */

/* The neighbouring adapters whose outputs an input makes, or some of them; and A of these [count * rank, in]. */
struct reached {
    size_t first, count, width; /* width: count * rank */
    uint64_t a_at;
};

static struct reached reach(const struct parameters *parameters, const struct linear *layer,
                            const struct linear_input *input) {
    struct reached reached = {.first = layer->adapter_count};
    for (size_t i = 0; i < layer->adapter_count; i++) {
        const struct linear_adapter *adapter = &layer->adapters[i];
        if (adapter->first < input->first + input->count && input->first < adapter->first + adapter->count) {
            reached.first = size_smaller(reached.first, i);
            reached.count++;
        }
    }
    reached.width = reached.count * parameters->adapter_rank;
    reached.a_at = layer->a_at + reached.first * parameters->adapter_rank * layer->in;
    return reached;
}

/* What of an adapter an input reaches: columns of y or d_y, rows of B or its gradient, and columns of low. */
struct adapter_part {
    struct matrix y, b, low;
};

static struct adapter_part part_of(const struct parameters *parameters, const struct linear *layer,
                                   const struct linear_input *input, struct reached reached, size_t number,
                                   struct matrix y, const struct buffer *arena, struct matrix low) {
    const struct linear_adapter *adapter = &layer->adapters[reached.first + number];
    const size_t rank = parameters->adapter_rank, first = size_larger(adapter->first, input->first),
                 end = size_smaller(adapter->first + adapter->count, input->first + input->count);
    return (struct adapter_part){.y = {y.buffer, first, y.rows, end - first, layer->out},
                                 .b = matrix_of(arena, adapter->b_at + (first - adapter->first) * rank, end - first,
                                                rank),
                                 .low = {low.buffer, number * rank, low.rows, rank, reached.width}};
}

/* Returns low [rows, width] = s drop(x) A^T. With dropout *x becomes drop(x) in the scratch adapter_input, which
 * the next call overwrites. */
static struct matrix adapters_low(struct operations *operations, const struct parameters *parameters,
                                  const struct linear *layer, const struct linear_input *input,
                                  struct reached reached, struct matrix *x) {
    const struct matrix low = matrix_of(parameters->adapter_low, 0, x->rows, reached.width);
    if (input->dropout.rate > 0.0f) {
        const size_t bytes = x->rows * layer->in * element_size(operations->shape.type);
        buffer_copy(operations->compute, x->buffer, 0, parameters->adapter_input, 0, bytes);
        x->buffer = parameters->adapter_input;
        dropout_apply(operations, x->rows, layer->in, input->dropout, x->buffer);
    }
    linear_multiply(operations, *x, matrix_of(parameters->weights_lowp, reached.a_at, reached.width, layer->in),
                    low);
    scale_elements(operations, low.rows * low.columns, parameters->adapter_scale, low.buffer);
    return low;
}

/* y = x W^T + s drop(x) A^T B^T of an input. Where adapters make all of y they come first: a GEMM adds to what is
 * there for less than a later one reads and writes y again. */
static void input_forward(struct operations *operations, const struct parameters *parameters,
                          const struct linear *layer, const struct linear_input *input, struct matrix w,
                          struct matrix y) {
    const struct reached reached = reach(parameters, layer, input);
    const struct matrix x = matrix_of(input->x, 0, y.rows, layer->in);
    struct matrix dropped = x;
    size_t covered = 0;
    for (size_t i = 0; i < reached.count; i++) {
        covered += part_of(parameters, layer, input, reached, i, y, NULL, y).y.columns;
    }
    const bool few = y.rows <= FEW_ROWS, comes_first = !few && covered == input->count;
    if (!comes_first) {
        linear_multiply(operations, x, w, y);
    }
    if (reached.count == 0) {
        return;
    }
    compute_set_module(operations->compute, "adapters");
    const struct matrix low = adapters_low(operations, parameters, layer, input, reached, &dropped);
    for (size_t i = 0; i < reached.count; i++) {
        const struct adapter_part part =
            part_of(parameters, layer, input, reached, i, y, parameters->weights_lowp, low);
        if (few) {
            const struct adapter_rows arrays = {span_of(part.low), span_of(part.b), span_of(part.y), reached.width,
                                                layer->out};
            adapter_add(operations, y.rows, part.y.columns, part.low.columns, &arrays);
        } else {
            linear_gemm(operations, part.low, part.b, part.y, !comes_first);
        }
    }
    compute_set_module(operations->compute, "GEMMs of layers");
    if (comes_first) {
        linear_gemm(operations, x, w, y, true);
    }
}

/* The gradients of A and B, and their part of d_x, which later parts add to. False: the input has no adapters, and
 * d_x nothing yet. */
static bool adapters_backward(struct operations *operations, const struct parameters *parameters,
                              const struct linear *layer, const struct linear_input *input, struct matrix d_y,
                              struct matrix d_x) {
    struct compute *compute = operations->compute;
    const struct reached reached = reach(parameters, layer, input);
    struct matrix x = matrix_of(input->x, 0, d_y.rows, layer->in);
    if (reached.count == 0) {
        return false;
    }
    compute_set_module(compute, "adapters");
    const struct matrix low = adapters_low(operations, parameters, layer, input, reached, &x);
    const struct matrix d_low = matrix_of(parameters->d_adapter_low, 0, low.rows, low.columns);
    for (size_t i = 0; i < reached.count; i++) {
        const struct adapter_part of_weights =
            part_of(parameters, layer, input, reached, i, d_y, parameters->weights_lowp, d_low);
        const struct adapter_part of_gradients =
            part_of(parameters, layer, input, reached, i, d_y, parameters->gradients, low);
        linear_input_backward(compute, of_weights.y, of_weights.b, of_weights.low, false);
        linear_matrix_backward(compute, of_gradients.y, of_gradients.low, of_gradients.b, parameters->accumulate);
    }
    scale_elements(operations, low.rows * low.columns, parameters->adapter_scale, d_low.buffer);
    /* an adapter of several inputs has a part of its A's gradient from each */
    const bool adds = parameters->accumulate || input->first > layer->adapters[reached.first].first;
    linear_matrix_backward(compute, d_low, x,
                           matrix_of(parameters->gradients, reached.a_at, reached.width, layer->in), adds);
    linear_input_backward(compute, d_low,
                          matrix_of(parameters->weights_lowp, reached.a_at, reached.width, layer->in), d_x, false);
    dropout_apply(operations, d_x.rows, d_x.columns, input->dropout, d_x.buffer);
    compute_set_module(compute, "GEMMs of layers");
    return true;
}

/* ---- layers */

void linear_forward(struct operations *operations, const struct parameters *parameters, const struct linear *layer,
                    size_t rows, const struct linear_input *inputs, size_t count, const struct buffer *y,
                    const struct buffer *activated) {
    const struct span bias = {layer->has_bias ? parameters->weights : NULL, layer->bias_at};
    const struct span weights = read_weights(operations, parameters, layer);
    compute_set_module(operations->compute, "GEMMs of layers");
    if ((bias.buffer || activated) && count == 1 && rows > FEW_ROWS && layer->adapter_count == 0 &&
        gemm_fuses(operations->compute, operations->shape.type)) {
        gemm_run(operations->compute,
                 &(struct gemm_call){.transpose_b = true,
                                     .a = matrix_of(inputs->x, 0, rows, layer->in),
                                     .b = weights_of(inputs, layer, weights),
                                     .c = outputs_of(inputs, layer, rows, y),
                                     .bias = bias,
                                     .epilogue = activated ? EPILOGUE_ACTIVATION : EPILOGUE_NONE,
                                     .side = matrix_of(activated, 0, rows, layer->out),
                                     .activation = shape_activation(&operations->shape)});
        return;
    }
    for (const struct linear_input *input = inputs; input < inputs + count; input++) {
        input_forward(operations, parameters, layer, input, weights_of(input, layer, weights),
                      outputs_of(input, layer, rows, y));
    }
    if (bias.buffer) {
        bias_forward(operations, rows, layer->out, bias, y);
    }
    if (activated) {
        activation_forward(operations, rows * layer->out, y, activated);
    }
}

/* d_y W -> d_x, or added to it, and the activation's backward pass, in the GEMM's epilogue or by a kernel of its
 * own.
 */
static void activated_input_backward(struct operations *operations, struct matrix d_y, struct matrix w,
                                     struct matrix d_x, bool adds, const struct buffer *activation_of) {
    const bool gated = mlp_is_gated(operations->shape.mlp);
    const size_t rows = d_x.rows, width = d_x.columns;
    if (adds || !gemm_fuses(operations->compute, operations->shape.type)) {
        linear_input_backward(operations->compute, d_y, w, d_x, adds);
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
    const struct span weights = read_weights(operations, parameters, layer);
    const struct span gradients = {parameters->gradients, layer->weight_at};
    compute_set_module(operations->compute, "GEMMs of layers");
    if (layer->has_bias && !layer->bias_frozen) {
        bias_backward(operations, rows, layer->out, layer->out, d_y,
                      (struct span){parameters->gradients, layer->bias_at}, parameters->accumulate);
    }
    for (const struct linear_input *input = inputs; input < inputs + count; input++) {
        const struct matrix output = outputs_of(input, layer, rows, d_y);
        const struct matrix w = weights_of(input, layer, weights);
        const struct matrix d_x = matrix_of(input->d_x, 0, rows, layer->in);
        if (!layer->frozen) {
            linear_matrix_backward(operations->compute, output, matrix_of(input->x, 0, rows, layer->in),
                                   weights_of(input, layer, gradients), parameters->accumulate);
        }
        const bool adds = adapters_backward(operations, parameters, layer, input, output, d_x);
        if (activation_of) {
            activated_input_backward(operations, output, w, d_x, adds, activation_of);
        } else {
            linear_input_backward(operations->compute, output, w, d_x, adds);
        }
    }
}
