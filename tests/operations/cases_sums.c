/* Cases of test_operations: learned weights of the stream: laurel, and x0_lambdas before a layer. */
#include "src/operations/kernels.h"
#include "tests/operations/operation_bench.h"

/* Of either operation, a variation writes its result over the streams. */
enum { APART, IN_PLACE, SAME /* lambdas: the streams are the first ones */ };

/* ---- laurel, with `low` as it is: what comes back through it is of GEMMs */

static size_t rank_of(const struct bench *bench) {
    return (size_t)laurel_rank(&bench->operations->shape);
}

static void laurel_describe(struct bench *bench) {
    const size_t n = bench->token_count, size = n * bench->channels, rank = rank_of(bench);
    bench_activation(bench_input(bench, "streams", size, 0.2, 1.0));
    bench_activation(bench_input(bench, "branch", size, 0.1, 1.0));
    if (laurel_has_weights(&bench->operations->shape)) {
        bench_parameter(bench, "b_mix", 2, 0.2, 1.0);
    }
    if (rank > 0) {
        bench_activation(bench_input(bench, "low", n * rank, 0.1, 1.0))->constant = true;
        bench_activation(bench_input(bench, "up", rank * bench->channels, 0.0, 0.5))->constant = true;
    }
    bench_activation(bench_output(bench, "mixed", size));
    bench_byproduct(bench, "squares", n)->roundings = 2;
}

static void laurel_reference(struct bench *bench) {
    const size_t c = bench->channels, rank = rank_of(bench);
    const double *b = bench_values_or_null(bench, "b_mix"), *up = bench_values_or_null(bench, "up");
    const double a = b ? 2.0 * exp(b[0]) / (exp(b[0]) + exp(b[1])) : 1.0;
    double *mixed = bench_values(bench, "mixed");
    for (size_t i = 0; i < bench->token_count * c; i++) {
        double sum = bench_values(bench, "streams")[i];
        for (size_t k = 0; k < rank; k++) {
            sum += bench_values(bench, "low")[i / c * rank + k] * up[k * c + i % c];
        }
        mixed[i] = a * bench_values(bench, "branch")[i] + (2.0 - a) * sum;
    }
    case_squares(mixed, bench->token_count, c, bench_values(bench, "squares"));
}

static struct laurel_values laurel_values(const struct bench *bench) {
    struct laurel_values values = {.streams = bench_buffer(bench, "streams"),
                                   .output = bench_buffer(bench, "branch"),
                                   .mix = case_weights(bench, "b_mix"),
                                   .up = {bench_buffer(bench, "streams"), 0}};
    if (rank_of(bench) > 0) {
        values.low = bench_buffer(bench, "low");
        values.up.buffer = bench_buffer(bench, "up");
    }
    return values;
}

static void run_laurel_forward(struct bench *bench) {
    const size_t n = bench->token_count;
    const struct buffer *mixed = bench_buffer(bench, "mixed");
    struct laurel_values values = laurel_values(bench);
    if (bench->shape.variation == IN_PLACE) {
        bench_copy_all(bench, values.streams, mixed, n * bench->channels);
        values.streams = mixed;
    }
    laurel_forward(bench->operations, n, &values, mixed, bench_buffer(bench, "squares"));
}

static void run_laurel_backward(struct bench *bench) {
    const struct laurel_values values = laurel_values(bench);
    const struct buffer *d_streams = bench_derivative(bench, "streams");
    bench_copy_all(bench, bench_derivative(bench, "mixed"), d_streams, bench->token_count * bench->channels);
    laurel_backward(bench->operations, bench->token_count, &values, d_streams, bench_derivative(bench, "branch"),
                    case_gradients(bench, "b_mix"), bench->accumulate);
}

static const char *check_mixed(const struct bench *bench) {
    return case_check_squares(bench, "mixed");
}

OPERATION(laurel, "laurel", "laurel.cl", laurel_describe, .reference = laurel_reference,
          .forward = run_laurel_forward, .backward = run_laurel_backward, .check = check_mixed);

/* ---- low = streams w_down, of few tokens */

static void low_describe(struct bench *bench) {
    const size_t n = bench->token_count, c = bench->channels, rank = rank_of(bench);
    bench_activation(bench_input(bench, "streams", n * c, 0.2, 1.0));
    bench_activation(bench_input(bench, "down", c * rank, 0.0, 1.0));
    bench_activation(bench_output(bench, "low", n * rank));
}

static void low_reference(struct bench *bench) {
    const size_t c = bench->channels, rank = rank_of(bench);
    for (size_t i = 0; i < bench->token_count * rank; i++) {
        double *sum = bench_values(bench, "low") + i;
        *sum = 0.0;
        for (size_t k = 0; k < c; k++) {
            *sum +=
                bench_values(bench, "streams")[i / rank * c + k] * bench_values(bench, "down")[k * rank + i % rank];
        }
    }
}

static void run_low(struct bench *bench) {
    const struct laurel_values values = {.streams = bench_buffer(bench, "streams"),
                                         .low = bench_buffer(bench, "low"),
                                         .down = {bench_buffer(bench, "down"), 0}};
    laurel_low(bench->operations, bench->token_count, &values);
}

OPERATION(low, "laurel_low", "laurel.cl", low_describe, .reference = low_reference, .forward = run_low);

/* ---- lambdas: the first streams have another gradient, of what else reads them */

static size_t elements_of(const struct bench *bench) {
    return bench->token_count * bench->streams * (size_t)stream_channels(&bench->operations->shape);
}

static const char *first_of(const struct bench *bench) {
    return bench->shape.variation == SAME ? "streams" : "first";
}

static void lambdas_describe(struct bench *bench) {
    const size_t size = elements_of(bench);
    bench_activation(bench_input(bench, "streams", size, 0.2, 1.0));
    if (bench->shape.variation != SAME) {
        bench_activation(bench_input(bench, "first", size, 0.1, 1.0));
    }
    bench_parameter(bench, "lambdas", 2, 0.6, 0.5);
    bench_activation(bench_output(bench, "mixed", size));
    bench_activation(bench_output(bench, "passed", size))->implied = true;
    bench_byproduct(bench, "squares", bench->token_count * bench->streams)->roundings = 2;
}

static void lambdas_reference(struct bench *bench) {
    const double *first = bench_values(bench, first_of(bench)), *lambdas = bench_values(bench, "lambdas");
    double *mixed = bench_values(bench, "mixed");
    for (size_t i = 0; i < elements_of(bench); i++) {
        mixed[i] = lambdas[0] * bench_values(bench, "streams")[i] + lambdas[1] * first[i];
        bench_values(bench, "passed")[i] = first[i];
    }
    case_squares(mixed, bench->token_count * bench->streams, (size_t)stream_channels(&bench->operations->shape),
                 bench_values(bench, "squares"));
}

static void run_lambdas_forward(struct bench *bench) {
    const struct buffer *mixed = bench_buffer(bench, "mixed"), *streams = bench_buffer(bench, "streams");
    if (bench->shape.variation == IN_PLACE) {
        bench_copy_all(bench, streams, mixed, elements_of(bench));
        streams = mixed;
    }
    lambdas_forward(bench->operations, bench->token_count, streams, bench_buffer(bench, first_of(bench)),
                    case_weights(bench, "lambdas"), mixed, bench_buffer(bench, "squares"));
}

static void run_lambdas_backward(struct bench *bench) {
    const size_t size = elements_of(bench);
    const bool is_same = bench->shape.variation == SAME;
    const struct lambda_gradients gradients = {.d_streams = is_same ? bench_scratch_activation(bench, size)
                                                                    : bench_derivative(bench, "streams"),
                                               .d_first = bench_derivative(bench, first_of(bench)),
                                               .lambdas = case_gradients(bench, "lambdas")};
    bench_copy_all(bench, bench_derivative(bench, "mixed"), gradients.d_streams, size);
    bench_copy_all(bench, bench_derivative(bench, "passed"), gradients.d_first, size);
    lambdas_backward(bench->operations, bench->token_count, bench_buffer(bench, "streams"),
                     bench_buffer(bench, first_of(bench)), case_weights(bench, "lambdas"), &gradients,
                     bench->accumulate);
}

OPERATION(lambdas, "lambdas", "lambdas.cl", lambdas_describe, .reference = lambdas_reference,
          .forward = run_lambdas_forward, .backward = run_lambdas_backward, .check = check_mixed);

/* ---- cases */

#define LAUREL(form, rank)                                                                                         \
    .residual = "laurel", .setting = {"laurel_form", LAUREL_##form}, .second = {"laurel_rank", rank}

const struct operation_case cases_sums[] = {
    TINY(laurel, "rw_lr", 2, 3, LAUREL(RW_LR, 3)),
    TINY(laurel, "rw", 2, 3, LAUREL(RW, 3)),
    TINY(laurel, "lr, in place", 2, 3, LAUREL(LR, 1), .variation = IN_PLACE),
    CASE(laurel, "rw_lr C=768 rank 16", LAUREL(RW_LR, 16), .channels = 768),
    CASE(laurel, "rw_lr C=5 rank 1, more tokens than chunks", LAUREL(RW_LR, 1), .channels = 5, .batch = 2,
         .sequence = 75),
    CASE(laurel, "rw C=20, in place", LAUREL(RW, 1), .channels = 20, .variation = IN_PLACE),
    CASE(laurel, "lr C=20 rank 16", LAUREL(LR, 16), .channels = 20, .batch = 2, .sequence = 75),
    TINY(low, "rank 3", 2, 3, LAUREL(RW_LR, 3)),
    CASE(low, "C=768 rank 16", LAUREL(RW_LR, 16), .channels = 768, .sequence = 16),
    CASE(low, "C=5 rank 1", LAUREL(LR, 1), .channels = 5),
    TINY(lambdas, "mhc", 2, 3, TINY_MHC),
    TINY(lambdas, "mhc, the first layer", 2, 3, TINY_MHC, .variation = SAME),
    TINY(lambdas, "frac", 2, 3, TINY_FRAC, .variation = IN_PLACE),
    CASE(lambdas, "rc C=5, more tokens than chunks", .residual = "rc", .channels = 5, .batch = 2, .sequence = 75),
    CASE(lambdas, "S=8 C=768", .streams = 8, .channels = 768, .variation = IN_PLACE),
    CASE(lambdas, "S=4, the first layer, more tokens than chunks", .batch = 2, .sequence = 75, .variation = SAME),
    CASE(lambdas, "frac S=4 C=20", .residual = "frac", .channels = 20, .batch = 2, .sequence = 75),
    CASE(lambdas, "frac S=2 C=768, the first layer", .residual = "frac", .streams = 2, .channels = 768,
         .variation = SAME),
    {.test = NULL},
};
