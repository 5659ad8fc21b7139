/* Cases of test_operations: the embedding. */
#include "tests/operations/operation_bench.h"

/* ---- embedding; the variation is the first token's position, forward only */

static bool has_positions(const struct bench *bench) {
    return bench->shape.position == POSITION_LEARNED;
}

static void embedding_describe(struct bench *bench) {
    const size_t n = bench->token_count, c = bench->channels;
    bench_parameter(bench, "wte", bench->vocabulary * c, 0.0, 1.0)->written = 0;
    bench_gap(bench);
    if (has_positions(bench)) {
        bench_parameter(bench, "wpe", (size_t)(bench->tokens.sequence + bench->shape.variation + 2) * c, 0.0, 1.0)
            ->written = (size_t)bench->tokens.sequence * c;
    }
    if (bench->shape.scaled) {
        bench_parameter(bench, "scale", bench->streams * c, 0.6, 0.5);
    }
    if (bench->shape.embed_norm) {
        bench_gap(bench);
        bench_parameter(bench, "gain", c, 1.0, 0.5);
        bench_byproduct(bench, "scales", n);
    }
    bench_activation(bench_output(bench, "streams", n * bench->streams * c));
    bench_byproduct(bench, "squares", n * bench->streams)->roundings = 2;
}

/* What the streams of a token begin as, before dropout. */
static void embed_token(struct bench *bench, size_t token, double *row) {
    const size_t c = bench->channels;
    const size_t position = (size_t)bench->shape.variation + token % (size_t)bench->tokens.sequence;
    const double *wte = bench_values(bench, "wte"), *wpe = bench_values_or_null(bench, "wpe");
    const struct reference_norm norm = {NORM_RMS, bench->operations->shape.norm_eps,
                                        bench_values_or_null(bench, "gain"), NULL};
    double statistics[2];
    for (size_t k = 0; k < c; k++) {
        row[k] = wte[(size_t)bench->ids[token] * c + k] + (wpe ? wpe[position * c + k] : 0.0);
    }
    if (bench->shape.embed_norm) {
        reference_norm(&norm, c, row, row, statistics);
        bench_values(bench, "scales")[token] = statistics[1];
    }
}

static void embedding_reference(struct bench *bench) {
    const size_t c = bench->channels;
    const double *scale = bench_values_or_null(bench, "scale");
    double *streams = bench_values(bench, "streams"), *squares = bench_values(bench, "squares");
    double *embedded = calloc(c, sizeof *embedded);
    for (size_t row = 0; row < bench->token_count * bench->streams; row++) {
        const size_t token = row / bench->streams;
        embed_token(bench, token, embedded);
        for (size_t k = 0; k < c; k++) {
            const double gain = bench->shape.scaled ? scale[row % bench->streams * c + k] : 1.0;
            streams[row * c + k] = embedded[k] * case_kept(bench, token, k) * gain;
        }
        squares[row] = reference_dot(c, streams + row * c, streams + row * c);
    }
    free(embedded);
}

/* The parameters; one that the case lacks is anywhere. */
static struct embedding embedding_at(const struct bench *bench,
                                     struct span (*at)(const struct bench *, const char *)) {
    return (struct embedding){at(bench, "wte"), at(bench, has_positions(bench) ? "wpe" : "wte"),
                              at(bench, bench->shape.scaled ? "scale" : "wte"),
                              at(bench, bench->shape.embed_norm ? "gain" : "wte")};
}

static struct embedding_input embedding_input_of(const struct bench *bench) {
    return (struct embedding_input){bench->tokens, &bench->ids_buffer, case_dropout(bench),
                                    bench->shape.embed_norm ? bench_buffer(bench, "scales") : NULL};
}

static void run_embedding_forward(struct bench *bench) {
    const struct embedding_input input = embedding_input_of(bench);
    embedding_forward(bench->operations, &input, bench->shape.variation, embedding_at(bench, case_weights),
                      bench_buffer(bench, "streams"), bench_buffer(bench, "squares"));
}

static const struct buffer *upload_integers(struct bench *bench, const int32_t *values, size_t count) {
    const struct buffer *buffer = bench_scratch(bench, count);
    bench_try(bench, buffer_write(bench->operations->compute, buffer, 0, values, count * 4));
    return buffer;
}

static void run_embedding_backward(struct bench *bench) {
    const size_t n = bench->token_count;
    int32_t *ids = calloc(3 * n + 1, sizeof *ids), *starts = ids + n, *places = ids + 2 * n + 1;
    size_t distinct = 0, placed = 0;
    for (int32_t id = 0; id < (int32_t)bench->vocabulary && ids; id++) {
        const size_t before = placed;
        for (size_t token = 0; token < n; token++) {
            if (bench->ids[token] == id) {
                places[placed++] = (int32_t)token;
            }
        }
        if (placed > before) {
            ids[distinct] = id;
            starts[distinct++] = (int32_t)before;
        }
    }
    starts[distinct] = (int32_t)n;
    const struct token_groups groups = {upload_integers(bench, ids, distinct),
                                        upload_integers(bench, starts, distinct + 1),
                                        upload_integers(bench, places, n), distinct};
    free(ids);
    const struct embedding weights = embedding_at(bench, case_weights),
                           gradients = embedding_at(bench, case_gradients);
    const struct buffer *d_streams = bench_derivative(bench, "streams");
    const struct embedding_input input = embedding_input_of(bench);
    embedding_backward(bench->operations, &input, groups, weights, d_streams,
                       bench_scratch(bench, n * bench->channels), gradients, bench->accumulate);
}

static const char *embedding_check(const struct bench *bench) {
    return case_check_squares(bench, "streams");
}

OPERATION(embedding, "embedding", "embedding.cl", embedding_describe, .other_file = "embedding_norm.cl",
          .reference = embedding_reference, .forward = run_embedding_forward, .backward = run_embedding_backward,
          .check = embedding_check);

OPERATION(embedding_from, "embedding at", "embedding.cl", embedding_describe, .reference = embedding_reference,
          .forward = run_embedding_forward, .check = embedding_check);

/* ---- cases */

const struct operation_case cases_embedding[] = {
    TINY(embedding, "mhc", 2, 3, TINY_MHC),
    TINY(embedding, "hc, dropout", 2, 3, TINY_HC, .dropout = 0.25f),
    TINY(embedding, "hc, dropout, scaled", 2, 3, TINY_HC, .dropout = 0.25f, .scaled = true),
    TINY(embedding, "hc, dropout, scaled, no positions", 2, 3, TINY_HC, .dropout = 0.25f, .scaled = true,
         .position = POSITION_NONE),
    TINY(embedding, "hc, dropout, scaled, norm", 2, 3, TINY_HC, .dropout = 0.25f, .scaled = true,
         .embed_norm = true),
    TINY(embedding_from, "mhc", 2, 3, TINY_MHC, .variation = 4),
    CASE(embedding, "rc", .residual = "rc", .batch = 3, .sequence = 8),
    CASE(embedding, "rc, dropout C=5", .residual = "rc", .channels = 5, .bias = true, .dropout = 0.2f),
    CASE(embedding, "S=4", .bias = true, .batch = 3, .sequence = 70),
    CASE(embedding, "S=8, dropout C=768", .streams = 8, .channels = 768, .dropout = 0.1f),
    CASE(embedding, "S=4, scaled", .bias = true, .batch = 3, .sequence = 70, .scaled = true),
    CASE(embedding, "S=8, scaled C=768", .streams = 8, .channels = 768, .dropout = 0.1f, .scaled = true),
    CASE(embedding, "S=5, scaled C=5", .streams = 5, .channels = 5, .scaled = true),
    CASE(embedding, "S=4, no positions", .batch = 3, .sequence = 8, .dropout = 0.2f, .position = POSITION_NONE),
    LOOSE(embedding, "S=8, scaled, norm C=768", 1.0, 8, .streams = 8, .channels = 768, .dropout = 0.1f,
          .scaled = true, .batch = 3, .sequence = 30, .embed_norm = true),
    CASE(embedding, "rc, no positions, norm C=5", .residual = "rc", .channels = 5, .batch = 3,
         .position = POSITION_NONE, .norm_eps = 0.1, .embed_norm = true),
    CASE(embedding, "rc, no positions", .residual = "rc", .batch = 3, .position = POSITION_NONE),
    CASE(embedding_from, "S=4", .batch = 3, .sequence = 2, .variation = 70),
    CASE(embedding_from, "S=3, scaled", .streams = 3, .batch = 2, .sequence = 2, .variation = 7, .scaled = true),
    CASE(embedding_from, "rc", .residual = "rc", .batch = 3, .sequence = 1, .variation = 1),
    {.test = NULL},
};
