/* Cases of test_operations: the residual connection `gated`. */
#include "src/operations/channel_gates.h"
#include "tests/operations/operation_bench.h"

/* What a case's `variation` changes. */
enum { ALONE, AT_TOP, UNNORMED /* streams after the branch stay as they are */ };

static size_t row_length(const struct bench *bench) {
    return bench->streams * bench->channels;
}

static size_t rank_of(const struct bench *bench) {
    return (size_t)gates_rank(&bench->operations->shape);
}

static double sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

/* `written`: its gradient replaces what was there, else it is always added. */
static void describe_gain(struct bench *bench, bool written) {
    if (!bench->shape.gainless) {
        struct field *gain = bench_parameter(bench, "gain", row_length(bench), 0.0, 0.5);
        gain->written = written ? gain->count : 0;
        bench_gap(bench);
    }
}

static double factor_at(const struct bench *bench, size_t i) {
    const double *gain = bench_values_or_null(bench, "gain");
    return gain ? 1.0 + gain[i] : 1.0;
}

/* ---- matrices. `down` is what GEMMs multiply streams with, [rows.y, S C]; `packed` is that and w_up. */

static void matrices_describe(struct bench *bench) {
    const size_t row = row_length(bench), rank = rank_of(bench);
    describe_gain(bench, false); /* gates_backward has written it before */
    bench_parameter(bench, "w_down", row * rank, 0.0, 1.0);
    bench_gap(bench);
    struct field *up = bench_parameter(bench, "w_up", row * rank, 0.0, 1.0); /* a GEMM makes its gradient */
    up->constant = true;
    up->written = 0;
    bench_gap(bench);
    if (bench->shape.variation != AT_TOP) {
        bench_parameter(bench, "w_post", row * bench->streams, 0.0, 1.0);
        bench_gap(bench);
    }
    bench_activation(bench_byproduct(bench, "packed", gates_packed_elements(bench->operations)));
    bench_output(bench, "down", gate_rows(&bench->operations->shape).y * row)->implied = true;
}

static double packed_at(const struct bench *bench, size_t column, size_t i) {
    const size_t rank = rank_of(bench), hidden = gate_rows(&bench->operations->shape).hidden,
                 streams = bench->streams;
    const double *post = bench_values_or_null(bench, "w_post"), factor = factor_at(bench, i) / (double)streams;
    if (column < hidden) {
        return column < rank ? factor * bench_values(bench, "w_down")[i * rank + column] : 0.0;
    }
    return post && column - hidden < streams ? factor * post[i * streams + column - hidden] : 0.0;
}

static void matrices_reference(struct bench *bench) {
    const size_t row = row_length(bench), rank = rank_of(bench);
    const struct gate_rows rows = gate_rows(&bench->operations->shape);
    double *packed = bench_values(bench, "packed"), *down = bench_values(bench, "down");
    for (size_t k = 0; k < rows.y * row; k++) {
        packed[k] = down[k] = packed_at(bench, k / row, k % row);
    }
    for (size_t k = 0; k < row * rows.hidden; k++) {
        const size_t column = k % rows.hidden, i = k / rows.hidden;
        packed[rows.y * row + k] = column < rank ? bench_values(bench, "w_up")[column * row + i] : 0.0;
    }
}

/* The leaves of one sublayer, on the device. */
static struct gate_table table_of(struct bench *bench) {
    const struct gate_leaves leaves = {
        .gain_at = bench_offset(bench, "gain"),
        .down_at = bench_offset(bench, "w_down"),
        .up_at = bench_offset(bench, "w_up"),
        .post_at = bench->shape.variation == AT_TOP ? GATES_NO_POST : bench_offset(bench, "w_post"),
    };
    const struct buffer *table = bench_scratch(bench, GATE_LEAF_INTEGERS);
    bench_try(bench, buffer_write(bench->operations->compute, table, 0, &leaves, sizeof leaves));
    return (struct gate_table){table, 0, 1, bench->shape.variation == AT_TOP};
}

static void run_pack(struct bench *bench) {
    gates_pack(bench->operations, &bench->weights, table_of(bench), bench_buffer(bench, "packed"));
}

static void run_unpack(struct bench *bench) {
    gates_unpack(bench->operations, &bench->weights, table_of(bench), bench_derivative(bench, "down"),
                 &bench->gradients, bench->accumulate);
}

OPERATION(matrices, "gate matrices", "channel_gates.cl", matrices_describe, .reference = matrices_reference,
          .forward = run_pack, .backward = run_unpack);

/* ---- y -> hidden and s */

static void hidden_describe(struct bench *bench) {
    const struct gate_rows rows = gate_rows(&bench->operations->shape);
    const size_t n = bench->token_count;
    bench_input(bench, "y", n * rows.y, 0.2, 1.5)->d_activation = true;
    bench_activation(bench_output(bench, "hidden", n * rows.hidden))->d_activation = false;
    struct field *post = bench_output(bench, "post", n * bench->streams);
    post->deviation = bench->shape.variation == AT_TOP ? 0.0 : 1.0;
}

static void hidden_reference(struct bench *bench) {
    const struct gate_rows rows = gate_rows(&bench->operations->shape);
    for (size_t token = 0; token < bench->token_count; token++) {
        const double *y = bench_row(bench, "y", token);
        for (size_t k = 0; k < rows.hidden; k++) {
            bench_row(bench, "hidden", token)[k] = y[k] * sigmoid(y[k]);
        }
        for (size_t i = 0; i < bench->streams; i++) {
            bench_row(bench, "post", token)[i] = 2.0 * sigmoid(y[rows.hidden + i]);
        }
    }
}

static struct gate_values hidden_values(const struct bench *bench) {
    return (struct gate_values){.y = bench_buffer(bench, "y"),
                                .hidden = bench_buffer(bench, "hidden"),
                                .post = bench_buffer(bench, "post")};
}

static void run_hidden_forward(struct bench *bench) {
    const struct gate_values values = hidden_values(bench);
    gates_hidden_forward(bench->operations, bench->token_count, &values);
}

static void run_hidden_backward(struct bench *bench) {
    const struct gate_values values = hidden_values(bench);
    const struct buffer *d_post = bench->shape.variation == AT_TOP ? NULL : bench_derivative(bench, "post");
    gates_hidden_backward(bench->operations, bench->token_count, &values, bench_derivative(bench, "hidden"), d_post,
                          bench_derivative(bench, "y"));
}

OPERATION(hidden, "gate hidden", "channel_gates.cl", hidden_describe, .reference = hidden_reference,
          .forward = run_hidden_forward, .backward = run_hidden_backward);

/* ---- the streams around a branch: x -> v and u, x' and its v. The cotangent of v stands for what comes back
 * through y. AT_TOP there is no branch behind. */

static void gates_describe(struct bench *bench) {
    const size_t n = bench->token_count, c = bench->channels, s = bench->streams;
    bench_activation(bench_input(bench, "streams", n * s * c, 0.2, 1.0));
    bench_activation(bench_input(bench, "logits", n * s * c, 0.1, 1.0));
    describe_gain(bench, true);
    bench_activation(bench_output(bench, "normed", n * s * c));
    bench_activation(bench_output(bench, "u", n * c))->roundings = 3;
    bench_activation(bench_byproduct(bench, "gates", n * s * c));
    if (bench->shape.variation != AT_TOP) {
        bench_activation(bench_input(bench, "branch", n * c, 0.0, 1.0));
        bench_input(bench, "post", n * s, 1.0, 0.3);
        bench_activation(bench_output(bench, "mixed", n * s * c))->implied = true;
        bench_activation(bench_byproduct(bench, "next_normed", n * s * c))->roundings = 3;
        bench_byproduct(bench, "next_squares", n * s)->roundings = 3;
    }
}

static double square_of(const struct bench *bench, size_t row) {
    const double *x = bench_values(bench, "streams") + row * bench->channels;
    double sum = 0.0;
    for (size_t channel = 0; channel < bench->channels; channel++) {
        sum += x[channel] * x[channel];
    }
    return sum;
}

/* One stream of a token: v, x' and its v. */
static void stream_reference(struct bench *bench, size_t row) {
    const size_t c = bench->channels, token = row / bench->streams;
    const double *branch = bench_values_or_null(bench, "branch"), *post = bench_values_or_null(bench, "post");
    const double epsilon = bench->operations->shape.norm_eps, square = square_of(bench, row);
    double sum = 0.0;
    for (size_t k = 0; k < c; k++) {
        const double x = bench_values(bench, "streams")[row * c + k];
        bench_values(bench, "normed")[row * c + k] = x / sqrt(square / (double)c + epsilon);
        if (branch) {
            const double mixed = x + post[row] * branch[token * c + k];
            bench_values(bench, "mixed")[row * c + k] = mixed;
            sum += mixed * mixed;
        }
    }
    for (size_t k = 0; k < c && branch; k++) {
        const double rms = bench->shape.variation == UNNORMED ? 1.0 : sqrt(sum / (double)c + epsilon);
        bench_values(bench, "next_normed")[row * c + k] = bench_values(bench, "mixed")[row * c + k] / rms;
    }
    if (branch) {
        bench_values(bench, "next_squares")[row] = sum;
    }
}

static void gates_reference(struct bench *bench) {
    const size_t c = bench->channels, s = bench->streams;
    double *u = bench_values(bench, "u"), *gates = bench_values(bench, "gates");
    for (size_t row = 0; row < bench->token_count * s; row++) {
        stream_reference(bench, row);
    }
    for (size_t k = 0; k < bench->token_count * c; k++) {
        u[k] = 0.0;
        for (size_t i = 0; i < s; i++) {
            const size_t at = (k / c * s + i) * c + k % c;
            gates[at] = sigmoid(bench_values(bench, "logits")[at]);
            u[k] += gates[at] * bench_values(bench, "normed")[at] * factor_at(bench, i * c + k % c) / (double)s;
        }
    }
}

/* x, which gates_begin replaces by v, and the sums of its squares. */
static const struct buffer *upload_x(struct bench *bench) {
    const size_t rows = bench->token_count * bench->streams;
    const struct buffer *squares = bench_scratch(bench, rows);
    double *sums = calloc(rows, sizeof *sums);
    for (size_t row = 0; row < rows; row++) {
        sums[row] = square_of(bench, row);
    }
    bench_copy_all(bench, bench_buffer(bench, "streams"), bench_buffer(bench, "normed"), rows * bench->channels);
    bench_try(bench, bench_upload(bench->operations->compute, squares, 0, sums, rows));
    free(sums);
    return squares;
}

static struct gate_values values_of(const struct bench *bench) {
    const bool is_top = bench->shape.variation == AT_TOP;
    return (struct gate_values){.gain = case_weights(bench, "gain"),
                                .streams = bench_buffer(bench, "normed"),
                                .squares = &bench->scratch[0],
                                .post = is_top ? NULL : bench_buffer(bench, "post"),
                                .logits = bench_buffer(bench, "logits"),
                                .output = is_top ? NULL : bench_buffer(bench, "branch")};
}

static void run_gates_forward(struct bench *bench) {
    const size_t n = bench->token_count;
    upload_x(bench);
    const struct gate_values values = values_of(bench);
    gates_begin(bench->operations, n, &values);
    gates_forward(bench->operations, n, &values, bench_buffer(bench, "u"));
    gates_open(bench->operations, n, values.logits, bench_buffer(bench, "gates"));
    if (values.output) {
        gates_leave(bench->operations, n, &values, bench->shape.variation != UNNORMED,
                    bench_buffer(bench, "next_normed"), bench_buffer(bench, "next_squares"));
    }
}

static void run_gates_backward(struct bench *bench) {
    const size_t n = bench->token_count, elements = n * row_length(bench);
    const struct gate_values values = values_of(bench);
    const bool is_top = bench->shape.variation == AT_TOP;
    const struct buffer *d_streams = bench_derivative(bench, "streams");
    if (!is_top) {
        bench_copy_all(bench, bench_derivative(bench, "mixed"), d_streams, elements);
        gates_leave_backward(bench->operations, n, &values, d_streams, bench_derivative(bench, "branch"),
                             bench_derivative(bench, "post"));
    }
    gates_backward(bench->operations, n, &values, bench_derivative(bench, "u"), bench_derivative(bench, "logits"),
                   case_gradients(bench, "gain"), bench->accumulate);
    gates_streams_backward(bench->operations, n, &values, bench_derivative(bench, "normed"),
                           bench_derivative(bench, "u"), d_streams, is_top);
}

OPERATION(gates, "gates", "channel_gates.cl", gates_describe, .reference = gates_reference,
          .forward = run_gates_forward, .backward = run_gates_backward);

/* ---- cases */

#define GATED(s, rank) .residual = "gated", .streams = s, .setting = {"gated_rank", rank}

const struct operation_case cases_gates[] = {
    TINY(matrices, "S=4 rank 2", 1, 2, GATED(4, 2)),
    TINY(matrices, "S=4 rank 2, no gain", 1, 2, GATED(4, 2), .gainless = true),
    TINY(matrices, "S=4 rank 2, top", 1, 2, GATED(4, 2), .variation = AT_TOP),
    TINY(hidden, "S=4 rank 2", 1, 2, GATED(4, 2)),
    TINY(hidden, "S=4 rank 2, top", 1, 2, GATED(4, 2), .variation = AT_TOP),
    TINY(gates, "S=4 rank 2", 2, 3, GATED(4, 2)),
    TINY(gates, "S=4 rank 2, top", 2, 3, GATED(4, 2), .variation = AT_TOP),
    TINY(gates, "S=4 rank 2, no gain", 2, 3, GATED(4, 2), .gainless = true),
    TINY(gates, "S=4 rank 2, not normalised", 2, 3, GATED(4, 2), .variation = UNNORMED),
    CASE(matrices, "S=3 C=20 rank 17", .channels = 20, GATED(3, 17)),
    CASE(matrices, "S=2 C=64", .channels = 64, GATED(2, 0)),
    CASE(hidden, "S=8 rank 33", .batch = 2, .sequence = 40, GATED(8, 33)),
    CASE(gates, "S=2 C=5", .channels = 5, GATED(2, 0)),
    CASE(gates, "S=4 C=768", .channels = 768, .sequence = 2, GATED(4, 0)),
    CASE(gates, "S=4, more tokens than chunks", .batch = 2, .sequence = 20, GATED(4, 0)),
    CASE(gates, "S=3 C=20, not normalised", .channels = 20, GATED(3, 0), .variation = UNNORMED),
    CASE(gates, "S=8 C=20, epsilon 0.1", .channels = 20, .norm_eps = 0.1, GATED(8, 3)),
    {.test = NULL},
};
