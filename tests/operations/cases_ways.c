/* Cases of test_operations: what a layer of mudd reads are mixtures of all states of the residual stream. */
#include "src/operations/kernels.h"
#include "src/operations/ways.h"
#include "tests/operations/operation_bench.h"

/* shape.count states, mixed in four ways, or at the TOP, as shape.variation says, in one. */
enum { LAYER, TOP };

static struct way_sizes sizes_of(const struct bench *bench) {
    struct way_sizes sizes = {.ways = bench->shape.variation == TOP ? 1 : MOST_WAYS,
                              .states = (size_t)bench->shape.count};
    sizes.weights = sizes.ways * sizes.states;
    sizes.hidden = 3 * sizes.weights;
    sizes.hidden_row = (sizes.hidden + 15) / 16 * 16;
    sizes.weights_row = (sizes.weights + 15) / 16 * 16;
    return sizes;
}

/* ---- w_1 or w_2 -> packed */

static void pack_describe(struct bench *bench) {
    const struct way_sizes sizes = sizes_of(bench);
    const size_t width = bench->channels;
    bench_activation(bench_input(bench, "w_1", width * sizes.hidden, 0.0, 1.0))->constant = true;
    bench_activation(bench_input(bench, "w_2", sizes.hidden * sizes.weights, 0.0, 1.0))->constant = true;
    bench_activation(bench_output(bench, "packed", sizes.hidden_row * (width + sizes.weights_row)));
}

static void pack_one(const double *w, size_t rows, size_t columns, size_t packed_rows, size_t row, double *packed) {
    for (size_t i = 0; i < packed_rows * row; i++) {
        const size_t column = i / row, k = i % row;
        packed[i] = column < columns && k < rows ? w[k * columns + column] : 0.0;
    }
}

static void pack_reference(struct bench *bench) {
    const struct way_sizes sizes = sizes_of(bench);
    double *packed = bench_values(bench, "packed");
    pack_one(bench_values(bench, "w_1"), bench->channels, sizes.hidden, sizes.hidden_row, bench->channels, packed);
    pack_one(bench_values(bench, "w_2"), sizes.hidden, sizes.weights, sizes.weights_row, sizes.hidden_row,
             packed + sizes.hidden_row * bench->channels);
}

/* Both lie apart in the arena. */
static void run_pack(struct bench *bench) {
    const struct way_sizes sizes = sizes_of(bench);
    const size_t width = bench->channels, first = width * sizes.hidden, second = sizes.hidden * sizes.weights;
    const struct buffer *arena = bench_scratch_activation(bench, first + second + 64);
    const struct buffer *table = bench_scratch(bench, 2 * WAY_MATRIX_INTEGERS);
    const struct way_matrix matrices[2] = {{1, width, sizes.hidden, 0, sizes.hidden_row, width},
                                           {first + 64, sizes.hidden, sizes.weights, sizes.hidden_row * width,
                                            sizes.weights_row, sizes.hidden_row}};
    bench_copy(bench, bench_buffer(bench, "w_1"), 0, arena, 1, first);
    bench_copy(bench, bench_buffer(bench, "w_2"), 0, arena, first + 64, second);
    bench_try(bench, buffer_write(bench->operations->compute, table, 0, matrices, sizeof matrices));
    ways_pack(bench->operations, arena, table, 2, sizes.hidden_row * (width + sizes.weights_row),
              bench_buffer(bench, "packed"));
}

OPERATION(pack, "ways_pack", "ways.cl", pack_describe, .reference = pack_reference, .forward = run_pack);

/* ---- the newest state = x + branch, and hidden = gelu(raw / rms of it). The state has another gradient, in its
 * slot, and goes unchanged into `through`. */

static size_t hidden_row(const struct bench *bench) {
    return sizes_of(bench).hidden_row;
}

static void state_describe(struct bench *bench) {
    const size_t n = bench->token_count, size = n * bench->channels;
    bench_activation(bench_input(bench, "x", size, 0.2, 1.0));
    bench_activation(bench_input(bench, "branch", size, 0.1, 1.0));
    bench_activation(bench_input(bench, "raw", n * hidden_row(bench), 0.1, bench->shape.spread));
    bench_activation(bench_output(bench, "newest", size));
    bench_activation(bench_output(bench, "through", size))->implied = true;
    bench_byproduct(bench, "scale", n)->roundings = 1;
    bench_activation(bench_output(bench, "hidden", n * hidden_row(bench)))->roundings = 2;
}

static void state_reference(struct bench *bench) {
    const size_t c = bench->channels, row = hidden_row(bench);
    double *newest = bench_values(bench, "newest"), *scale = bench_values(bench, "scale");
    for (size_t i = 0; i < bench->token_count * c; i++) {
        newest[i] = bench_values(bench, "x")[i] + bench_values(bench, "branch")[i];
        bench_values(bench, "through")[i] = newest[i];
    }
    for (size_t token = 0; token < bench->token_count; token++) {
        const double *state = newest + token * c;
        scale[token] = 1.0 / sqrt(reference_dot(c, state, state) / (double)c + bench->operations->shape.norm_eps);
        for (size_t i = token * row; i < (token + 1) * row; i++) {
            bench_values(bench, "hidden")[i] = reference_gelu(scale[token] * bench_values(bench, "raw")[i]);
        }
    }
}

/* The newest state is in the last slot of all. */
static struct way_values state_values(struct bench *bench) {
    const struct way_sizes sizes = sizes_of(bench);
    return (struct way_values){.sizes = sizes,
                               .states = bench_scratch_activation(bench, sizes.states * bench->token_count *
                                                                             bench->channels),
                               .scales = bench_buffer(bench, "scale"),
                               .raw = bench_buffer(bench, "raw"),
                               .hidden = bench_buffer(bench, "hidden")};
}

static void run_state_forward(struct bench *bench) {
    const struct way_values values = state_values(bench);
    const size_t n = bench->token_count, size = n * bench->channels;
    ways_state_forward(bench->operations, n, &values, bench_buffer(bench, "x"), bench_buffer(bench, "branch"));
    ways_hidden_forward(bench->operations, n, &values);
    bench_copy(bench, values.states, (values.sizes.states - 1) * size, bench_buffer(bench, "newest"), 0, size);
}

static void run_state_backward(struct bench *bench) {
    const struct way_values values = state_values(bench);
    const size_t n = bench->token_count, size = n * bench->channels, at = (values.sizes.states - 1) * size;
    const struct buffer *d_states = bench_scratch_activation(bench, at + size), *along = bench_scratch(bench, n);
    const struct buffer *d_raw = bench_derivative(bench, "raw"), *d = bench_derivative(bench, "x");
    bench_copy(bench, bench_buffer(bench, "newest"), 0, values.states, at, size);
    bench_copy(bench, bench_derivative(bench, "newest"), 0, d_states, at, size);
    bench_copy_all(bench, bench_derivative(bench, "hidden"), d_raw, n * values.sizes.hidden_row);
    ways_hidden_backward(bench->operations, n, &values, d_raw, along);
    ways_state_backward(bench->operations, n, &values, d_states, bench_derivative(bench, "through"), along, d);
    bench_copy_all(bench, d, bench_derivative(bench, "branch"), size);
}

OPERATION(state, "ways_state", "ways.cl", state_describe, .reference = state_reference,
          .forward = run_state_forward, .backward = run_state_backward);

/* ---- weights += b; what is behind b up to the end of a row is zero */

static void bias_describe(struct bench *bench) {
    const struct way_sizes sizes = sizes_of(bench);
    const size_t count = bench->token_count * sizes.weights_row;
    bench_input(bench, "weights", count, 0.0, 1.0)->d_activation = true;
    bench_parameter(bench, "b", sizes.weights, 0.0, 1.0);
    if (sizes.weights < sizes.weights_row) {
        struct field *behind = bench_parameter(bench, "behind", sizes.weights_row - sizes.weights, 0.0, 0.0);
        behind->constant = true;
        behind->written = 0;
    }
    bench_output(bench, "sums", count)->d_activation = true;
}

static void bias_reference(struct bench *bench) {
    const struct way_sizes sizes = sizes_of(bench);
    for (size_t i = 0; i < bench->token_count * sizes.weights_row; i++) {
        const size_t k = i % sizes.weights_row;
        bench_values(bench, "sums")[i] =
            bench_values(bench, "weights")[i] + (k < sizes.weights ? bench_values(bench, "b")[k] : 0.0);
    }
}

static void run_bias_forward(struct bench *bench) {
    const struct way_values values = {.sizes = sizes_of(bench), .weights = bench_buffer(bench, "sums")};
    bench_copy_all(bench, bench_buffer(bench, "weights"), values.weights,
                   bench->token_count * values.sizes.weights_row);
    ways_bias_forward(bench->operations, bench->token_count, &values, case_weights(bench, "b"));
}

static void run_bias_backward(struct bench *bench) {
    const struct way_sizes sizes = sizes_of(bench);
    const struct buffer *d_sums = bench_derivative(bench, "sums");
    bench_copy_all(bench, d_sums, bench_derivative(bench, "weights"), bench->token_count * sizes.weights_row);
    bias_backward(bench->operations, bench->token_count, sizes.weights_row, sizes.weights, d_sums,
                  case_gradients(bench, "b"), bench->accumulate);
}

OPERATION(bias, "ways_bias", "elementwise.cl", bias_describe, .reference = bias_reference,
          .forward = run_bias_forward, .backward = run_bias_backward);

/* ---- states and weights -> mixtures. At the top gradients of states are written; else they are added to those of
 * later layers, which read states as they are. */

static const char *const mixtures[MOST_WAYS] = {"queries", "keys", "values", "stream"};

static void mix_describe(struct bench *bench) {
    const struct way_sizes sizes = sizes_of(bench);
    const size_t n = bench->token_count, size = n * bench->channels;
    bench_activation(bench_input(bench, "states", sizes.states * size, 0.2, 1.0));
    bench_input(bench, "weights", n * sizes.weights_row, 0.1, bench->shape.spread)->d_activation = true;
    for (size_t way = 0; way < sizes.ways; way++) {
        bench_activation(bench_output(bench, mixtures[way], size));
    }
    if (bench->shape.variation != TOP) {
        bench_activation(bench_output(bench, "passed", sizes.states * size))->implied = true;
    }
}

static void mix_reference(struct bench *bench) {
    const struct way_sizes sizes = sizes_of(bench);
    const size_t c = bench->channels, size = bench->token_count * c;
    const double *states = bench_values(bench, "states"), *weights = bench_values(bench, "weights");
    for (size_t way = 0; way < sizes.ways; way++) {
        double *y = bench_values(bench, mixtures[way]);
        memset(y, 0, size * sizeof *y);
        for (size_t i = 0; i < sizes.states * size; i++) {
            const size_t from = i / size, at = i % size;
            y[at] += weights[at / c * sizes.weights_row + way * sizes.states + from] * states[i];
        }
    }
    if (bench->shape.variation != TOP) {
        memcpy(bench_values(bench, "passed"), states, sizes.states * size * sizeof *states);
    }
}

static struct way_values mix_values(const struct bench *bench) {
    struct way_values values = {.sizes = sizes_of(bench),
                                .states = bench_buffer(bench, "states"),
                                .weights = bench_buffer(bench, "weights")};
    for (size_t way = 0; way < values.sizes.ways; way++) {
        values.mixed[way] = bench_buffer(bench, mixtures[way]);
    }
    return values;
}

static void run_mix_forward(struct bench *bench) {
    const struct way_values values = mix_values(bench);
    ways_mix_forward(bench->operations, bench->token_count, &values);
}

static void run_mix_backward(struct bench *bench) {
    const struct way_values values = mix_values(bench);
    const struct buffer *d_mixed[MOST_WAYS] = {NULL}, *d_states = bench_derivative(bench, "states");
    const bool adds = bench->shape.variation != TOP;
    for (size_t way = 0; way < values.sizes.ways; way++) {
        d_mixed[way] = bench_derivative(bench, mixtures[way]);
    }
    if (adds) {
        bench_copy_all(bench, bench_derivative(bench, "passed"), d_states,
                       values.sizes.states * bench->token_count * bench->channels);
    }
    ways_mix_backward(bench->operations, bench->token_count, &values, d_mixed, adds, d_states,
                      bench_derivative(bench, "weights"));
}

OPERATION(mix, "ways_mix", "ways.cl", mix_describe, .reference = mix_reference, .forward = run_mix_forward,
          .backward = run_mix_backward);

/* ---- cases */

#define MUDD .residual = "mudd"

const struct operation_case cases_ways[] = {
    TINY(pack, "layer", 2, 3, MUDD, .count = 3),
    TINY(pack, "top", 2, 3, MUDD, .count = 3, .variation = TOP),
    CASE(pack, "C=768, 13 states", MUDD, .channels = 768, .count = 13),
    TINY(state, "2 states", 2, 3, MUDD, .count = 2),
    CASE(state, "C=768, 12 states", MUDD, .channels = 768, .count = 12),
    CASE(state, "C=5, large numbers", MUDD, .channels = 5, .count = 3, .spread = 4.0),
    CASE(state, "C=1600, at the top, epsilon 0.1", MUDD, .channels = 1600, .count = 25, .variation = TOP,
         .norm_eps = 0.1),
    TINY(bias, "2 states", 2, 3, MUDD, .count = 2),
    CASE(bias, "4 states, no gap", MUDD, .count = 4),
    CASE(bias, "13 states, many tokens", MUDD, .batch = 3, .sequence = 70, .count = 13, .variation = TOP),
    TINY(mix, "3 states", 2, 3, MUDD, .count = 3),
    TINY(mix, "top, 4 states", 2, 3, MUDD, .count = 4, .variation = TOP),
    CASE(mix, "C=768, 12 states", MUDD, .channels = 768, .count = 12),
    CASE(mix, "C=768, top, 13 states", MUDD, .channels = 768, .count = 13, .variation = TOP),
    CASE(mix, "C=5, 2 states", MUDD, .channels = 5, .count = 2),
    CASE(mix, "C=1600, 5 states", MUDD, .channels = 1600, .count = 5),
    {.test = NULL},
};
