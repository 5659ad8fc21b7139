/* What the residual matrices of each variant are, whatever the weights: measured in double over every token and
 * sublayer of a model at the paper's initialisation, with random parameters everywhere, and after training steps.
 */
#include "runtime/system/random.h"
#include "src/measuring/h_measurement.h"
#include "tests/support/reference_residual.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST = RESIDUAL_MAX_STREAMS * RESIDUAL_MAX_STREAMS,
    DEEP_LAYERS = 24,
    MOST_VARIANTS = 64,
    MANY_PARAMETERS = 1000
};

static struct compute *compute;

/* Largest deviations over all tokens and sublayers. */
struct deviations {
    double norm;              /* of the spectral norm from 1 */
    double above;             /* how far the spectral norm is above 1 */
    double row, column;       /* of sums from 1 */
    double identity;          /* ||H - I||_2 */
    double smallest, largest; /* entries */
    double structure;         /* see reference_structure */
    double singular;          /* the smallest singular value */
    double orthogonality;     /* entries of H^T H - I */
};

enum weights { INITIAL, RANDOM, TRAINED };

struct measurement {
    struct deviations each, product; /* of H_res, and of its product over all sublayers */
};

/* ---- measuring */

static double norm_of(const double *matrix, size_t n) {
    double values[RESIDUAL_MAX_STREAMS];
    stream_matrix_singular_values(matrix, (int64_t)n, values);
    return values[0];
}

static void widen(struct deviations *deviations, const struct residual_variant *variant, const double *matrix,
                  size_t n) {
    double rest[MOST], values[RESIDUAL_MAX_STREAMS];
    for (size_t i = 0; i < n; i++) {
        double row = 0.0, column = 0.0;
        for (size_t j = 0; j < n; j++) {
            row += matrix[i * n + j];
            column += matrix[j * n + i];
            rest[i * n + j] = matrix[i * n + j] - (i == j ? 1.0 : 0.0);
            deviations->smallest = fmin(deviations->smallest, matrix[i * n + j]);
            deviations->largest = fmax(deviations->largest, matrix[i * n + j]);
        }
        deviations->row = fmax(deviations->row, fabs(row - 1.0));
        deviations->column = fmax(deviations->column, fabs(column - 1.0));
    }
    for (size_t i = 0; i < n * n; i++) {
        double product = i % (n + 1) == 0 ? -1.0 : 0.0;
        for (size_t k = 0; k < n; k++) {
            product += matrix[k * n + i / n] * matrix[k * n + i % n];
        }
        deviations->orthogonality = fmax(deviations->orthogonality, fabs(product));
    }
    stream_matrix_singular_values(matrix, (int64_t)n, values);
    assert_true(isfinite(values[0]));
    deviations->norm = fmax(deviations->norm, fabs(values[0] - 1.0));
    deviations->above = fmax(deviations->above, values[0] - 1.0);
    deviations->singular = fmin(deviations->singular, values[n - 1]);
    deviations->structure = fmax(deviations->structure, reference_structure(variant, n, matrix));
    deviations->identity = fmax(deviations->identity, norm_of(rest, n));
}

static void measure(struct small_model *model, struct measurement *measurement) {
    const size_t n = (size_t)model->gpt.config.n_streams, tokens = gpt_tokens(&model->gpt);
    const size_t row = model->gpt.operations.h_row, res = row - n * n;
    const struct residual_variant *variant = model->gpt.config.residual;
    const struct deviations none = {.smallest = HUGE_VAL, .largest = -HUGE_VAL, .singular = HUGE_VAL};
    FREED double *products = calloc(tokens * n * n, sizeof *products);
    *measurement = (struct measurement){none, none};
    for (size_t i = 0; i < tokens * n; i++) {
        products[i / n * n * n + i % n * (n + 1)] = 1.0;
    }
    for (int64_t sublayer = 0; sublayer < 2 * model->gpt.config.n_layer; sublayer++) {
        FREED float *h = small_model_matrices(model, sublayer);
        for (size_t token = 0; token < tokens; token++) {
            double matrix[MOST];
            for (size_t i = 0; i < n * n; i++) {
                matrix[i] = (double)h[token * row + res + i];
            }
            widen(&measurement->each, variant, matrix, n);
            stream_matrix_compose(products + token * n * n, matrix, (int64_t)n);
        }
    }
    for (size_t token = 0; token < tokens; token++) {
        widen(&measurement->product, variant, products + token * n * n, n);
    }
}

static void create_with(struct small_model *model, const struct model_config *config, enum element_type type,
                        enum weights weights) {
    small_model_create_typed(model, compute, config, 3, type);
    if (weights == RANDOM) {
        small_model_randomise(model, 7);
    } else if (weights == TRAINED) {
        small_model_train(model, 20, 3e-2);
    }
    small_model_forward(model, (struct gpt_pass){.dropout = false});
}

static void measure_typed(const struct model_config *config, enum element_type type, enum weights weights,
                          struct measurement *measurement) {
    SMALL_MODEL model;
    create_with(&model, config, type, weights);
    measure(&model, measurement);
    print_message(
        "  %-9s n %d: norm %.1e, rows %.1e, columns %.1e, entries %.3g .. %.3g, from I %.3g; product: norm "
        "%.1e, rows %.1e, columns %.1e\n",
        config->residual->name, (int)config->n_streams, measurement->each.norm, measurement->each.row,
        measurement->each.column, measurement->each.smallest, measurement->each.largest, measurement->each.identity,
        measurement->product.norm, measurement->product.row, measurement->product.column);
}

static void measure_model(const struct model_config *config, enum weights weights,
                          struct measurement *measurement) {
    measure_typed(config, ELEMENT_FP32, weights, measurement);
}

/* Each is measured once and kept: several tests look at the same. */
static struct measurement measured(const char *residual, int64_t streams, enum weights weights) {
    static struct {
        struct measurement measurement;
        bool known;
    } all[MOST_VARIANTS][RESIDUAL_MAX_STREAMS + 1][TRAINED + 1];
    const size_t row = residual_number(residual_find(residual));
    if (!all[row][streams][weights].known) {
        const struct model_config config = small_model_config(residual, streams);
        measure_model(&config, weights, &all[row][streams][weights].measurement);
        all[row][streams][weights].known = true;
    }
    return all[row][streams][weights].measurement;
}

/* Through 48 sublayers, as the paper's L model has. */
static struct measurement measured_deep(const char *residual, int64_t streams, enum weights weights) {
    struct measurement measurement;
    struct model_config config = small_model_config(residual, streams);
    config.n_layer = DEEP_LAYERS;
    measure_model(&config, weights, &measurement);
    return measurement;
}

static void assert_within(const char *what, double deviation, double tolerance) {
    if (!(deviation <= tolerance)) {
        fail_msg("%s: %.3g, allowed %.3g", what, deviation, tolerance);
    }
}

/* ---- invariants of each matrix and of products over depth */

static void assert_kept(unsigned invariants, const struct deviations *deviations) {
    if (invariants & INVARIANT_ROW_SUMS) {
        assert_within("rows", deviations->row, RESIDUAL_TOLERANCE);
    }
    if (invariants & INVARIANT_COLUMN_SUMS) {
        assert_within("columns", deviations->column, RESIDUAL_TOLERANCE);
    }
    if (invariants & INVARIANT_SPECTRAL_NORM) {
        assert_within("spectral norm", deviations->norm, RESIDUAL_TOLERANCE);
    }
    if (invariants & INVARIANT_SIGN) {
        assert_within("entries below zero", -deviations->smallest, 0.0);
    }
    if (invariants & INVARIANT_ORTHOGONAL) {
        assert_within("H^T H - I", deviations->orthogonality, RESIDUAL_TOLERANCE);
    }
    assert_within("structure", deviations->structure, RESIDUAL_TOLERANCE);
    if (invariants & INVARIANT_CONTRACTION) {
        assert_within("norm above 1", deviations->above, RESIDUAL_TOLERANCE);
    }
    /* a new one is to be checked, too */
    const unsigned checked = INVARIANTS_DOUBLY_STOCHASTIC | INVARIANT_ORTHOGONAL | INVARIANT_CONTRACTION;
    assert_int_equal(invariants & ~checked, 0);
}

/* Of each matrix, and of the product over depth. */
static void assert_all_kept(unsigned invariants, const struct measurement *measurement) {
    assert_kept(invariants, &measurement->each);
    assert_kept(invariants, &measurement->product);
}

/* Whether variant i is measured with n streams: not with thousands of parameters a sublayer, which have a test of
 * their own. If not all are asked for: with 4, 8 and, in turn, even or odd numbers. */
static bool is_measured(size_t i, int64_t n) {
    const struct residual_variant *variant = residual_at(i);
    return residual_has_matrices(variant) && residual_takes(variant, n) && !(variant->has_fractions && 16 % n) &&
           residual_sizes(variant, n, NULL).theta < MANY_PARAMETERS &&
           (n % 4 == 0 || (i + (size_t)n) % 2 == 0 || test_is_whole());
}

UNIT_TEST(invariants_hold_at_first_with_random_parameters_and_after_training) {
    const struct residual_variant *variant;
    for (enum weights weights = INITIAL; weights <= TRAINED; weights++) {
        for (size_t i = 0; (variant = residual_at(i)); i++) {
            for (int64_t n = 2; n <= RESIDUAL_MAX_STREAMS; n++) {
                if (is_measured(i, n) && (weights != TRAINED || n % 4 == 0 || test_is_whole())) {
                    const struct measurement measurement = measured(variant->name, n, weights);
                    assert_all_kept(variant->invariants, &measurement);
                }
            }
        }
    }
}

/* H is made in fp32 whatever the streams are stored in. */
UNIT_TEST(invariants_hold_in_16_bits) {
    const struct model_config config = small_model_config("shc", 4);
    for (enum element_type type = ELEMENT_BF16; type <= ELEMENT_FP16; type++) {
        struct measurement measurement;
        measure_typed(&config, type, RANDOM, &measurement);
        assert_kept(config.residual->invariants, &measurement.each);
    }
}

static void check_deep(const struct residual_variant *variant, int64_t streams, enum weights weights) {
    const struct residual_settings settings = residual_settings_default();
    const struct measurement measurement = measured_deep(variant->name, streams, weights);
    const double least = reference_least_singular(variant, &settings, 2 * DEEP_LAYERS);
    assert_kept(variant->invariants, &measurement.product);
    assert_within("smallest singular value", least - measurement.product.singular, RESIDUAL_TOLERANCE);
}

/* Biases of what H_res is made of are random, with this deviation. */
static void measure_large(const char *residual, double spread, struct measurement *measurement) {
    const struct model_config config = small_model_config(residual, reference_streams(residual_find(residual), 4));
    SMALL_MODEL model;
    small_model_create(&model, compute, &config, 3);
    small_model_randomise(&model, 7);
    const struct parameters *parameters = &model.gpt.parameters;
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        const char *leaf = strrchr(parameter->name, '.') + 1;
        if (parameter->leaf && *leaf == 'b' && strcmp(leaf, "b_pre") != 0 && strcmp(leaf, "b_post") != 0) {
            FREED float *values = malloc(parameter->elements * sizeof *values);
            random_normal(random_key(5, parameter->name), 0, parameter->elements, 0.0, spread, values);
            require(parameters_write(compute, parameters, parameter->offset, parameter->elements, values));
        }
    }
    small_model_forward(&model, (struct gpt_pass){.dropout = false});
    measure(&model, measurement);
}

/* Of 1e30, too, but for go_mhc, whose angles docs/variants.md limits. */
UNIT_TEST(invariants_hold_for_large_parameters) {
    static const double spreads[] = {10.0, 300.0, 1e5, 1e30};
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        const size_t count = strcmp(variant->name, "go_mhc") == 0 ? 1 : COUNT(spreads);
        for (size_t k = 0; k < count && variant->invariants && residual_has_matrices(variant); k++) {
            struct measurement measurement;
            measure_large(variant->name, spreads[k], &measurement);
            print_message("  %-9s %g: rows %.1e, columns %.1e, norm %.1e\n", variant->name, spreads[k],
                          measurement.each.row, measurement.each.column, measurement.each.norm);
            assert_all_kept(variant->invariants, &measurement);
        }
    }
}

/* Products over 48 sublayers keep them, too, and what their singular values cannot be below. */
UNIT_TEST(products_over_48_sublayers_keep_invariants) {
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        if (!variant->invariants || !residual_has_matrices(variant)) {
            continue;
        }
        for (int64_t n = 2; n <= RESIDUAL_MAX_STREAMS; n++) {
            if (is_measured(i, n)) {
                check_deep(variant, n, INITIAL); /* where all round alike, and that adds up */
            }
        }
        check_deep(variant, reference_streams(variant, 4), RANDOM);
        check_deep(variant, reference_streams(variant, 4), TRAINED);
    }
}

/* With 6, 7 and 8 streams the weights of 720, 5040 and 40320 permutations are summed; one matrix stays within the
 * tolerance only if their sum is compensated. */
UNIT_TEST(mhc_lite_is_doubly_stochastic_with_many_streams) {
    for (int64_t streams = 6; streams <= RESIDUAL_MAX_STREAMS; streams++) {
        struct model_config config = small_model_config("mhc_lite", streams);
        struct measurement measurement;
        config.n_layer = 1;
        for (enum weights weights = INITIAL; weights <= RANDOM; weights++) {
            measure_model(&config, weights, &measurement);
            assert_kept(config.residual->invariants, &measurement.each);
        }
    }
}

/* The check says which invariant is violated most, and where. */
UNIT_TEST(broken_promise_is_named) {
    struct h_tally tallies[3] = {h_tally_empty, h_tally_empty, h_tally_empty};
    const unsigned shc = residual_find("shc")->invariants, lite = residual_find("mhc_lite")->invariants;
    struct h_measurement statistics = {.tallies = tallies, .sublayers = 2, .invariants = shc};
    for (size_t i = 0; i < 2; i++) {
        tallies[i].row_sum = tallies[i].column_sum = tallies[i].norm = (struct range){1.0 - 9e-6, 1.0 + 9e-6};
        tallies[i].entry = (struct range){-0.25, 1.0};
    }
    assert_int_equal(h_measurement_check(&statistics, ~0u).invariant, 0);
    statistics.invariants = lite;
    struct h_violation violation = h_measurement_check(&statistics, ~0u);
    assert_true(violation.invariant == INVARIANT_SIGN && violation.sublayer == 0 && violation.value == -0.25);
    assert_int_equal(h_measurement_check(&statistics, ~(unsigned)INVARIANT_SIGN).invariant, 0);
    statistics.invariants = shc;
    tallies[0].norm.maximum = 1.5;
    tallies[1].norm.minimum = 0.25;
    violation = h_measurement_check(&statistics, ~0u);
    assert_true(violation.invariant == INVARIANT_SPECTRAL_NORM && violation.sublayer == 1 &&
                violation.value == 0.25);
    const struct h_measured damaged = {.row_sums = {1.0, (double)NAN}, .column_sums = {1.0, 1.0}};
    h_tally_add(&tallies[0], &damaged, 2);
    h_tally_add(&tallies[0], &(struct h_measured){.row_sums = {1.0, 1.0}, .column_sums = {1.0, 1.0}}, 2);
    violation = h_measurement_check(&statistics, ~0u);
    assert_true(violation.invariant == INVARIANT_ROW_SUMS && violation.sublayer == 0);
}

/* A matrix that shrinks one direction has norm 1, and is not orthogonal. */
UNIT_TEST(broken_orthogonality_is_named) {
    struct h_tally tallies[2] = {h_tally_empty, h_tally_empty};
    const struct h_measurement statistics = {.tallies = tallies,
                                             .sublayers = 1,
                                             .invariants = residual_find("ohc")->invariants};
    struct h_measured measured = {.metrics[H_NORM] = 1.0, .smallest_singular = 1.0};
    h_tally_add(&tallies[0], &measured, 4);
    assert_int_equal(h_measurement_check(&statistics, ~0u).invariant, 0);
    measured.smallest_singular = 0.75;
    h_tally_add(&tallies[0], &measured, 4);
    const struct h_violation violation = h_measurement_check(&statistics, ~0u);
    assert_true(violation.invariant == INVARIANT_ORTHOGONAL && violation.sublayer == 0 && violation.value == 0.75);
    assert_string_equal(violation.name, "singular values");
}

/* ---- what variants are beside their invariants */

static const double ANY = HUGE_VAL;

/* Bounds of a number that is measured of a variant with `least` to `most` streams, each matrix or their product. */
static const struct {
    const char *residual;
    int64_t least, most;
    enum weights weights;
    bool product;
    size_t number; /* its place in struct deviations */
    double from, to;
} properties[] = {
#define EACH(number)    false, offsetof(struct deviations, number)
#define PRODUCT(number) true, offsetof(struct deviations, number)
    /* b_s = 4 everywhere: H = J + tanh(4) (I - J), so that 1 - tanh(4) = 6.7e-4 */
    {"shc", 2, RESIDUAL_MAX_STREAMS, INITIAL, EACH(identity), 6.04e-4, 6.7170e-4},
    {"shc", 4, 4, INITIAL, EACH(smallest), DBL_MIN, ANY},
    {"shc", 4, 4, TRAINED, EACH(smallest), -ANY, -1e-3},
    /* rotations of random parameters turn streams around one another */
    {"shc", 3, RESIDUAL_MAX_STREAMS, RANDOM, EACH(identity), 0.5, ANY},
    {"shc", 3, RESIDUAL_MAX_STREAMS, RANDOM, EACH(smallest), -ANY, -0.1},
    {"mhc", 4, 4, INITIAL, EACH(column), 0.0, RESIDUAL_TOLERANCE},
    {"mhc", 4, 4, INITIAL, EACH(identity), 0.0, 1.3418e-3}, /* 4 exp(-8) */
    /* the identity at first, and unconstrained later */
    {"hc", 4, 4, INITIAL, EACH(identity), 0.0, 0.0},
    {"hc", 4, 4, RANDOM, EACH(norm), 0.5, ANY},
    {"hc", 4, 4, RANDOM, EACH(row), 0.5, ANY},
    {"hc", 4, 4, RANDOM, EACH(column), 0.5, ANY},
    {"hc", 4, 4, TRAINED, EACH(norm), 1e-2, ANY},
    {"identity", 2, RESIDUAL_MAX_STREAMS, RANDOM, EACH(identity), 0.0, 0.0},
    {"identity", 4, 4, TRAINED, PRODUCT(identity), 0.0, 0.0},
    /* streams are turned around one another and subtracted, and sums of rows are anything */
    {"ohc", 4, 4, INITIAL, EACH(identity), 0.0, 0.0},
    {"ohc", 4, 4, RANDOM, EACH(identity), 0.5, ANY},
    {"ohc", 4, 4, RANDOM, EACH(smallest), -ANY, -0.1},
    {"ohc", 4, 4, RANDOM, EACH(row), 0.1, ANY},
    {"ohc", 4, 4, RANDOM, EACH(column), 0.1, ANY},
    {"ohc", 4, 4, TRAINED, EACH(identity), 1e-3, ANY},
};

UNIT_TEST(variants_are_as_their_papers_say) {
    static const char *const names[] = {"at first", "with random parameters", "after training"};
    for (size_t i = 0; i < COUNT(properties); i++) {
        for (int64_t n = properties[i].least; n <= properties[i].most; n++) {
            const struct measurement measurement = measured(properties[i].residual, n, properties[i].weights);
            const struct deviations *one = properties[i].product ? &measurement.product : &measurement.each;
            const double number = *(const double *)((const char *)one + properties[i].number);
            if (!(number >= properties[i].from && number <= properties[i].to)) {
                fail_msg("%s of %d streams %s, row %zu: %g is not in %g .. %g", properties[i].residual, (int)n,
                         names[properties[i].weights], i, number, properties[i].from, properties[i].to);
            }
        }
    }
    assert_true(measured("hc", 4, RANDOM).product.norm > measured("hc", 4, RANDOM).each.norm);
}

/* Sinkhorn-Knopp ends with rows, so 20 iterations leave columns behind: the paper's point against it. */
UNIT_TEST(mhc_columns_are_not_exact) {
    for (int64_t streams = 2; streams <= RESIDUAL_MAX_STREAMS; streams += 2) {
        const struct measurement measurement = measured("mhc", streams, RANDOM);
        assert_true(streams == 2 || measurement.each.column > 100.0 * measurement.each.row);
    }
    const struct measurement deep = measured_deep("mhc", 4, RANDOM);
    assert_true(deep.product.column > 100.0 * deep.product.row);
}

/* What holds of rows holds of columns then, and the other way round. */
UNIT_TEST(transposed_matrices_turn_invariants) {
    const struct residual_variant *variant;
    struct measurement measurement;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        if (residual_has_matrices(variant) && !variant->has_fractions) {
            struct model_config config = small_model_config(variant->name, reference_streams(variant, 4));
            config.h_res_transposed = true;
            measure_model(&config, RANDOM, &measurement);
            assert_all_kept(residual_invariants(variant, true), &measurement);
            assert_true(strcmp(variant->name, "mhc") != 0 ||
                        measurement.each.row > 100.0 * measurement.each.column);
        }
    }
}

/* Each stream keeps nine tenths of itself at least, at first nearly all. */
UNIT_TEST(wide_with_retention_shrinks_streams) {
    for (enum weights weights = INITIAL; weights <= TRAINED; weights++) {
        struct measurement measurement;
        struct model_config config = small_model_config("wide", 4);
        reference_set(&config.settings, "wide_retention", true);
        measure_model(&config, weights, &measurement);
        assert_all_kept(config.residual->invariants, &measurement);
        assert_true(measurement.each.norm > 1e-4 && measurement.each.singular > 0.9);
        assert_true(weights != INITIAL || measurement.each.identity < 0.0011);
    }
}

/* ---- static and unmixed matrices */

/* All of H of a sublayer is that of its first token. */
static void assert_same_for_all_tokens(struct small_model *model, int64_t sublayer) {
    const size_t row = model->gpt.operations.h_row;
    FREED float *h = small_model_matrices(model, sublayer);
    for (size_t token = 1; token < gpt_tokens(&model->gpt); token++) {
        assert_memory_equal(h, h + token * row, row * sizeof *h);
    }
}

UNIT_TEST(static_matrices_keep_invariants_and_depend_on_no_token) {
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        const bool is_dynamic = residual_has_matrices(variant) && !residual_is_fixed(variant);
        for (enum weights weights = INITIAL; weights <= TRAINED && is_dynamic; weights++) {
            struct model_config config = small_model_config(variant->name, reference_streams(variant, 4));
            struct measurement measurement;
            SMALL_MODEL model;
            config.hc_dynamic = false;
            config.read_delay = !variant->has_fractions && i % 2;
            create_with(&model, &config, ELEMENT_FP32, weights);
            measure(&model, &measurement);
            assert_all_kept(variant->invariants, &measurement);
            for (int64_t sublayer = 0; sublayer < 2 * config.n_layer; sublayer++) {
                assert_same_for_all_tokens(&model, sublayer);
            }
        }
    }
}

/* From sublayer hc_until on H_res is the identity, bit by bit, and before it is not. */
UNIT_TEST(unmixed_sublayers_keep_their_streams) {
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        struct model_config config = small_model_config(variant->name, reference_streams(variant, 4));
        config.hc_until = 1 + (int64_t)i % 3;
        config.hc_dynamic = residual_is_fixed(variant) || i % 2;
        config.h_res_transposed = !variant->has_fractions && i % 3 == 0;
        reference_set(&config.settings, "wide_retention", true);
        if (!residual_mixes(variant, &config.settings)) {
            continue;
        }
        SMALL_MODEL model;
        create_with(&model, &config, i % 2 ? ELEMENT_BF16 : ELEMENT_FP32, RANDOM);
        const size_t n = (size_t)config.n_streams, row = model.gpt.operations.h_row;
        for (int64_t sublayer = 0; sublayer < 2 * config.n_layer; sublayer++) {
            FREED float *h = small_model_matrices(&model, sublayer);
            for (size_t token = 0; token < gpt_tokens(&model.gpt); token++) {
                const float *res = h + (token + 1) * row - n * n;
                bool is_identity = true;
                for (size_t k = 0; k < n * n; k++) {
                    is_identity &= res[k] == (k % (n + 1) == 0 ? 1.0f : 0.0f);
                }
                assert_int_equal(is_identity, sublayer >= config.hc_until);
            }
        }
    }
}

/* With hc_until = 2 n_layer all sublayers mix their streams, and nothing is planned for others. */
UNIT_TEST(kernels_of_unmixed_sublayers_are_there_only_if_some_are) {
    for (int64_t until = 3; until <= 4; until++) {
        struct model_config config = small_model_config("mhc", 4);
        config.hc_until = until;
        SMALL_MODEL model;
        small_model_create(&model, compute, &config, 1);
        assert_int_equal(model.gpt.unmixed.compute != NULL, until < 4);
        small_model_backward(&model, (struct gpt_pass){.dropout = false});
    }
}

/* ---- gates */

/* The order of h: n of H_pre, n of H_post, n x n of H_res; pre and post within their ranges at every n. */
UNIT_TEST(gates_are_in_their_ranges) {
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        if (!residual_has_matrices(variant) || variant->norm_per_stream) {
            continue; /* hc has gates of its own, without bounds */
        }
        const struct model_config config = small_model_config(variant->name, reference_streams(variant, 3));
        const size_t n = (size_t)config.n_streams, row = n * (n + 2);
        SMALL_MODEL model;
        small_model_create(&model, compute, &config, 3);
        small_model_randomise(&model, 3);
        small_model_forward(&model, (struct gpt_pass){.dropout = false});
        FREED float *h = small_model_matrices(&model, 1);
        for (size_t at = 0; at < gpt_tokens(&model.gpt) * row; at++) {
            const float highest = at % row < n ? 1.0f : 2.0f;
            assert_true(at % row >= 2 * n || (h[at] > 0.0f && h[at] < highest));
        }
    }
}

/* Gates of value embeddings, which the last layer has, and every other one before it. */
UNIT_TEST(gates_of_value_embeds_are_between_0_and_3) {
    for (enum weights weights = INITIAL; weights <= TRAINED; weights++) {
        struct model_config config = small_model_config("mudd", 1);
        SMALL_MODEL model;
        small_model_set(&config, "n_layer=3 value_embeds=true");
        create_with(&model, &config, ELEMENT_FP32, weights);
        for (int64_t sublayer = 0; sublayer < 6; sublayer++) {
            const struct buffer *gates = model.gpt.sublayers[sublayer].value_gates;
            float values[3 * 8 * 2];
            assert_int_equal(gates != NULL, sublayer % 4 == 0);
            if (gates) {
                require(buffer_read(compute, gates, 0, values, sizeof values));
                for (size_t i = 0; i < COUNT(values); i++) {
                    assert_true(values[i] > 0.0f && values[i] < 3.0f);
                }
            }
        }
    }
}

/* Sums over a token's channels. */
static double product_of(const float *x, const float *y, size_t channels) {
    double sum = 0.0;
    for (size_t c = 0; c < channels; c++) {
        sum += (double)x[c] * (double)y[c];
    }
    return sum;
}

/* laurel's x' = a o + b x in the last sublayer: a and b of each token by least squares. */
static void check_weights(struct small_model *model, bool are_equal) {
    const struct sublayer *last = &model->gpt.sublayers[2 * model->gpt.config.n_layer - 1];
    const struct buffer *const buffers[] = {last->mix.streams, last->mix.output, last[1].mix.streams};
    const size_t channels = (size_t)model->gpt.config.n_embd, elements = gpt_tokens(&model->gpt) * channels;
    FREED float *values = malloc(3 * elements * sizeof *values);
    for (size_t i = 0; i < COUNT(buffers); i++) {
        require(buffer_read(compute, buffers[i], 0, values + i * elements, elements * sizeof *values));
    }
    for (const float *x = values; x < values + elements; x += channels) {
        const float *o = x + elements, *next = o + elements;
        const double xx = product_of(x, x, channels), xo = product_of(x, o, channels),
                     oo = product_of(o, o, channels), xn = product_of(x, next, channels),
                     on = product_of(o, next, channels), determinant = xx * oo - xo * xo;
        const double a = (on * xx - xn * xo) / determinant, b = (xn * oo - on * xo) / determinant;
        assert_true(a > 0.0 && a < 2.0 && b > 0.0 && b < 2.0);
        assert_within("a + b", fabs(a + b - 2.0), 1e-4);
        assert_true((fabs(a - 1.0) < 1e-4) == are_equal);
    }
}

UNIT_TEST(weights_of_branch_and_stream_sum_to_2) {
    for (enum weights weights = INITIAL; weights <= TRAINED; weights++) {
        struct model_config config = small_model_config("laurel", 1);
        SMALL_MODEL model;
        small_model_set(&config, "laurel_form=rw");
        create_with(&model, &config, ELEMENT_FP32, weights);
        check_weights(&model, weights == INITIAL);
    }
}

/* Stream l mod n is read and written most at first. */
UNIT_TEST(gates_start_at_one_stream) {
    const struct model_config config = small_model_config("shc", 3);
    SMALL_MODEL model;
    small_model_create(&model, compute, &config, 3);
    small_model_forward(&model, (struct gpt_pass){.dropout = false});
    for (int64_t sublayer = 0; sublayer < 4; sublayer++) {
        FREED float *h = small_model_matrices(&model, sublayer);
        for (int64_t s = 0; s < 3; s++) {
            const double pre = 1.0 / (1.0 + exp(s == sublayer % 3 ? -1.0 : 1.0));
            assert_within("h_pre", fabs((double)h[s] - pre), 1e-6);
            assert_within("h_post", fabs((double)h[3 + s] - 2.0 * pre), 2e-6);
        }
    }
}

/* ---- the measuring itself */

UNIT_TEST(effective_rank_counts_the_streams_in_use) {
    /* eigenvalues 3 and 1: shares 3/4 and 1/4 */
    const double one[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, all[9] = {2, 0, 0, 0, 2, 0, 0, 0, 2},
                 some[4] = {2.0, 1.0, 1.0, 2.0}, none[4] = {0};
    assert_within("one", fabs(stream_matrix_effective_rank(one, 3) - 1.0), 1e-13);
    assert_within("all", fabs(stream_matrix_effective_rank(all, 3) - 3.0), 1e-13);
    assert_within("some", fabs(stream_matrix_effective_rank(some, 2) - 4.0 / pow(3.0, 0.75)), 1e-13);
    assert_true(stream_matrix_effective_rank(none, 2) == 0.0);
}

/* What runs report is what is measured here. */
UNIT_TEST(reported_statistics_agree) {
    static const char *const variants[] = {"hc", "mhc", "shc"};
    for (size_t i = 0; i < 3; i++) {
        const struct model_config config = small_model_config(variants[i], 4);
        SMALL_MODEL model;
        struct measurement measurement;
        struct h_measurement reported;
        small_model_create(&model, compute, &config, 3);
        small_model_randomise(&model, 7);
        small_model_forward(&model, (struct gpt_pass){.dropout = false});
        measure(&model, &measurement);
        require(h_measurement_of_pass(&reported, &model.gpt, &ranks_alone));
        const struct deviations *each = &measurement.each, *product = &measurement.product;
        const struct h_tally *composite = &reported.tallies[reported.sublayers];
        assert_true(reported.each.entry.minimum == each->smallest);
        assert_within("rows",
                      fabs(fmax(reported.each.row_sum.maximum - 1.0, 1.0 - reported.each.row_sum.minimum) -
                           each->row),
                      1e-9);
        assert_within("product's columns",
                      fabs(fmax(composite->column_sum.maximum - 1.0, 1.0 - composite->column_sum.minimum) -
                           product->column),
                      1e-9);
        assert_true(h_tally_mean(&reported.each, H_NORM) <= reported.each.norm.maximum &&
                    reported.each.norm.maximum <= 1.0 + each->norm + 1e-12);
        assert_true(composite->norm.maximum <= 1.0 + product->norm + 1e-12);
        assert_true(reported.row_maximum_p10 <= reported.row_maximum_median &&
                    reported.row_maximum_median <= reported.row_maximum_p90 &&
                    reported.row_maximum_p90 <= each->largest);
        h_measurement_end(&reported);
    }
}

SMALL_MODEL_TEST_MAIN(compute)
