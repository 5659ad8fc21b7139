/* Cases of test_operations: the optimizer Muon, on a matrix of shape.count rows and C columns, or on several that
 * have so many rows together. */
#include "runtime/system/array.h"
#include "src/operations/muon.h"
#include "tests/operations/operation_bench.h"
#include "tests/support/rounding.h"

static size_t size_of(const struct bench *bench) {
    return (size_t)bench->shape.count * bench->channels;
}

static bool is_bf16(const struct bench *bench) {
    return bench->operations->shape.muon_type == ELEMENT_BF16;
}

static const struct buffer *scratch_matrix(struct bench *bench, size_t count) {
    return is_bf16(bench) ? bench_scratch_activation(bench, count) : bench_scratch(bench, count);
}

/* The buffers that the functions need, for these matrices; x[0] is the field x. */
static struct muon_scratch scratch_of(struct bench *bench, const char *x) {
    const size_t padded = (size_of(bench) + 63) / 64 * 64;
    const bool bf16 = is_bf16(bench);
    struct muon_scratch scratch = {.x = {bench_buffer(bench, x), scratch_matrix(bench, padded)},
                                   .gram = scratch_matrix(bench, padded),
                                   .square = bench_scratch(bench, padded),
                                   .sums = bench_scratch(bench, padded / 64),
                                   .norms = bench_scratch(bench, MUON_MOST_MATRICES)};
    for (size_t i = 0; i < (bf16 ? 1 : COUNT(scratch.polynomial)); i++) {
        scratch.polynomial[i] = scratch_matrix(bench, padded);
    }
    scratch.update = bf16 ? bench_scratch(bench, padded) : scratch.x[1];
    return scratch;
}

/* ---- what comes before and after the iterations. Variations: what is in the table below. */

static const struct muon_case {
    struct update_settings settings;
    float norm;
} muon_cases[] = {
    {{.momentum = 0.95f, .rate = 0.02f, .decay = 0.1f, .scale = 1.5f, .clip = 1.0f, .unscale = 0.125f}, 8.0f},
    {{.momentum = 0.9f, .rate = 0.02f, .decay = 0.0f, .scale = 1.0f, .clip = 0.0f, .unscale = 1.0f}, 8.0f},
    {{.momentum = 0.9f, .rate = 0.02f, .decay = 0.1f, .scale = 1.0f, .clip = 1.0f, .unscale = 1.0f}, NAN},
    /* the norm of u is below its bound */
    {{.momentum = 0.9f, .rate = 0.02f, .decay = 0.1f, .scale = 1.0f, .clip = 0.0f, .unscale = 1e-9f}, 1.0f},
    /* several matrices */
    {{.momentum = 0.9f, .rate = 0.02f, .decay = 0.1f, .scale = 1.5f, .clip = 1.0f, .unscale = 1.0f}, 8.0f},
};

enum { SMALL_UPDATE = 3, SEVERAL = 4 };

enum { BEFORE = 5, STATE_BEFORE = 3, AROUND = 64 }; /* elements of the arena, and of the state, before the matrix */

/* Elements of the arena between matrices: three of the five begin at one distance, then two at another. */
static const size_t gaps[] = {0, 7, 14, 14, 30};

static size_t step_matrices(const struct bench *bench) {
    return bench->shape.variation == SEVERAL ? COUNT(gaps) : 1;
}

static struct muon_batch step_batch(const struct bench *bench) {
    const size_t matrices = step_matrices(bench), rows = (size_t)bench->shape.count / matrices;
    struct muon_batch batch = {rows, bench->channels, matrices, .state_shift = (uint64_t)STATE_BEFORE - BEFORE};
    for (size_t i = 0; i < matrices; i++) {
        batch.first[i] = BEFORE + i * rows * bench->channels + gaps[i];
    }
    return batch;
}

static void step_describe(struct bench *bench) {
    const size_t count = size_of(bench);
    bench_input(bench, "grad", count + AROUND, 0.0, 1.0);
    bench_input(bench, "orthogonal", count, 0.0, 1.0);
    bench_input(bench, "weights", count + AROUND, 0.0, 1.0);
    bench_input(bench, "momentum", count + AROUND, 0.0, bench->shape.variation == SMALL_UPDATE ? 0.0 : 1.0);
    bench_output(bench, "new_weights", count + AROUND);
    bench_output(bench, "new_momentum", count + AROUND);
    struct field *x = bench_byproduct(bench, "x", count);
    x->roundings = 1;
    if (is_bf16(bench)) {
        bench_activation(x);
    }
    if (bench->shape.type != ELEMENT_FP32) {
        bench_activation(bench_byproduct(bench, "operands", count + AROUND))->roundings = 1;
    }
}

/* A matrix that begins at `first` in the arena, and at `at` in x and the orthogonal matrices. */
static void step_matrix(struct bench *bench, size_t first, size_t at, size_t count) {
    const struct muon_case *test = &muon_cases[bench->shape.variation];
    const double mu = (double)test->settings.momentum, clip = (double)test->settings.clip,
                 norm = (double)test->norm;
    const double factor = (clip > 0.0 ? fmin(1.0, clip / (norm + 1e-6)) : 1.0) * (double)test->settings.unscale;
    const double *gradients = bench_values(bench, "grad") + first;
    const double *orthogonal = bench_values(bench, "orthogonal") + at;
    double *weights = bench_values(bench, "new_weights") + first, *x = bench_values(bench, "x") + at;
    double *momentum = bench_values(bench, "new_momentum") + first + STATE_BEFORE - BEFORE, squares = 0.0;
    for (size_t i = 0; i < count && isfinite(norm); i++) {
        const double g = factor * gradients[i];
        momentum[i] = mu * momentum[i] + (1.0 - mu) * g;
        x[i] = (1.0 - mu) * g + mu * momentum[i];
        squares += x[i] * x[i];
        weights[i] -= (double)test->settings.rate * (double)test->settings.decay * weights[i];
        weights[i] -= (double)test->settings.rate * (double)test->settings.scale * orthogonal[i];
    }
    for (size_t i = 0; i < count; i++) {
        x[i] /= fmax(sqrt(squares), 1e-7);
    }
}

static void step_reference(struct bench *bench) {
    const size_t count = size_of(bench);
    const struct muon_batch batch = step_batch(bench);
    double *weights = bench_values(bench, "new_weights"), *momentum = bench_values(bench, "new_momentum");
    memcpy(weights, bench_values(bench, "weights"), (count + AROUND) * sizeof *weights);
    memcpy(momentum, bench_values(bench, "momentum"), (count + AROUND) * sizeof *momentum);
    memset(bench_values(bench, "x"), 0, count * sizeof *weights);
    for (size_t i = 0; i < batch.count; i++) {
        step_matrix(bench, batch.first[i], i * batch.rows * batch.columns, batch.rows * batch.columns);
    }
    if (bench->shape.type != ELEMENT_FP32) {
        memcpy(bench_values(bench, "operands"), weights, (count + AROUND) * sizeof *weights);
    }
}

static void run_step(struct bench *bench) {
    const struct muon_case *test = &muon_cases[bench->shape.variation];
    const size_t count = size_of(bench);
    const struct buffer *norm = bench_scratch(bench, 1), *weights = bench_buffer(bench, "new_weights");
    const struct buffer *momentum = bench_buffer(bench, "new_momentum"), *operands = weights;
    const double size = (double)test->norm;
    bench_try(bench, bench_upload(bench->operations->compute, norm, 0, &size, 1));
    bench_copy_all(bench, bench_buffer(bench, "weights"), weights, count + AROUND);
    bench_copy_all(bench, bench_buffer(bench, "momentum"), momentum, count + AROUND);
    if (bench->shape.type != ELEMENT_FP32) {
        operands = bench_buffer(bench, "operands");
        bench_copy_all(bench, weights, operands, count + AROUND);
    }
    const struct muon_scratch scratch = scratch_of(bench, "x");
    const struct update_arenas arenas = {.weights = weights,
                                         .gradients = bench_buffer(bench, "grad"),
                                         .first_moments = momentum,
                                         .weights_lowp = operands};
    const struct muon_batch batch = step_batch(bench);
    muon_begin(bench->operations, &arenas, &batch, &test->settings, &scratch, norm);
    muon_end(bench->operations, &arenas, &batch, &test->settings, bench_buffer(bench, "orthogonal"), norm);
}

OPERATION(step, "muon", "muon.cl", step_describe, .reference = step_reference, .forward = run_step);

/* ---- the iterations */

static const float usual[3] = {3.4445f, -4.7750f, 2.0315f}, of_track_3[3] = {2.0f, -1.5f, 0.5f};

enum { OTHER_COEFFICIENTS = 1, BATCH = 2 };

static const float *coefficients_of(const struct bench *bench) {
    return bench->shape.variation == OTHER_COEFFICIENTS ? of_track_3 : usual;
}

static int64_t steps_of(const struct bench *bench) {
    return bench->shape.variation == OTHER_COEFFICIENTS ? 12 : 5;
}

/* The matrices that the rows of this one are. */
static size_t matrices_of(const struct bench *bench) {
    return bench->shape.variation == BATCH ? 3 : 1;
}

/* In bf16 each iteration rounds X, A and the polynomial of A, whose effects on X grow with a, 3.4, and cancel: 2
 * to 3 per cent of the largest number, which is a few times larger than numbers are in general. */
static void schulz_describe(struct bench *bench) {
    struct field *from = bench_input(bench, "from", (size_of(bench) + 63) / 64 * 64, 0.0, 1.0);
    struct field *x = bench_output(bench, "orthogonal", size_of(bench));
    if (is_bf16(bench)) {
        bench_activation(from);
        x->roundings = 30;
    }
}

/* Less than 1 in norm. */
static void schulz_prepare(struct bench *bench) {
    double *x = bench_values(bench, "from");
    const size_t count = size_of(bench);
    const double norm = sqrt(reference_dot(count, x, x));
    for (size_t i = 0; i < count; i++) {
        x[i] = rounding_nearest(is_bf16(bench) ? ELEMENT_BF16 : ELEMENT_FP32, x[i] / norm);
    }
}

static void schulz_reference(struct bench *bench) {
    const size_t matrices = matrices_of(bench), rows = (size_t)bench->shape.count / matrices;
    double *x = bench_values(bench, "orthogonal");
    memcpy(x, bench_values(bench, "from"), size_of(bench) * sizeof *x);
    for (size_t i = 0; i < matrices; i++) {
        reference_newton_schulz(rows, bench->channels, steps_of(bench), coefficients_of(bench),
                                x + i * rows * bench->channels);
    }
}

static void run_schulz(struct bench *bench) {
    const struct muon_scratch scratch = scratch_of(bench, "from");
    const size_t matrices = matrices_of(bench);
    const struct muon_batch batch = {(size_t)bench->shape.count / matrices, bench->channels, matrices, {0}, 0};
    const struct buffer *x =
        newton_schulz(bench->operations, &batch, steps_of(bench), coefficients_of(bench), &scratch);
    bench_copy_all(bench, x, bench_buffer(bench, "orthogonal"), size_of(bench));
}

OPERATION(schulz, "newton_schulz", "muon.cl", schulz_describe, .prepare = schulz_prepare,
          .reference = schulz_reference, .forward = run_schulz);

/* ---- cases */

const struct operation_case cases_muon[] = {
    TINY(step, "clipped", 1, 1, TINY_RC, .count = 7),
    TINY(step, "no clipping", 1, 1, TINY_RC, .count = 7, .variation = 1),
    TINY(step, "norm NaN", 1, 1, TINY_RC, .count = 7, .variation = 2),
    TINY(step, "almost no gradient", 1, 1, TINY_RC, .count = 7, .variation = SMALL_UPDATE),
    TINY(step, "5 matrices, not all equally far apart", 1, 1, TINY_RC, .count = 80, .variation = SEVERAL),
    CASE(schulz, "24 x 24", .residual = "rc", .count = 24),
    CASE(schulz, "48 x 24", .residual = "rc", .count = 48),
    CASE(schulz, "1 x 24", .residual = "rc", .count = 1),
    CASE(schulz, "7 x 24", .residual = "rc", .count = 7),
    CASE(schulz, "40 x 5", .residual = "rc", .channels = 5, .count = 40),
    CASE(schulz, "100 x 33, 12 steps of other coefficients", .residual = "rc", .channels = 33, .count = 100,
         .variation = OTHER_COEFFICIENTS),
    TINY(schulz, "3 of 8 x 12", 1, 1, TINY_RC, .count = 24, .variation = BATCH),
    CASE(schulz, "3 of 24 x 24", .residual = "rc", .count = 72, .variation = BATCH),
    CASE(schulz, "3 of 8 x 24", .residual = "rc", .count = 24, .variation = BATCH),
    {.test = NULL},
};
