/* A random walk: a candidate is the best one so far with one or two numbers changed. Compiling a candidate costs
 * seconds on some drivers, which allows some dozens; that is why the walk begins at values known to suit CPUs and
 * GPUs instead of anywhere. */
#include "runtime/gemm/gemm_tune.h"
#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/gemm_check.h"
#include "runtime/gemm/gemm_measure.h"
#include "runtime/gemm/gemm_mma.h"
#include "runtime/gemm/gemm_parameters.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/progress.h"
#include "runtime/system/random.h"
#include <math.h>
#include <string.h>

#define FORMS    3
#define ATTEMPTS 1000
#define GIVE_UP  1.5   /* a candidate this much slower in one form is not timed in the others */
#define NEVER    65536 /* as GEMM_DIRECT_BELOW: always the direct kernel */
/* The part of the product that is compared with sums in double: no more than this of m and n, and of k. */
#define CHECKED       256
#define CHECKED_DEPTH 320

/* ---- CLBlast's parameters */

/* In the order of enum gemm_parameter: small groups with wide vectors and many registers for CPUs, large groups with
 * tiles in local memory for GPUs. */
static const union tuned_values cpu_parameters[] = {
    {{0, 1, 4, 1, 2, 2, 32, 1, 1, 12, 0, 0, 1, 0, 8, 2}},
    {{0, 1, 16, 4, 2, 2, 16, 1, 1, 16, 0, 0, 1, 1, 8, 8}},
    {{0, 1, 8, 1, 1, 1, 16, 2, 2, 24, 0, 1, 1, 1, 16, 4}},
};
static const union tuned_values gpu_parameters[] = {
    {{0, 1, 16, 2, 8, 8, 64, 8, 8, 64, 1, 1, 0, 0, 4, 4}},
    {{0, 1, 32, 2, 16, 16, 64, 8, 8, 64, 1, 1, 0, 0, 4, 2}},
    {{0, 1, 16, 2, 16, 16, 64, 16, 16, 64, 1, 1, 1, 1, 2, 1}},
    {{0, 1, 32, 2, 8, 8, 32, 8, 8, 32, 0, 0, 0, 0, 4, 1}},
};

static int apply_parameters(struct compute *compute, const union tuned_values *values) {
    union tuned_values tiled = *values;
    tiled.at[GEMM_DIRECT_BELOW] = 0; /* small products are for later */
    return gemm_parameters_apply(&tiled, &compute->device);
}

/* FLOP/s of a product of edge `size` through one of CLBlast's kernels, 0 on failure. */
static double rate_of_cube(struct compute *compute, union tuned_values values, size_t size, size_t direct_below) {
    double rate = 0.0;
    values.at[GEMM_DIRECT_BELOW] = direct_below;
    if (gemm_parameters_apply(&values, &compute->device) ||
        gemm_measure_rate(compute, ELEMENT_FP32, size, size, size, &rate)) {
        compute_forget(compute);
    }
    return rate;
}

/* For small products, the smallest edge from which on the tuned kernel wins with the copies that it needs; none larger
 * than the shortest edge of the product that is tuned for. */
static int choose_direct_below(struct compute *compute, size_t shortest, union tuned_values *best) {
    size_t size = 256;
    while (size > shortest) {
        size /= 2;
    }
    for (; size >= 32; size /= 2) {
        const double direct = rate_of_cube(compute, *best, size, NEVER);
        const double tiled = rate_of_cube(compute, *best, size, 0);
        if (tiled <= direct) {
            break;
        }
    }
    best->at[GEMM_DIRECT_BELOW] = size < 32 ? 0 : size + 1;
    return 0;
}

/* ---- tiles of matrix units */

/* In the order of struct mma_tiles; known to suit one GPU or another. */
static const union tuned_values tiles[] = {
    {{128, 128, 32, 64, 64, 3}}, {{128, 256, 32, 64, 64, 2}}, {{256, 128, 32, 64, 64, 2}},
    {{128, 64, 64, 64, 32, 2}},  {{64, 128, 32, 32, 64, 4}},  {{128, 128, 16, 64, 32, 4}},
    {{64, 64, 64, 32, 32, 3}},
};

static int apply_tiles(struct compute *compute, const union tuned_values *values) {
    struct mma *mma = mma_of(compute);
    mma_release(mma);
    mma_use_tiles(mma, &values->tiles);
    return 0;
}

/* The winner has run whole tiles only; what else there is, the self-test runs. */
static int check_tiles(struct compute *compute, size_t shortest, union tuned_values *best) {
    (void)shortest;
    const struct gemm_state *state = gemm_state(compute);
    return apply_tiles(compute, best) || mma_self_test(mma_of(compute), state->operands) ? -1 : 0;
}

/* ---- what differs between the two */

struct search {
    const char *name;                   /* of what is tuned */
    const char *stock;                  /* that it is not, for people */
    const union tuned_values *first[2]; /* values to begin with: of GPUs, of CPUs */
    size_t first_count[2];
    /* Makes the products that follow use them. */
    int (*apply)(struct compute *compute, const union tuned_values *values);
    /* What is to be done with the best, found for a product whose shortest edge is this long. */
    int (*conclude)(struct compute *compute, size_t shortest, union tuned_values *best);
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct search clblast_search = {
    .name = "CLBlast",
    .stock = "CLBlast's own",
    .first = {gpu_parameters, cpu_parameters},
    .first_count = {COUNT(gpu_parameters), COUNT(cpu_parameters)},
    .apply = apply_parameters,
    .conclude = choose_direct_below,
};
static const struct search units_search = {
    .name = "matrix units",
    .stock = "by default",
    .first = {tiles, tiles},
    .first_count = {COUNT(tiles), COUNT(tiles)},
    .apply = apply_tiles,
    .conclude = check_tiles,
};

int gemm_tune_target(struct compute *compute, struct tuned_target *target) {
    const struct mma *mma = mma_of(compute);
    *target =
        (struct tuned_target){mma ? &gemm_mma_tiles : &gemm_parameters, &compute->device, mma ? &mma->unit : NULL};
    if (strcmp(gemm_name(compute), target->kind->backend) == 0) {
        return 0;
    }
    return error_set("there is nothing to tune on %s: the backend is %s", compute->device.name, gemm_name(compute));
}

struct tuner {
    struct compute *compute;
    struct tuned_target target;
    const struct search *search;
    enum element_type type;
    size_t m, n, k;
    struct buffer a, b, c, sum; /* sum of fp32, the others of the type */
    double start, seconds;
    uint64_t key, draws;
    struct progress progress;
    struct gemm_tune_result *result;
};

/* ---- one candidate */

static const struct form {
    bool transpose_a, transpose_b, adds;
} forms[FORMS] = {{false, true, false}, {false, false, false}, {true, false, true}};

static double flops(const struct tuner *tuner) {
    return 2.0 * FORMS * (double)tuner->m * (double)tuner->n * (double)tuner->k;
}

static size_t at_most(size_t size, size_t most) {
    return size < most ? size : most;
}

static int check_form(struct tuner *tuner, const struct form *form) {
    const struct gemm_runner runner = gemm_runner_of(tuner->compute);
    const struct gemm_case wanted = {
        .transpose_a = form->transpose_a,
        .transpose_b = form->transpose_b,
        .m = at_most(tuner->m, CHECKED),
        .n = at_most(tuner->n, CHECKED),
        .k = at_most(tuner->k, CHECKED_DEPTH),
        .types = {tuner->type, tuner->type, form->adds ? ELEMENT_FP32 : tuner->type},
        .beta = form->adds ? 1.0f : 0.0f,
    };
    return gemm_check(&runner, &wanted);
}

static double time_form(struct tuner *tuner, const struct form *form, double limit) {
    const struct gemm_call call = {
        .transpose_a = form->transpose_a,
        .transpose_b = form->transpose_b,
        .m = tuner->m,
        .n = tuner->n,
        .k = tuner->k,
        .a = {&tuner->a, 0, form->transpose_a ? tuner->m : tuner->k},
        .b = {&tuner->b, 0, form->transpose_b ? tuner->k : tuner->n},
        .c = {form->adds ? &tuner->sum : &tuner->c, 0, tuner->n},
        .beta = form->adds ? 1.0f : 0.0f,
    };
    return gemm_measure_call(tuner->compute, &call, 0.0, limit);
}

/* Seconds of all forms with the values in force; -1 with an error when a product fails or is wrong, infinity when
 * one form is far from `limit` already. */
static double time_forms(struct tuner *tuner, double limit) {
    const double most = limit * GIVE_UP / FORMS;
    double total = 0.0;
    for (int i = 0; i < FORMS; i++) {
        const double seconds = check_form(tuner, &forms[i]) ? -1.0 : time_form(tuner, &forms[i], most);
        if (seconds < 0.0) {
            return -1.0;
        }
        if (seconds > most) {
            return INFINITY;
        }
        total += seconds;
    }
    return total;
}

static bool is_allowed(const struct tuner *tuner, const union tuned_values *values) {
    return tuner->target.kind->allowed(&tuner->target, values);
}

static bool time_left(const struct tuner *tuner) {
    return progress_clock() - tuner->start < tuner->seconds && !interrupt_requested();
}

static void show(struct tuner *tuner, bool force) {
    char details[96];
    const double passed = progress_clock() - tuner->start;
    snprintf(details, sizeof details, "%d tried, %.4g GFLOP/s (%s %.4g)", tuner->result->tried,
             1e-9 * tuner->result->rate, tuner->search->stock, 1e-9 * tuner->result->stock);
    progress_show(&tuner->progress, "tuning, s", (int64_t)(passed < tuner->seconds ? passed : tuner->seconds),
                  (int64_t)tuner->seconds, details, force);
}

/* Tries them, and keeps them when they are the best so far. */
static void try_values(struct tuner *tuner, const union tuned_values *values) {
    struct gemm_tune_result *result = tuner->result;
    if (!is_allowed(tuner, values)) {
        return;
    }
    result->tried++;
    const double limit = flops(tuner) / result->rate;
    const double seconds = tuner->search->apply(tuner->compute, values) ? -1.0 : time_forms(tuner, limit);
    if (seconds < 0.0) {
        result->refused++;
        compute_forget(tuner->compute);
    } else if (seconds < limit) {
        result->rate = flops(tuner) / seconds;
        result->best = *values;
        result->improved = true;
    }
}

/* ---- the walk */

static size_t draw(struct tuner *tuner, size_t bound) {
    return (size_t)random_below(tuner->key, tuner->draws++, bound);
}

/* Other allowed values near the best; the best when chance finds none. */
static union tuned_values neighbour(struct tuner *tuner) {
    const struct tuned_kind *kind = tuner->target.kind;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        union tuned_values other = tuner->result->best;
        for (size_t changes = 1 + draw(tuner, 3); changes > 0; changes--) {
            const size_t i = draw(tuner, kind->count);
            const struct tuned_number *number = &kind->numbers[i];
            if (number->count > 0) {
                other.at[i] = number->choices[draw(tuner, number->count)];
            }
        }
        if (memcmp(&other, &tuner->result->best, sizeof other) != 0 && is_allowed(tuner, &other)) {
            return other;
        }
    }
    return tuner->result->best;
}

static void walk(struct tuner *tuner, const union tuned_values *known) {
    const bool cpu = tuner->compute->device.is_cpu;
    const union tuned_values *first = tuner->search->first[cpu];
    tuner->result->best = first[0];
    if (known) {
        try_values(tuner, known);
        show(tuner, true);
    }
    for (size_t i = 0; i < tuner->search->first_count[cpu] && (tuner->result->tried == 0 || time_left(tuner));
         i++) {
        try_values(tuner, &first[i]);
        show(tuner, true);
    }
    while (time_left(tuner)) {
        const union tuned_values other = neighbour(tuner);
        try_values(tuner, &other);
        show(tuner, false);
    }
}

/* ---- all of it */

static int create_operands(struct tuner *tuner) {
    struct compute *compute = tuner->compute;
    const size_t most = (size_t)1 << 28, m = tuner->m, n = tuner->n, k = tuner->k; /* CLBlast counts in int */
    if (m < 1 || n < 1 || k < 1 || m > most / n || m > most / k || n > most / k) {
        return error_set("cannot tune for a product of %zu x %zu x %zu", m, n, k);
    }
    return gemm_measure_create(compute, &tuner->a, tuner->type, m, k) ||
                   gemm_measure_create(compute, &tuner->b, tuner->type, n, k) ||
                   gemm_measure_create(compute, &tuner->c, tuner->type, m, n) ||
                   gemm_measure_create(compute, &tuner->sum, ELEMENT_FP32, m, n)
               ? -1
               : 0;
}

static void release_operands(struct tuner *tuner) {
    buffer_release(tuner->compute, &tuner->a);
    buffer_release(tuner->compute, &tuner->b);
    buffer_release(tuner->compute, &tuner->c);
    buffer_release(tuner->compute, &tuner->sum);
}

static int run_search(struct tuner *tuner, const union tuned_values *known) {
    struct gemm_tune_result *result = tuner->result;
    if (create_operands(tuner)) {
        return -1;
    }
    const double seconds = time_forms(tuner, INFINITY);
    if (seconds < 0.0) {
        return -1;
    }
    result->rate = result->stock = flops(tuner) / seconds;
    show(tuner, true);
    walk(tuner, known);
    const size_t narrow = tuner->m < tuner->n ? tuner->m : tuner->n;
    const size_t shortest = tuner->k < narrow ? tuner->k : narrow;
    return result->improved ? tuner->search->conclude(tuner->compute, shortest, &result->best) : 0;
}

int gemm_tune(struct compute *compute, size_t m, size_t n, size_t k, double seconds,
              const union tuned_values *known, struct gemm_tune_result *result) {
    const struct gemm_state *state = gemm_state(compute);
    struct tuner tuner = {.compute = compute,
                          .type = state->operands,
                          .m = m,
                          .n = n,
                          .k = k,
                          .seconds = seconds,
                          .start = progress_clock(),
                          .key = random_key(0, "tune"),
                          .result = result};
    *result = (struct gemm_tune_result){.tried = 0};
    if (gemm_tune_target(compute, &tuner.target)) {
        return -1;
    }
    tuner.search = tuner.target.unit ? &units_search : &clblast_search;
    progress_start(&tuner.progress, 0);
    const int status = run_search(&tuner, known);
    progress_end(&tuner.progress);
    release_operands(&tuner);
    return status ? error_prefix("tuning %s on %s", tuner.search->name, compute->device.name) : 0;
}
