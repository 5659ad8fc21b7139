/* Every operation of src/operations/operations.h on one device: forward against the plain reference in double,
 * backward against central differences of that reference. Cases are in tests/operations/cases_<subject>.c.
 *
 *   test_operations [--device WORD] [--lanes N] [--vector N] [--tiny] [--filter TEXT] [--skip TEXT]...
 *                   [--cache DIR] [--dtype fp32|bf16|fp16]
 *
 * Exit status: 0, 1 when a case failed, 77 when there is no such device. */
#include "runtime/device/compute.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/random.h"
#include "src/operations/kernels.h"
#include "src/programs/program.h"
#include "tests/operations/operation_bench.h"
#include "tests/support/lanes.h"
#include "tests/support/rounding.h"
#include <stdio.h>

enum { EXIT_NO_DEVICE = 77, SAMPLES = 64, DIRECTIONS = 3, SHAPES_MAX = 384 };

/* Of float arithmetic. Where a result, or something on the way to it, is stored in 16 bits, each such rounding adds
 * the type's unit roundoff (2^-8 for bf16, 2^-11 for fp16: tests/support/rounding.h), as errors are relative:
 * fields say how many an output has; a gradient has at most BACKWARD_ROUNDINGS: itself, the gradient in between,
 * the forward pass's output. */
static const double FORWARD_TOLERANCE = 1e-5;
static const double BACKWARD_TOLERANCE = 1e-4;
static const double BACKWARD_ROUNDINGS = 3.0;
static const double STEP = 1e-5; /* of central differences */

struct settings {
    char *device, *cache, *filter; /* part of names */
    struct option_texts skip;      /* parts of names */
    int type;                      /* enum element_type, of activations */
    int64_t lanes, vector;         /* in place of those that the compute chose; 0: none */
    bool tiny;
};

/* The operations of every shape so far: cases share them. */
struct shape_cache {
    struct operation_shape shapes[SHAPES_MAX];
    struct operations operations[SHAPES_MAX];
    size_t count;
};

struct outcome {
    char text[2048]; /* " name error" for all that was compared */
    bool failed;
};

/* ---- comparing */

static void note(struct outcome *outcome, const char *name, double error, double tolerance) {
    const size_t used = strlen(outcome->text);
    const bool wrong = !(error <= tolerance);
    snprintf(outcome->text + used, sizeof outcome->text - used, " %s %.1e%s", name, error, wrong ? "(!)" : "");
    outcome->failed = outcome->failed || wrong;
}

static void complain(struct outcome *outcome, const char *name, const char *what) {
    const size_t used = strlen(outcome->text);
    snprintf(outcome->text + used, sizeof outcome->text - used, " %s: %s", name, what);
    outcome->failed = true;
}

static double root_mean_square(const double *x, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        sum += x[i] * x[i];
    }
    return sqrt(sum / (double)(count ? count : 1));
}

/* The largest error, each relative to its own size plus the size that numbers here have in general. NaN if any is.
 */
static double largest_error(const double *actual, const double *expected, size_t count) {
    const double size = root_mean_square(expected, count);
    double largest = 0.0;
    for (size_t i = 0; i < count; i++) {
        const double error = fabs(actual[i] - expected[i]);
        if (!isfinite(error)) {
            return NAN;
        }
        largest = error > 0.0 ? fmax(largest, error / (fabs(expected[i]) + size + 1e-30)) : largest;
    }
    return largest;
}

/* Downloads `count` floats and the guard behind them, which must not have been written. NULL with a complaint. */
static double *download_guarded(struct bench *bench, const struct buffer *buffer, const struct field *field,
                                struct outcome *outcome) {
    double *values = memory_allocate(field->count + FIELD_GUARD, sizeof *values);
    if (bench_download(bench->operations->compute, buffer, 0, values, field->count + FIELD_GUARD)) {
        complain(outcome, field->name, error_text());
        free(values);
        return NULL;
    }
    for (size_t i = 0; i < FIELD_GUARD; i++) {
        if (!isnan(values[field->count + i])) {
            complain(outcome, field->name, "written past its end");
            break;
        }
    }
    return values;
}

/* ---- forward */

static void compare_output(struct bench *bench, struct field *field, double tolerance, struct outcome *outcome) {
    double *actual = download_guarded(bench, &field->buffer, field, outcome);
    if (actual) {
        note(outcome, field->name, largest_error(actual, field->values, field->count), tolerance);
        memcpy(field->values, actual, field->count * sizeof *actual);
    }
    free(actual);
}

/* Leaves the device's outputs in the fields' values. */
static void check_forward(struct bench *bench, const struct operation_case *test, double slack,
                          struct outcome *outcome) {
    test->test->reference(bench);
    test->test->forward(bench);
    for (size_t i = 0; i < bench->field_count; i++) {
        struct field *field = &bench->fields[i];
        if ((field->kind == FIELD_OUTPUT || field->kind == FIELD_BYPRODUCT) && !field->implied) {
            const double rounded = field->roundings * rounding_unit(bench->shape.type);
            compare_output(bench, field, slack * FORWARD_TOLERANCE + rounded, outcome);
        }
    }
    const char *wrong = test->test->check ? test->test->check(bench) : NULL;
    if (wrong) {
        complain(outcome, "check", wrong);
    }
}

/* ---- backward */

/* The loss whose gradient the backward pass computes: the outputs times their cotangents. */
static double loss(struct bench *bench, const struct operation_test *test) {
    double sum = 0.0;
    test->reference(bench);
    for (size_t i = 0; i < bench->field_count; i++) {
        const struct field *field = &bench->fields[i];
        for (size_t k = 0; k < field->count && field->kind == FIELD_OUTPUT; k++) {
            sum += field->cotangents[k] * field->values[k];
        }
    }
    return sum;
}

/* The derivative along element `index`, or with index == count along the direction of signs drawn from `key`. */
static double difference(struct bench *bench, const struct operation_test *test, struct field *field, size_t index,
                         uint64_t key) {
    double *kept = malloc((field->count + 1) * sizeof *kept), losses[2];
    memcpy(kept, field->values, field->count * sizeof *kept);
    for (int side = 0; side < 2; side++) {
        const double step = side == 0 ? STEP : -STEP;
        for (size_t i = 0; i < field->count; i++) {
            const double along = index < field->count ? i == index : (double)random_below(key, i, 2) * 2.0 - 1.0;
            field->values[i] = kept[i] + step * along;
        }
        losses[side] = loss(bench, test);
    }
    memcpy(field->values, kept, field->count * sizeof *kept);
    free(kept);
    return (losses[0] - losses[1]) / (2.0 * STEP);
}

/* Elements one by one: all, or a random sample. */
static double element_errors(struct bench *bench, const struct operation_test *test, struct field *field,
                             const double *gradient, size_t samples) {
    const size_t count = field->count <= 2 * samples ? field->count : samples;
    double *actual = calloc(count + 1, sizeof *actual), *expected = calloc(count + 1, sizeof *expected);
    for (size_t i = 0; i < count; i++) {
        const size_t index = count == field->count ? i : random_below(random_key(11, field->name), i, field->count);
        actual[i] = gradient[index];
        expected[i] = difference(bench, test, field, index, 0);
    }
    const double error = largest_error(actual, expected, count);
    free(actual);
    free(expected);
    return error;
}

/* Random directions see every element. Their size is that of a sum of as many numbers of either sign. */
static double direction_errors(struct bench *bench, const struct operation_test *test, struct field *field,
                               const double *gradient) {
    const double size = root_mean_square(gradient, field->count) * sqrt((double)field->count);
    double largest = 0.0;
    for (uint64_t direction = 0; direction < DIRECTIONS; direction++) {
        const uint64_t key = random_key(direction, field->name);
        double along = 0.0;
        for (size_t i = 0; i < field->count; i++) {
            along += gradient[i] * ((double)random_below(key, i, 2) * 2.0 - 1.0);
        }
        const double error = fabs(along - difference(bench, test, field, field->count, key));
        if (!isfinite(error)) {
            return NAN;
        }
        largest = error > 0.0 ? fmax(largest, error / (size + 1e-30)) : largest;
    }
    return largest;
}

static void compare_gradient(struct bench *bench, const struct operation_case *test, struct field *field,
                             const double *gradient, double slack, struct outcome *outcome) {
    const size_t samples = test->samples ? test->samples : SAMPLES;
    const double rounded = test->rounded_slack > 0.0 ? test->rounded_slack : slack;
    double error = element_errors(bench, test->test, field, gradient, samples);
    if (field->count > 2 * samples && !isnan(error)) {
        const double along = direction_errors(bench, test->test, field, gradient);
        error = isnan(along) ? along : fmax(error, along);
    }
    char name[64];
    snprintf(name, sizeof name, "d_%s", field->name);
    note(outcome, name, error,
         slack * BACKWARD_TOLERANCE + rounded * BACKWARD_ROUNDINGS * rounding_unit(bench->shape.type));
}

/* Leaves in the arena what was added to its prefill, or written over it. */
static void take_prefill(const struct bench *bench, double *arena) {
    for (size_t i = 0; i < bench->arena_count; i++) {
        arena[i] -= (double)bench_prefill(i);
    }
    for (size_t i = 0; i < bench->field_count && !bench->accumulate; i++) {
        const struct field *field = &bench->fields[i];
        for (size_t k = field->offset; k < field->offset + field->written; k++) {
            arena[k] += (double)bench_prefill(k);
        }
    }
}

/* Gradients of parameters are what was added to the prefilled arena, or written; all else in it is as it was. */
static void compare_arena(struct bench *bench, const struct operation_case *test, double slack,
                          struct outcome *outcome) {
    double *arena = memory_allocate(bench->arena_count, sizeof *arena);
    if (bench_download(bench->operations->compute, &bench->gradients, 0, arena, bench->arena_count)) {
        complain(outcome, "gradients", error_text());
        free(arena);
        return;
    }
    take_prefill(bench, arena);
    for (size_t i = 0; i < bench->field_count; i++) {
        struct field *field = &bench->fields[i];
        if (field->kind == FIELD_PARAMETER && !field->constant) {
            compare_gradient(bench, test, field, arena + field->offset, slack, outcome);
            memset(arena + field->offset, 0, field->count * sizeof *arena);
        }
    }
    for (size_t i = 0; i < bench->arena_count; i++) {
        if (arena[i] != 0.0) {
            complain(outcome, "gradients", "changed where nothing should be added");
            break;
        }
    }
    free(arena);
}

static void check_backward(struct bench *bench, const struct operation_case *test, double slack,
                           struct outcome *outcome) {
    test->test->backward(bench);
    for (size_t i = 0; i < bench->field_count; i++) {
        struct field *field = &bench->fields[i];
        if (field->kind != FIELD_INPUT || field->constant) {
            continue;
        }
        double *gradient = download_guarded(bench, &field->derivative, field, outcome);
        if (gradient) {
            compare_gradient(bench, test, field, gradient, slack, outcome);
        }
        free(gradient);
    }
    compare_arena(bench, test, slack, outcome);
}

/* ---- cases */

static bool same_shape(const struct operation_shape *a, const struct operation_shape *b) {
    return a->streams == b->streams && a->channels == b->channels && a->heads == b->heads &&
           a->kv_heads == b->kv_heads && a->qk_norm == b->qk_norm && a->head_size == b->head_size &&
           a->vocabulary == b->vocabulary && a->bias == b->bias && a->head_bias == b->head_bias &&
           a->embed_norm == b->embed_norm && a->norm_sum == b->norm_sum && a->scaled == b->scaled &&
           a->activation == b->activation && a->type == b->type && a->norm == b->norm &&
           a->norm_eps == b->norm_eps && a->softcap == b->softcap && a->softcap_kind == b->softcap_kind &&
           a->hc_eps == b->hc_eps && a->hc_norm_eps == b->hc_norm_eps &&
           a->h_res_transposed == b->h_res_transposed && a->gainless == b->gainless &&
           a->collapsed == b->collapsed && a->read_delay == b->read_delay && a->fixed_top == b->fixed_top &&
           a->attn_scale == b->attn_scale && a->position == b->position && a->mlp == b->mlp &&
           a->hidden == b->hidden && a->residual == b->residual && a->frozen_weights == b->frozen_weights &&
           memcmp(&a->settings, &b->settings, sizeof a->settings) == 0;
}

static struct operations *shape_operations(struct shape_cache *cache, struct compute *compute,
                                           const struct operation_shape *shape) {
    for (size_t i = 0; i < cache->count; i++) {
        if (same_shape(&cache->shapes[i], shape)) {
            return &cache->operations[i];
        }
    }
    if (cache->count == SHAPES_MAX) {
        error_set("more than %d shapes", SHAPES_MAX);
        return NULL;
    }
    operations_describe(compute, shape, &cache->operations[cache->count]);
    cache->shapes[cache->count] = *shape;
    return &cache->operations[cache->count++];
}

/* Makes the buffer of partial sums anew, with a guard behind it. */
static int guard_partials(struct operations *operations) {
    struct compute *compute = operations->compute;
    const size_t count = operations_scratch_bytes(operations) / sizeof(float) + FIELD_GUARD;
    buffer_release(compute, &operations->partials);
    return buffer_create(compute, &operations->partials, count * sizeof(float)) ||
           bench_fill(compute, &operations->partials, count, NAN);
}

static void check_partials(struct operations *operations, struct outcome *outcome) {
    const size_t end = operations_scratch_bytes(operations) / sizeof(float);
    double guard[FIELD_GUARD];
    if (bench_download(operations->compute, &operations->partials, end, guard, FIELD_GUARD)) {
        complain(outcome, "partial sums", error_text());
    } else if (!isnan(guard[0]) || !isnan(guard[FIELD_GUARD - 1])) {
        complain(outcome, "partial sums", "written past their end");
        guard_partials(operations); /* others of this shape may be right */
    }
}

/* Of this shape, with the programs that the test runs: compiling is most of the time here. */
static struct operations *operations_of(struct shape_cache *cache, struct compute *compute,
                                        const struct operation_shape *shape, const struct operation_test *test) {
    struct operations *operations = shape_operations(cache, compute, shape);
    const bool is_new = operations && !operations->kernels;
    if (!operations || operations_build(operations, test->file) || (is_new && guard_partials(operations)) ||
        operations_build(operations, "reduce.cl") ||
        (test->other_file && operations_build(operations, test->other_file))) {
        return NULL;
    }
    if (!strcmp(test->file, "attention") && !operations->attention_matrix_cores && attention_open(operations)) {
        return NULL;
    }
    return operations;
}

static void run_bench(struct bench *bench, const struct operation_case *test, struct outcome *outcome) {
    const double slack = test->slack > 0.0 ? test->slack : 1.0;
    check_forward(bench, test, slack, outcome);
    if (test->test->backward && !outcome->failed) {
        check_backward(bench, test, slack, outcome);
    }
    check_partials(bench->operations, outcome);
    if (bench->failed || compute_finish(bench->operations->compute) != 0) {
        complain(outcome, "error", error_text());
    }
}

/* Whether a gradient of the case depends on bench.accumulate. */
static bool sums_gradients(const struct bench *bench) {
    bool sums = false;
    for (size_t i = 0; i < bench->field_count; i++) {
        sums |= bench->fields[i].written > 0;
    }
    return sums;
}

/* Whether it is worth to run it once more without `accumulate`. */
static bool run_once(struct operations *operations, const struct case_shape *shape,
                     const struct operation_case *test, bool accumulate, struct outcome *outcome) {
    struct bench bench;
    if (bench_create(&bench, operations, shape, test->test, 1) != 0) {
        complain(outcome, "error", error_text());
    } else {
        bench.accumulate = accumulate;
        run_bench(&bench, test, outcome);
    }
    const bool again = test->tiny && test->test->backward && sums_gradients(&bench) && !outcome->failed;
    bench_release(&bench);
    return again;
}

/* The kernels that a failed case has launched, each once, in order. */
static void print_kernels(const struct launch_log *log) {
    const char *separator = "       kernels: ";
    for (size_t i = 0; i < log->count; i++) {
        size_t first = 0;
        while (strcmp(log->entries[first].name, log->entries[i].name) != 0) {
            first++;
        }
        if (first == i && log->entries[i].groups > 0) {
            printf("%s%s", separator, log->entries[i].name);
            separator = ", ";
        }
    }
    printf("%s", *separator == ',' ? "\n" : "");
}

/* A failure of the compute would be kept and fail all later cases, with the first one's text. */
static bool run_case(struct shape_cache *cache, struct compute *compute, const struct operation_case *test,
                     enum element_type type) {
    struct case_shape shape = case_shape_complete(test->shape);
    shape.type = type;
    const struct operation_shape operation_shape = case_operation_shape(&shape);
    printf("run    %s (%s)\n", test->test->name, test->what); /* a driver may end the process, or never return */
    fflush(stdout);
    struct operations *operations = operations_of(cache, compute, &operation_shape, test->test);
    struct outcome outcome = {"", false};
    compute->launch_log->count = 0;
    if (!operations) {
        complain(&outcome, "error", error_text());
    } else if (run_once(operations, &shape, test, true, &outcome)) {
        strncat(outcome.text, " written:", sizeof outcome.text - strlen(outcome.text) - 1);
        run_once(operations, &shape, test, false, &outcome);
    }
    printf("%-6s %s (%s)%s\n", outcome.failed ? "FAILED" : "ok", test->test->name, test->what, outcome.text);
    if (outcome.failed) {
        print_kernels(compute->launch_log);
    }
    fflush(stdout);
    return !outcome.failed;
}

static bool is_selected(const struct settings *settings, const struct operation_case *test) {
    char name[160];
    snprintf(name, sizeof name, "%s (%s)", test->test->name, test->what);
    for (size_t i = 0; i < settings->skip.count; i++) {
        if (strstr(name, settings->skip.texts[i])) {
            return false;
        }
    }
    return (!settings->tiny || test->tiny) && strstr(name, settings->filter);
}

static int run_cases(struct compute *compute, const struct settings *settings) {
    static struct shape_cache cache;
    size_t run = 0, failed = 0;
    printf("%s: %u lanes, vectors of %u, activations in %s\n", compute->device.name, compute->lanes,
           compute->vector, element_name((enum element_type)settings->type));
    const struct operation_case *one;
    for (size_t i = 0; (one = operation_case_at(i)); i++) {
        if (is_selected(settings, one) && !(one->needs_lanes && compute->lanes == 1)) {
            run++;
            failed += !run_case(&cache, compute, one, (enum element_type)settings->type);
        }
    }
    for (size_t i = 0; i < cache.count; i++) {
        operations_release(&cache.operations[i]);
    }
    printf("%zu cases, %zu failed; %zu shapes, %u programs compiled, %u from the cache, %u refused at first\n", run,
           failed, cache.count, compute->programs_compiled, compute->programs_cached, compute->programs_refused);
    return failed == 0 && run > 0 && compute->programs_refused == 0 ? 0 : 1;
}

/* On the device that the settings name. */
static int run(const struct settings *settings) {
    const struct compute_options wanted = {.device = settings->device,
                                           .cache_dir = settings->cache,
                                           .log_launches = true};
    struct device device;
    struct compute *compute;
    if (device_choose(settings->device, 0, &device) != 0) {
        printf("SKIPPED: %s\n", error_text());
        return EXIT_NO_DEVICE;
    }
    if (gemm_compute_open(&compute, &wanted) != 0) {
        return PROGRAM_FAILED;
    }
    compute->lanes = settings->lanes ? (unsigned)settings->lanes : compute->lanes;
    compute->vector = settings->vector ? (unsigned)settings->vector : compute->vector;
    const int status =
        compute->lanes > 1 && !lanes_can_be_tried(&compute->device) ? EXIT_NO_DEVICE : run_cases(compute, settings);
    compute_close(compute);
    return status;
}

int main(int argc, char **argv) {
    struct settings settings = {0};
    struct option_spec options[] = {
        TEXT("device", &settings.device, "pocl", "the device"),
        INT("lanes", &settings.lanes, "0", 0, 1024, "work-items of a row (0: as the device has them)"),
        INT("vector", &settings.vector, "0", 0, 16, "width of vectors (0: as the device has them)"),
        TEXT("cache", &settings.cache, "", "folder in which compiled programs are kept"),
        CHOICE("dtype", &settings.type, "fp32", "fp32|bf16|fp16", "of activations"),
        TEXT("filter", &settings.filter, "", "run cases that have this in their names"),
        TEXTS("skip", &settings.skip, "leave out cases that have this in their names"),
        BOOL("tiny", &settings.tiny, "false", "run cases that are small enough for simulators"),
    };
    struct program program = {.info = {"test_operations",
                                       "Compares every operation on a device with a reference in double precision.",
                                       "[OPTIONS]", NULL},
                              .computes = true};
    if (program_begin(&program, options, COUNT(options), argc, argv)) {
        program.status = run(&settings);
    }
    return program_end(&program);
}
