/* Cases of test_operations: gEMMs of few rows, and what works element by element. */
#include "src/model/narrow_weights.h"
#include "tests/operations/operation_bench.h"

/* ---- GEMMs of few rows: x [N, in] and w [count, in], `in` all streams of a token */

static size_t few_rows_in(const struct bench *bench) {
    return bench->streams * bench->channels;
}

static void few_rows_describe(struct bench *bench) {
    struct field *y = bench_output(bench, "y", bench->token_count * (size_t)bench->shape.count);
    /* both begin with another row */
    bench_activation(bench_input(bench, "x", (bench->token_count + 1) * few_rows_in(bench), 0.1, 1.0));
    bench_activation(bench_input(bench, "w", ((size_t)bench->shape.count + 1) * few_rows_in(bench), 0.1, 1.0));
    if (bench->shape.variation == 0) { /* else float */
        bench_activation(y);
    }
}

static void few_rows_reference(struct bench *bench) {
    const size_t in = few_rows_in(bench), out = (size_t)bench->shape.count;
    for (size_t i = 0; i < bench->token_count * out; i++) {
        bench_values(bench, "y")[i] = reference_dot(in, bench_values(bench, "x") + (1 + i / out) * in,
                                                    bench_values(bench, "w") + (1 + i % out) * in);
    }
}

/* With gaps between rows, y is part of wider ones. */
static void run_few_rows(struct bench *bench) {
    const size_t in = few_rows_in(bench), out = (size_t)bench->shape.count, rows = bench->token_count;
    const size_t gap = (size_t)bench->shape.apart, y_row = out + gap;
    const struct buffer *y = bench_buffer(bench, "y"),
                        *wide = gap == 0                      ? y
                                : bench->shape.variation == 0 ? bench_scratch_activation(bench, rows * y_row + gap)
                                                              : bench_scratch(bench, rows * y_row + gap);
    few_rows_multiply(bench->operations, rows, out, in, (struct span){bench_buffer(bench, "x"), in},
                      (struct span){bench_buffer(bench, "w"), in}, (struct span){wide, gap}, y_row);
    for (size_t row = 0; gap > 0 && row < rows; row++) {
        bench_copy(bench, wide, gap + row * y_row, y, row * out, out);
    }
}

/* A row alone has the same bits as among others. */
static const char *few_rows_check(const struct bench *bench) {
    const size_t in = few_rows_in(bench), out = (size_t)bench->shape.count;
    const char *wrong = NULL;
    struct bench *alone = (struct bench *)(uintptr_t)bench; /* for its scratch */
    double *row = calloc(out, sizeof *row);
    const struct buffer *y =
        bench->shape.variation == 0 ? bench_scratch_activation(alone, out) : bench_scratch(alone, out);
    for (size_t token = 0; token < bench->token_count && !wrong; token++) {
        few_rows_multiply(bench->operations, 1, out, in, (struct span){bench_buffer(bench, "x"), (1 + token) * in},
                          (struct span){bench_buffer(bench, "w"), in}, (struct span){y, 0}, out);
        if (!row || bench_download(bench->operations->compute, y, 0, row, out) != 0) {
            wrong = "cannot be read";
        } else if (memcmp(row, bench_values(bench, "y") + token * out, out * sizeof *row) != 0) {
            wrong = "depends on the number of rows";
        }
    }
    free(row);
    return wrong;
}

OPERATION(few_rows, "few rows", "few_rows.cl", few_rows_describe, .reference = few_rows_reference,
          .forward = run_few_rows, .check = few_rows_check);

/* ---- element by element, on rows of 2 C */

static size_t wide_count(const struct bench *bench) {
    return bench->token_count * 2 * bench->channels;
}

static void elements_describe(struct bench *bench) {
    bench_activation(bench_input(bench, "x", wide_count(bench), 0.1, bench->shape.spread));
    bench_activation(bench_output(bench, "y", wide_count(bench)));
}

static void gelu_reference(struct bench *bench) {
    for (size_t i = 0; i < wide_count(bench); i++) {
        const double x = bench_values(bench, "x")[i];
        bench_values(bench, "y")[i] = bench->shape.mlp == MLP_RELU2 ? reference_relu2(x)
                                      : bench->shape.gelu_tanh      ? reference_gelu_tanh(x)
                                                                    : reference_gelu(x);
    }
}

static void run_gelu_forward(struct bench *bench) {
    activation_forward(bench->operations, wide_count(bench), bench_buffer(bench, "x"), bench_buffer(bench, "y"));
}

static void run_gelu_backward(struct bench *bench) {
    bench_copy_all(bench, bench_derivative(bench, "y"), bench_derivative(bench, "x"), wide_count(bench));
    activation_backward(bench->operations, wide_count(bench), bench_buffer(bench, "x"),
                        bench_derivative(bench, "x"));
}

OPERATION(gelu, "gelu", "elementwise.cl", elements_describe, .reference = gelu_reference,
          .forward = run_gelu_forward, .backward = run_gelu_backward);

/* ---- gated MLPs: rows of 2 M, which become their gradient in place */

static size_t hidden_count(const struct bench *bench) {
    return bench->token_count * (size_t)bench->shape.hidden;
}

static void gated_describe(struct bench *bench) {
    bench_activation(bench_input(bench, "x", 2 * hidden_count(bench), 0.1, bench->shape.spread));
    bench_activation(bench_output(bench, "y", hidden_count(bench)));
}

static void gated_reference(struct bench *bench) {
    const size_t width = (size_t)bench->shape.hidden;
    for (size_t i = 0; i < hidden_count(bench); i++) {
        const double *gate = bench_values(bench, "x") + i / width * 2 * width + i % width;
        bench_values(bench, "y")[i] = reference_silu(gate[0]) * gate[width];
    }
}

static void run_gated_forward(struct bench *bench) {
    gated_forward(bench->operations, bench->token_count, bench_buffer(bench, "x"), bench_buffer(bench, "y"));
}

static void run_gated_backward(struct bench *bench) {
    bench_copy_all(bench, bench_buffer(bench, "x"), bench_derivative(bench, "x"), 2 * hidden_count(bench));
    gated_backward(bench->operations, bench->token_count, bench_derivative(bench, "y"),
                   bench_derivative(bench, "x"));
}

OPERATION(gated, "gated", "gated.cl", gated_describe, .reference = gated_reference, .forward = run_gated_forward,
          .backward = run_gated_backward);

static void bias_describe(struct bench *bench) {
    elements_describe(bench);
    bench_parameter(bench, "bias", 2 * bench->channels, 0.0, 1.0);
}

static void bias_reference(struct bench *bench) {
    for (size_t i = 0; i < wide_count(bench); i++) {
        bench_values(bench, "y")[i] =
            bench_values(bench, "x")[i] + bench_values(bench, "bias")[i % (2 * bench->channels)];
    }
}

static void run_bias_forward(struct bench *bench) {
    bench_copy_all(bench, bench_buffer(bench, "x"), bench_buffer(bench, "y"), wide_count(bench));
    bias_forward(bench->operations, bench->token_count, 2 * bench->channels, case_weights(bench, "bias"),
                 bench_buffer(bench, "y"));
}

static void run_bias_backward(struct bench *bench) {
    bench_copy_all(bench, bench_derivative(bench, "y"), bench_derivative(bench, "x"), wide_count(bench));
    bias_backward(bench->operations, bench->token_count, 2 * bench->channels, 2 * bench->channels,
                  bench_derivative(bench, "x"), case_gradients(bench, "bias"), bench->accumulate);
}

OPERATION(bias, "bias", "elementwise.cl", bias_describe, .reference = bias_reference, .forward = run_bias_forward,
          .backward = run_bias_backward);

static void dropout_reference(struct bench *bench) {
    for (size_t i = 0; i < wide_count(bench); i++) {
        bench_values(bench, "y")[i] =
            bench_values(bench, "x")[i] * case_kept(bench, i / (2 * bench->channels), i % (2 * bench->channels));
    }
}

static void drop(struct bench *bench, const struct buffer *from, const struct buffer *to) {
    bench_copy_all(bench, from, to, wide_count(bench));
    dropout_apply(bench->operations, bench->token_count, 2 * bench->channels, case_dropout(bench), to);
}

static void run_dropout_forward(struct bench *bench) {
    drop(bench, bench_buffer(bench, "x"), bench_buffer(bench, "y"));
}

static void run_dropout_backward(struct bench *bench) {
    drop(bench, bench_derivative(bench, "y"), bench_derivative(bench, "x"));
}

OPERATION(dropout, "dropout", "elementwise.cl", elements_describe, .reference = dropout_reference,
          .forward = run_dropout_forward, .backward = run_dropout_backward);

/* A row of ones: the factors themselves. Their mean is 1 and their deviation sqrt(rate / (1 - rate)). */
static void ones_prepare(struct bench *bench) {
    for (size_t i = 0; i < wide_count(bench); i++) {
        bench_values(bench, "x")[i] = 1.0;
    }
}

static const char *dropout_check(const struct bench *bench) {
    const double count = (double)wide_count(bench), rate = (double)bench->shape.dropout;
    double sum = 0.0;
    for (size_t i = 0; i < wide_count(bench); i++) {
        sum += bench_values(bench, "y")[i];
    }
    return fabs(sum / count - 1.0) < 5.0 * sqrt(rate / (1.0 - rate) / count) ? NULL
                                                                             : "the mean of the factors is not 1";
}

/* The rows in two launches: the second begins with the number of its first row, and on a buffer of its own. */
static void run_dropout_split(struct bench *bench) {
    const size_t width = 2 * bench->channels, first = bench->token_count / 3, rest = bench->token_count - first;
    const struct buffer *y = bench_buffer(bench, "y"), *part = bench_scratch_activation(bench, rest * width);
    struct dropout settings = case_dropout(bench);
    bench_copy_all(bench, bench_buffer(bench, "x"), y, first * width);
    dropout_apply(bench->operations, first, width, settings, y);
    bench_copy(bench, bench_buffer(bench, "x"), first * width, part, 0, rest * width);
    settings.first_row += first;
    dropout_apply(bench->operations, rest, width, settings, part);
    bench_copy(bench, part, 0, y, first * width, rest * width);
}

OPERATION(dropout_split, "dropout_split", "elementwise.cl", elements_describe, .prepare = ones_prepare,
          .reference = dropout_reference, .forward = run_dropout_split, .check = dropout_check);

/* ---- adapters: y [N, 2 C] += low [N, count] b^T of few rows, which lie apart; and a factor of all elements */

static void adapter_describe(struct bench *bench) {
    const size_t rank = (size_t)bench->shape.count;
    elements_describe(bench);
    bench_activation(bench_input(bench, "low", bench->token_count * rank, 0.0, 1.0))->constant = true;
    bench_activation(bench_input(bench, "b", 2 * bench->channels * rank, 0.0, 1.0))->constant = true;
}

static void adapter_reference(struct bench *bench) {
    const size_t rank = (size_t)bench->shape.count, width = 2 * bench->channels;
    for (size_t i = 0; i < wide_count(bench); i++) {
        bench_values(bench, "y")[i] =
            bench_values(bench, "x")[i] + reference_dot(rank, bench_values(bench, "low") + i / width * rank,
                                                        bench_values(bench, "b") + i % width * rank);
    }
}

static void run_adapter_add(struct bench *bench) {
    const size_t rank = (size_t)bench->shape.count, width = 2 * bench->channels, gap = (size_t)bench->shape.apart;
    const size_t rows = bench->token_count, low_row = rank + gap, y_row = width + gap;
    const struct buffer *low = bench_scratch_activation(bench, rows * low_row),
                        *y = bench_scratch_activation(bench, rows * y_row + gap);
    for (size_t row = 0; row < rows; row++) {
        bench_copy(bench, bench_buffer(bench, "low"), row * rank, low, row * low_row, rank);
        bench_copy(bench, bench_buffer(bench, "x"), row * width, y, gap + row * y_row, width);
    }
    const struct adapter_rows arrays = {{low, 0}, {bench_buffer(bench, "b"), 0}, {y, gap}, low_row, y_row};
    adapter_add(bench->operations, rows, width, rank, &arrays);
    for (size_t row = 0; row < rows; row++) {
        bench_copy(bench, y, gap + row * y_row, bench_buffer(bench, "y"), row * width, width);
    }
}

OPERATION(adapter, "adapter", "adapter.cl", adapter_describe, .reference = adapter_reference,
          .forward = run_adapter_add);

#define SCALE_FACTOR 1.7f

static void scale_reference(struct bench *bench) {
    for (size_t i = 0; i < wide_count(bench); i++) {
        bench_values(bench, "y")[i] = (double)SCALE_FACTOR * bench_values(bench, "x")[i];
    }
}

static void scale(struct bench *bench, const struct buffer *from, const struct buffer *to) {
    bench_copy_all(bench, from, to, wide_count(bench));
    scale_elements(bench->operations, wide_count(bench), SCALE_FACTOR, to);
}

static void run_scale_forward(struct bench *bench) {
    scale(bench, bench_buffer(bench, "x"), bench_buffer(bench, "y"));
}

static void run_scale_backward(struct bench *bench) {
    scale(bench, bench_derivative(bench, "y"), bench_derivative(bench, "x"));
}

OPERATION(scale_all, "scale", "adapter.cl", elements_describe, .reference = scale_reference,
          .forward = run_scale_forward, .backward = run_scale_backward);

/* ---- narrow weights [N, 2 C], of what the host packs; the first row's blocks are others */

static void narrow_describe(struct bench *bench) {
    bench_input(bench, "x", wide_count(bench), 0.1, bench->shape.spread)->constant = true;
    bench_activation(bench_output(bench, "y", wide_count(bench)));
}

/* What is nearest to w among the numbers that a block of this largest magnitude can have. */
static double narrowed(int kept, double w, double most) {
    static const double nf4[] = {-1.0,
                                 -0.6961928009986877,
                                 -0.5250730514526367,
                                 -0.39491748809814453,
                                 -0.28444138169288635,
                                 -0.18477343022823334,
                                 -0.09105003625154495,
                                 0.0,
                                 0.07958029955625534,
                                 0.16093020141124725,
                                 0.24611230194568634,
                                 0.33791524171829224,
                                 0.44070982933044434,
                                 0.5626170039176941,
                                 0.7229568362236023,
                                 1.0};
    double nearest = 0.0;
    if (kept == FROZEN_INT8) {
        return rint(w / (most / 127.0)) * (most / 127.0);
    }
    for (size_t i = 0; i < sizeof nf4 / sizeof *nf4; i++) {
        nearest = i == 0 || fabs(w - nf4[i] * most) < fabs(w - nearest) ? nf4[i] * most : nearest;
    }
    return nearest;
}

static void narrow_reference(struct bench *bench) {
    const size_t width = 2 * bench->channels;
    for (size_t i = 0; i < wide_count(bench); i++) {
        const size_t first = i - i % width % NARROW_BLOCK, row_end = i - i % width + width;
        const size_t end = first + NARROW_BLOCK < row_end ? first + NARROW_BLOCK : row_end;
        double most = 0.0;
        for (size_t k = first; k < end; k++) {
            most = fmax(most, fabs(bench_values(bench, "x")[k]));
        }
        bench_values(bench, "y")[i] = narrowed(bench->shape.frozen_weights, bench_values(bench, "x")[i], most);
    }
}

static void run_narrow(struct bench *bench) {
    const int kept = bench->shape.frozen_weights;
    const size_t rows = bench->token_count, width = 2 * bench->channels, before = narrow_blocks(1, width);
    const size_t blocks = narrow_blocks(rows, width), bytes = narrow_block_bytes(kept);
    const struct buffer *codes = bench_scratch(bench, (before + blocks) * bytes / sizeof(float)),
                        *scales = bench_scratch(bench, before + blocks);
    float *values = calloc(rows * width, sizeof *values), *factors = calloc(blocks, sizeof *factors);
    unsigned char *packed = calloc(blocks, bytes);
    if (!values || !factors || !packed) {
        abort();
    }
    for (size_t i = 0; i < rows * width; i++) {
        values[i] = (float)bench_values(bench, "x")[i];
    }
    narrow_pack(kept, rows, width, values, packed, factors);
    bench_try(bench, buffer_write(bench->operations->compute, codes, before * bytes, packed, blocks * bytes) ||
                         buffer_write(bench->operations->compute, scales, before * sizeof *factors, factors,
                                      blocks * sizeof *factors));
    narrow_expand(bench->operations, (struct narrow_weights){codes, scales}, before, rows, width,
                  bench_buffer(bench, "y"));
    free(values);
    free(factors);
    free(packed);
}

OPERATION(narrow, "narrow weights", "narrow_weights.cl", narrow_describe, .reference = narrow_reference,
          .forward = run_narrow);

/* ---- cases */

const struct operation_case cases_elements[] = {
    TINY(few_rows, "mhc", 2, 3, TINY_MHC, .count = 9),
    TINY(few_rows, "mhc, to float", 2, 3, TINY_MHC, .count = 9, .variation = 1),
    TINY(gelu, "mhc", 2, 3, TINY_MHC),
    TINY(gelu, "mhc, tanh", 2, 3, TINY_MHC, .gelu_tanh = true),
    TINY(gelu, "mhc, ReLU squared", 2, 3, TINY_MHC, .mlp = MLP_RELU2),
    TINY(gated, "mhc, M=20", 2, 3, TINY_MHC, .mlp = MLP_SWIGLU, .hidden = 20),
    TINY(bias, "mhc", 2, 3, TINY_MHC),
    TINY(dropout, "mhc", 2, 3, TINY_MHC, .dropout = 0.5f),
    TINY(few_rows, "mhc, rows with gaps", 2, 3, TINY_MHC, .count = 9, .apart = 3),
    TINY(adapter, "rank 3", 2, 3, TINY_MHC, .count = 3, .apart = 2),
    TINY(scale_all, "mhc", 2, 3, TINY_MHC),
    TINY(narrow, "int8", 2, 3, TINY_MHC, .frozen_weights = FROZEN_INT8),
    TINY(narrow, "nf4", 2, 3, TINY_MHC, .frozen_weights = FROZEN_NF4),
    CASE(adapter, "rank 16", .channels = 64, .sequence = 16, .count = 16),
    CASE(adapter, "rank 1, C=5", .residual = "rc", .channels = 5, .count = 1),
    CASE(scale_all, "C=5", .residual = "rc", .channels = 5),
    CASE(narrow, "int8, rows of 160", .channels = 80, .spread = 4.0, .frozen_weights = FROZEN_INT8),
    CASE(narrow, "nf4, rows of 160", .channels = 80, .spread = 4.0, .frozen_weights = FROZEN_NF4),
    CASE(narrow, "nf4, rows of 10", .residual = "rc", .channels = 5, .frozen_weights = FROZEN_NF4),
    CASE(few_rows, "one of 24, 5 columns", .residual = "rc", .sequence = 1, .count = 5),
    CASE(few_rows, "7 of 20, 33 columns", .streams = 4, .channels = 5, .sequence = 7, .count = 33),
    CASE(few_rows, "16 of 3072, 17 columns", .channels = 768, .sequence = 16, .count = 17),
    CASE(few_rows, "19 of 128, one column", .residual = "rc", .channels = 128, .sequence = 19, .count = 1),
    CASE(gelu, "normal", .bias = true),
    CASE(gelu, "wide C=5", .residual = "rc", .channels = 5, .bias = true, .spread = 8.0),
    CASE(gelu, "tanh", .bias = true, .gelu_tanh = true),
    CASE(gelu, "tanh, wide C=5", .residual = "rc", .channels = 5, .bias = true, .gelu_tanh = true, .spread = 8.0),
    CASE(gelu, "ReLU squared, wide", .bias = true, .spread = 8.0, .mlp = MLP_RELU2),
    CASE(gated, "M=64", .mlp = MLP_SWIGLU, .hidden = 64, .batch = 3),
    CASE(gated, "M=2048, wide", .mlp = MLP_SWIGLU, .channels = 768, .hidden = 2048, .spread = 8.0),
    CASE(gated, "C=12 M=31", .mlp = MLP_SWIGLU, .channels = 12, .hidden = 31, .batch = 3),
    CASE(bias, "few rows", .bias = true),
    CASE(bias, "more rows than chunks", .bias = true, .batch = 2, .sequence = 75),
    CASE(bias, "C=5", .residual = "rc", .channels = 5, .bias = true),
    CASE(dropout, "p=0.1", .bias = true, .dropout = 0.1f),
    CASE(dropout, "p=0.5 C=5", .residual = "rc", .channels = 5, .bias = true, .dropout = 0.5f),
    CASE(dropout_split, "p=0.1", .bias = true, .batch = 40, .sequence = 50, .dropout = 0.1f),
    CASE(dropout_split, "p=0.9 C=5", .residual = "rc", .channels = 5, .bias = true, .batch = 40, .sequence = 50,
         .dropout = 0.9f),
    {.test = NULL},
};
