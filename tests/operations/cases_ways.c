/* Cases of test_operations: what a layer of mudd reads are mixtures of all states of the residual stream. */
#include "src/operations/kernels.h"
#include "src/operations/ways.h"
#include "tests/operations/operation_bench.h"

/* shape.count states, mixed in four ways, or at the TOP, as shape.variation says, and with `dense` in one. */
enum { LAYER, TOP, EMBEDDING };

/* With `dense` weights are those of all tokens. */
static bool is_fixed(const struct bench *bench) {
    return ways_are_fixed(&bench->operations->shape);
}

static struct way_sizes sizes_of(const struct bench *bench) {
    struct way_sizes sizes = {.ways = bench->shape.variation == TOP || is_fixed(bench) ? 1 : MOST_WAYS,
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
    const size_t packed = sizes.hidden_row * (width + sizes.weights_row); /* what ways_pack counts as read, too */
    const struct buffer *arena = bench_scratch_activation(bench, packed + 64);
    const struct buffer *table = bench_scratch(bench, 2 * WAY_MATRIX_INTEGERS);
    const struct way_matrix matrices[2] = {{1, width, sizes.hidden, 0, sizes.hidden_row, width},
                                           {first + 64, sizes.hidden, sizes.weights, sizes.hidden_row * width,
                                            sizes.weights_row, sizes.hidden_row}};
    bench_copy(bench, bench_buffer(bench, "w_1"), 0, arena, 1, first);
    bench_copy(bench, bench_buffer(bench, "w_2"), 0, arena, first + 64, second);
    bench_try(bench, buffer_write(bench->operations->compute, table, 0, matrices, sizeof matrices));
    ways_pack(bench->operations, arena, table, 2, packed, bench_buffer(bench, "packed"));
}

OPERATION(pack, "ways_pack", "ways.cl", pack_describe, .reference = pack_reference, .forward = run_pack);

/* ---- the newest state = x + branch, and hidden = gelu(raw / rms of it). The state has another gradient, in its
 * slot, and goes unchanged into `through`. Normed states are pre n(newest); the embedding's is made of x alone. */

static bool is_normed(const struct bench *bench) {
    return ways_are_normed(&bench->operations->shape);
}

static bool is_embedding(const struct bench *bench) {
    return bench->shape.variation == EMBEDDING;
}

static size_t hidden_row(const struct bench *bench) {
    return sizes_of(bench).hidden_row;
}

static void state_describe(struct bench *bench) {
    const size_t n = bench->token_count, size = n * bench->channels;
    bench_activation(bench_input(bench, "x", size, 0.2, 1.0));
    bench_activation(bench_output(bench, "newest", size));
    bench_byproduct(bench, "scale", n)->roundings = 1;
    if (is_normed(bench)) {
        bench_parameter(bench, "pre", bench->channels, 1.0, 0.5);
        bench_activation(bench_output(bench, "state", size))->roundings = 2;
    }
    if (!is_embedding(bench)) {
        bench_activation(bench_input(bench, "branch", size, 0.1, 1.0));
        bench_activation(bench_input(bench, "raw", n * hidden_row(bench), 0.1, bench->shape.spread));
        bench_activation(bench_output(bench, "through", size))->implied = true;
        bench_activation(bench_output(bench, "hidden", n * hidden_row(bench)))->roundings = 2;
    }
}

static void state_token(struct bench *bench, size_t token) {
    const size_t c = bench->channels, row = hidden_row(bench);
    const double *branch = bench_row(bench, "branch", token), *x = bench_row(bench, "x", token);
    double *newest = bench_row(bench, "newest", token), *scale = bench_values(bench, "scale") + token;
    for (size_t i = 0; i < c; i++) {
        newest[i] = x[i] + (branch ? branch[i] : 0.0);
    }
    *scale = 1.0 / sqrt(reference_dot(c, newest, newest) / (double)c + bench->operations->shape.norm_eps);
    for (size_t i = 0; i < c && is_normed(bench); i++) {
        bench_row(bench, "state", token)[i] = bench_values(bench, "pre")[i] * *scale * newest[i];
    }
    for (size_t i = 0; i < row && !is_embedding(bench); i++) {
        bench_row(bench, "hidden", token)[i] = reference_gelu(*scale * bench_row(bench, "raw", token)[i]);
    }
}

static void state_reference(struct bench *bench) {
    for (size_t token = 0; token < bench->token_count; token++) {
        state_token(bench, token);
    }
    if (!is_embedding(bench)) {
        memcpy(bench_values(bench, "through"), bench_values(bench, "newest"),
               bench->token_count * bench->channels * sizeof(double));
    }
}

/* The newest state is in the last slot of all, and where states are normed what it is made of in `newest`. */
static struct way_values state_values(struct bench *bench) {
    const struct way_sizes sizes = sizes_of(bench);
    struct way_values values = {.sizes = sizes,
                                .states = bench_scratch_activation(bench, sizes.states * bench->token_count *
                                                                              bench->channels),
                                .scales = bench_buffer(bench, "scale"),
                                .gains = case_weights(bench, "pre"),
                                .newest = bench_buffer(bench, "newest")};
    if (!is_embedding(bench)) {
        values.raw = bench_buffer(bench, "raw");
        values.hidden = bench_buffer(bench, "hidden");
    }
    return values;
}

static void run_state_forward(struct bench *bench) {
    const struct way_values values = state_values(bench);
    const size_t n = bench->token_count, size = n * bench->channels;
    ways_state_forward(bench->operations, n, &values, bench_buffer(bench, "x"),
                       is_embedding(bench) ? NULL : bench_buffer(bench, "branch"));
    if (!is_embedding(bench)) {
        ways_hidden_forward(bench->operations, n, &values);
    }
    bench_copy(bench, values.states, (values.sizes.states - 1) * size,
               bench_buffer(bench, is_normed(bench) ? "state" : "newest"), 0, size);
}

/* The whole gradient takes the place of that of `newest`, or of the embedding's state. */
static void run_state_backward(struct bench *bench) {
    const struct way_values values = state_values(bench);
    const size_t n = bench->token_count, size = n * bench->channels, at = (values.sizes.states - 1) * size;
    const struct buffer *d_states = bench_scratch_activation(bench, at + size), *d = bench_derivative(bench, "x");
    struct way_gradients gradients = {.d_states = d_states,
                                      .along = bench_scratch(bench, n),
                                      .d = is_embedding(bench) ? d_states : d,
                                      .d_newest = is_embedding(bench) ? bench_derivative(bench, "newest") : d,
                                      .gains = case_gradients(bench, "pre")};
    bench_copy(bench, bench_buffer(bench, is_normed(bench) ? "state" : "newest"), 0, values.states, at, size);
    bench_copy(bench, bench_derivative(bench, is_normed(bench) ? "state" : "newest"), 0, d_states, at, size);
    bench_copy_all(bench, bench_derivative(bench, "newest"), d, size);
    if (!is_embedding(bench)) {
        const struct buffer *d_raw = bench_derivative(bench, "raw");
        bench_copy_all(bench, bench_derivative(bench, "hidden"), d_raw, n * values.sizes.hidden_row);
        ways_hidden_backward(bench->operations, n, &values, d_raw, gradients.along);
        gradients.d_through = bench_derivative(bench, "through");
    }
    ways_state_backward(bench->operations, n, &values, &gradients, bench->accumulate);
    if (is_embedding(bench)) {
        bench_copy_all(bench, d_states, d, size);
    } else {
        bench_copy_all(bench, d, bench_derivative(bench, "branch"), size);
    }
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
    const struct way_values values = {.sizes = sizes_of(bench), .weights = {bench_buffer(bench, "sums"), 0}};
    bench_copy_all(bench, bench_buffer(bench, "weights"), values.weights.buffer,
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

/* Where states are normed, `newest` is what the newest is made of; all mixtures have it added, and that of the
 * stream, or the only one, is normed before. */
static void mix_describe(struct bench *bench) {
    const struct way_sizes sizes = sizes_of(bench);
    const size_t n = bench->token_count, size = n * bench->channels;
    bench_activation(bench_input(bench, "states", sizes.states * size, 0.2, 1.0));
    if (is_fixed(bench)) {
        bench_parameter(bench, "weights", sizes.weights, 0.1, bench->shape.spread);
    } else {
        bench_input(bench, "weights", n * sizes.weights_row, 0.1, bench->shape.spread)->d_activation = true;
    }
    if (is_normed(bench)) {
        struct field *pre = bench_parameter(bench, "pre", bench->channels, 1.0, 0.5);
        pre->constant = true;
        pre->written = 0;
        bench_parameter(bench, "post", bench->channels, 1.0, 0.5);
        bench_activation(bench_input(bench, "newest", size, 0.1, 1.0));
        bench_activation(bench_byproduct(bench, "unnormed", size));
    }
    for (size_t way = 0; way < sizes.ways; way++) {
        bench_activation(bench_output(bench, mixtures[way], size))->roundings = 1 + is_normed(bench);
    }
    if (bench->shape.variation != TOP) {
        bench_activation(bench_output(bench, "passed", sizes.states * size))->implied = true;
    }
}

static void mix_token(struct bench *bench, size_t token) {
    const struct way_sizes sizes = sizes_of(bench);
    const size_t c = bench->channels, n = bench->token_count;
    const double *states = bench_values(bench, "states") + token * c, *newest = bench_row(bench, "newest", token);
    const double *weights = bench_values(bench, "weights") + (is_fixed(bench) ? 0 : token * sizes.weights_row);
    const struct reference_norm post = {.kind = NORM_RMS,
                                        .epsilon = bench->operations->shape.norm_eps,
                                        .gain = bench_values_or_null(bench, "post")};
    for (size_t way = 0; way < sizes.ways; way++) {
        double *y = bench_row(bench, mixtures[way], token);
        memset(y, 0, c * sizeof *y);
        for (size_t i = 0; i < sizes.states * c; i++) {
            y[i % c] += weights[way * sizes.states + i / c] * states[i / c * n * c + i % c];
        }
        if (newest && way + 1 == sizes.ways) {
            memcpy(bench_row(bench, "unnormed", token), y, c * sizeof *y);
            reference_norm(&post, c, y, y, NULL);
        }
        for (size_t i = 0; i < c && newest; i++) {
            y[i] += newest[i];
        }
    }
}

static void mix_reference(struct bench *bench) {
    for (size_t token = 0; token < bench->token_count; token++) {
        mix_token(bench, token);
    }
    if (bench->shape.variation != TOP) {
        memcpy(bench_values(bench, "passed"), bench_values(bench, "states"),
               sizes_of(bench).states * bench->token_count * bench->channels * sizeof(double));
    }
}

static struct way_values mix_values(const struct bench *bench) {
    struct way_values values = {.sizes = sizes_of(bench),
                                .states = bench_buffer(bench, "states"),
                                .weights = {bench_buffer(bench, "weights"), 0},
                                .gains = case_weights(bench, "pre")};
    if (is_fixed(bench)) {
        values.weights = case_weights(bench, "weights");
    }
    if (is_normed(bench)) {
        values.newest = bench_buffer(bench, "newest");
        values.unnormed = bench_buffer(bench, "unnormed");
    }
    for (size_t way = 0; way < values.sizes.ways; way++) {
        values.mixed[way] = bench_buffer(bench, mixtures[way]);
    }
    return values;
}

static void run_mix_forward(struct bench *bench) {
    const struct way_values values = mix_values(bench);
    ways_mix_forward(bench->operations, bench->token_count, &values);
}

/* The gradient of `newest` takes the place of that of the stream. */
static void run_mix_backward(struct bench *bench) {
    const struct way_values values = mix_values(bench);
    const struct way_sizes *sizes = &values.sizes;
    const size_t n = bench->token_count, size = n * bench->channels;
    const bool adds = bench->shape.variation != TOP;
    const struct buffer *d_mixed[MOST_WAYS] = {NULL}, *d_states = bench_derivative(bench, "states");
    struct way_gradients gradients = {.d_states = d_states, .gains = case_gradients(bench, "pre")};
    for (size_t way = 0; way < sizes->ways; way++) {
        d_mixed[way] = bench_derivative(bench, mixtures[way]);
    }
    if (is_normed(bench)) {
        gradients.d_newest = bench_derivative(bench, "newest");
        bench_copy_all(bench, d_mixed[sizes->ways - 1], gradients.d_newest, size);
        d_mixed[sizes->ways - 1] = gradients.d_newest;
    }
    if (adds) {
        bench_copy_all(bench, bench_derivative(bench, "passed"), d_states, sizes->states * size);
    }
    gradients.d_weights = is_fixed(bench) ? bench_scratch_activation(bench, n * sizes->weights_row)
                                          : bench_derivative(bench, "weights");
    ways_mix_backward(bench->operations, n, &values, d_mixed, adds, &gradients, bench->accumulate);
    if (is_fixed(bench)) {
        bias_backward(bench->operations, n, sizes->weights_row, sizes->weights, gradients.d_weights,
                      case_gradients(bench, "weights"), bench->accumulate);
    }
}

OPERATION(mix, "ways_mix", "ways.cl", mix_describe, .reference = mix_reference, .forward = run_mix_forward,
          .backward = run_mix_backward);

/* ---- cases */

#define MUDD    .residual = "mudd"
#define PREPOST MUDD, .setting = {"mudd_norm", MUDD_NORM_PREPOST}
#define DENSE   .residual = "dense"

const struct operation_case cases_ways[] = {
    TINY(pack, "layer", 2, 3, MUDD, .count = 3),
    TINY(pack, "top", 2, 3, MUDD, .count = 3, .variation = TOP),
    CASE(pack, "C=768, 13 states", MUDD, .channels = 768, .count = 13),
    TINY(state, "2 states", 2, 3, MUDD, .count = 2),
    CASE(state, "C=768, 12 states", MUDD, .channels = 768, .count = 12),
    CASE(state, "C=5, large numbers", MUDD, .channels = 5, .count = 3, .spread = 4.0),
    CASE(state, "C=1600, at the top, epsilon 0.1", MUDD, .channels = 1600, .count = 25, .variation = TOP,
         .norm_eps = 0.1),
    TINY(state, "prepost, 2 states", 2, 3, PREPOST, .count = 2),
    TINY(state, "prepost, embedding", 2, 3, PREPOST, .count = 1, .variation = EMBEDDING),
    CASE(state, "prepost, C=768, 12 states", PREPOST, .channels = 768, .count = 12),
    CASE(state, "prepost, C=5, more tokens than chunks", PREPOST, .channels = 5, .batch = 2, .sequence = 75,
         .count = 3),
    CASE(state, "prepost, C=20, embedding, epsilon 0.1", PREPOST, .channels = 20, .batch = 2, .sequence = 75,
         .count = 1, .variation = EMBEDDING, .norm_eps = 0.1),
    TINY(bias, "2 states", 2, 3, MUDD, .count = 2),
    CASE(bias, "4 states, no gap", MUDD, .count = 4),
    CASE(bias, "13 states, many tokens", MUDD, .batch = 3, .sequence = 70, .count = 13, .variation = TOP),
    TINY(mix, "3 states", 2, 3, MUDD, .count = 3),
    TINY(mix, "top, 4 states", 2, 3, MUDD, .count = 4, .variation = TOP),
    CASE(mix, "C=768, 12 states", MUDD, .channels = 768, .count = 12),
    CASE(mix, "C=768, top, 13 states", MUDD, .channels = 768, .count = 13, .variation = TOP),
    CASE(mix, "C=5, 2 states", MUDD, .channels = 5, .count = 2),
    CASE(mix, "C=1600, 5 states", MUDD, .channels = 1600, .count = 5),
    TINY(mix, "prepost, 3 states", 2, 3, PREPOST, .count = 3),
    TINY(mix, "prepost, top, 4 states", 2, 3, PREPOST, .count = 4, .variation = TOP),
    CASE(mix, "prepost, C=768, 12 states", PREPOST, .channels = 768, .count = 12),
    CASE(mix, "prepost, more tokens than chunks", PREPOST, .batch = 2, .sequence = 75, .count = 3),
    CASE(mix, "prepost, C=5, top, 13 states, epsilon 0.1", PREPOST, .channels = 5, .batch = 2, .sequence = 75,
         .count = 13, .variation = TOP, .norm_eps = 0.1),
    TINY(mix, "dense, 3 states", 2, 3, DENSE, .count = 3),
    CASE(mix, "dense, C=768, 17 states", DENSE, .channels = 768, .count = 17),
    CASE(mix, "dense, C=5, top, more tokens than chunks", DENSE, .channels = 5, .batch = 2, .sequence = 75,
         .count = 4, .variation = TOP),
    {.test = NULL},
};
