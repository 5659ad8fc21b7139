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

/* Tokens by their numbers. */
static struct token_groups upload_groups(struct bench *bench) {
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
    return groups;
}

static void run_embedding_backward(struct bench *bench) {
    const size_t n = bench->token_count;
    const struct embedding weights = embedding_at(bench, case_weights),
                           gradients = embedding_at(bench, case_gradients);
    const struct buffer *d_streams = bench_derivative(bench, "streams");
    const struct embedding_input input = embedding_input_of(bench);
    embedding_backward(bench->operations, &input, upload_groups(bench), weights, d_streams,
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

/* ---- embeddings of values, added to those in qkv: what is made of `y`, which has another gradient. Of the
 * variation FROZEN the table has no gradient. */

enum { TRAINED, FROZEN };

static struct head_shape heads_of(const struct bench *bench) {
    return head_shape(&bench->operations->shape);
}

static void values_describe(struct bench *bench) {
    const struct head_shape heads = heads_of(bench);
    const size_t n = bench->token_count, size = n * bench->channels;
    struct field *table =
        bench_parameter(bench, "table", bench->vocabulary * (size_t)heads.kv_row, 0.1, bench->shape.spread);
    table->constant = bench->shape.variation == FROZEN;
    table->written = 0;
    bench_gap(bench);
    bench_parameter(bench, "gate", (size_t)heads.kv_heads * VALUE_EMBED_CHANNELS, 0.0, 0.5);
    bench_activation(bench_input(bench, "qkv", n * (size_t)heads.qkv_row, 0.2, 1.0));
    bench_activation(bench_input(bench, "y", size, 0.1, 1.0));
    bench_activation(bench_output(bench, "changed", n * (size_t)heads.qkv_row));
    bench_activation(bench_output(bench, "passed", size))->implied = true;
    bench_byproduct(bench, "gates", n * (size_t)heads.kv_heads);
}

static void values_reference(struct bench *bench) {
    const struct head_shape heads = heads_of(bench);
    const size_t row = (size_t)heads.kv_row, qkv_row = (size_t)heads.qkv_row, size = (size_t)heads.size;
    for (size_t token = 0; token < bench->token_count; token++) {
        const double *e = bench_values(bench, "table") + (size_t)bench->ids[token] * row;
        double *v = bench_row(bench, "changed", token), *gates = bench_row(bench, "gates", token);
        memcpy(v, bench_row(bench, "qkv", token), qkv_row * sizeof *v);
        memcpy(bench_row(bench, "passed", token), bench_row(bench, "y", token), bench->channels * sizeof *v);
        for (size_t i = 0; i < row; i++) {
            const double *w = bench_values(bench, "gate") + i / size * VALUE_EMBED_CHANNELS;
            gates[i / size] =
                3.0 / (1.0 + exp(-reference_dot(VALUE_EMBED_CHANNELS, w, bench_row(bench, "y", token))));
            v[qkv_row - row + i] += gates[i / size] * e[i];
        }
    }
}

static struct value_embed value_embed_at(const struct bench *bench,
                                         struct span (*at)(const struct bench *, const char *)) {
    return (struct value_embed){at(bench, "table"), at(bench, "gate")};
}

static struct value_embed_values values_of(const struct bench *bench) {
    return (struct value_embed_values){&bench->ids_buffer, bench_buffer(bench, "y"), bench_buffer(bench, "gates")};
}

static void run_values_forward(struct bench *bench) {
    const struct value_embed_values values = values_of(bench);
    const struct buffer *qkv = bench_buffer(bench, "changed");
    bench_copy_all(bench, bench_buffer(bench, "qkv"), qkv, bench->token_count * (size_t)heads_of(bench).qkv_row);
    value_embed_forward(bench->operations, bench->token_count, value_embed_at(bench, case_weights), &values, qkv);
}

static void run_values_backward(struct bench *bench) {
    const struct value_embed_values values = values_of(bench);
    const struct head_shape heads = heads_of(bench);
    const size_t n = bench->token_count;
    struct value_embed_gradients gradients = {
        .d_qkv = bench_derivative(bench, "qkv"),
        .d_y = bench_derivative(bench, "y"),
        .d_gates = bench_scratch(bench, n * (size_t)heads.kv_heads),
        .groups = upload_groups(bench),
        .weights = value_embed_at(bench, case_gradients),
    };
    if (bench->shape.variation == FROZEN) {
        gradients.weights.table.buffer = NULL;
    }
    bench_copy_all(bench, bench_derivative(bench, "changed"), gradients.d_qkv, n * (size_t)heads.qkv_row);
    bench_copy_all(bench, bench_derivative(bench, "passed"), gradients.d_y, n * bench->channels);
    value_embed_backward(bench->operations, n, value_embed_at(bench, case_weights), &values, &gradients,
                         bench->accumulate);
}

OPERATION(values, "value_embed", "value_embeds.cl", values_describe, .reference = values_reference,
          .forward = run_values_forward, .backward = run_values_backward);

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
    TINY(values, "rc", 2, 3, TINY_RC),
    TINY(values, "rc, a key head, frozen", 2, 3, TINY_RC, .kv_heads = 1, .variation = FROZEN),
    CASE(values, "4 heads, 2 key heads", .heads = 4, .kv_heads = 2, .batch = 3, .sequence = 8),
    CASE(values, "C=768, 12 heads, 4 key heads", .channels = 768, .heads = 12, .kv_heads = 4),
    CASE(values, "heads of 5, more tokens than chunks", .heads = 6, .kv_heads = 3, .head_size = 5, .batch = 2,
         .sequence = 75),
    CASE(values, "a head of 24", .batch = 2, .sequence = 40, .vocabulary = 3),
    {.test = NULL},
};
