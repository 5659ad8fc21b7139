/* Cases of test_operations: the final norm, the loss, totals of vectors and AdamW. */
#include "tests/operations/operation_bench.h"
#include "tests/support/rounding.h"

/* ---- head */

static size_t final_norms(const struct bench *bench) {
    return bench->shape.norm_sum ? bench->streams : 1;
}

static void final_norm_describe(struct bench *bench) {
    const size_t n = bench->token_count, c = bench->channels;
    bench_activation(bench_input(bench, "streams", n * bench->streams * c, 0.2, 1.0));
    case_describe_norm(bench);
    bench_activation(bench_output(bench, "y", n * c));
    bench_byproduct(bench, "statistics", n * final_norms(bench) * 2);
}

static void final_norm_reference(struct bench *bench) {
    const size_t c = bench->channels, streams = bench->streams;
    const struct reference_norm norm = case_norm(bench);
    double *normed = calloc(c, sizeof *normed);
    for (size_t token = 0; token < bench->token_count; token++) {
        const double *x = bench_row(bench, "streams", token);
        double *y = bench_row(bench, "y", token), *statistics = bench_row(bench, "statistics", token);
        if (!bench->shape.norm_sum) { /* the sum of the streams is a width mix with weights of 1 */
            reference_width_mix(&norm, streams, c, x, NULL, y, statistics);
            continue;
        }
        memset(y, 0, c * sizeof *y);
        for (size_t i = 0; i < streams * c; i++) {
            if (i % c == 0) {
                reference_norm(&norm, c, x + i, normed, statistics + 2 * (i / c));
            }
            y[i % c] += normed[i % c];
        }
    }
    free(normed);
}

static struct stream_mix final_of(const struct bench *bench) {
    return (struct stream_mix){.streams = bench_buffer(bench, "streams"),
                               .norm = case_norm_weights(bench),
                               .normed = bench_buffer(bench, "y"),
                               .statistics = bench_buffer(bench, "statistics")};
}

static void run_final_norm_forward(struct bench *bench) {
    const struct stream_mix final = final_of(bench);
    final_norm_forward(bench->operations, bench->token_count, &final);
}

static void run_final_norm_backward(struct bench *bench) {
    const struct stream_mix final = final_of(bench);
    final_norm_backward(bench->operations, bench->token_count, &final, bench_derivative(bench, "y"),
                        bench_derivative(bench, "streams"), case_norm_gradients(bench), bench->accumulate);
}

OPERATION(final_norm, "final_norm", "head.cl", final_norm_describe, .reference = final_norm_reference,
          .forward = run_final_norm_forward, .backward = run_final_norm_backward);

/* ---- the collapse: the weights p of the streams, and what their sum u and the gradient of p give streams. `raw`,
 * which is zero, is added to the raw projections: its gradient is d_z. */

static void collapse_describe(struct bench *bench) {
    const size_t n = bench->token_count, s = bench->streams, c = bench->channels;
    bench_activation(bench_input(bench, "streams", n * s * c, 0.2, 1.0));
    bench_input(bench, "squares", n * s, 0.0, 0.0)->constant = true;
    struct field *raw = bench_input(bench, "raw", n * s, 0.0, 0.0);
    raw->d_activation = true;
    raw->constant = bench->shape.fixed_top;
    struct field *w = bench_parameter(bench, "w", s * c * s, 0.0, bench->shape.spread / sqrt((double)(s * c)));
    w->constant = true;
    w->written = 0;
    bench_gap(bench);
    bench_parameter(bench, "small", bench->shape.fixed_top ? s : s + 1, 0.5, 0.5);
    bench_activation(bench_output(bench, "u", n * c))->implied = true;
    bench_output(bench, "p", n * s);
    bench_byproduct(bench, "z", n * s)->implied = bench->shape.fixed_top;
}

/* Squares of the streams as they are stored. */
static void collapse_prepare(struct bench *bench) {
    const size_t c = bench->channels;
    for (size_t i = 0; i < bench->token_count * bench->streams * c; i++) {
        double *x = bench_values(bench, "streams") + i;
        *x = rounding_nearest(bench->shape.type, *x);
    }
    case_squares(bench_values(bench, "streams"), bench->token_count * bench->streams, c,
                 bench_values(bench, "squares"));
}

static void collapse_reference(struct bench *bench) {
    const size_t streams = bench->streams, c = bench->channels, row = streams * c;
    const double *w = bench_values(bench, "w"), *small = bench_values(bench, "small");
    for (size_t token = 0; token < bench->token_count; token++) {
        const double *x = bench_row(bench, "streams", token), *raw = bench_row(bench, "raw", token);
        const double scale = 1.0 / sqrt(reference_dot(row, x, x) / (double)row + 1e-6);
        double *u = bench_row(bench, "u", token), *z = bench_row(bench, "z", token);
        double *p = bench_row(bench, "p", token);
        memset(u, 0, c * sizeof *u);
        for (size_t s = 0; s < streams; s++) {
            double sum = raw[s];
            for (size_t k = 0; k < row; k++) {
                sum += x[k] * w[k * streams + s];
            }
            z[s] = scale * sum;
            const double dynamic = bench->shape.fixed_top ? 0.0 : small[streams] * z[s];
            p[s] = 1.0 / (1.0 + exp(-dynamic - small[s])) + bench->shape.hc_eps;
            for (size_t k = 0; k < c; k++) {
                u[k] += p[s] * x[s * c + k];
            }
        }
    }
}

static struct stream_mix collapse_of(const struct bench *bench, const struct buffer *h) {
    return (struct stream_mix){.streams = bench_buffer(bench, "streams"),
                               .squares = bench_buffer(bench, "squares"),
                               .packed = case_weights(bench, "w"),
                               .theta = case_weights(bench, "small"),
                               .z = bench_buffer(bench, "z"),
                               .h = h};
}

static void run_collapse_forward(struct bench *bench) {
    const size_t streams = bench->streams, h_row = bench->operations->h_row;
    const struct buffer *h = bench_scratch(bench, bench->token_count * h_row);
    const struct stream_mix collapse = collapse_of(bench, h);
    collapse_forward(bench->operations, bench->token_count, &collapse);
    for (size_t token = 0; token < bench->token_count; token++) {
        bench_copy(bench, h, token * h_row, bench_buffer(bench, "p"), token * streams, streams);
    }
}

/* The gradient of p: its own, and what the sum gives. */
static void upload_d_p(struct bench *bench, const struct buffer *d_h) {
    const size_t c = bench->channels, streams = bench->streams, h_row = bench->operations->h_row;
    double *row = calloc(h_row, sizeof *row);
    for (size_t token = 0; token < bench->token_count; token++) {
        for (size_t s = 0; s < streams; s++) {
            const double *x = bench_values(bench, "streams") + (token * streams + s) * c;
            row[s] = bench_find(bench, "p")->cotangents[token * streams + s] +
                     reference_dot(c, bench_find(bench, "u")->cotangents + token * c, x);
        }
        bench_try(bench, bench_upload(bench->operations->compute, d_h, token * h_row, row, h_row));
    }
    free(row);
}

static void run_collapse_backward(struct bench *bench) {
    const size_t n = bench->token_count, streams = bench->streams, h_row = bench->operations->h_row;
    const struct buffer *h = bench_scratch(bench, n * h_row), *d_h = bench_scratch(bench, n * h_row);
    const struct stream_mix collapse = collapse_of(bench, h);
    for (size_t token = 0; token < n; token++) {
        bench_copy(bench, bench_buffer(bench, "p"), token * streams, h, token * h_row, streams);
    }
    upload_d_p(bench, d_h);
    const struct collapse_gradients gradients = {bench_derivative(bench, "raw"), bench_derivative(bench, "streams"),
                                                 case_gradients(bench, "small")};
    collapse_backward(bench->operations, n, &collapse, bench_derivative(bench, "u"), d_h, &gradients,
                      bench->accumulate);
}

OPERATION(collapse, "collapse", "collapse.cl", collapse_describe, .prepare = collapse_prepare,
          .reference = collapse_reference, .forward = run_collapse_forward, .backward = run_collapse_backward);

/* ---- the loss */

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
    const size_t v = bench->vocabulary;
    const double cap = bench->shape.softcap;
    double *logits = calloc(v, sizeof *logits);
    for (size_t row = 0; row < bench->token_count; row++) {
        for (size_t i = 0; i < v; i++) {
            const double logit = bench_values(bench, "logits")[row * v + i];
            logits[i] = reference_capped(cap, bench->shape.softcap_kind, logit);
        }
        bench_values(bench, "losses")[row] = reference_cross_entropy(v, logits, bench->ids[row]);
    }
    free(logits);
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

OPERATION(entropy, "cross_entropy", "cross_entropy.cl", cross_entropy_describe, .prepare = cross_entropy_prepare,
          .reference = cross_entropy_reference, .forward = run_cross_entropy_forward,
          .backward = run_cross_entropy_backward);

/* ---- the bias of logits */

static void head_bias_describe(struct bench *bench) {
    const size_t count = bench->token_count * bench->vocabulary;
    bench_input(bench, "products", count, 0.0, 1.0)->d_activation = true;
    bench_parameter(bench, "bias", bench->vocabulary, 0.0, 1.0);
    bench_output(bench, "logits", count)->d_activation = true;
}

static void head_bias_reference(struct bench *bench) {
    for (size_t i = 0; i < bench->token_count * bench->vocabulary; i++) {
        bench_values(bench, "logits")[i] =
            bench_values(bench, "products")[i] + bench_values(bench, "bias")[i % bench->vocabulary];
    }
}

static void run_head_bias_forward(struct bench *bench) {
    bench_copy_all(bench, bench_buffer(bench, "products"), bench_buffer(bench, "logits"),
                   bench->token_count * bench->vocabulary);
    head_bias_forward(bench->operations, bench->token_count, case_weights(bench, "bias"),
                      bench_buffer(bench, "logits"));
}

static void run_head_bias_backward(struct bench *bench) {
    bench_copy_all(bench, bench_derivative(bench, "logits"), bench_derivative(bench, "products"),
                   bench->token_count * bench->vocabulary);
    head_bias_backward(bench->operations, bench->token_count, bench_derivative(bench, "logits"),
                       case_gradients(bench, "bias"), bench->accumulate);
}

OPERATION(head_bias, "head_bias", "head_bias.cl", head_bias_describe, .reference = head_bias_reference,
          .forward = run_head_bias_forward, .backward = run_head_bias_backward);

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

OPERATION(totals, "totals", "reduce.cl", totals_describe, .reference = totals_reference, .forward = run_totals);

/* ---- optimizer. Variations: what is in the table below. */

#define USUAL_RATES .rate = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .decay = 0.1f

static const struct adamw_case {
    struct update_settings settings;
    float norm;
} adamw_cases[] = {
    {{USUAL_RATES, .clip = 1.0f, .step = 1, .unscale = 1.0f}, 8.0f}, /* clipped */
    {{USUAL_RATES, .clip = 1.0f, .step = 7, .unscale = 1.0f}, 0.5f}, /* short enough */
    {{.rate = 1e-3f,
      .beta1 = 0.9f,
      .beta2 = 0.999f,
      .epsilon = 1e-8f,
      .decay = 0.0f,
      .clip = 0.0f,
      .step = 10000,
      .unscale = 1.0f},
     8.0f},
    {{USUAL_RATES, .clip = 1.0f, .step = 3, .unscale = 1.0f}, NAN},
    {{USUAL_RATES, .clip = 0.0f, .step = 3, .unscale = 1.0f}, INFINITY},
    {{USUAL_RATES, .clip = 1.0f, .step = 2, .unscale = 0x1p-3f}, 4.0f},
    {{USUAL_RATES, .clip = 1.0f, .step = 2, .unscale = 1.0f, .centre = 1.0f}, 0.5f},
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

/* Weights from this one on take decay; a multiple of 64, as in the arena. */
static size_t adamw_decayed_from(const struct bench *bench) {
    return (size_t)bench->shape.count / 128 * 64;
}

static void adamw_reference(struct bench *bench) {
    const struct adamw_case *test = &adamw_cases[bench->shape.variation];
    double *values[3];
    for (size_t i = 0; i < 3; i++) {
        values[i] = bench_values(bench, adamw_results[i]);
        memcpy(values[i], bench_values(bench, adamw_names[i]), (size_t)bench->shape.count * sizeof(double));
    }
    for (size_t i = 0; i < (size_t)bench->shape.count; i++) {
        const struct reference_adamw settings = {.rate = (double)test->settings.rate,
                                                 .beta1 = (double)test->settings.beta1,
                                                 .beta2 = (double)test->settings.beta2,
                                                 .decay = i >= adamw_decayed_from(bench)
                                                              ? (double)test->settings.decay
                                                              : 0.0,
                                                 .clip = (double)test->settings.clip,
                                                 .norm = (double)test->norm,
                                                 .step = test->settings.step,
                                                 .centre = (double)test->settings.centre};
        reference_adamw(&settings, (double)test->settings.unscale * bench_values(bench, "grad")[i], &values[0][i],
                        &values[1][i], &values[2][i]);
    }
    if (bench->shape.type != ELEMENT_FP32) {
        memcpy(bench_values(bench, "operands"), values[0], (size_t)bench->shape.count * sizeof(double));
    }
}

/* The copy for GEMMs has the new weights, rounded once. */
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
    bench_try(bench, bench_upload(bench->operations->compute, norm, 0, &size, 1));
    for (size_t i = 0; i < 3; i++) {
        bench_copy_all(bench, bench_buffer(bench, adamw_names[i]), bench_buffer(bench, adamw_results[i]), count);
    }
    /* in two parts, of one case at any place; the moments of the second one lie elsewhere, as a rank's share
     * does */
    const uint64_t part = bench->shape.variation == 1 ? 37 : 64, rest = count - part, places[2] = {128, 64};
    const struct buffer *weights = bench_buffer(bench, "new_weights");
    const struct buffer *moments[2] = {bench_buffer(bench, "new_first"), bench_buffer(bench, "new_second")};
    const struct buffer *apart[2] = {bench_scratch(bench, count + places[0]),
                                     bench_scratch(bench, count + places[1])};
    const struct buffer *operands = weights;
    if (bench->shape.type != ELEMENT_FP32) {
        operands = bench_buffer(bench, "operands");
        bench_copy_all(bench, weights, operands, count);
    }
    struct update_arenas arenas = {.weights = weights,
                                   .gradients = bench_buffer(bench, "grad"),
                                   .weights_lowp = operands,
                                   .first_moments = moments[0],
                                   .second_moments = moments[1],
                                   .decayed_from = adamw_decayed_from(bench)};
    adamw_step(bench->operations, &arenas, (struct optimizer_range){0, part, {0, 0}}, &test->settings, norm);
    for (size_t i = 0; i < 2; i++) {
        bench_copy(bench, moments[i], part, apart[i], places[i], rest);
    }
    arenas.first_moments = apart[0];
    arenas.second_moments = apart[1];
    adamw_step(bench->operations, &arenas, (struct optimizer_range){part, rest, {places[0], places[1]}},
               &test->settings, norm);
    for (size_t i = 0; i < 2; i++) {
        bench_copy(bench, apart[i], places[i], moments[i], part, rest);
    }
}

OPERATION(adamw, "adamw", "adamw.cl", adamw_describe, .prepare = adamw_prepare, .reference = adamw_reference,
          .forward = run_adamw, .check = adamw_check);

/* ---- cases */

const struct operation_case cases_head[] = {
    TINY(final_norm, "mhc, norm_sum, bias", 2, 3, TINY_MHC),
    TINY(final_norm, "hc, sum_norm", 2, 3, TINY_HC),
    TINY(final_norm, "mhc, norm_sum, bias, RMSNorm", 2, 3, TINY_MHC, .norm = NORM_RMS),
    TINY(final_norm, "hc, sum_norm, RMSNorm", 2, 3, TINY_HC, .norm = NORM_RMS, .norm_eps = 0.1),
    TINY(collapse, "mhc", 2, 3, TINY_MHC, .collapsed = true),
    TINY(collapse, "mhc, fixed", 2, 3, TINY_MHC, .collapsed = true, .fixed_top = true),
    TINY(entropy, "mhc, V=33", 2, 3, TINY_MHC),
    TINY(entropy, "mhc, V=33, softcap", 2, 3, TINY_MHC, .softcap = 1.5),
    TINY(entropy, "mhc, V=33, softcap by rsqrt", 2, 3, TINY_MHC, .softcap = 1.5, .softcap_kind = SOFTCAP_RSQRT),
    TINY(head_bias, "mhc, V=33", 2, 3, TINY_MHC, .head_bias = true),
    TINY(totals, "mhc", 2, 3, TINY_MHC, .count = 192),
    TINY(adamw, "clipped", 2, 3, TINY_MHC, .count = 192),
    TINY(adamw, "scaled gradients", 2, 3, TINY_MHC, .count = 192, .variation = 5),
    TINY(adamw, "norm NaN", 2, 3, TINY_MHC, .count = 192, .variation = 3),
    CASE(final_norm, "rc", .residual = "rc"),
    CASE(final_norm, "rc, bias C=5", .residual = "rc", .channels = 5, .bias = true),
    CASE(final_norm, "S=4, sum_norm, bias", .bias = true, .batch = 2, .sequence = 75),
    CASE(final_norm, "S=4, norm_sum, bias", .bias = true, .norm_sum = true, .batch = 2, .sequence = 75),
    CASE(final_norm, "S=4, norm_sum", .norm_sum = true),
    CASE(final_norm, "S=8 C=768, sum_norm", .streams = 8, .channels = 768),
    CASE(final_norm, "rc, RMSNorm C=5", .residual = "rc", .channels = 5, .bias = true, .norm = NORM_RMS),
    CASE(final_norm, "S=4, norm_sum, epsilon 0.1", .bias = true, .norm_sum = true, .norm_eps = 0.1),
    CASE(final_norm, "S=4, norm_sum, RMSNorm", .norm_sum = true, .batch = 2, .sequence = 75, .norm = NORM_RMS),
    CASE(final_norm, "S=8 C=768, sum_norm, RMSNorm", .streams = 8, .channels = 768, .norm = NORM_RMS),
    CASE(collapse, "S=4, fixed, epsilon 0.01", .collapsed = true, .fixed_top = true, .batch = 2, .sequence = 75,
         .hc_eps = 0.01),
    CASE(collapse, "S=4", .collapsed = true, .batch = 2, .sequence = 75),
    CASE(collapse, "S=3 C=5, epsilon 0.01", .streams = 3, .channels = 5, .collapsed = true, .hc_eps = 0.01),
    CASE(collapse, "S=8 C=768", .streams = 8, .channels = 768, .collapsed = true),
    CASE(entropy, "V=33", .bias = true),
    LOOSE(entropy, "V=256, large logits", 30, 0, .vocabulary = 256, .spread = 200.0),
    CASE(entropy, "V=33, softcap", .softcap = 1.5),
    /* 1 - tanh^2 loses digits where tanh is almost 1 */
    LOOSE(entropy, "V=256, softcap, large logits", 30, 0, .vocabulary = 256, .spread = 30.0, .softcap = 15.0),
    LOOSE(entropy, "V=50257, softcap", 30, 0, .vocabulary = 50257, .sequence = 3, .spread = 30.0, .softcap = 15.0),
    LOOSE(entropy, "V=256, softcap by rsqrt, large logits", 30, 0, .vocabulary = 256, .spread = 30.0,
          .softcap = 15.0, .softcap_kind = SOFTCAP_RSQRT),
    CASE(entropy, "V=50257", .vocabulary = 50257, .sequence = 3, .spread = 3.0),
    CASE(head_bias, "V=50257", .vocabulary = 50257, .sequence = 3, .head_bias = true),
    CASE(head_bias, "V=33, many rows", .sequence = 1000, .head_bias = true),
    CASE(totals, "64 elements", .bias = true, .count = 64),
    CASE(totals, "1000000 elements", .bias = true, .count = 1000000),
    CASE(adamw, "clipped", .bias = true, .count = 4096),
    CASE(adamw, "norm below the limit", .bias = true, .count = 192, .variation = 1),
    CASE(adamw, "no clipping, late", .bias = true, .count = 192, .variation = 2),
    CASE(adamw, "scaled gradients", .bias = true, .count = 192, .variation = 5),
    CASE(adamw, "decay towards 1", .bias = true, .count = 192, .variation = 6),
    CASE(adamw, "norm NaN", .bias = true, .count = 192, .variation = 3),
    CASE(adamw, "norm infinite", .bias = true, .count = 192, .variation = 4),
    {.test = NULL},
};
