#include "tests/support/operation_cases.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "src/operations/kernels.h"
#include "tests/support/reference.h"
#include "tests/support/reference_residual.h"
#include "tests/support/rounding.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Dropout of all cases that have any; rows start beyond 32 bits. */
static struct dropout case_dropout(const struct bench *bench) {
    return (struct dropout){bench->shape.dropout, random_key(7, "dropout of a test"), 0x100000003u};
}

static double kept(const struct bench *bench, size_t row, size_t element) {
    const struct dropout dropout = case_dropout(bench);
    return reference_dropout(dropout.rate, dropout.key, dropout.first_row + row, (uint32_t)element);
}

static bool is_plain(const struct bench *bench) {
    return residual_is_plain(bench->operations->shape.residual);
}

static void copy_values(double *to, const double *from, size_t count) {
    memcpy(to, from, count * sizeof *to);
}

/* Parameters of the case, and their gradients. */
static struct span weights_at(const struct bench *bench, const char *name) {
    return (struct span){&bench->weights, bench_offset(bench, name)};
}

static struct span gradients_at(const struct bench *bench, const char *name) {
    return (struct span){&bench->gradients, bench_offset(bench, name)};
}

static struct layer_norm norm_weights(const struct bench *bench) {
    return (struct layer_norm){weights_at(bench, "gain"), weights_at(bench, "bias")};
}

static struct layer_norm norm_gradients(const struct bench *bench) {
    return (struct layer_norm){gradients_at(bench, "gain"), gradients_at(bench, "bias")};
}

/* ---- embedding; the variation is the first token's position, forward only */

static void embedding_describe(struct bench *bench) {
    const size_t n = bench->token_count, c = bench->channels;
    bench_parameter(bench, "wte", bench->vocabulary * c, 0.0, 1.0)->written = 0;
    bench_gap(bench);
    bench_parameter(bench, "wpe", (size_t)(bench->tokens.sequence + bench->shape.variation + 2) * c, 0.0, 1.0)
        ->written = (size_t)bench->tokens.sequence * c;
    if (bench->shape.scaled) {
        bench_parameter(bench, "scale", bench->streams * c, 0.6, 0.5);
    }
    bench_activation(bench_output(bench, "streams", n * bench->streams * c));
    bench_byproduct(bench, "squares", n * bench->streams)->roundings = 2;
}

static void embedding_reference(struct bench *bench) {
    const size_t c = bench->channels;
    const double *wte = bench_values(bench, "wte"), *wpe = bench_values(bench, "wpe");
    const double *scale = bench_values_or_null(bench, "scale");
    double *streams = bench_values(bench, "streams"), *squares = bench_values(bench, "squares");
    for (size_t row = 0; row < bench->token_count * bench->streams; row++) {
        const size_t token = row / bench->streams;
        const size_t position = (size_t)bench->shape.variation + token % (size_t)bench->tokens.sequence;
        for (size_t k = 0; k < c; k++) {
            const double gain = bench->shape.scaled ? scale[row % bench->streams * c + k] : 1.0;
            streams[row * c + k] =
                (wte[(size_t)bench->ids[token] * c + k] + wpe[position * c + k]) * kept(bench, token, k) * gain;
        }
        squares[row] = reference_dot(c, streams + row * c, streams + row * c);
    }
}

/* Where the gains are, or with streams that are copied anywhere. */
static struct span scale_at(const struct bench *bench, struct span (*at)(const struct bench *, const char *)) {
    return at(bench, bench->shape.scaled ? "scale" : "wte");
}

static struct embedding embedding_weights(const struct bench *bench) {
    return (struct embedding){weights_at(bench, "wte"), weights_at(bench, "wpe"), scale_at(bench, weights_at)};
}

static void run_embedding_forward(struct bench *bench) {
    const struct embedding_input input = {bench->tokens, &bench->ids_buffer, case_dropout(bench)};
    embedding_forward(bench->operations, &input, bench->shape.variation, embedding_weights(bench),
                      bench_buffer(bench, "streams"), bench_buffer(bench, "squares"));
}

static const struct buffer *upload_integers(struct bench *bench, const int32_t *values, size_t count) {
    const struct buffer *buffer = bench_scratch(bench, count);
    bench->failed = bench->failed || buffer_write(bench->operations->compute, buffer, 0, values, count * 4) != 0;
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
    const struct embedding weights = embedding_weights(bench),
                           gradients = {gradients_at(bench, "wte"), gradients_at(bench, "wpe"),
                                        scale_at(bench, gradients_at)};
    const struct buffer *d_streams = bench_derivative(bench, "streams");
    embedding_backward(bench->operations,
                       &(struct embedding_input){bench->tokens, &bench->ids_buffer, case_dropout(bench)}, groups,
                       weights, d_streams, bench_scratch(bench, n * bench->channels), gradients, bench->accumulate);
}

/* Sums of squares are those of the streams as they are stored, whatever that does to them. */
static const char *check_squares(const struct bench *bench, const char *streams) {
    const size_t c = bench->channels;
    for (size_t row = 0; row < bench->token_count * bench->streams; row++) {
        const double *x = bench_values(bench, streams) + row * c, sum = reference_dot(c, x, x);
        if (!(fabs(bench_values(bench, "squares")[row] - sum) <= 1e-5 * sum)) {
            return "squares are not those of the stored streams";
        }
    }
    return NULL;
}

static const char *embedding_check(const struct bench *bench) {
    return check_squares(bench, "streams");
}

static const struct operation_test embedding = {
    "embedding",         "embedding.cl",        embedding_describe,     NULL,
    embedding_reference, run_embedding_forward, run_embedding_backward, embedding_check};

static const struct operation_test embedding_at = {"embedding at", "embedding.cl",      embedding_describe,
                                                   NULL,           embedding_reference, run_embedding_forward,
                                                   NULL,           embedding_check};

/* ---- projections */

static size_t row_length(const struct bench *bench) {
    return bench->streams * bench->channels / bench->operations->norm_groups;
}

static void projections_describe(struct bench *bench) {
    const size_t rows = row_length(bench);
    for (const struct residual_leaf *leaf = bench->operations->shape.residual->leaves; leaf->name; leaf++) {
        if (leaf->kind == LEAF_NORM) {
            bench_parameter(bench, "gain", rows, 1.0, 0.5);
            bench_gap(bench);
        } else if (leaf->kind == LEAF_PROJECTION) {
            bench_parameter(bench, leaf->name, rows * (size_t)leaf->width(bench->shape.streams), 0.0, 1.0);
            bench_gap(bench);
        }
    }
    bench_activation(bench_output(bench, "packed", rows * bench->operations->columns))->d_activation = false;
}

static void projections_reference(struct bench *bench) {
    const double *gain = bench_values(bench, "gain");
    double *packed = bench_values(bench, "packed");
    size_t column = 0;
    for (size_t i = 0; i < bench->field_count; i++) {
        const struct field *field = &bench->fields[i];
        if (field->kind != FIELD_PARAMETER || field->values == gain) {
            continue;
        }
        const size_t width = field->count / row_length(bench);
        for (size_t k = 0; k < field->count; k++) {
            packed[(column + k % width) * row_length(bench) + k / width] = gain[k / width] * field->values[k];
        }
        column += width;
    }
}

/* The leaves of one sublayer, on the device. */
static struct projection_table projection_table(struct bench *bench) {
    const size_t count =
        (size_t)residual_projections(bench->operations->shape.residual, bench->operations->shape.streams);
    uint64_t offsets[RESIDUAL_MAX_PROJECTIONS], *next = offsets;
    struct projection_leaf leaves[RESIDUAL_MAX_PROJECTIONS];
    for (const struct residual_leaf *leaf = bench->operations->shape.residual->leaves; leaf->name; leaf++) {
        if (leaf->kind == LEAF_PROJECTION) {
            *next++ = bench_offset(bench, leaf->name);
        }
    }
    projections_list(bench->operations, offsets, bench_offset(bench, "gain"), 0, leaves);
    const struct buffer *table = bench_scratch(bench, count * LEAF_FLOATS);
    if (buffer_write(bench->operations->compute, table, 0, leaves, count * sizeof *leaves)) {
        bench->failed = true;
    }
    return (struct projection_table){table, 0, count};
}

static void run_projections_pack(struct bench *bench) {
    projections_pack(bench->operations, &bench->weights, projection_table(bench), bench_buffer(bench, "packed"));
}

static void run_projections_unpack(struct bench *bench) {
    projections_unpack(bench->operations, &bench->weights, projection_table(bench),
                       bench_derivative(bench, "packed"), &bench->gradients, bench->accumulate);
}

static const struct operation_test projections = {"projections",          "projections.cl",
                                                  projections_describe,   NULL,
                                                  projections_reference,  run_projections_pack,
                                                  run_projections_unpack, NULL};

/* ---- multiply: streams with packed projections, and the gradient of those */

static void multiply_describe(struct bench *bench) {
    const size_t rows = bench->token_count * bench->operations->norm_groups;
    bench_activation(bench_input(bench, "streams", rows * row_length(bench), 0.2, 1.0))->constant = true;
    bench_activation(bench_input(bench, "packed", bench->operations->columns * row_length(bench), 0.0, 1.0))
        ->d_activation = false;
    bench_output(bench, "z", rows * bench->operations->columns);
}

static void multiply_reference(struct bench *bench) {
    const size_t rows = bench->token_count * bench->operations->norm_groups, length = row_length(bench);
    const size_t columns = bench->operations->columns;
    const double *x = bench_values(bench, "streams"), *packed = bench_values(bench, "packed");
    double *z = bench_values(bench, "z");
    for (size_t i = 0; i < rows * columns; i++) {
        z[i] = 0.0;
        for (size_t k = 0; k < length; k++) {
            z[i] += x[i / columns * length + k] * packed[i % columns * length + k];
        }
    }
}

static void run_multiply(struct bench *bench) {
    projections_multiply(bench->operations, bench->token_count, bench_buffer(bench, "streams"),
                         (struct span){bench_buffer(bench, "packed"), 0}, bench_buffer(bench, "z"));
}

static void run_multiply_backward(struct bench *bench) {
    if (operations_build(bench->operations, "projections.cl")) {
        compute_fail(bench->operations->compute, "%s", error_text());
        return;
    }
    projections_gradient(bench->operations, bench->token_count, bench_buffer(bench, "streams"),
                         bench_derivative(bench, "z"), bench_derivative(bench, "packed"));
}

static const struct operation_test multiply = {"multiply",         "few_rows.cl", multiply_describe,     NULL,
                                               multiply_reference, run_multiply,  run_multiply_backward, NULL};

/* ---- map. In the model d_z and rms_scale go on to the streams; here rms_scale is half the gradient of squares. */

static void map_describe(struct bench *bench) {
    const size_t n = bench->token_count, z_row = bench->operations->norm_groups * bench->operations->columns;
    const double spread = bench->shape.spread;
    bench_input(bench, "z", n * z_row, 0.0, 2.0);
    bench_input(bench, "squares", n * bench->streams, (double)bench->channels, 0.3 * (double)bench->channels);
    for (const struct residual_leaf *leaf = bench->operations->shape.residual->leaves; leaf->name; leaf++) {
        const size_t count = (size_t)residual_leaf_elements(leaf, bench->shape.streams, 0);
        if (!residual_leaf_is_small(leaf)) {
            continue;
        }
        const bool gamma = strncmp(leaf->name, "gamma", 5) == 0;
        struct field *field = bench_parameter(bench, leaf->name, count, 0.3, spread * (gamma ? 1.0 : 0.5));
        field->constant =
            gamma && bench->shape.setting.name && strcmp(bench->shape.setting.name, "freeze_gamma") == 0;
    }
    bench_byproduct(bench, "normalised", n * z_row);
    bench_output(bench, "h", n * bench->operations->h_row);
}

/* Sums of squares are positive; the gates stay soft when the case stresses the matrix. */
static void map_prepare(struct bench *bench) {
    double *squares = bench_values(bench, "squares");
    for (size_t i = 0; i < bench->token_count * bench->streams; i++) {
        squares[i] = fabs(squares[i]) + 0.125;
    }
    const char *const gates[] = {"b_pre", "b_post", "alpha_pre", "alpha_post"};
    for (size_t g = 0; g < 4 && bench->shape.spread > 1.0; g++) {
        const struct field *field = bench_find(bench, gates[g]);
        for (size_t i = 0; i < field->count; i++) {
            field->values[i] = (double)(float)(field->values[i] / bench->shape.spread);
        }
    }
}

static struct reference_map map_of(const struct bench *bench) {
    const struct operation_shape *shape = &bench->operations->shape;
    struct reference_map map = {.residual = shape->residual,
                                .settings = &shape->settings,
                                .streams = bench->streams,
                                .channels = bench->channels,
                                .sublayers = (size_t)shape->sublayers};
    for (size_t i = 0; shape->residual->leaves[i].name; i++) {
        map.leaves[i] = bench_values_or_null(bench, shape->residual->leaves[i].name);
    }
    return map;
}

static void map_reference(struct bench *bench) {
    const struct reference_map map = map_of(bench);
    const size_t columns = bench->operations->columns, z_row = bench->operations->norm_groups * columns;
    const double *z = bench_values(bench, "z"), *squares = bench_values(bench, "squares");
    double *normalised = bench_values(bench, "normalised"), *h = bench_values(bench, "h");
    for (size_t token = 0; token < bench->token_count; token++) {
        reference_map_token(&map, columns, z + token * z_row, squares + token * bench->streams,
                            normalised + token * z_row, h + token * bench->operations->h_row);
    }
}

static struct stream_map device_map(const struct bench *bench) {
    return (struct stream_map){.theta = weights_at(bench, "b_pre"),
                               .squares = bench_buffer(bench, "squares"),
                               .z = bench_buffer(bench, "normalised"),
                               .h = bench_buffer(bench, "h")};
}

static void run_map_forward(struct bench *bench) {
    const struct stream_map map = device_map(bench);
    const size_t z_row = bench->operations->norm_groups * bench->operations->columns;
    bench_copy(bench, bench_buffer(bench, "z"), 0, bench_buffer(bench, "normalised"), 0,
               bench->token_count * z_row);
    map_forward(bench->operations, bench->token_count, &map);
}

static void run_map_backward(struct bench *bench) {
    const size_t n = bench->token_count, groups = bench->operations->norm_groups, streams = bench->streams;
    const struct buffer *rms_scale = bench_scratch(bench, n * groups);
    const struct stream_map map = device_map(bench);
    map_backward(bench->operations, n, &map, bench_derivative(bench, "h"), bench_derivative(bench, "z"), rms_scale,
                 gradients_at(bench, "b_pre"), bench->accumulate);
    double *scales = calloc(n * streams, sizeof *scales), *squares = calloc(n * streams, sizeof *squares);
    struct compute *compute = bench->operations->compute;
    bench->failed = bench->failed || support_download(compute, rms_scale, 0, scales, n * groups) != 0;
    for (size_t i = 0; i < n * streams; i++) {
        squares[i] = 0.5 * scales[i / streams * groups + i % streams * groups / streams];
    }
    bench->failed =
        bench->failed || support_upload(compute, bench_derivative(bench, "squares"), 0, squares, n * streams) != 0;
    free(scales);
    free(squares);
}

static const struct operation_test map = {"map",         "hc_map.cl",     map_describe,     map_prepare,
                                          map_reference, run_map_forward, run_map_backward, NULL};

/* ---- the frame: width mix, depth mix, and the way back to the streams
 *
 * rms_scale of stream_backward is the cotangent of q_g = 1/2 sum_{s in g} |x_s|^2, which no kernel computes. */

static void mix_describe(struct bench *bench) {
    const size_t n = bench->token_count, c = bench->channels, s = bench->streams;
    bench_activation(bench_input(bench, "streams", n * s * c, 0.2, 1.0));
    bench_activation(bench_input(bench, "branch", n * c, 0.0, 1.0));
    bench_parameter(bench, "gain", c, 1.0, 0.5);
    bench_gap(bench);
    if (bench->shape.bias) {
        bench_parameter(bench, "bias", c, 0.0, 1.0);
    }
    if (!is_plain(bench)) {
        bench_input(bench, "h", n * bench->operations->h_row, 0.2, 1.0);
        bench_output(bench, "half_squares", n * bench->operations->norm_groups)->implied = true;
    }
    bench_activation(bench_output(bench, "normed", n * c));
    bench_byproduct(bench, "statistics", n * 2);
    bench_activation(bench_output(bench, "mixed", n * s * c));
    bench_byproduct(bench, "squares", n * s)->roundings = 2;
}

static void mix_token(struct bench *bench, size_t token) {
    const size_t c = bench->channels, s = bench->streams, row = s * c;
    const double *h = bench_values_or_null(bench, "h");
    const double *x = bench_values(bench, "streams") + token * row;
    const double *h_token = h ? h + token * bench->operations->h_row : NULL;
    double *mixed = bench_values(bench, "mixed") + token * row;
    reference_width_mix(s, c, x, h_token, bench_values(bench, "gain"), bench_values_or_null(bench, "bias"),
                        bench_values(bench, "normed") + token * c, bench_values(bench, "statistics") + 2 * token);
    reference_depth_mix(s, c, x, h_token, bench_values(bench, "branch") + token * c, mixed);
    for (size_t i = 0; i < s; i++) {
        bench_values(bench, "squares")[token * s + i] = reference_dot(c, mixed + i * c, mixed + i * c);
    }
}

static void half_squares(struct bench *bench, size_t token) {
    const size_t groups = bench->operations->norm_groups, length = row_length(bench);
    for (size_t g = 0; g < groups; g++) {
        const double *x = bench_values(bench, "streams") + (token * groups + g) * length;
        bench_values(bench, "half_squares")[token * groups + g] = 0.5 * reference_dot(length, x, x);
    }
}

static void mix_reference(struct bench *bench) {
    for (size_t token = 0; token < bench->token_count; token++) {
        mix_token(bench, token);
        if (!is_plain(bench)) {
            half_squares(bench, token);
        }
    }
}

/* For rc no h exists; the kernels take any buffer. */
static const struct buffer *mix_h(const struct bench *bench) {
    return bench_buffer(bench, is_plain(bench) ? "streams" : "h");
}

static struct stream_mix device_mix(const struct bench *bench) {
    return (struct stream_mix){.streams = bench_buffer(bench, "streams"),
                               .h = mix_h(bench),
                               .norm = norm_weights(bench),
                               .normed = bench_buffer(bench, "normed"),
                               .statistics = bench_buffer(bench, "statistics"),
                               .output = bench_buffer(bench, "branch")};
}

static void run_mix_forward(struct bench *bench) {
    const size_t n = bench->token_count;
    const struct stream_mix mix = device_mix(bench);
    width_mix_forward(bench->operations, n, &mix);
    depth_mix_forward(bench->operations, n, &mix, bench_buffer(bench, "mixed"), bench_buffer(bench, "squares"));
}

static void run_mix_backward(struct bench *bench) {
    const struct stream_mix mix = device_mix(bench);
    const size_t n = bench->token_count, c = bench->channels;
    const bool plain = is_plain(bench);
    const struct buffer *d_mixed = bench_derivative(bench, "mixed");
    const struct buffer *d_streams = bench_derivative(bench, "streams");
    const struct buffer *d_h = plain ? bench_scratch(bench, 1) : bench_derivative(bench, "h");
    const struct buffer *d_normed = bench_scratch_activation(bench, n * c);
    /* d_u may take the place of d_normed */
    const struct buffer *d_u = bench->shape.variation == 0 ? d_normed : bench_scratch_activation(bench, n * c);
    bench_copy(bench, bench_derivative(bench, "normed"), 0, d_normed, 0, n * c);
    bench_copy(bench, d_mixed, 0, d_streams, 0, n * bench->streams * c);
    if (plain) {
        bench_copy(bench, d_mixed, 0, bench_derivative(bench, "branch"), 0, n * c);
    } else {
        depth_mix_backward(bench->operations, n, &mix, d_mixed, bench_derivative(bench, "branch"), d_h);
    }
    width_mix_backward(bench->operations, n, &mix, d_normed, d_u, d_h, norm_gradients(bench), bench->accumulate);
    stream_backward(bench->operations, n, &mix, d_u, plain ? mix.streams : bench_derivative(bench, "half_squares"),
                    d_streams);
}

static const char *mix_check(const struct bench *bench) {
    return check_squares(bench, "mixed");
}

static const struct operation_test mix = {"mix",         "stream_mix.cl", mix_describe,     NULL,
                                          mix_reference, run_mix_forward, run_mix_backward, mix_check};

/* ---- the fused frame: streams, packed projections, theta, gain and the branch's output -> normed and mixed, and from mixed
 * what the next branch gets, with the same parameters. Only where a row has several lanes. */

static void describe_theta(struct bench *bench) {
    for (const struct residual_leaf *leaf = bench->operations->shape.residual->leaves; leaf->name; leaf++) {
        if (residual_leaf_is_small(leaf)) {
            bench_parameter(bench, leaf->name, (size_t)residual_leaf_elements(leaf, bench->shape.streams, 0), 0.3,
                            0.5);
        }
    }
}

static void frame_describe(struct bench *bench) {
    const size_t n = bench->token_count, c = bench->channels, s = bench->streams,
                 columns = bench->operations->columns;
    const size_t z_row = bench->operations->norm_groups * columns, length = row_length(bench);
    bench_activation(bench_input(bench, "streams", n * s * c, 0.2, 1.0));
    bench_activation(bench_input(bench, "branch", n * c, 0.0, 1.0));
    bench_activation(bench_input(bench, "packed", columns * length, 0.0, 1.0 / sqrt((double)length)))
        ->d_activation = false;
    bench_parameter(bench, "gain", c, 1.0, 0.5);
    bench_gap(bench);
    if (bench->shape.bias) {
        bench_parameter(bench, "bias", c, 0.0, 1.0);
        bench_gap(bench);
    }
    describe_theta(bench);
    bench_byproduct(bench, "z", n * z_row);
    bench_byproduct(bench, "h", n * bench->operations->h_row);
    bench_byproduct(bench, "statistics", n * 2);
    bench_activation(bench_output(bench, "normed", n * c));
    bench_activation(bench_output(bench, "mixed", n * s * c));
    bench_byproduct(bench, "squares", n * s)->roundings = 2;
    bench_byproduct(bench, "next_z", n * z_row)->roundings = 2;
    bench_byproduct(bench, "next_h", n * bench->operations->h_row)->roundings = 2;
    bench_byproduct(bench, "next_statistics", n * 2)->roundings = 2;
    bench_activation(bench_byproduct(bench, "next_normed", n * c))->roundings = 3;
}

/* A branch's frame in plain C: from x [S, C] of a token, with its projections. `prefix` is of the fields' names. */
static const double *frame_token(struct bench *bench, const double *x, size_t token, const char *prefix) {
    const struct reference_map token_map = map_of(bench);
    const size_t s = bench->streams, c = bench->channels, columns = bench->operations->columns;
    const size_t rows = bench->operations->norm_groups, length = row_length(bench);
    const double *packed = bench_values(bench, "packed");
    char names[4][32];
    static const char *const fields[] = {"z", "h", "normed", "statistics"};
    double raw[256], squares[RESIDUAL_MAX_STREAMS];
    for (size_t i = 0; i < 4; i++) {
        snprintf(names[i], sizeof names[i], "%s%s", prefix, fields[i]);
    }
    for (size_t i = 0; i < rows * columns; i++) {
        raw[i] = reference_dot(length, x + i / columns * length, packed + i % columns * length);
    }
    for (size_t i = 0; i < s; i++) {
        squares[i] = reference_dot(c, x + i * c, x + i * c);
    }
    double *h = bench_values(bench, names[1]) + token * bench->operations->h_row;
    reference_map_token(&token_map, columns, raw, squares, bench_values(bench, names[0]) + token * rows * columns,
                        h);
    reference_width_mix(s, c, x, h, bench_values(bench, "gain"), bench_values_or_null(bench, "bias"),
                        bench_values(bench, names[2]) + token * c, bench_values(bench, names[3]) + 2 * token);
    return h;
}

static void frame_reference(struct bench *bench) {
    const size_t s = bench->streams, c = bench->channels, row = s * c;
    for (size_t token = 0; token < bench->token_count; token++) {
        const double *x = bench_values(bench, "streams") + token * row;
        double *mixed = bench_values(bench, "mixed") + token * row;
        const double *h = frame_token(bench, x, token, "");
        reference_depth_mix(s, c, x, h, bench_values(bench, "branch") + token * c, mixed);
        for (size_t i = 0; i < s; i++) {
            bench_values(bench, "squares")[token * s + i] = reference_dot(c, mixed + i * c, mixed + i * c);
        }
        frame_token(bench, mixed, token, "next_");
    }
}

/* Sums of squares of the streams, which come from the kernel before. */
static const struct buffer *frame_squares(struct bench *bench) {
    const size_t count = bench->token_count * bench->streams, c = bench->channels;
    const double *x = bench_values(bench, "streams");
    const struct buffer *squares = bench_scratch(bench, count);
    double *values = calloc(count, sizeof *values);
    for (size_t i = 0; i < count; i++) {
        values[i] = reference_dot(c, x + i * c, x + i * c);
    }
    bench->failed = support_upload(bench->operations->compute, squares, 0, values, count) != 0 || bench->failed;
    free(values);
    return squares;
}

static struct stream_mix frame_mix(const struct bench *bench) {
    struct stream_mix around = device_mix(bench);
    around.h = bench_buffer(bench, "h");
    return around;
}

/* The first of the small parameters, or of their gradients: they are contiguous. */
static struct span frame_theta(const struct bench *bench, const struct buffer *arena) {
    const struct residual_leaf *leaf = bench->operations->shape.residual->leaves;
    while (!residual_leaf_is_small(leaf) || residual_leaf_elements(leaf, bench->shape.streams, 0) == 0) {
        leaf++;
    }
    return (struct span){arena, bench_offset(bench, leaf->name)};
}

static void run_frame_forward(struct bench *bench) {
    const struct span packed = {bench_buffer(bench, "packed"), 0};
    const struct stream_mix around = frame_mix(bench);
    const struct stream_mix next_mix = {.streams = bench_buffer(bench, "mixed"),
                                        .h = bench_buffer(bench, "next_h"),
                                        .norm = norm_weights(bench),
                                        .normed = bench_buffer(bench, "next_normed"),
                                        .statistics = bench_buffer(bench, "next_statistics")};
    struct stream_map inner = {.squares = frame_squares(bench), .z = bench_buffer(bench, "z"), .h = around.h};
    struct stream_map next_map = {.squares = bench_buffer(bench, "squares"),
                                  .z = bench_buffer(bench, "next_z"),
                                  .h = next_mix.h};
    inner.theta = next_map.theta = frame_theta(bench, &bench->weights);
    frame_enter(bench->operations, bench->token_count, &(struct stream_frame){&inner, &around, packed});
    frame_leave(bench->operations, &around);
    frame_enter(bench->operations, bench->token_count, &(struct stream_frame){&next_map, &next_mix, packed});
}

static void run_frame_backward(struct bench *bench) {
    struct operations *operations = bench->operations;
    const size_t n = bench->token_count, z = n * operations->norm_groups * operations->columns;
    const struct stream_mix around = frame_mix(bench);
    const struct stream_map inner = {.theta = frame_theta(bench, &bench->weights),
                                     .squares = frame_squares(bench),
                                     .z = bench_buffer(bench, "z"),
                                     .h = around.h};
    const struct buffer *d_streams = bench_derivative(bench, "streams"), *d_z = bench_scratch_activation(bench, z);
    const struct frame_gradients gradients = {.d_z = d_z,
                                              .d_streams = d_streams,
                                              .d_output = bench_scratch_activation(bench, n * bench->channels),
                                              .norm = norm_gradients(bench),
                                              .d_theta = frame_theta(bench, &bench->gradients)};
    bench_copy(bench, bench_derivative(bench, "mixed"), 0, d_streams, 0, n * bench->streams * bench->channels);
    frame_output_gradient(operations, n, &around, d_streams, bench_derivative(bench, "branch"));
    frame_backward(operations, n, &(struct stream_frame){&inner, &around, {bench_buffer(bench, "packed"), 0}},
                   bench_derivative(bench, "normed"), &gradients, bench->accumulate);
    if (operations_build(operations, "projections.cl") == 0) {
        const struct buffer *d_z_fp32 = bench_scratch(bench, z);
        bench_copy(bench, d_z, 0, d_z_fp32, 0, z);
        projections_gradient(operations, n, around.streams, d_z_fp32, bench_derivative(bench, "packed"));
    }
}

static const struct operation_test frame = {"frame",         "frame.cl",        frame_describe,     NULL,
                                            frame_reference, run_frame_forward, run_frame_backward, NULL};

/* ---- gram matrix of the streams */

static void gram_describe(struct bench *bench) {
    bench_activation(
        bench_input(bench, "streams", bench->token_count * bench->streams * bench->channels, 0.3, 1.0));
    bench_output(bench, "gram", bench->token_count * bench->streams * bench->streams);
}

static void gram_reference(struct bench *bench) {
    const size_t c = bench->channels, s = bench->streams;
    const double *x = bench_values(bench, "streams");
    double *gram = bench_values(bench, "gram");
    for (size_t k = 0; k < bench->token_count * s * s; k++) {
        const size_t token = k / (s * s), i = k / s % s, j = k % s;
        gram[k] = reference_dot(c, x + (token * s + i) * c, x + (token * s + j) * c);
    }
}

static void run_gram(struct bench *bench) {
    stream_gram(bench->operations, bench->token_count, bench_buffer(bench, "streams"), bench_buffer(bench, "gram"));
}

static const struct operation_test gram = {"gram",         "stream_mix.cl", gram_describe, NULL,
                                           gram_reference, run_gram,        NULL,          NULL};

/* ---- attention */

static void attention_describe(struct bench *bench) {
    const size_t n = bench->token_count;
    bench_activation(bench_input(bench, "qkv", n * 3 * bench->channels, 0.1, bench->shape.spread));
    bench_activation(bench_output(bench, "y", n * bench->channels));
    bench_byproduct(bench, "lse", n * (size_t)bench->shape.heads);
}

static void attention_reference(struct bench *bench) {
    const struct dropout dropout = case_dropout(bench);
    const struct reference_attention shape = {.batch = (size_t)bench->tokens.batch,
                                              .sequence = (size_t)bench->tokens.sequence,
                                              .heads = (size_t)bench->shape.heads,
                                              .head_size = (size_t)(bench->shape.channels / bench->shape.heads),
                                              .dropout = dropout.rate,
                                              .key = dropout.key,
                                              .first_row = dropout.first_row};
    reference_attention(&shape, bench_values(bench, "qkv"), bench_values(bench, "y"), bench_values(bench, "lse"));
}

static const struct buffer *transposed_scratch(struct bench *bench) {
    return bench_scratch_activation(bench,
                                    (size_t)(bench->tokens.batch * bench->shape.channels) *
                                        operations_transposed(bench->operations->compute, bench->tokens.sequence));
}

static struct attention_values attention_values(const struct bench *bench) {
    return (struct attention_values){bench_buffer(bench, "qkv"), bench_buffer(bench, "y"),
                                     bench_buffer(bench, "lse")};
}

static void run_attention_forward(struct bench *bench) {
    const struct attention_values values = attention_values(bench);
    const struct attention_scratch scratch = {.keys_t = transposed_scratch(bench)};
    attention_forward(bench->operations, bench->tokens, &values, &scratch, case_dropout(bench));
}

/* Variations of the backward pass: see take_whole_heads. */
enum { CHOSEN, BLOCKS, WHOLE_HEADS };

static void run_attention_backward(struct bench *bench) {
    const struct attention_values values = attention_values(bench);
    const struct attention_scratch scratch = {.keys_t = transposed_scratch(bench),
                                              .values_t = transposed_scratch(bench),
                                              .delta = bench_scratch(bench, bench->token_count *
                                                                                (size_t)bench->shape.heads),
                                              .d_queries =
                                                  bench_scratch(bench, bench->token_count * bench->channels)};
    const struct operations chosen = *bench->operations;
    if (bench->shape.variation != CHOSEN) {
        bench->operations->attention_matrix_cores = NULL;
        bench->operations->policy.attention_head_cores =
            bench->shape.variation == WHOLE_HEADS; /* one core is always busy */
    }
    attention_backward(bench->operations, bench->tokens, &values, &scratch, case_dropout(bench),
                       bench_derivative(bench, "y"), bench_derivative(bench, "qkv"));
    *bench->operations = chosen;
}

static const struct operation_test attention = {
    "attention",         "attention.cl",        attention_describe,     NULL,
    attention_reference, run_attention_forward, run_attention_backward, NULL};

/* ---- one query over a cache of `sequence` positions and some more that are not used yet */

static const size_t cache_room = 5;

static size_t cache_elements(const struct bench *bench) {
    const size_t rows = (size_t)bench->tokens.batch + 1; /* one that stays as it is */
    return rows * ((size_t)bench->tokens.sequence + cache_room) * bench->channels;
}

static struct attention_cache cache_of(const struct bench *bench) {
    return (struct attention_cache){bench_buffer(bench, "keys"), bench_buffer(bench, "values"),
                                    bench->tokens.sequence + (int64_t)cache_room};
}

/* The caches before and after; the kernels work on those after in place. */
static void cache_describe(struct bench *bench) {
    bench_activation(bench_input(bench, "old_keys", cache_elements(bench), 0.1, bench->shape.spread));
    bench_activation(bench_input(bench, "old_values", cache_elements(bench), 0.1, 1.0));
    bench_activation(bench_byproduct(bench, "keys", cache_elements(bench)));
    bench_activation(bench_byproduct(bench, "values", cache_elements(bench)));
}

static void cache_begin(struct bench *bench) {
    bench_copy(bench, bench_buffer(bench, "old_keys"), 0, bench_buffer(bench, "keys"), 0, cache_elements(bench));
    bench_copy(bench, bench_buffer(bench, "old_values"), 0, bench_buffer(bench, "values"), 0,
               cache_elements(bench));
}

static void step_describe(struct bench *bench) {
    cache_describe(bench);
    bench_activation(
        bench_input(bench, "qkv", (size_t)bench->tokens.batch * 3 * bench->channels, 0.1, bench->shape.spread));
    bench_activation(bench_output(bench, "y", (size_t)bench->tokens.batch * bench->channels));
}

static struct reference_cache reference_cache_of(const struct bench *bench) {
    copy_values(bench_values(bench, "keys"), bench_values(bench, "old_keys"), cache_elements(bench));
    copy_values(bench_values(bench, "values"), bench_values(bench, "old_values"), cache_elements(bench));
    return (struct reference_cache){.heads = (size_t)bench->shape.heads,
                                    .head_size = bench->channels / (size_t)bench->shape.heads,
                                    .capacity = (size_t)bench->tokens.sequence + cache_room,
                                    .keys = bench_values(bench, "keys"),
                                    .values = bench_values(bench, "values")};
}

static void step_reference(struct bench *bench) {
    const struct reference_cache cache = reference_cache_of(bench);
    const double *qkv = bench_values(bench, "qkv");
    for (size_t row = 0; row < (size_t)bench->tokens.batch; row++) {
        const size_t position = (size_t)bench->tokens.sequence - 1;
        reference_cache_put(&cache, row, position, qkv + row * 3 * bench->channels);
        reference_cache_attend(&cache, row, position, qkv + row * 3 * bench->channels,
                               bench_values(bench, "y") + row * bench->channels);
    }
}

static void run_step(struct bench *bench) {
    const size_t padded =
        operations_padded(bench->operations->compute, bench->tokens.sequence + (int64_t)cache_room);
    cache_begin(bench);
    attention_step(bench->operations, bench->tokens.batch, bench->tokens.sequence - 1, bench_buffer(bench, "qkv"),
                   cache_of(bench),
                   bench_scratch(bench, (size_t)(bench->tokens.batch * bench->shape.heads) * padded),
                   bench_buffer(bench, "y"));
}

static const struct operation_test attention_one = {"attention, step", "attention.cl", step_describe, NULL,
                                                    step_reference,    run_step,       NULL,          NULL};

static void fill_describe(struct bench *bench) {
    cache_describe(bench);
    bench_activation(bench_input(bench, "qkv", bench->token_count * 3 * bench->channels, 0.0, 1.0));
}

static void fill_reference(struct bench *bench) {
    const struct reference_cache cache = reference_cache_of(bench);
    const size_t sequence = (size_t)bench->tokens.sequence;
    for (size_t token = 0; token < bench->token_count; token++) {
        reference_cache_put(&cache, 1 + token / sequence, token % sequence,
                            bench_values(bench, "qkv") + token * 3 * bench->channels);
    }
}

static void run_fill(struct bench *bench) {
    cache_begin(bench);
    attention_fill(bench->operations, bench->tokens, bench_buffer(bench, "qkv"), 1, cache_of(bench));
}

static const struct operation_test cache_fill = {"attention, fill", "attention.cl", fill_describe, NULL,
                                                 fill_reference,    run_fill,       NULL,          NULL};

/* ---- products of few rows: x [N, in] and w [count, in], `in` all streams of a token */

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

static void run_few_rows(struct bench *bench) {
    const size_t in = few_rows_in(bench);
    few_rows_multiply(bench->operations, bench->token_count, (size_t)bench->shape.count, in,
                      (struct span){bench_buffer(bench, "x"), in}, (struct span){bench_buffer(bench, "w"), in},
                      bench_buffer(bench, "y"));
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
                          (struct span){bench_buffer(bench, "w"), in}, y);
        if (!row || support_download(bench->operations->compute, y, 0, row, out) != 0) {
            wrong = "cannot be read";
        } else if (memcmp(row, bench_values(bench, "y") + token * out, out * sizeof *row) != 0) {
            wrong = "depends on the number of rows";
        }
    }
    free(row);
    return wrong;
}

static const struct operation_test few_rows = {"few rows", "few_rows.cl",      few_rows_describe,
                                               NULL,       few_rows_reference, run_few_rows,
                                               NULL,       few_rows_check};

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
        bench_values(bench, "y")[i] = bench->shape.gelu_tanh ? reference_gelu_tanh(x) : reference_gelu(x);
    }
}

static void run_gelu_forward(struct bench *bench) {
    activation_forward(bench->operations, wide_count(bench), bench_buffer(bench, "x"), bench_buffer(bench, "y"));
}

static void run_gelu_backward(struct bench *bench) {
    bench_copy(bench, bench_derivative(bench, "y"), 0, bench_derivative(bench, "x"), 0, wide_count(bench));
    activation_backward(bench->operations, wide_count(bench), bench_buffer(bench, "x"),
                        bench_derivative(bench, "x"));
}

static const struct operation_test gelu = {"gelu",         "elementwise.cl", elements_describe, NULL,
                                           gelu_reference, run_gelu_forward, run_gelu_backward, NULL};

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
    bench_copy(bench, bench_buffer(bench, "x"), 0, bench_buffer(bench, "y"), 0, wide_count(bench));
    bias_forward(bench->operations, bench->token_count, 2 * bench->channels, weights_at(bench, "bias"),
                 bench_buffer(bench, "y"));
}

static void run_bias_backward(struct bench *bench) {
    bench_copy(bench, bench_derivative(bench, "y"), 0, bench_derivative(bench, "x"), 0, wide_count(bench));
    bias_backward(bench->operations, bench->token_count, 2 * bench->channels, bench_derivative(bench, "x"),
                  gradients_at(bench, "bias"), bench->accumulate);
}

static const struct operation_test bias = {"bias",         "elementwise.cl", bias_describe,     NULL,
                                           bias_reference, run_bias_forward, run_bias_backward, NULL};

static void dropout_reference(struct bench *bench) {
    for (size_t i = 0; i < wide_count(bench); i++) {
        bench_values(bench, "y")[i] =
            bench_values(bench, "x")[i] * kept(bench, i / (2 * bench->channels), i % (2 * bench->channels));
    }
}

static void drop(struct bench *bench, const struct buffer *from, const struct buffer *to) {
    bench_copy(bench, from, 0, to, 0, wide_count(bench));
    dropout_apply(bench->operations, bench->token_count, 2 * bench->channels, case_dropout(bench), to);
}

static void run_dropout_forward(struct bench *bench) {
    drop(bench, bench_buffer(bench, "x"), bench_buffer(bench, "y"));
}

static void run_dropout_backward(struct bench *bench) {
    drop(bench, bench_derivative(bench, "y"), bench_derivative(bench, "x"));
}

static const struct operation_test dropout = {"dropout",         "elementwise.cl",    elements_describe,    NULL,
                                              dropout_reference, run_dropout_forward, run_dropout_backward, NULL};

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
    bench_copy(bench, bench_buffer(bench, "x"), 0, y, 0, first * width);
    dropout_apply(bench->operations, first, width, settings, y);
    bench_copy(bench, bench_buffer(bench, "x"), first * width, part, 0, rest * width);
    settings.first_row += first;
    dropout_apply(bench->operations, rest, width, settings, part);
    bench_copy(bench, part, 0, y, first * width, rest * width);
}

static const struct operation_test dropout_split = {
    "dropout_split", "elementwise.cl", elements_describe, ones_prepare, dropout_reference, run_dropout_split, NULL,
    dropout_check};

/* ---- head */

static size_t final_norms(const struct bench *bench) {
    return bench->shape.norm_sum ? bench->streams : 1;
}

static void final_norm_describe(struct bench *bench) {
    const size_t n = bench->token_count, c = bench->channels;
    bench_activation(bench_input(bench, "streams", n * bench->streams * c, 0.2, 1.0));
    bench_parameter(bench, "gain", c, 1.0, 0.5);
    bench_gap(bench);
    if (bench->shape.bias) {
        bench_parameter(bench, "bias", c, 0.0, 1.0);
    }
    bench_activation(bench_output(bench, "y", n * c));
    bench_byproduct(bench, "statistics", n * final_norms(bench) * 2);
}

static void norm_sum_token(struct bench *bench, const double *x, double *y, double *statistics) {
    const size_t c = bench->channels;
    double *normed = calloc(c, sizeof *normed);
    memset(y, 0, c * sizeof *y);
    for (size_t s = 0; s < bench->streams; s++) {
        reference_layer_norm(c, x + s * c, bench_values(bench, "gain"), bench_values_or_null(bench, "bias"), normed,
                             statistics + 2 * s);
        for (size_t k = 0; k < c; k++) {
            y[k] += normed[k];
        }
    }
    free(normed);
}

static void final_norm_reference(struct bench *bench) {
    const size_t c = bench->channels, norms = final_norms(bench);
    for (size_t token = 0; token < bench->token_count; token++) {
        const double *x = bench_values(bench, "streams") + token * bench->streams * c;
        double *y = bench_values(bench, "y") + token * c;
        double *statistics = bench_values(bench, "statistics") + token * norms * 2;
        if (bench->shape.norm_sum) {
            norm_sum_token(bench, x, y, statistics);
        } else { /* the sum of the streams is a width mix with weights of 1 */
            const double ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
            reference_width_mix(bench->streams, c, x, ones, bench_values(bench, "gain"),
                                bench_values_or_null(bench, "bias"), y, statistics);
        }
    }
}

static struct final_norm final_of(const struct bench *bench) {
    return (struct final_norm){bench_buffer(bench, "streams"), norm_weights(bench), bench_buffer(bench, "y"),
                               bench_buffer(bench, "statistics")};
}

static void run_final_norm_forward(struct bench *bench) {
    const struct final_norm final = final_of(bench);
    final_norm_forward(bench->operations, bench->token_count, &final);
}

static void run_final_norm_backward(struct bench *bench) {
    const struct final_norm final = final_of(bench);
    final_norm_backward(bench->operations, bench->token_count, &final, bench_derivative(bench, "y"),
                        bench_derivative(bench, "streams"), norm_gradients(bench), bench->accumulate);
}

static const struct operation_test final_norm = {"final_norm",
                                                 "head.cl",
                                                 final_norm_describe,
                                                 NULL,
                                                 final_norm_reference,
                                                 run_final_norm_forward,
                                                 run_final_norm_backward,
                                                 NULL};

/* Losses are differentiated with one factor for all: so large that the gradients of many logits are normal numbers
 * in fp16, which is what scaling losses is for. */
static const double LOSS_SCALE = 96.0;

static void cross_entropy_describe(struct bench *bench) {
    bench_input(bench, "logits", bench->token_count * bench->vocabulary, 0.0, bench->shape.spread)->d_activation =
        true;
    struct field *losses = bench_output(bench, "losses", bench->token_count);
    losses->mean = LOSS_SCALE;
    losses->deviation = 0.0;
}

static void cross_entropy_prepare(struct bench *bench) {
    bench->ids[bench->token_count / 2] = -1;
}

static void cross_entropy_reference(struct bench *bench) {
    for (size_t row = 0; row < bench->token_count; row++) {
        bench_values(bench, "losses")[row] =
            reference_cross_entropy(bench->vocabulary, bench_values(bench, "logits") + row * bench->vocabulary,
                                    bench->ids[row]);
    }
}

/* Rows in two parts, as the model does with logits that do not fit at once; `to` receives their gradient, which in
 * fp32 takes their place. */
static void run_cross_entropy(struct bench *bench, bool gradient, const struct buffer *to) {
    const size_t v = bench->vocabulary, half = bench->token_count / 2, parts[] = {0, half, bench->token_count};
    const struct buffer *part = bench_scratch(bench, (half + 1) * v);
    const struct buffer *d_part =
        bench->shape.type == ELEMENT_FP32 ? part : bench_scratch_activation(bench, (half + 1) * v);
    for (size_t p = 0; p < 2; p++) {
        const size_t first = parts[p], rows = parts[p + 1] - first;
        bench_copy(bench, bench_buffer(bench, "logits"), first * v, part, 0, rows * v);
        cross_entropy(bench->operations, first, rows, part, &bench->ids_buffer, (float)LOSS_SCALE,
                      gradient ? d_part : NULL, bench_buffer(bench, "losses"));
        bench_copy(bench, d_part, 0, to, first * v, rows * v);
    }
}

static void run_cross_entropy_forward(struct bench *bench) {
    run_cross_entropy(bench, false, bench_scratch_activation(bench, bench->token_count * bench->vocabulary));
}

static void run_cross_entropy_backward(struct bench *bench) {
    run_cross_entropy(bench, true, bench_derivative(bench, "logits"));
}

static const struct operation_test entropy = {
    "cross_entropy",         "cross_entropy.cl",        cross_entropy_describe,     cross_entropy_prepare,
    cross_entropy_reference, run_cross_entropy_forward, run_cross_entropy_backward, NULL};

/* ---- totals of vectors: the sum scaled and written, the sum added to that, the norm scaled, the squares of a
 * part */

static void totals_describe(struct bench *bench) {
    bench_input(bench, "x", (size_t)bench->shape.count, 0.25, 1.0);
    bench_output(bench, "totals", 4);
}

static void totals_reference(struct bench *bench) {
    const size_t count = (size_t)bench->shape.count;
    const double *x = bench_values(bench, "x");
    double *totals = bench_values(bench, "totals"), sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        sum += x[i];
    }
    totals[0] = 0.5 * sum;
    totals[1] = sum - 2.0 * x[0];
    totals[2] = 0.25 * sqrt(reference_dot(count, x, x));
    totals[3] = reference_dot(count - 64, x + 64, x + 64);
}

static void run_totals(struct bench *bench) {
    const size_t count = (size_t)bench->shape.count;
    const struct buffer *x = bench_buffer(bench, "x"), *totals = bench_buffer(bench, "totals");
    sum_total(bench->operations, x, count, 0.5f, false, (struct span){totals, 0});
    sum_total(bench->operations, x, 1, -2.0f, false, (struct span){totals, 1});
    sum_total(bench->operations, x, count, 1.0f, true, (struct span){totals, 1});
    norm_total(bench->operations, x, count, 0.25f, (struct span){totals, 2});
    square_total(bench->operations, (struct span){x, 64}, count - 64, (struct span){totals, 3});
}

static const struct operation_test totals = {
    "totals", "reduce.cl", totals_describe, NULL, totals_reference, run_totals, NULL, NULL};

/* ---- optimiser. Variations: what is in the table below. */

static const struct adamw_case {
    struct adamw_settings settings;
    float norm;
} adamw_cases[] = {
    {{.rate = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .decay = 0.1f, .clip = 1.0f, .step = 1, .unscale = 1.0f},
     8.0f}, /* clipped */
    {{.rate = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .decay = 0.1f, .clip = 1.0f, .step = 7, .unscale = 1.0f},
     0.5f}, /* short enough */
    {{.rate = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .decay = 0.0f, .clip = 0.0f, .step = 10000, .unscale = 1.0f},
     8.0f},
    {{.rate = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .decay = 0.1f, .clip = 1.0f, .step = 3, .unscale = 1.0f}, NAN},
    {{.rate = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .decay = 0.1f, .clip = 0.0f, .step = 3, .unscale = 1.0f},
     INFINITY},
    {{.rate = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .decay = 0.1f, .clip = 1.0f, .step = 2, .unscale = 0x1p-3f},
     4.0f},
};

static const char *const adamw_names[] = {"weights", "first", "second"};
static const char *const adamw_results[] = {"new_weights", "new_first", "new_second"};

static void adamw_describe(struct bench *bench) {
    const size_t count = (size_t)bench->shape.count;
    bench_input(bench, "grad", count, 0.0, 1.0);
    for (size_t i = 0; i < 3; i++) {
        bench_input(bench, adamw_names[i], count, 0.0, i == 2 ? 0.1 : 1.0);
        bench_output(bench, adamw_results[i], count);
    }
    if (bench->shape.type != ELEMENT_FP32) {
        bench_activation(bench_byproduct(bench, "operands", count));
    }
}

/* A gradient of zero with moments of zero is what padding has: the weight must stay. */
static void adamw_prepare(struct bench *bench) {
    const size_t count = (size_t)bench->shape.count;
    double *second = bench_values(bench, "second");
    for (size_t i = 0; i < count; i++) {
        second[i] = fabs(second[i]);
    }
    for (size_t i = count - 5; i < count; i++) {
        bench_values(bench, "grad")[i] = bench_values(bench, "first")[i] = second[i] = 0.0;
    }
}

/* Weights before this take decay; a multiple of 64, as in the arena. */
static size_t adamw_decayed(const struct bench *bench) {
    return (size_t)bench->shape.count / 128 * 64;
}

static void adamw_reference(struct bench *bench) {
    const struct adamw_case *test = &adamw_cases[bench->shape.variation];
    double *values[3];
    for (size_t i = 0; i < 3; i++) {
        values[i] = bench_values(bench, adamw_results[i]);
        copy_values(values[i], bench_values(bench, adamw_names[i]), (size_t)bench->shape.count);
    }
    for (size_t i = 0; i < (size_t)bench->shape.count; i++) {
        const struct reference_adamw settings = {.rate = (double)test->settings.rate,
                                                 .beta1 = (double)test->settings.beta1,
                                                 .beta2 = (double)test->settings.beta2,
                                                 .decay =
                                                     i < adamw_decayed(bench) ? (double)test->settings.decay : 0.0,
                                                 .clip = (double)test->settings.clip,
                                                 .norm = (double)test->norm,
                                                 .step = test->settings.step};
        reference_adamw(&settings, (double)test->settings.unscale * bench_values(bench, "grad")[i], &values[0][i],
                        &values[1][i], &values[2][i]);
    }
    if (bench->shape.type != ELEMENT_FP32) {
        copy_values(bench_values(bench, "operands"), values[0], (size_t)bench->shape.count);
    }
}

/* The copy for products has the new weights, rounded once. */
static const char *adamw_check(const struct bench *bench) {
    for (size_t i = 0; bench->shape.type != ELEMENT_FP32 && i < (size_t)bench->shape.count; i++) {
        if (bench_values(bench, "operands")[i] !=
            rounding_nearest(bench->shape.type, bench_values(bench, "new_weights")[i])) {
            return "operands are not the rounded weights";
        }
    }
    return NULL;
}

static void run_adamw(struct bench *bench) {
    const struct adamw_case *test = &adamw_cases[bench->shape.variation];
    const size_t count = (size_t)bench->shape.count;
    const struct buffer *norm = bench_scratch(bench, 1);
    const double size = (double)test->norm;
    bench->failed = bench->failed || support_upload(bench->operations->compute, norm, 0, &size, 1) != 0;
    for (size_t i = 0; i < 3; i++) {
        bench_copy(bench, bench_buffer(bench, adamw_names[i]), 0, bench_buffer(bench, adamw_results[i]), 0, count);
    }
    /* in two parts; the moments of the second one lie elsewhere, as a rank's share does */
    const uint64_t part = 64, rest = count - part, place = 128;
    const struct buffer *weights = bench_buffer(bench, "new_weights");
    const struct buffer *moments[2] = {bench_buffer(bench, "new_first"), bench_buffer(bench, "new_second")};
    const struct buffer *apart[2] = {bench_scratch(bench, count + place), bench_scratch(bench, count + place)};
    const struct buffer *operands = weights;
    if (bench->shape.type != ELEMENT_FP32) {
        operands = bench_buffer(bench, "operands");
        bench_copy(bench, weights, 0, operands, 0, count);
    }
    struct adamw_arenas arenas = {.weights = weights,
                                  .gradients = bench_buffer(bench, "grad"),
                                  .weights_lowp = operands,
                                  .first_moments = moments[0],
                                  .second_moments = moments[1],
                                  .decayed = adamw_decayed(bench)};
    adamw_step(bench->operations, &arenas, (struct adamw_range){0, part, 0}, &test->settings, norm);
    for (size_t i = 0; i < 2; i++) {
        bench_copy(bench, moments[i], part, apart[i], place, rest);
    }
    arenas.first_moments = apart[0];
    arenas.second_moments = apart[1];
    adamw_step(bench->operations, &arenas, (struct adamw_range){part, rest, place}, &test->settings, norm);
    for (size_t i = 0; i < 2; i++) {
        bench_copy(bench, apart[i], place, moments[i], part, rest);
    }
}

static const struct operation_test adamw = {"adamw",         "adamw.cl", adamw_describe, adamw_prepare,
                                            adamw_reference, run_adamw,  NULL,           adamw_check};

/* ---- the table */

#define CASE(t, name, ...)                                                                                         \
    {                                                                                                              \
        .test = &t, .what = name, .shape = { __VA_ARGS__ }                                                         \
    }
/* Tolerances times `factor`; `count` elements of each gradient one by one. */
#define LOOSE(t, name, factor, count, ...)                                                                         \
    {.test = &t, .what = name, .shape = {__VA_ARGS__}, .slack = factor, .samples = count}
/* Small enough for simulators; few shapes, since each is compiled on its own. */
#define TINY(t, name, b, s, ...)                                                                                   \
    {.test = &t,                                                                                                   \
     .what = "tiny " name,                                                                                         \
     .shape = {.channels = 12, .heads = 3, .batch = b, .sequence = s, __VA_ARGS__},                                \
     .tiny = true}
#define TINY_MHC  .residual = "mhc", .streams = 3, .norm_sum = true, .bias = true, .setting = {"sinkhorn_iters", 3}
#define TINY_HC   .residual = "hc", .streams = 2
#define TINY_SHC  .residual = "shc", .streams = 4, .setting = {"freeze_gamma", true}
#define TINY_LITE .residual = "mhc_lite", .streams = 3
#define TINY_RC   .residual = "rc"

static const struct operation_case fixed_cases[] = {
    TINY(map, "mhc", 2, 3, TINY_MHC),
    TINY(map, "hc", 2, 3, TINY_HC),
    TINY(map, "shc", 2, 3, TINY_SHC),
    TINY(map, "mhc_lite", 2, 3, TINY_LITE),
    TINY(projections, "mhc", 2, 3, TINY_MHC),
    TINY(projections, "hc", 2, 3, TINY_HC),
    TINY(multiply, "mhc", 2, 3, TINY_MHC),
    TINY(multiply, "hc", 2, 3, TINY_HC),
    TINY(mix, "mhc", 2, 3, TINY_MHC),
    TINY(mix, "hc", 2, 3, TINY_HC, .variation = 1),
    TINY(mix, "rc", 2, 3, TINY_RC),
    TINY(gram, "mhc", 2, 3, TINY_MHC),
    TINY(embedding, "mhc", 2, 3, TINY_MHC),
    TINY(embedding, "hc, dropout", 2, 3, TINY_HC, .dropout = 0.25f),
    TINY(embedding, "hc, dropout, scaled", 2, 3, TINY_HC, .dropout = 0.25f, .scaled = true),
    TINY(attention, "mhc", 2, 3, TINY_MHC),
    TINY(attention, "hc, dropout", 2, 3, TINY_HC, .dropout = 0.25f),
    TINY(attention, "mhc, two tiles", 1, 19, TINY_MHC),
    TINY(attention, "mhc, two tiles, heads", 1, 19, TINY_MHC, .variation = WHOLE_HEADS),
    TINY(embedding_at, "mhc", 2, 3, TINY_MHC, .variation = 4),
    TINY(attention_one, "mhc", 2, 3, TINY_MHC),
    TINY(attention_one, "hc, more keys than lanes", 1, 19, TINY_HC),
    TINY(cache_fill, "mhc", 2, 3, TINY_MHC),
    TINY(few_rows, "mhc", 2, 3, TINY_MHC, .count = 9),
    TINY(few_rows, "mhc, to float", 2, 3, TINY_MHC, .count = 9, .variation = 1),
    TINY(gelu, "mhc", 2, 3, TINY_MHC),
    TINY(gelu, "mhc, tanh", 2, 3, TINY_MHC, .gelu_tanh = true),
    TINY(bias, "mhc", 2, 3, TINY_MHC),
    TINY(dropout, "mhc", 2, 3, TINY_MHC, .dropout = 0.5f),
    TINY(final_norm, "mhc, norm_sum, bias", 2, 3, TINY_MHC),
    TINY(final_norm, "hc, sum_norm", 2, 3, TINY_HC),
    TINY(entropy, "mhc, V=33", 2, 3, TINY_MHC),
    TINY(totals, "mhc", 2, 3, TINY_MHC, .count = 192),
    TINY(adamw, "clipped", 2, 3, TINY_MHC, .count = 192),
    TINY(adamw, "scaled gradients", 2, 3, TINY_MHC, .count = 192, .variation = 5),
    TINY(adamw, "norm NaN", 2, 3, TINY_MHC, .count = 192, .variation = 3),

    LOOSE(map, "mhc_lite, 5040 permutations", 3, 16, .residual = "mhc_lite", .streams = 7, .sequence = 2),
    LOOSE(map, "mhc_lite, 40320 permutations", 4, 6, .residual = "mhc_lite", .streams = 8, .sequence = 1),
    CASE(map, "mhc, more tokens than chunks", .residual = "mhc", .batch = 2, .sequence = 75),
    CASE(map, "hc, more tokens than chunks", .residual = "hc", .batch = 2, .sequence = 75),
    CASE(map, "mhc, 1 iteration", .residual = "mhc", .setting = {"sinkhorn_iters", 1}),
    CASE(map, "mhc, 50 iterations", .residual = "mhc", .setting = {"sinkhorn_iters", 50}),
    LOOSE(map, "mhc, factors near their limit", 30, 0, .residual = "mhc", .spread = 10.0),
    LOOSE(map, "mhc, large logits", 100, 0, .residual = "mhc", .spread = 60.0),
    LOOSE(map, "mhc_lite, large logits", 30, 0, .residual = "mhc_lite", .spread = 60.0),
    /* elimination on I + A loses |A|^2 epsilon, and 1 - tanh^2 all digits where tanh is almost 1 */
    LOOSE(map, "shc, large angles", 100, 0, .residual = "shc", .spread = 20.0),
    LOOSE(map, "go_mhc, large angles", 300, 0, .residual = "go_mhc", .spread = 20.0),
    LOOSE(map, "krom, large logits", 30, 0, .residual = "krom", .spread = 60.0),
    LOOSE(map, "circulant, large logits", 30, 0, .residual = "circulant", .spread = 60.0),
    CASE(map, "circulant, nothing but rotations", .residual = "circulant", .setting = {"circulant_beta", 40}),
    CASE(map, "shc, frozen gamma", .residual = "shc", .setting = {"freeze_gamma", true}),

    CASE(projections, "identity", .residual = "identity", .channels = 64),
    CASE(projections, "hc", .residual = "hc", .streams = 3),
    CASE(projections, "mhc_lite", .residual = "mhc_lite", .streams = 5),
    CASE(projections, "shc S=2", .residual = "shc", .streams = 2),

    CASE(multiply, "identity C=64", .residual = "identity", .channels = 64, .batch = 3, .sequence = 11),
    CASE(multiply, "hc C=20", .residual = "hc", .streams = 3, .channels = 20),
    CASE(multiply, "shc C=768", .residual = "shc", .channels = 768, .sequence = 9),
    CASE(multiply, "shc S=8 C=5", .residual = "shc", .streams = 8, .channels = 5, .batch = 2, .sequence = 40),
    CASE(multiply, "mhc_lite S=5", .residual = "mhc_lite", .streams = 5),

    CASE(mix, "S=2 C=64", .streams = 2, .channels = 64),
    CASE(mix, "S=3 C=20", .streams = 3, .channels = 20),
    CASE(mix, "S=4, bias", .bias = true, .batch = 3),
    CASE(mix, "S=4, more tokens than chunks", .bias = true, .batch = 2, .sequence = 75),
    CASE(mix, "S=5 C=12", .streams = 5, .channels = 12),
    CASE(mix, "S=6 C=5", .streams = 6, .channels = 5),
    CASE(mix, "S=7", .streams = 7),
    CASE(mix, "S=8 C=768", .streams = 8, .channels = 768, .sequence = 3),
    CASE(mix, "hc, own d_u", .residual = "hc", .variation = 1),
    CASE(mix, "rc", .residual = "rc", .batch = 2, .sequence = 40),
    CASE(mix, "rc, bias C=5", .residual = "rc", .channels = 5, .bias = true),
    CASE(gram, "S=4", .bias = true),
    CASE(gram, "rc", .residual = "rc"),
    CASE(gram, "S=8 C=768", .streams = 8, .channels = 768),

    CASE(embedding, "rc", .residual = "rc", .batch = 3, .sequence = 8),
    CASE(embedding, "rc, dropout C=5", .residual = "rc", .channels = 5, .bias = true, .dropout = 0.2f),
    CASE(embedding, "S=4", .bias = true, .batch = 3, .sequence = 70),
    CASE(embedding, "S=8, dropout C=768", .streams = 8, .channels = 768, .dropout = 0.1f),
    CASE(embedding, "S=4, scaled", .bias = true, .batch = 3, .sequence = 70, .scaled = true),
    CASE(embedding, "S=8, scaled C=768", .streams = 8, .channels = 768, .dropout = 0.1f, .scaled = true),
    CASE(embedding, "S=5, scaled C=5", .streams = 5, .channels = 5, .scaled = true),

    CASE(attention, "T=1", .bias = true, .sequence = 1),
    CASE(attention, "T=1, heads", .bias = true, .sequence = 1, .variation = WHOLE_HEADS),
    CASE(attention, "D=1", .channels = 5, .heads = 5, .batch = 2, .sequence = 37),
    CASE(attention, "D=5, dropout", .channels = 20, .heads = 4, .sequence = 33, .dropout = 0.2f),
    CASE(attention, "D=8", .heads = 3, .batch = 3, .sequence = 70),
    CASE(attention, "D=8, dropout, blocks", .heads = 3, .batch = 2, .sequence = 130, .dropout = 0.1f,
         .variation = BLOCKS),
    CASE(attention, "D=8, dropout, heads", .heads = 3, .batch = 2, .sequence = 130, .dropout = 0.1f,
         .variation = WHOLE_HEADS),
    CASE(attention, "D=64, blocks", .channels = 128, .heads = 2, .batch = 2, .sequence = 67, .variation = BLOCKS),
    CASE(attention, "D=64, heads", .channels = 128, .heads = 2, .batch = 2, .sequence = 67,
         .variation = WHOLE_HEADS),
    CASE(attention, "D=64 T=64", .channels = 128, .heads = 2, .sequence = 64),
    CASE(attention, "D=3", .channels = 9, .heads = 3, .batch = 2, .sequence = 66),
    CASE(attention, "D=20, dropout T=129", .channels = 40, .heads = 2, .sequence = 129, .dropout = 0.2f),
    CASE(attention, "D=33 T=100", .channels = 66, .heads = 2, .sequence = 100),
    CASE(attention, "D=96, dropout", .channels = 96, .heads = 1, .batch = 2, .sequence = 65, .dropout = 0.1f),
    CASE(attention, "D=128 T=131", .channels = 256, .heads = 2, .sequence = 131),
    CASE(attention, "D=160", .channels = 160, .heads = 1, .sequence = 33),
    /* where a softmax is almost one-hot, dp - delta is the difference of numbers that y's rounding has moved apart
     */
    {.test = &attention,
     .what = "D=8, large scores",
     .shape = {.heads = 3, .sequence = 40, .spread = 6.0},
     .slack = 10,
     .rounded_slack = 40},

    CASE(embedding_at, "S=4", .batch = 3, .sequence = 2, .variation = 70),
    CASE(embedding_at, "S=3, scaled", .streams = 3, .batch = 2, .sequence = 2, .variation = 7, .scaled = true),
    CASE(embedding_at, "rc", .residual = "rc", .batch = 3, .sequence = 1, .variation = 1),

    CASE(attention_one, "T=1", .bias = true, .sequence = 1),
    CASE(attention_one, "D=1", .channels = 5, .heads = 5, .batch = 2, .sequence = 37),
    CASE(attention_one, "D=5", .channels = 20, .heads = 4, .sequence = 33),
    CASE(attention_one, "D=8", .heads = 3, .batch = 3, .sequence = 70),
    CASE(attention_one, "D=24 T=16", .batch = 2, .sequence = 16),
    CASE(attention_one, "D=64 T=64", .channels = 128, .heads = 2, .sequence = 64),
    CASE(attention_one, "D=64 T=1000", .channels = 128, .heads = 2, .batch = 2, .sequence = 1000),
    CASE(attention_one, "D=256", .channels = 768, .heads = 3, .sequence = 65),
    LOOSE(attention_one, "D=8, large scores", 10, 0, .heads = 3, .sequence = 40, .spread = 6.0),
    CASE(cache_fill, "D=1", .channels = 5, .heads = 5, .batch = 2, .sequence = 37),
    CASE(cache_fill, "D=8", .heads = 3, .batch = 3, .sequence = 70),
    CASE(cache_fill, "D=64", .channels = 128, .heads = 2, .sequence = 64),

    CASE(few_rows, "one of 24, 5 columns", .residual = "rc", .sequence = 1, .count = 5),
    CASE(few_rows, "7 of 20, 33 columns", .streams = 4, .channels = 5, .sequence = 7, .count = 33),
    CASE(few_rows, "16 of 3072, 17 columns", .channels = 768, .sequence = 16, .count = 17),
    CASE(few_rows, "19 of 128, one column", .residual = "rc", .channels = 128, .sequence = 19, .count = 1),

    CASE(gelu, "normal", .bias = true),
    CASE(gelu, "wide C=5", .residual = "rc", .channels = 5, .bias = true, .spread = 8.0),
    CASE(gelu, "tanh", .bias = true, .gelu_tanh = true),
    CASE(gelu, "tanh, wide C=5", .residual = "rc", .channels = 5, .bias = true, .gelu_tanh = true, .spread = 8.0),
    CASE(bias, "few rows", .bias = true),
    CASE(bias, "more rows than chunks", .bias = true, .batch = 2, .sequence = 75),
    CASE(bias, "C=5", .residual = "rc", .channels = 5, .bias = true),
    CASE(dropout, "p=0.1", .bias = true, .dropout = 0.1f),
    CASE(dropout, "p=0.5 C=5", .residual = "rc", .channels = 5, .bias = true, .dropout = 0.5f),
    CASE(dropout_split, "p=0.1", .bias = true, .batch = 40, .sequence = 50, .dropout = 0.1f),
    CASE(dropout_split, "p=0.9 C=5", .residual = "rc", .channels = 5, .bias = true, .batch = 40, .sequence = 50,
         .dropout = 0.9f),

    CASE(final_norm, "rc", .residual = "rc"),
    CASE(final_norm, "rc, bias C=5", .residual = "rc", .channels = 5, .bias = true),
    CASE(final_norm, "S=4, sum_norm, bias", .bias = true, .batch = 2, .sequence = 75),
    CASE(final_norm, "S=4, norm_sum, bias", .bias = true, .norm_sum = true, .batch = 2, .sequence = 75),
    CASE(final_norm, "S=4, norm_sum", .norm_sum = true),
    CASE(final_norm, "S=8 C=768, sum_norm", .streams = 8, .channels = 768),

    CASE(entropy, "V=33", .bias = true),
    LOOSE(entropy, "V=256, large logits", 30, 0, .vocabulary = 256, .spread = 200.0),
    CASE(entropy, "V=50257", .vocabulary = 50257, .sequence = 3, .spread = 3.0),

    CASE(totals, "64 elements", .bias = true, .count = 64),
    CASE(totals, "1000000 elements", .bias = true, .count = 1000000),
    CASE(adamw, "clipped", .bias = true, .count = 4096),
    CASE(adamw, "norm below the limit", .bias = true, .count = 192, .variation = 1),
    CASE(adamw, "no clipping, late", .bias = true, .count = 192, .variation = 2),
    CASE(adamw, "scaled gradients", .bias = true, .count = 192, .variation = 5),
    CASE(adamw, "norm NaN", .bias = true, .count = 192, .variation = 3),
    CASE(adamw, "norm infinite", .bias = true, .count = 192, .variation = 4),
};

/* ---- cases of every variant: its map with each number of streams, and its projections */

enum { MANY_PARAMETERS = 1000, VARIANT_CASES = 256 };

static struct operation_case variant_cases[VARIANT_CASES];
static char variant_names[VARIANT_CASES][48];
static size_t variant_count;

static void add_variant_case(struct operation_case one) {
    if (variant_count == VARIANT_CASES) {
        fprintf(stderr, "more than %d cases of variants\n", VARIANT_CASES);
        exit(2);
    }
    snprintf(variant_names[variant_count], sizeof *variant_names, "%s S=%d", one.shape.residual,
             (int)one.shape.streams);
    one.what = variant_names[variant_count];
    variant_cases[variant_count++] = one;
}

/* Those with thousands of parameters a sublayer have their own rows above, with looser bounds. */
static void add_variants(void) {
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        if (residual_is_plain(variant)) {
            continue;
        }
        for (int64_t n = 1; n <= RESIDUAL_MAX_STREAMS; n++) {
            if (residual_takes(variant, n) && residual_theta(variant, n) < MANY_PARAMETERS) {
                add_variant_case((struct operation_case){
                    .test = &map, .shape = {.residual = variant->name, .streams = n, .batch = 3, .sequence = 2}});
            }
        }
        add_variant_case((struct operation_case){.test = &frame,
                                                 .needs_lanes = true,
                                                 .tiny = true,
                                                 .shape = {.residual = variant->name,
                                                           .streams = reference_streams(variant, 4),
                                                           .channels = 32,
                                                           .batch = 3,
                                                           .sequence = 7,
                                                           .bias = i % 2 == 0}});
        add_variant_case((
            struct operation_case){.test = &projections,
                                   .shape = {.residual = variant->name, .streams = reference_streams(variant, 4)}});
    }
}

const struct operation_case *operation_case_at(size_t number) {
    const size_t fixed = sizeof fixed_cases / sizeof *fixed_cases;
    if (variant_count == 0) {
        add_variants();
    }
    return number < fixed                   ? &fixed_cases[number]
           : number < fixed + variant_count ? &variant_cases[number - fixed]
                                            : NULL;
}
