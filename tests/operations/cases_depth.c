/* Cases of test_operations: branches that read earlier states of the residual stream. */
#include "src/operations/kernels.h"
#include "tests/operations/operation_bench.h"

/* ---- read: attention over depth. shape.count states, shape.apart slots apart, the last of which is made in one of
 * these ways (shape.variation); TOP is added where gradients of states are written, not added. With `dar` a stream
 * goes on beside the states. */

enum { ALONE, ADDED, THERE, WAYS, TOP = WAYS };

static size_t count_of(const struct bench *bench) {
    return (size_t)bench->shape.count;
}

static int way_of(const struct bench *bench) {
    return bench->shape.variation % WAYS;
}

/* Slots from one state to the next, and that of the newest. Where that is the output alone it directly follows the
 * last of the others; else another slot is between them, which the output is added to. */
static size_t apart_of(const struct bench *bench) {
    return bench->shape.apart ? (size_t)bench->shape.apart : 1;
}

static size_t newest_slot(const struct bench *bench) {
    const size_t others = count_of(bench) - 1;
    return others == 0 ? 0 : (others - 1) * apart_of(bench) + (way_of(bench) == ADDED ? 2 : 1);
}

static size_t slot_of(const struct bench *bench, size_t state) {
    const size_t slot = state * apart_of(bench);
    return state + 1 < count_of(bench) ? slot : newest_slot(bench);
}

static size_t heads_of(const struct bench *bench) {
    return (size_t)depth_heads(&bench->operations->shape);
}

static bool keeps_stream(const struct bench *bench) {
    return residual_has_frame(bench->operations->shape.residual, "dar");
}

static void read_describe(struct bench *bench) {
    const size_t n = bench->token_count, c = bench->channels, count = count_of(bench);
    const size_t slots = newest_slot(bench) + 1;
    bench_activation(bench_input(bench, "states", slots * n * c, 0.2, 1.0));
    if (way_of(bench) != THERE) {
        bench_activation(bench_input(bench, "branch", n * c, 0.1, 1.0));
    }
    case_describe_norm(bench);
    bench_gap(bench);
    if (!bench->shape.gainless) {
        bench_parameter(bench, "score_gain", c, 1.0, 0.5);
    }
    bench_parameter(bench, "query", c, 0.0, bench->shape.spread * 0.3);
    if (depth_is_gated(&bench->operations->shape)) {
        bench_parameter(bench, "gate", 1, 0.7, 0.2);
    }
    if (keeps_stream(bench)) {
        bench_activation(bench_input(bench, "stream", n * c, 0.1, 1.0));
        bench_activation(bench_output(bench, "next_stream", n * c))->implied = true;
    }
    if (bench->shape.variation < TOP) {
        bench_activation(bench_output(bench, "passed", count * n * c))->implied = true;
    }
    bench_activation(bench_byproduct(bench, "newest", n * c));
    bench_byproduct(bench, "scale", n)->roundings = 1;
    bench_byproduct(bench, "weights", n * heads_of(bench) * count)->roundings = 3;
    bench_activation(bench_byproduct(bench, "mixed", n * c))->roundings = 3;
    bench_activation(bench_output(bench, "normed", n * c))->roundings = 3;
    bench_byproduct(bench, "statistics", n * 2)->roundings = 3;
}

static void read_token(struct bench *bench, size_t token) {
    const size_t c = bench->channels, count = count_of(bench), n = bench->token_count;
    const double *states = bench_values(bench, "states"), *rows[16];
    double *newest = bench_values(bench, "newest") + token * c, *passed = bench_values_or_null(bench, "passed");
    for (size_t i = 0; i < c; i++) {
        const double *slot = states + token * c + i;
        const double branch = way_of(bench) == THERE ? 0.0 : bench_values(bench, "branch")[token * c + i];
        newest[i] = branch + (way_of(bench) == THERE   ? slot[newest_slot(bench) * n * c]
                              : way_of(bench) == ADDED ? slot[(newest_slot(bench) - 1) * n * c]
                                                       : 0.0);
    }
    for (size_t s = 0; s < count; s++) {
        rows[s] = s + 1 < count ? states + (slot_of(bench, s) * n + token) * c : newest;
        if (passed) {
            memcpy(passed + (s * n + token) * c, rows[s], c * sizeof *passed);
        }
    }
    const struct reference_depth depth = {.count = count,
                                          .channels = c,
                                          .heads = heads_of(bench),
                                          .gain = bench_values_or_null(bench, "score_gain"),
                                          .query = bench_values(bench, "query"),
                                          .epsilon = bench->operations->shape.norm_eps};
    const struct reference_norm norm = case_norm(bench);
    const double *stream = bench_row(bench, "stream", token), *gate = bench_values_or_null(bench, "gate");
    double *mixed = bench_row(bench, "mixed", token), *normed = bench_row(bench, "normed", token);
    reference_depth_read(&depth, rows, bench_row(bench, "weights", token), mixed);
    for (size_t i = 0; i < c; i++) {
        normed[i] = (stream ? stream[i] : 0.0) + (gate ? *gate : 1.0) * mixed[i];
    }
    if (stream) {
        memcpy(bench_row(bench, "next_stream", token), stream, c * sizeof *stream);
    }
    reference_norm(&norm, c, normed, normed, bench_row(bench, "statistics", token));
    const double square = reference_dot(c, newest, newest) / (double)c;
    bench_values(bench, "scale")[token] = 1.0 / sqrt(square + depth.epsilon);
}

static void read_reference(struct bench *bench) {
    for (size_t token = 0; token < bench->token_count; token++) {
        read_token(bench, token);
    }
}

/* Everything but states and scales, which a pass writes to. */
static struct depth_read read_of(const struct bench *bench) {
    return (struct depth_read){.count = bench->shape.count,
                               .apart = (int64_t)apart_of(bench),
                               .newest = (int64_t)newest_slot(bench),
                               .output = way_of(bench) == THERE ? NULL : bench_buffer(bench, "branch"),
                               .before = way_of(bench) == ADDED ? (int64_t)newest_slot(bench) - 1 : -1,
                               .stream = keeps_stream(bench) ? bench_buffer(bench, "stream") : NULL,
                               .leaves = case_weights(bench, bench->shape.gainless ? "query" : "score_gain"),
                               .norm = case_norm_weights(bench),
                               .weights = bench_buffer(bench, "weights"),
                               .mixed = bench_buffer(bench, "mixed"),
                               .normed = bench_buffer(bench, "normed"),
                               .statistics = bench_buffer(bench, "statistics")};
}

/* 1 / rms of the older states, as reads before this one have stored them. */
static const struct buffer *scales_of(struct bench *bench) {
    const size_t n = bench->token_count, c = bench->channels, slots = newest_slot(bench) + 1;
    const struct buffer *scales = bench_scratch(bench, slots * n);
    double *values = calloc(slots * n, sizeof *values);
    for (size_t row = 0; row < newest_slot(bench) * n; row++) {
        const double *x = bench_values(bench, "states") + row * c;
        values[row] = 1.0 / sqrt(reference_dot(c, x, x) / (double)c + bench->operations->shape.norm_eps);
    }
    bench_try(bench, bench_upload(bench->operations->compute, scales, 0, values, newest_slot(bench) * n));
    free(values);
    return scales;
}

static void run_read_forward(struct bench *bench) {
    const size_t n = bench->token_count, size = n * bench->channels, at = newest_slot(bench);
    struct depth_read read = read_of(bench);
    read.states = bench_scratch_activation(bench, (at + 1) * size);
    read.scales = scales_of(bench);
    bench_copy_all(bench, bench_buffer(bench, "states"), read.states,
                   (way_of(bench) == THERE ? at + 1 : at) * size);
    depth_read_forward(bench->operations, n, &read);
    bench_copy(bench, read.states, at * size, bench_buffer(bench, "newest"), 0, size);
    bench_copy(bench, read.scales, at * n, bench_buffer(bench, "scale"), 0, n);
}

/* Gradients of states to those of the slots that they are in; what has no state has no gradient. */
static void spread_gradients(struct bench *bench, const struct buffer *d_states) {
    const size_t n = bench->token_count, size = n * bench->channels, slots = newest_slot(bench) + 1;
    const struct buffer *d_slots = bench_derivative(bench, "states");
    double *zeros = calloc(slots * size, sizeof *zeros);
    bench_try(bench, bench_upload(bench->operations->compute, d_slots, 0, zeros, slots * size));
    free(zeros);
    for (size_t s = 0; s < count_of(bench); s++) {
        const bool last = s + 1 == count_of(bench);
        const size_t slot = slot_of(bench, s) - (last && way_of(bench) == ADDED);
        if (!last || way_of(bench) != ALONE) {
            bench_copy(bench, d_states, s * size, d_slots, slot * size, size);
        }
    }
}

static void run_read_backward(struct bench *bench) {
    const size_t n = bench->token_count, size = n * bench->channels, count = count_of(bench);
    struct depth_read read = read_of(bench);
    read.states = bench_scratch_activation(bench, (newest_slot(bench) + 1) * size);
    read.scales = scales_of(bench);
    bench_copy_all(bench, bench_buffer(bench, "states"), read.states, (newest_slot(bench) + 1) * size);
    bench_copy(bench, bench_buffer(bench, "newest"), 0, read.states, newest_slot(bench) * size, size);
    bench_copy(bench, bench_buffer(bench, "scale"), 0, read.scales, newest_slot(bench) * n, n);
    const struct depth_read_gradients gradients = {
        .d_states = bench_scratch_activation(bench, count * size),
        .adds = bench->shape.variation < TOP,
        .d_output = read.output ? bench_derivative(bench, "branch") : NULL,
        .d_stream = read.stream ? bench_derivative(bench, "stream") : NULL,
        .norm = case_norm_gradients(bench),
        .leaves = case_gradients(bench, bench->shape.gainless ? "query" : "score_gain")};
    if (gradients.adds) {
        bench_copy_all(bench, bench_derivative(bench, "passed"), gradients.d_states, count * size);
    }
    if (gradients.d_stream) {
        bench_copy_all(bench, bench_derivative(bench, "next_stream"), gradients.d_stream, size);
    }
    depth_read_backward(bench->operations, n, &read, bench_derivative(bench, "normed"), &gradients,
                        bench->accumulate);
    spread_gradients(bench, gradients.d_states);
}

OPERATION(read, "depth_read", "depth_read.cl", read_describe, .reference = read_reference,
          .forward = run_read_forward, .backward = run_read_backward);

/* ---- leave, of dar: the stream and a state after a branch, whose output the state is or, of the variation ADDED,
 * is added to it. Gradients of stream and state are those behind the branch. */

static void leave_describe(struct bench *bench) {
    const size_t size = bench->token_count * bench->channels;
    bench_activation(bench_input(bench, "stream", size, 0.1, 1.0))->constant = true;
    bench_activation(bench_input(bench, "before", size, 0.2, 1.0))->constant = true;
    bench_activation(bench_input(bench, "branch", size, 0.1, 1.0));
    bench_activation(bench_output(bench, "next", size));
    bench_activation(bench_output(bench, "state", size));
}

static void leave_reference(struct bench *bench) {
    const double *branch = bench_values(bench, "branch");
    for (size_t i = 0; i < bench->token_count * bench->channels; i++) {
        bench_values(bench, "next")[i] = bench_values(bench, "stream")[i] + branch[i];
        bench_values(bench, "state")[i] =
            branch[i] + (bench->shape.variation == ADDED ? bench_values(bench, "before")[i] : 0.0);
    }
}

/* The second of two slots, and with ADDED the stream in place. */
static void run_leave_forward(struct bench *bench) {
    const size_t n = bench->token_count, size = n * bench->channels;
    const bool adds = bench->shape.variation == ADDED;
    const struct buffer *states = bench_scratch_activation(bench, 2 * size), *next = bench_buffer(bench, "next");
    bench_copy_all(bench, bench_buffer(bench, "stream"), next, size);
    if (adds) {
        bench_copy(bench, bench_buffer(bench, "before"), 0, states, size, size);
    }
    depth_leave_forward(bench->operations, n, adds ? next : bench_buffer(bench, "stream"),
                        bench_buffer(bench, "branch"), 1, adds, next, states);
    bench_copy(bench, states, size, bench_buffer(bench, "state"), 0, size);
}

static void run_leave_backward(struct bench *bench) {
    const size_t n = bench->token_count, size = n * bench->channels;
    const struct buffer *d_states = bench_scratch_activation(bench, 2 * size);
    const struct buffer *d_next = bench_derivative(bench, "next"), *d_output = bench_derivative(bench, "branch");
    bench_copy(bench, bench_derivative(bench, "state"), 0, d_states, size, size);
    bench_copy_all(bench, d_next, d_output, size);
    depth_leave_backward(bench->operations, n, bench->shape.variation == ADDED ? d_output : d_next, d_states, 1,
                         d_output);
}

OPERATION(leave, "depth_leave", "depth_read.cl", leave_describe, .reference = leave_reference,
          .forward = run_leave_forward, .backward = run_leave_backward);

/* ---- cases */

#define DEPTH        .residual = "attnres"
#define HEADS(heads) .setting = {"attnres_heads", heads}
#define DAR          .residual = "dar"
#define UNGATED      .second = {"dar_gate", DAR_GATE_NONE}
/* u is stored in the type of activations, and all scores' gradients have its rounding times the gradient of u. */
#define READ(name, rounded, ...) {.test = &read, .what = name, .shape = {__VA_ARGS__}, .rounded_slack = rounded}

const struct operation_case cases_depth[] = {
    TINY(read, "output alone", 2, 3, DEPTH, .count = 3, .bias = true),
    TINY(read, "added, 2 apart", 2, 3, DEPTH, .count = 4, .apart = 2, .variation = ADDED, .bias = true),
    TINY(read, "one state", 2, 3, DEPTH, .count = 1, .variation = THERE, .bias = true),
    TINY(read, "at the top, RMSNorm", 2, 3, DEPTH, .count = 2, .apart = 2, .variation = TOP + ADDED,
         .norm = NORM_RMS),
    READ("C=768, 13 states", 3, DEPTH, .channels = 768, .count = 13),
    READ("C=20, no gain", 3, DEPTH, .channels = 20, .count = 2, .apart = 2, .gainless = true, .variation = ADDED),
    READ("C=5, again", 3, DEPTH, .channels = 5, .count = 5, .variation = THERE),
    READ("C=1600, RMSNorm", 4, DEPTH, .channels = 1600, .count = 4, .norm = NORM_RMS, .variation = TOP),
    READ("more tokens than chunks", 3, DEPTH, .batch = 2, .sequence = 75, .count = 4, .apart = 3,
         .variation = ADDED),
    READ("large scores", 30, DEPTH, .count = 6, .spread = 30.0),
    READ("epsilon 0.1", 3, DEPTH, .count = 3, .norm = NORM_RMS, .norm_eps = 0.1),
    TINY(read, "2 heads", 2, 3, DEPTH, HEADS(2), .count = 3, .apart = 2, .variation = ADDED, .bias = true),
    TINY(read, "heads of a channel, no gain", 2, 3, DEPTH, HEADS(12), .count = 3, .gainless = true),
    READ("C=768, 4 heads, 13 states", 3, DEPTH, HEADS(4), .channels = 768, .count = 13),
    READ("C=20, 2 heads, no gain", 3, DEPTH, HEADS(2), .channels = 20, .count = 5, .apart = 2, .gainless = true,
         .variation = ADDED),
    READ("C=60, heads of a channel", 3, DEPTH, HEADS(60), .channels = 60, .count = 4, .norm = NORM_RMS),
    READ("8 heads, more tokens than chunks", 3, DEPTH, HEADS(8), .batch = 2, .sequence = 75, .count = 4, .apart = 3,
         .variation = ADDED),
    READ("4 heads, large scores", 30, DEPTH, HEADS(4), .count = 6, .spread = 30.0),
    TINY(read, "dar", 2, 3, DAR, .variation = THERE, .count = 3, .bias = true),
    TINY(read, "dar, no gate, 2 heads", 2, 3, DAR, .variation = THERE, HEADS(2), UNGATED, .count = 2,
         .norm = NORM_RMS),
    TINY(read, "dar, one state, no gain", 2, 3, DAR, .variation = THERE, .count = 1, .gainless = true),
    READ("dar, C=768, 2 heads", 3, DAR, .variation = THERE, HEADS(2), .channels = 768, .count = 7, .bias = true),
    READ("dar, C=5, more tokens than chunks", 3, DAR, .variation = THERE, .channels = 5, .batch = 2, .sequence = 80,
         .count = 3),
    READ("dar, no gate, gradients written", 3, DAR, UNGATED, .channels = 20, .count = 3, .variation = TOP + THERE),
    TINY(leave, "alone", 2, 3, DAR),
    TINY(leave, "added", 2, 3, DAR, .variation = ADDED),
    CASE(leave, "C=5", DAR, .channels = 5),
    CASE(leave, "C=768, added", DAR, .channels = 768, .variation = ADDED),
    {.test = NULL},
};
