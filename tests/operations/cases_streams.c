/* Cases of test_operations: hyper-connections: projections, map, mixing of streams, the fused frame. */
#include "runtime/system/error.h"
#include "src/operations/kernels.h"
#include "tests/operations/operation_bench.h"
#include "tests/support/reference_residual.h"
#include <stdio.h>

static bool is_plain(const struct bench *bench) {
    return !residual_has_matrices(bench->operations->shape.residual);
}

static bool has_fractions(const struct bench *bench) {
    return bench->operations->shape.residual->has_fractions;
}

/* Whether the leaf exists with the case's settings, and is a small one. */
static bool has_leaf(const struct bench *bench, const struct residual_leaf *leaf) {
    const struct operation_shape *shape = &bench->operations->shape;
    return residual_leaf_exists(shape->residual, leaf, &shape->settings);
}

static bool is_parameter(const struct bench *bench, const struct residual_leaf *leaf) {
    return residual_leaf_is_small(leaf) && has_leaf(bench, leaf);
}

/* Channels of a stream, and elements of all streams of a token. */
static size_t stream_width(const struct bench *bench) {
    return (size_t)stream_channels(&bench->operations->shape);
}

static size_t streams_row(const struct bench *bench) {
    return bench->streams * stream_width(bench);
}

/* ---- projections */

static size_t row_length(const struct bench *bench) {
    return norm_length(bench->operations);
}

static void projections_describe(struct bench *bench) {
    const size_t rows = row_length(bench);
    for (const struct residual_leaf *leaf = bench->operations->shape.residual->leaves; leaf->name; leaf++) {
        if (leaf->kind == LEAF_NORM && !bench->shape.gainless) {
            bench_parameter(bench, "gain", rows, 1.0, 0.5);
            bench_gap(bench);
        } else if (leaf->kind == LEAF_PROJECTION && has_leaf(bench, leaf)) {
            bench_parameter(bench, leaf->name, rows * (size_t)leaf->width(bench->shape.streams), 0.0, 1.0);
            bench_gap(bench);
        }
    }
    bench_activation(bench_output(bench, "packed", rows * bench->operations->columns))->d_activation = false;
}

static void projections_reference(struct bench *bench) {
    const double *gain = bench_values_or_null(bench, "gain");
    double *packed = bench_values(bench, "packed");
    size_t column = 0;
    for (size_t i = 0; i < bench->field_count; i++) {
        const struct field *field = &bench->fields[i];
        if (field->kind != FIELD_PARAMETER || field->values == gain) {
            continue;
        }
        const size_t width = field->count / row_length(bench);
        for (size_t k = 0; k < field->count; k++) {
            packed[(column + k % width) * row_length(bench) + k / width] =
                (gain ? gain[k / width] : 1.0) * field->values[k];
        }
        column += width;
    }
}

/* The leaves of one sublayer, on the device. */
static struct projection_table projection_table(struct bench *bench) {
    const size_t count = bench->operations->matrices;
    uint64_t offsets[RESIDUAL_MAX_PROJECTIONS], *next = offsets;
    struct projection_leaf leaves[RESIDUAL_MAX_PROJECTIONS];
    for (const struct residual_leaf *leaf = bench->operations->shape.residual->leaves; leaf->name; leaf++) {
        if (leaf->kind == LEAF_PROJECTION) {
            *next++ = bench_offset(bench, leaf->name);
        }
    }
    projections_list(bench->operations, offsets, bench_offset(bench, "gain"), 0, leaves);
    const struct buffer *table = bench_scratch(bench, count * LEAF_INTEGERS);
    bench_try(bench, buffer_write(bench->operations->compute, table, 0, leaves, count * sizeof *leaves));
    return (struct projection_table){table, 0, count};
}

static void run_projections_pack(struct bench *bench) {
    projections_pack(bench->operations, &bench->weights, projection_table(bench), bench_buffer(bench, "packed"));
}

static void run_projections_unpack(struct bench *bench) {
    projections_unpack(bench->operations, &bench->weights, projection_table(bench),
                       bench_derivative(bench, "packed"), &bench->gradients, bench->accumulate);
}

OPERATION(projections, "projections", "projections.cl", projections_describe, .reference = projections_reference,
          .forward = run_projections_pack, .backward = run_projections_unpack);

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
                         bench_derivative(bench, "z"), (struct span){bench_derivative(bench, "packed"), 0});
}

OPERATION(multiply, "multiply", "few_rows.cl", multiply_describe, .reference = multiply_reference,
          .forward = run_multiply, .backward = run_multiply_backward);

/* ---- map. In the model d_z and rms_scale go on to the streams; here rms_scale is half the gradient of squares. A
 * static map has one row of zeros as z of all tokens, whose gradient is of no consequence. */

static bool is_static(const struct bench *bench) {
    return bench->shape.is_static;
}

static void map_describe(struct bench *bench) {
    const size_t n = bench->token_count, z_row = bench->operations->z_row;
    const double spread = bench->shape.spread;
    bench_input(bench, "z", n * z_row, 0.0, is_static(bench) ? 0.0 : 2.0)->constant = is_static(bench);
    bench_input(bench, "squares", n * bench->streams, (double)bench->channels, 0.3 * (double)bench->channels);
    for (const struct residual_leaf *leaf = bench->operations->shape.residual->leaves; leaf->name; leaf++) {
        const size_t count = (size_t)residual_leaf_elements(leaf, bench->shape.streams, 0);
        if (!is_parameter(bench, leaf)) {
            continue;
        }
        const bool gamma = strncmp(leaf->name, "gamma", 5) == 0;
        struct field *field = bench_parameter(bench, leaf->name, count, 0.3, spread * (gamma ? 1.0 : 0.5));
        field->constant =
            gamma && bench->shape.setting.name && strcmp(bench->shape.setting.name, "freeze_gamma") == 0;
    }
    bench_byproduct(bench, "normalised", (is_static(bench) ? 1 : n) * z_row);
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
                                .channels = stream_width(bench),
                                .eps = shape->hc_eps,
                                .norm_eps = shape->hc_norm_eps,
                                .transposed = shape->h_res_transposed,
                                .sublayers = (size_t)shape->sublayers};
    for (size_t i = 0; shape->residual->leaves[i].name; i++) {
        map.leaves[i] = bench_values_or_null(bench, shape->residual->leaves[i].name);
    }
    return map;
}

static void map_reference(struct bench *bench) {
    const struct reference_map map = map_of(bench);
    const size_t z_row = bench->operations->z_row;
    for (size_t token = 0; token < bench->token_count; token++) {
        double *z = bench_values(bench, "normalised") + (is_static(bench) ? 0 : token * z_row);
        reference_map_token(&map, z_row / bench->operations->norm_groups, bench_row(bench, "z", token),
                            bench_row(bench, "squares", token), z, bench_row(bench, "h", token));
    }
}

static struct stream_mix device_map(const struct bench *bench) {
    return (struct stream_mix){.theta = case_weights(bench, "b_pre"),
                               .squares = bench_buffer(bench, "squares"),
                               .z = bench_buffer(bench, "normalised"),
                               .h = bench_buffer(bench, "h")};
}

static void run_map_forward(struct bench *bench) {
    const struct stream_mix map = device_map(bench);
    bench_copy_all(bench, bench_buffer(bench, "z"), map.z, bench_find(bench, "normalised")->count);
    map_forward(bench->operations, bench->token_count, &map);
}

static void run_map_backward(struct bench *bench) {
    const size_t n = bench->token_count, groups = bench->operations->norm_groups, streams = bench->streams;
    const struct buffer *rms_scale = bench_scratch(bench, n * groups);
    const struct stream_mix map = device_map(bench);
    map_backward(bench->operations, n, &map, bench_derivative(bench, "h"), bench_derivative(bench, "z"), rms_scale,
                 case_gradients(bench, "b_pre"), bench->accumulate);
    double *scales = calloc(n * streams, sizeof *scales), *squares = calloc(n * streams, sizeof *squares);
    struct compute *compute = bench->operations->compute;
    bench_try(bench, bench_download(compute, rms_scale, 0, scales, n * groups));
    for (size_t i = 0; i < n * streams; i++) {
        squares[i] = 0.5 * scales[i / streams * groups + i % streams * groups / streams];
    }
    bench_try(bench, bench_upload(compute, bench_derivative(bench, "squares"), 0, squares, n * streams));
    free(scales);
    free(squares);
}

OPERATION(map, "map", "hc_map.cl", map_describe, .prepare = map_prepare, .reference = map_reference,
          .forward = run_map_forward, .backward = run_map_backward);

/* ---- the frame: width mix, depth mix, and the backward pass to the streams
 *
 * rms_scale of stream_backward is the cotangent of q_g = 1/2 sum_{s in g} |x_s|^2, which no kernel computes. */

static void mix_describe(struct bench *bench) {
    const size_t n = bench->token_count, c = bench->channels, s = bench->streams, row = streams_row(bench);
    bench_activation(bench_input(bench, "streams", n * row, 0.2, 1.0));
    bench_activation(bench_input(bench, "branch", n * c, 0.0, 1.0));
    case_describe_norm(bench);
    if (!is_plain(bench)) {
        bench_input(bench, "h", n * bench->operations->h_row, 0.2, 1.0);
        bench_output(bench, "half_squares", n * bench->operations->norm_groups)->implied = true;
    }
    bench_activation(bench_output(bench, "normed", n * c));
    bench_byproduct(bench, "statistics", n * 2);
    bench_activation(bench_output(bench, "mixed", n * row));
    bench_byproduct(bench, "squares", n * s)->roundings = 2;
}

static void half_squares(struct bench *bench, const char *streams) {
    const size_t rows = bench->token_count * bench->operations->norm_groups;
    double *halves = bench_values(bench, "half_squares");
    case_squares(bench_values(bench, streams), rows, row_length(bench), halves);
    for (size_t i = 0; i < rows; i++) {
        halves[i] *= 0.5;
    }
}

static void mix_reference(struct bench *bench) {
    const size_t c = bench->channels, s = bench->streams;
    const struct reference_norm norm = case_norm(bench);
    for (size_t token = 0; token < bench->token_count; token++) {
        const double *x = bench_row(bench, "streams", token), *h = bench_row(bench, "h", token);
        double *mixed = bench_row(bench, "mixed", token);
        double *normed = bench_row(bench, "normed", token), *statistics = bench_row(bench, "statistics", token);
        if (has_fractions(bench)) {
            reference_fractions_read(s, c, x, h, normed);
            reference_norm(&norm, c, normed, normed, statistics);
            reference_fractions_write(s, c, x, h, bench_row(bench, "branch", token), mixed);
        } else {
            reference_width_mix(&norm, s, c, x, h, normed, statistics);
            reference_depth_mix(s, c, x, h, bench_row(bench, "branch", token), mixed);
        }
        case_squares(mixed, s, stream_width(bench), bench_row(bench, "squares", token));
    }
    if (!is_plain(bench)) {
        half_squares(bench, "streams");
    }
}

/* For rc no h exists; the kernels take any buffer. */
static const struct buffer *mix_h(const struct bench *bench) {
    return bench_buffer(bench, is_plain(bench) ? "streams" : "h");
}

static struct stream_mix device_mix(const struct bench *bench) {
    return (struct stream_mix){.streams = bench_buffer(bench, "streams"),
                               .h = mix_h(bench),
                               .norm = case_norm_weights(bench),
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
    bench_copy_all(bench, bench_derivative(bench, "normed"), d_normed, n * c);
    bench_copy_all(bench, d_mixed, d_streams, n * streams_row(bench));
    if (plain) {
        bench_copy_all(bench, d_mixed, bench_derivative(bench, "branch"), n * c);
    } else {
        depth_mix_backward(bench->operations, n, &mix, d_mixed, bench_derivative(bench, "branch"), d_h);
    }
    width_mix_backward(bench->operations, n, &mix, d_normed, d_u, d_h, case_norm_gradients(bench),
                       bench->accumulate);
    stream_backward(bench->operations, n, &mix, d_u, plain ? mix.streams : bench_derivative(bench, "half_squares"),
                    d_streams);
}

static const char *mix_check(const struct bench *bench) {
    return case_check_squares(bench, "mixed");
}

OPERATION(mix, "mix", "stream_mix.cl", mix_describe, .reference = mix_reference, .forward = run_mix_forward,
          .backward = run_mix_backward, .check = mix_check);

/* ---- between two branches, whose width mix has weights of its own: those of h, the read of the second being h,
 * or of another buffer (variation 1). */

static bool reads_h(const struct bench *bench) {
    return bench->shape.variation == 0;
}

static void between_describe(struct bench *bench) {
    const size_t n = bench->token_count, c = bench->channels, s = bench->streams, h_row = bench->operations->h_row;
    bench_activation(bench_input(bench, "streams", n * s * c, 0.2, 1.0));
    bench_activation(bench_input(bench, "branch", n * c, 0.0, 1.0));
    case_describe_norm(bench);
    bench_input(bench, "h", n * h_row, 0.2, 1.0);
    if (!reads_h(bench)) {
        bench_input(bench, "read", n * h_row, 0.2, 1.0);
    }
    bench_activation(bench_output(bench, "mixed", n * s * c));
    bench_byproduct(bench, "squares", n * s)->roundings = 2;
    bench_output(bench, "half_squares", n * bench->operations->norm_groups)->implied = true;
    bench_activation(bench_output(bench, "normed", n * c))->roundings = 2;
    bench_byproduct(bench, "statistics", n * 2)->roundings = 2;
}

static void between_reference(struct bench *bench) {
    const size_t s = bench->streams, c = bench->channels;
    const struct reference_norm norm = case_norm(bench);
    for (size_t token = 0; token < bench->token_count; token++) {
        double *mixed = bench_row(bench, "mixed", token);
        reference_depth_mix(s, c, bench_row(bench, "streams", token), bench_row(bench, "h", token),
                            bench_row(bench, "branch", token), mixed);
        reference_width_mix(&norm, s, c, mixed, bench_row(bench, reads_h(bench) ? "h" : "read", token),
                            bench_row(bench, "normed", token), bench_row(bench, "statistics", token));
        case_squares(mixed, s, c, bench_row(bench, "squares", token));
    }
    half_squares(bench, "mixed");
}

static struct stream_mix between_from(const struct bench *bench) {
    return (struct stream_mix){.streams = bench_buffer(bench, "streams"),
                               .h = bench_buffer(bench, "h"),
                               .output = bench_buffer(bench, "branch")};
}

static struct stream_mix between_to(const struct bench *bench) {
    return (struct stream_mix){.streams = bench_buffer(bench, "mixed"),
                               .squares = bench_buffer(bench, "squares"),
                               .read = bench_buffer(bench, reads_h(bench) ? "h" : "read"),
                               .norm = case_norm_weights(bench),
                               .normed = bench_buffer(bench, "normed"),
                               .statistics = bench_buffer(bench, "statistics")};
}

static void run_between_forward(struct bench *bench) {
    const struct stream_mix from = between_from(bench), to = between_to(bench);
    mix_between(bench->operations, bench->token_count, &from, &to);
}

static void run_between_backward(struct bench *bench) {
    const size_t n = bench->token_count, c = bench->channels;
    const struct stream_mix from = between_from(bench), to = between_to(bench);
    const struct buffer *d_h = bench_derivative(bench, "h"),
                        *d_read = reads_h(bench) ? d_h : bench_derivative(bench, "read");
    const struct mix_gradients gradients = {.d_branch = bench_derivative(bench, "branch"),
                                            .d_streams = bench_derivative(bench, "streams"),
                                            .rms_scale = bench_derivative(bench, "half_squares"),
                                            .d_read = d_read,
                                            .d_h = d_h,
                                            .norm = case_norm_gradients(bench)};
    if (operations_build(bench->operations, "mix_backward.cl")) {
        compute_fail(bench->operations->compute, "%s", error_text());
        return;
    }
    bench_copy_all(bench, bench_derivative(bench, "normed"), gradients.d_branch, n * c);
    bench_copy_all(bench, bench_derivative(bench, "mixed"), gradients.d_streams, n * bench->streams * c);
    if (!reads_h(bench)) { /* what nobody writes: the gradient of what nobody reads */
        bench_try(bench, bench_fill(bench->operations->compute, d_h, n * bench->operations->h_row, 0.0f) ||
                             bench_fill(bench->operations->compute, d_read, n * bench->operations->h_row, 0.0f));
    }
    mix_backward(bench->operations, n, &from, &to, &gradients, bench->accumulate);
}

OPERATION(between, "between", "mix_between.cl", between_describe, .reference = between_reference,
          .forward = run_between_forward, .backward = run_between_backward, .check = mix_check);

/* ---- the fused frame: streams, packed projections, theta, gain and the branch's output -> normed and mixed, and
 * from mixed what the next branch gets, with the same parameters. Only where a row has several lanes. */

static void describe_theta(struct bench *bench) {
    for (const struct residual_leaf *leaf = bench->operations->shape.residual->leaves; leaf->name; leaf++) {
        if (is_parameter(bench, leaf)) {
            bench_parameter(bench, leaf->name, (size_t)residual_leaf_elements(leaf, bench->shape.streams, 0), 0.3,
                            0.5);
        }
    }
}

/* The first sublayer reads with the weights in "read", and its own, "pre", are what a later one reads with. */
static bool is_delayed(const struct bench *bench) {
    return bench->operations->shape.read_delay;
}

static void frame_describe(struct bench *bench) {
    const size_t n = bench->token_count, c = bench->channels, s = bench->streams,
                 columns = bench->operations->columns;
    const size_t z_row = bench->operations->norm_groups * columns, length = row_length(bench);
    bench_activation(bench_input(bench, "streams", n * s * c, 0.2, 1.0));
    bench_activation(bench_input(bench, "branch", n * c, 0.0, 1.0));
    bench_activation(bench_input(bench, "packed", columns * length, 0.0, 1.0 / sqrt((double)length)))
        ->d_activation = false;
    if (is_delayed(bench)) {
        bench_input(bench, "read", n * bench->operations->h_row, 0.2, 1.0);
        bench_output(bench, "pre", n * s)->implied = true;
    }
    case_describe_norm(bench);
    bench_gap(bench);
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

/* A branch's frame in plain C: from x [S, C] of a token, with its projections. read [S]: with read_delay the
 * weights of the width mix. `prefix` is of the fields' names. */
static const double *frame_token(struct bench *bench, const double *x, const double *read, size_t token,
                                 const char *prefix) {
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
    case_squares(x, s, c, squares);
    double *h = bench_row(bench, names[1], token);
    reference_map_token(&token_map, columns, raw, squares, bench_row(bench, names[0], token), h);
    const struct reference_norm norm = case_norm(bench);
    reference_width_mix(&norm, s, c, x, is_delayed(bench) ? read : h, bench_row(bench, names[2], token),
                        bench_row(bench, names[3], token));
    return h;
}

static void frame_reference(struct bench *bench) {
    const size_t s = bench->streams, c = bench->channels;
    for (size_t token = 0; token < bench->token_count; token++) {
        const double *x = bench_row(bench, "streams", token);
        double *mixed = bench_row(bench, "mixed", token);
        const double *h = frame_token(bench, x, bench_row(bench, "read", token), token, "");
        if (is_delayed(bench)) {
            memcpy(bench_row(bench, "pre", token), h, s * sizeof *h);
        }
        reference_depth_mix(s, c, x, h, bench_row(bench, "branch", token), mixed);
        case_squares(mixed, s, c, bench_row(bench, "squares", token));
        frame_token(bench, mixed, h, token, "next_");
    }
}

/* Sums of squares of the streams, which come from the kernel before. */
static const struct buffer *frame_squares(struct bench *bench) {
    const size_t count = bench->token_count * bench->streams;
    const struct buffer *squares = bench_scratch(bench, count);
    double *values = calloc(count, sizeof *values);
    case_squares(bench_values(bench, "streams"), count, bench->channels, values);
    bench_try(bench, bench_upload(bench->operations->compute, squares, 0, values, count));
    free(values);
    return squares;
}

/* The first of the small parameters, or of their gradients: they are contiguous. */
static struct span frame_theta(const struct bench *bench, const struct buffer *arena) {
    const struct residual_leaf *leaf = bench->operations->shape.residual->leaves;
    while (!residual_leaf_is_small(leaf) || residual_leaf_elements(leaf, bench->shape.streams, 0) == 0) {
        leaf++;
    }
    return (struct span){arena, bench_offset(bench, leaf->name)};
}

static struct stream_mix frame_mix(struct bench *bench) {
    struct stream_mix around = device_mix(bench);
    around.packed = (struct span){bench_buffer(bench, "packed"), 0};
    around.theta = frame_theta(bench, &bench->weights);
    around.squares = frame_squares(bench);
    around.z = bench_buffer(bench, "z");
    around.h = bench_buffer(bench, "h");
    around.read = is_delayed(bench) ? bench_buffer(bench, "read") : NULL;
    return around;
}

static void run_frame_forward(struct bench *bench) {
    const struct stream_mix around = frame_mix(bench);
    const struct stream_mix next = {.packed = around.packed,
                                    .theta = around.theta,
                                    .streams = bench_buffer(bench, "mixed"),
                                    .squares = bench_buffer(bench, "squares"),
                                    .z = bench_buffer(bench, "next_z"),
                                    .h = bench_buffer(bench, "next_h"),
                                    .read = is_delayed(bench) ? around.h : NULL,
                                    .norm = around.norm,
                                    .normed = bench_buffer(bench, "next_normed"),
                                    .statistics = bench_buffer(bench, "next_statistics")};
    frame_enter(bench->operations, bench->token_count, &around);
    frame_leave(bench->operations, &around);
    frame_enter(bench->operations, bench->token_count, &next);
}

/* Copies between rows of pre alone and the pre part of rows of h. */
static void copy_pre(struct bench *bench, const struct buffer *from, size_t from_row, const struct buffer *to,
                     size_t to_row) {
    for (size_t token = 0; token < bench->token_count; token++) {
        bench_copy(bench, from, token * from_row, to, token * to_row, bench->streams);
    }
}

static void run_frame_backward(struct bench *bench) {
    struct operations *operations = bench->operations;
    const size_t n = bench->token_count, z = n * operations->norm_groups * operations->columns;
    const struct stream_mix around = frame_mix(bench);
    const struct buffer *d_streams = bench_derivative(bench, "streams"), *d_z = bench_scratch_activation(bench, z);
    const size_t h_row = operations->h_row;
    const struct frame_gradients gradients = {.d_z = d_z,
                                              .d_streams = d_streams,
                                              .h_before = around.read,
                                              .d_branch = bench_scratch_activation(bench, n * bench->channels),
                                              .d_read = is_delayed(bench) ? bench_derivative(bench, "read") : NULL,
                                              .norm = case_norm_gradients(bench),
                                              .d_theta = frame_theta(bench, &bench->gradients)};
    if (is_delayed(bench)) {
        bench_try(bench, bench_fill(operations->compute, gradients.d_read, n * h_row, 0.0f));
        copy_pre(bench, bench_derivative(bench, "pre"), bench->streams, gradients.d_read, h_row);
    }
    bench_copy_all(bench, bench_derivative(bench, "normed"), gradients.d_branch, n * bench->channels);
    bench_copy_all(bench, bench_derivative(bench, "mixed"), d_streams, n * bench->streams * bench->channels);
    frame_output_gradient(operations, n, &around, d_streams, bench_derivative(bench, "branch"));
    frame_backward(operations, n, &around, &gradients, bench->accumulate);
    if (operations->columns > 0 && operations_build(operations, "projections.cl") == 0) {
        const struct buffer *d_z_fp32 = bench_scratch(bench, z);
        bench_copy_all(bench, d_z, d_z_fp32, z);
        projections_gradient(operations, n, around.streams, d_z_fp32,
                             (struct span){bench_derivative(bench, "packed"), 0});
    }
}

OPERATION(frame, "frame", "frame.cl", frame_describe, .reference = frame_reference, .forward = run_frame_forward,
          .backward = run_frame_backward);

/* ---- gram matrix of the streams, and its diagonal alone */

static void gram_describe(struct bench *bench) {
    bench_activation(bench_input(bench, "streams", bench->token_count * streams_row(bench), 0.3, 1.0));
    bench_output(bench, "gram", bench->token_count * bench->streams * bench->streams);
    bench_byproduct(bench, "squares", bench->token_count * bench->streams);
}

static void gram_reference(struct bench *bench) {
    const size_t c = stream_width(bench), s = bench->streams;
    const double *x = bench_values(bench, "streams");
    double *gram = bench_values(bench, "gram");
    for (size_t k = 0; k < bench->token_count * s * s; k++) {
        const size_t token = k / (s * s), i = k / s % s, j = k % s;
        gram[k] = reference_dot(c, x + (token * s + i) * c, x + (token * s + j) * c);
    }
    case_squares(x, bench->token_count * s, c, bench_values(bench, "squares"));
}

static void run_gram(struct bench *bench) {
    const struct buffer *streams = bench_buffer(bench, "streams");
    stream_gram(bench->operations, bench->token_count, streams, bench_buffer(bench, "gram"));
    stream_squares(bench->operations, bench->token_count, streams, bench_buffer(bench, "squares"));
}

OPERATION(gram, "gram", "stream_mix.cl", gram_describe, .reference = gram_reference, .forward = run_gram);

/* ---- cases */

#define FRAME_SHAPE .channels = 32, .batch = 3, .sequence = 7
#define FRAME(name, ...)                                                                                           \
    {                                                                                                              \
        .test = &frame, .what = name, .needs_lanes = true, .shape = { FRAME_SHAPE, __VA_ARGS__ }                   \
    }
#define TINY_FRAME(name, ...)                                                                                      \
    {                                                                                                              \
        .test = &frame, .what = name, .needs_lanes = true, .tiny = true, .shape = { FRAME_SHAPE, __VA_ARGS__ }     \
    }

const struct operation_case cases_streams[] = {
    TINY(map, "mhc", 2, 3, TINY_MHC),
    TINY(map, "hc", 2, 3, TINY_HC),
    TINY(map, "shc", 2, 3, TINY_SHC),
    TINY(map, "mhc_lite", 2, 3, TINY_LITE),
    TINY(map, "mhc, hc_eps", 2, 3, TINY_MHC, .hc_eps = 0.01),
    TINY(map, "mhc, transposed", 2, 3, TINY_MHC, .transposed = true, .normalized = true),
    TINY(projections, "mhc", 2, 3, TINY_MHC),
    TINY(projections, "mhc, no gain", 2, 3, TINY_MHC, .gainless = true),
    TINY(projections, "hc", 2, 3, TINY_HC),
    TINY(multiply, "mhc", 2, 3, TINY_MHC),
    TINY(multiply, "hc", 2, 3, TINY_HC),
    TINY(mix, "mhc", 2, 3, TINY_MHC),
    TINY(mix, "hc", 2, 3, TINY_HC, .variation = 1),
    TINY(mix, "rc", 2, 3, TINY_RC),
    TINY(mix, "mhc, RMSNorm", 2, 3, TINY_MHC, .norm = NORM_RMS),
    TINY_FRAME("mhc, RMSNorm", .residual = "mhc", .bias = true, .norm = NORM_RMS),
    /* with so many streams that nothing is fused */
    TINY(between, "mhc", 2, 3, .residual = "mhc", .streams = 5, .bias = true, .read_delay = true),
    TINY(between, "hc, another read", 2, 3, .residual = "hc", .streams = 5, .read_delay = true, .variation = 1),
    TINY(between, "mhc, RMSNorm", 2, 3, .residual = "mhc", .streams = 5, .norm = NORM_RMS, .read_delay = true),
    TINY_FRAME("mhc, read_delay", .residual = "mhc", .bias = true, .read_delay = true),
    TINY(map, "mhc, unmixed", 2, 3, TINY_MHC, .is_unmixed = true),
    TINY(map, "hc, unmixed", 2, 3, TINY_HC, .is_unmixed = true),
    TINY(map, "frac, unmixed", 2, 3, TINY_FRAC, .is_unmixed = true),
    TINY(map, "mhc, static", 2, 3, TINY_MHC, .is_static = true),
    TINY(map, "frac, static, unmixed", 2, 3, TINY_FRAC, .is_static = true, .is_unmixed = true),
    TINY(projections, "frac, unmixed", 2, 3, TINY_FRAC, .is_unmixed = true),
    TINY(multiply, "frac", 2, 3, TINY_FRAC),
    TINY(mix, "frac", 2, 3, TINY_FRAC, .bias = true),
    TINY(mix, "frac, RMSNorm", 2, 3, TINY_FRAC, .norm = NORM_RMS, .variation = 1),
    TINY(gram, "frac", 2, 3, TINY_FRAC),
    TINY_FRAME("mhc, unmixed", .residual = "mhc", .bias = true, .is_unmixed = true),
    TINY_FRAME("hc S=3, read_delay, RMSNorm", .residual = "hc", .streams = 3, .norm = NORM_RMS, .read_delay = true),
    TINY(gram, "mhc", 2, 3, TINY_MHC),
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
    LOOSE(map, "ohc, large logits", 100, 0, .residual = "ohc", .spread = 60.0),
    CASE(map, "ohc, hc_eps, more tokens than chunks", .residual = "ohc", .batch = 2, .sequence = 75, .hc_eps = 0.1),
    CASE(map, "circulant, nothing but rotations", .residual = "circulant", .setting = {"circulant_beta", 40}),
    CASE(map, "mhc, hc_eps", .residual = "mhc", .batch = 2, .sequence = 75, .hc_eps = 0.01),
    CASE(map, "mhc, hc_eps 1e-6", .residual = "mhc", .hc_eps = 1e-6),
    CASE(map, "mhc, hc_eps, 1 iteration", .residual = "mhc", .setting = {"sinkhorn_iters", 1}, .hc_eps = 0.1),
    LOOSE(map, "mhc, hc_eps, large logits", 100, 0, .residual = "mhc", .spread = 60.0, .hc_eps = 1e-6),
    CASE(map, "wide, retention", .residual = "wide", .batch = 2, .sequence = 75,
         .setting = {"wide_retention", true}),
    CASE(map, "wide, retention, hc_eps", .residual = "wide", .hc_eps = 0.1, .setting = {"wide_retention", true}),
    CASE(map, "krom, hc_eps", .residual = "krom", .hc_eps = 0.1),
    CASE(map, "mhc, transposed, hc_eps", .residual = "mhc", .transposed = true, .hc_eps = 0.01),
    CASE(map, "wide, transposed", .residual = "wide", .transposed = true, .setting = {"wide_retention", true}),
    FRAME("shc, transposed, normalized", .residual = "shc", .transposed = true, .normalized = true),
    CASE(map, "mhc, unmixed, hc_eps, more tokens than chunks", .residual = "mhc", .batch = 2, .sequence = 75,
         .hc_eps = 0.01, .is_unmixed = true),
    CASE(map, "hc S=8, unmixed", .residual = "hc", .streams = 8, .is_unmixed = true),
    CASE(map, "frac S=4, unmixed", .residual = "frac", .batch = 2, .sequence = 75, .is_unmixed = true),
    CASE(map, "wide, retention, unmixed", .residual = "wide", .is_unmixed = true,
         .setting = {"wide_retention", true}),
    CASE(map, "mhc, static, unmixed, hc_eps", .residual = "mhc", .hc_eps = 0.1, .is_static = true,
         .is_unmixed = true),
    CASE(map, "shc, static, transposed, more tokens than chunks", .residual = "shc", .batch = 2, .sequence = 75,
         .is_static = true, .transposed = true),
    FRAME("hc S=3, unmixed, RMSNorm", .residual = "hc", .streams = 3, .norm = NORM_RMS, .is_unmixed = true),
    CASE(projections, "mhc, unmixed", .residual = "mhc", .is_unmixed = true),
    CASE(projections, "hc, no gain", .residual = "hc", .streams = 3, .gainless = true),
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
    CASE(mix, "S=4, RMSNorm", .bias = true, .batch = 2, .sequence = 75, .norm = NORM_RMS),
    CASE(mix, "S=8 C=768, RMSNorm, epsilon 0.1", .streams = 8, .channels = 768, .norm = NORM_RMS, .norm_eps = 0.1),
    CASE(mix, "hc, own d_u", .residual = "hc", .variation = 1),
    CASE(mix, "frac S=2 C=768", .residual = "frac", .streams = 2, .channels = 768),
    CASE(mix, "frac S=3, bias, more tokens than chunks", .residual = "frac", .streams = 3, .bias = true, .batch = 2,
         .sequence = 75),
    CASE(mix, "frac S=4 C=20, RMSNorm", .residual = "frac", .channels = 20, .norm = NORM_RMS, .variation = 1),
    CASE(mix, "frac S=8 C=1600", .residual = "frac", .streams = 8, .channels = 1600),
    CASE(mix, "rc", .residual = "rc", .batch = 2, .sequence = 40),
    CASE(mix, "rc, bias C=5", .residual = "rc", .channels = 5, .bias = true),
    CASE(mix, "rc, RMSNorm C=5", .residual = "rc", .channels = 5, .bias = true, .norm = NORM_RMS),
    CASE(between, "S=2 C=64", .streams = 2, .channels = 64, .read_delay = true),
    CASE(between, "S=4, bias, more tokens than chunks", .bias = true, .batch = 2, .sequence = 75,
         .read_delay = true),
    CASE(between, "S=3 C=20, hc", .residual = "hc", .streams = 3, .channels = 20, .read_delay = true),
    CASE(between, "mhc, static", .residual = "mhc", .is_static = true, .variation = 1),
    CASE(between, "S=6 C=5", .streams = 6, .channels = 5, .read_delay = true),
    CASE(between, "S=8 C=768, RMSNorm", .streams = 8, .channels = 768, .sequence = 3, .norm = NORM_RMS,
         .read_delay = true, .variation = 1),
    CASE(gram, "S=4", .bias = true),
    CASE(gram, "rc", .residual = "rc"),
    CASE(gram, "frac S=2 C=20", .residual = "frac", .streams = 2, .channels = 20),
    CASE(gram, "S=8 C=768", .streams = 8, .channels = 768),
    {.test = NULL},
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
    snprintf(variant_names[variant_count], sizeof *variant_names, "%s S=%d%s%s", one.shape.residual,
             (int)one.shape.streams, one.shape.transposed ? ", transposed" : "",
             one.shape.is_static ? ", static" : "");
    one.what = variant_names[variant_count];
    variant_cases[variant_count++] = one;
}

/* Those with thousands of parameters a sublayer have their own rows above, with looser bounds. */
static void add_variants(void) {
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        if (!residual_has_matrices(variant)) {
            continue;
        }
        for (int64_t n = 1; n <= RESIDUAL_MAX_STREAMS; n++) {
            if (residual_takes(variant, n) && residual_sizes(variant, n, NULL).theta < MANY_PARAMETERS) {
                add_variant_case((struct operation_case)CASE(map, NULL, .residual = variant->name, .streams = n,
                                                             .batch = 3, .sequence = 2));
            }
        }
        const int64_t streams = reference_streams(variant, 4), fewer = reference_streams(variant, 3);
        if (!variant->has_fractions) {
            add_variant_case((struct operation_case)CASE(map, NULL, .residual = variant->name,
                                                         .streams = i % 2 ? streams : fewer, .batch = 3,
                                                         .transposed = true, .normalized = i % 2));
            add_variant_case((struct operation_case)TINY_FRAME(NULL, .residual = variant->name, .streams = streams,
                                                               .bias = i % 2 == 0));
        }
        if (!residual_is_fixed(variant)) {
            add_variant_case(
                (struct operation_case)CASE(projections, NULL, .residual = variant->name, .streams = streams));
            add_variant_case((struct operation_case)CASE(map, NULL, .residual = variant->name,
                                                         .streams = i % 2 ? fewer : streams, .batch = 3,
                                                         .is_static = true));
        }
    }
}

const struct operation_case *case_of_variant(size_t number) {
    if (variant_count == 0) {
        add_variants();
    }
    return number < variant_count ? &variant_cases[number] : NULL;
}
