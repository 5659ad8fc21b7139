#include "src/operations/muon.h"
#include "runtime/gemm/gemm.h"
#include "runtime/options/option_rows.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/model/optimizer.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* ---- settings */

#define USUAL_COEFFICIENTS "3.4445, -4.7750, 2.0315" /* singular values come to 0.68 .. 1.13 */
#define LARGEST_ITERATED   4.0

static void append_options(struct optimizer_settings *settings, struct option_table *table) {
    const struct option_spec rows[] = {
        HEADING("Muon, of the matrices inside the model; AdamW takes the other parameters"),
        FLOAT("muon_learning_rate", &settings->muon_learning_rate, "-1", -1, 10,
              "highest learning rate of the matrices, with the same schedule (-1: learning_rate; 0: they stay)"),
        FLOAT("muon_weight_decay", &settings->muon_weight_decay, "-1", -1, 10,
              "weight decay of the matrices (-1: weight_decay)"),
        FLOAT("muon_momentum", &settings->muon_momentum, "0.95", 0, 0.999999, "decay of the momentum"),
        CHOICE(
            "muon_scale", &settings->muon_scale, "match_rms_adamw", MUON_SCALE_WORDS,
            "factor of an update of R rows and C columns. match_rms_adamw: 0.2 sqrt(max(R, C)), which suits rates "
            "of AdamW; original: sqrt(max(1, R / C)), which suits rates like 0.02"),
        INT("muon_steps", &settings->muon_steps, "5", 1, 100, "Newton-Schulz iterations"),
        TEXT("muon_coefficients", &settings->muon_coefficients, USUAL_COEFFICIENTS,
             "a, b, c of the iteration X = (a I + b A + c A A) X with A = X X^T"),
        CHOICE("muon_dtype", &settings->muon_dtype, "auto", MUON_DTYPE_WORDS,
               "type of the iterations' matrices. bf16, with --dtype bf16, is fast on matrix cores and changes an "
               "update by a few per cent; auto: bf16 there, else fp32"),
    };
    options_append(table, rows, COUNT(rows));
}

/* The three numbers of muon_coefficients; NULL: the usual ones. */
static int read_coefficients(const char *text, float coefficients[3]) {
    const char *rest = text ? text : USUAL_COEFFICIENTS;
    for (int i = 0; i < 3; i++) {
        char *end;
        const double number = strtod(rest, &end);
        if (end == rest || !isfinite(number) || fabs(number) > 1e6 || (i < 2 && *end != ',') || (i == 2 && *end)) {
            return error_set(
                "muon_coefficients = '%s': three numbers with commas are needed, like " USUAL_COEFFICIENTS, text);
        }
        coefficients[i] = (float)number;
        rest = end + 1;
    }
    return 0;
}

static int check(const struct optimizer_settings *settings) {
    enum { VALUES = 1000 };
    float coefficients[3];
    if (optimizer_check_following("muon_learning_rate", settings->muon_learning_rate, "learning_rate") ||
        optimizer_check_following("muon_weight_decay", settings->muon_weight_decay, "weight_decay") ||
        read_coefficients(settings->muon_coefficients, coefficients)) {
        return -1;
    }
    for (int i = 1; i <= VALUES; i++) { /* what singular values from 0 to 1 become */
        double value = (double)i / VALUES;
        for (int64_t step = 0; step < settings->muon_steps; step++) {
            const double square = value * value;
            value *= coefficients[0] + square * (coefficients[1] + square * coefficients[2]);
        }
        if (!(fabs(value) <= LARGEST_ITERATED)) {
            return error_set("muon_coefficients = '%s' with muon_steps = %" PRId64
                             ": singular values of a matrix would grow from at most 1 to more than %g",
                             settings->muon_coefficients ? settings->muon_coefficients : USUAL_COEFFICIENTS,
                             settings->muon_steps, LARGEST_ITERATED);
        }
    }
    return 0;
}

/* ---- matrices */

static double cost(const struct optimizer_settings *settings, uint64_t rows, uint64_t columns) {
    const enum element_type type = settings->muon_dtype == MUON_BF16 ? ELEMENT_BF16 : ELEMENT_FP32;
    return newton_schulz_flops(type, rows, columns, settings->muon_steps);
}

static enum element_type type_of(const struct optimizer_settings *settings, const struct compute *compute,
                                 enum element_type activations) {
    const bool bf16 = settings->muon_dtype == MUON_AUTO
                          ? activations == ELEMENT_BF16 && gemm_facts(compute).uses_matrix_cores
                          : settings->muon_dtype == MUON_BF16;
    return bf16 ? ELEMENT_BF16 : ELEMENT_FP32;
}

static void set_type(struct optimizer_settings *settings, enum element_type type) {
    settings->muon_dtype = type == ELEMENT_BF16 ? MUON_BF16 : MUON_FP32;
}

static int describe(const struct gpt *gpt, struct operation_shape *shape) {
    shape->muon = true;
    shape->muon_type = type_of(&gpt->options.optimizer, gpt->compute, gpt->options.type);
    if (shape->muon_type == ELEMENT_BF16 && gpt->options.type != ELEMENT_BF16) {
        return error_set("muon_dtype = bf16 needs dtype = bf16: give --muon-dtype auto, or fp32");
    }
    return 0;
}

/* ---- memory */

/* Small matrices of one shape are batches of at most so many elements: few launches, which leave no core without
 * work, and scratch that stays in caches. */
enum { BATCH_ELEMENTS = 1 << 18 };

static void plan(struct gpt *gpt) {
    const char *const group = "Muon's matrices";
    const enum element_type type = gpt->operations.shape.muon_type;
    struct muon_scratch *scratch = gpt->scratch.of_optimizer = memory_zeroed(1, sizeof *scratch);
    uint64_t all = 0, elements = 1, squares = 1; /* of all, and of the largest that a step updates */
    for (size_t i = 0; i < gpt->parameters.count; i++) {
        const struct parameter *parameter = &gpt->parameters.table[i];
        for (int k = 0; k < PARAMETER_MOST_MATRICES && parameter->matrices[k] && !parameter->frozen; k++) {
            const uint64_t rows = parameter->matrices[k], columns = parameter->shape[1];
            const uint64_t side = size_smaller(rows, columns);
            all += rows * columns;
            elements = size_larger(elements, rows * columns);
            squares = size_larger(squares, side * side);
        }
    }
    const uint64_t of_batch = size_smaller(all, BATCH_ELEMENTS);
    elements = (size_larger(elements, of_batch) + 63) / 64 * 64;
    squares = size_larger(squares, of_batch);
    scratch->x[0] = memory_plan_add(&gpt->plan, group, elements, type);
    scratch->x[1] = memory_plan_add(&gpt->plan, group, elements, type);
    scratch->update =
        type == ELEMENT_FP32 ? scratch->x[1] : memory_plan_add(&gpt->plan, group, elements, ELEMENT_FP32);
    scratch->gram = memory_plan_add(&gpt->plan, group, squares, type);
    scratch->square = memory_plan_add(&gpt->plan, group, squares, ELEMENT_FP32);
    for (size_t i = 0; i < (type == ELEMENT_FP32 ? COUNT(scratch->polynomial) : 1); i++) {
        scratch->polynomial[i] = memory_plan_add(&gpt->plan, group, squares, type);
    }
    scratch->sums = memory_plan_add(&gpt->plan, group, elements / 64, ELEMENT_FP32);
    scratch->norms = memory_plan_add(&gpt->plan, group, MUON_MOST_MATRICES, ELEMENT_FP32);
}

/* ---- a step */

struct matrix_ref {
    uint64_t rows, columns, first;
};

static int by_shape(const void *a, const void *b) {
    const struct matrix_ref *one = a, *other = b;
    if (one->rows != other->rows) {
        return one->rows > other->rows ? 1 : -1;
    }
    if (one->columns != other->columns) {
        return one->columns > other->columns ? 1 : -1;
    }
    return (one->first > other->first) - (one->first < other->first);
}

/* The matrices in the range, those of one shape together; the caller frees them. */
static struct matrix_ref *list_matrices(const struct parameters *parameters, struct optimizer_range range,
                                        size_t *count) {
    struct matrix_ref *matrices = memory_zeroed(parameters->count * PARAMETER_MOST_MATRICES, sizeof *matrices);
    *count = 0;
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        uint64_t first = parameter->offset;
        if (parameter->frozen || first < range.first || first >= range.first + range.count) {
            continue;
        }
        for (int k = 0; k < PARAMETER_MOST_MATRICES && parameter->matrices[k]; k++) {
            matrices[(*count)++] = (struct matrix_ref){parameter->matrices[k], parameter->shape[1], first};
            first += parameter->matrices[k] * parameter->shape[1];
        }
    }
    qsort(matrices, *count, sizeof *matrices, by_shape);
    return matrices;
}

static void step_matrices(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration,
                          struct optimizer_range range) {
    const struct parameters *parameters = &gpt->parameters;
    const struct muon_scratch *scratch = gpt->scratch.of_optimizer;
    const bool has_decay = settings->muon_weight_decay >= 0.0, is_original = settings->muon_scale == MUON_ORIGINAL;
    const struct update_arenas arenas = {.weights = parameters->weights,
                                         .gradients = parameters->gradients,
                                         .first_moments = parameters->states[0],
                                         .weights_lowp = parameters->weights_lowp};
    struct update_settings step = {.momentum = (float)settings->muon_momentum,
                                   .rate =
                                       (float)optimizer_rate_of(settings, iteration, settings->muon_learning_rate),
                                   .decay =
                                       (float)(has_decay ? settings->muon_weight_decay : settings->weight_decay),
                                   .clip = (float)settings->grad_clip,
                                   .unscale = 1.0f / gpt->loss_scale.scale,
                                   .key = rounding_key(gpt, iteration)};
    float coefficients[3];
    read_coefficients(settings->muon_coefficients, coefficients);
    size_t count;
    struct matrix_ref *matrices = list_matrices(parameters, range, &count);
    optimizer_adamw.step(gpt, settings, iteration, range);
    for (size_t i = 0; i < count;) {
        struct muon_batch batch = {matrices[i].rows, matrices[i].columns,
                                   .state_shift = range.states_first[0] - range.first};
        const double rows = (double)batch.rows, columns = (double)batch.columns;
        const uint64_t elements = batch.rows * batch.columns;
        const size_t most = elements % 64 ? 1 : size_smaller(BATCH_ELEMENTS / elements, MUON_MOST_MATRICES);
        do {
            batch.first[batch.count++] = matrices[i++].first;
        } while (i < count && batch.count < most && matrices[i].rows == batch.rows &&
                 matrices[i].columns == batch.columns);
        step.scale = (float)(is_original ? sqrt(fmax(1.0, rows / columns)) : 0.2 * sqrt(fmax(rows, columns)));
        muon_begin(&gpt->operations, &arenas, &batch, &step, scratch, gpt->gradient_norm);
        if (settings->muon_learning_rate < 0.0 || settings->muon_learning_rate > 0.0) {
            const struct buffer *x =
                newton_schulz(&gpt->operations, &batch, settings->muon_steps, coefficients, scratch);
            muon_end(&gpt->operations, &arenas, &batch, &step, x, gpt->gradient_norm);
        } /* else only the momentum changes */
    }
    free(matrices);
}

static const struct optimizer_matrices matrices = {.state = "momentum_buffer",
                                                   .cost = cost,
                                                   .type = type_of,
                                                   .set_type = set_type};

const struct optimizer optimizer_muon = {.name = "muon",
                                         .updates = "matrices inside the model, with adamw for the others",
                                         .states = {"exp_avg", "exp_avg_sq"},
                                         .options = append_options,
                                         .check = check,
                                         .describe = describe,
                                         .plan = plan,
                                         .step = step_matrices,
                                         .matrices = &matrices,
                                         .others = &optimizer_adamw};
