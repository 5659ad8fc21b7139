/* A random walk: a candidate is the best one so far with one or two choices changed. Compiling a candidate costs
 * seconds on some drivers, which allows some dozens; that is why the walk begins at choices known to suit CPUs and
 * GPUs instead of anywhere. */
#include "runtime/gemm/gemm_tune.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/progress.h"
#include "runtime/system/random.h"
#include <clblast_c.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FORMS    3
#define REPEATS  3 /* of each form, the best counts */
#define ROWS     4 /* of C, compared with a product in double */
#define ATTEMPTS 1000
#define GIVE_UP  1.5   /* a candidate this much slower in one form is not timed in the others */
#define NEVER    65536 /* as direct_below: always the direct kernel */
#define SIZES    4

/* What the walk changes; the sizes of the tiles follow from it. */
enum choice {
    CHOICE_MDIMC, /* work-items of a group along M and N */
    CHOICE_NDIMC,
    CHOICE_M, /* elements of C per work-item along M, in vectors, and N, in vectors */
    CHOICE_N,
    CHOICE_VWM,
    CHOICE_VWN,
    CHOICE_KWG, /* in steps of KWI */
    CHOICE_KWI,
    CHOICE_SA,
    CHOICE_SB,
    CHOICE_STRM,
    CHOICE_STRN,
    CHOICE_MDIMA,
    CHOICE_NDIMB,
    CHOICES
};

struct point {
    size_t at[CHOICES];
};

#define MOST_VALUES 7

static const struct {
    size_t count;
    size_t values[MOST_VALUES];
} choices[CHOICES] = {
    [CHOICE_MDIMC] = {5, {1, 2, 4, 8, 16}},
    [CHOICE_NDIMC] = {5, {1, 2, 4, 8, 16}},
    [CHOICE_M] = {4, {1, 2, 4, 8}},
    [CHOICE_N] = {7, {1, 2, 3, 4, 6, 8, 12}},
    [CHOICE_VWM] = {5, {1, 2, 4, 8, 16}},
    [CHOICE_VWN] = {5, {1, 2, 4, 8, 16}},
    [CHOICE_KWG] = {5, {1, 2, 4, 8, 16}},
    [CHOICE_KWI] = {4, {1, 2, 4, 8}},
    [CHOICE_SA] = {2, {0, 1}},
    [CHOICE_SB] = {2, {0, 1}},
    [CHOICE_STRM] = {2, {0, 1}},
    [CHOICE_STRN] = {2, {0, 1}},
    [CHOICE_MDIMA] = {6, {1, 2, 4, 8, 16, 32}},
    [CHOICE_NDIMB] = {6, {1, 2, 4, 8, 16, 32}},
};

/* Where the walk begins: small groups with wide vectors and many registers for CPUs, large groups with tiles in
 * local memory for GPUs. */
static const struct point cpu_points[] = {
    {{2, 1, 2, 6, 8, 2, 4, 1, 0, 0, 1, 0, 2, 1}},
    {{2, 1, 1, 2, 8, 8, 4, 4, 0, 0, 1, 1, 2, 1}},
    {{1, 2, 1, 3, 16, 4, 8, 1, 0, 1, 1, 1, 1, 2}},
};
static const struct point gpu_points[] = {
    {{8, 8, 2, 2, 4, 4, 8, 2, 1, 1, 0, 0, 8, 8}},
    {{16, 8, 1, 4, 4, 2, 16, 2, 1, 1, 0, 0, 16, 8}},
    {{16, 16, 2, 4, 2, 1, 8, 2, 1, 1, 1, 1, 16, 16}},
    {{8, 8, 1, 4, 4, 1, 16, 2, 0, 0, 0, 0, 8, 8}},
};

struct tuner {
    struct compute *compute;
    size_t m, n, k;
    struct buffer a, b, c;
    float *host_a, *host_b, *host_c; /* host_c [n]: one row */
    double start, seconds;
    uint64_t key, draws;
    struct progress progress;
    struct gemm_tune_result *result;
};

static double flops(const struct tuner *tuner) {
    return 2.0 * FORMS * (double)tuner->m * (double)tuner->n * (double)tuner->k;
}

/* ---- one product */

struct form {
    bool transpose_a, transpose_b;
};

static const struct form forms[FORMS] = {{false, true}, {false, false}, {true, false}};

static int multiply(struct tuner *tuner, struct form form, double *seconds) {
    const struct matrix a = {&tuner->a, 0, form.transpose_a ? tuner->m : tuner->k};
    const struct matrix b = {&tuner->b, 0, form.transpose_b ? tuner->k : tuner->n};
    const double start = progress_clock();
    gemm_run(tuner->compute, form.transpose_a, form.transpose_b, tuner->m, tuner->n, tuner->k, 1.0f, a, b, 0.0f,
             (struct matrix){&tuner->c, 0, tuner->n});
    const int status = compute_finish(tuner->compute);
    *seconds = progress_clock() - start;
    return status;
}

static bool element_agrees(const struct tuner *tuner, struct form form, size_t row, size_t column) {
    double sum = 0.0, magnitude = 0.0;
    for (size_t i = 0; i < tuner->k; i++) {
        const double a = (double)tuner->host_a[form.transpose_a ? i * tuner->m + row : row * tuner->k + i];
        const double b = (double)tuner->host_b[form.transpose_b ? column * tuner->k + i : i * tuner->n + column];
        sum += a * b;
        magnitude += fabs(a * b);
    }
    /* k roundings of float, half an ulp each, never add up to more */
    return fabs((double)tuner->host_c[column] - sum) <= 6e-8 * (double)(tuner->k + 1) * magnitude;
}

/* Rows from the first to the last of C. */
static bool product_agrees(struct tuner *tuner, struct form form) {
    for (size_t i = 0; i < ROWS; i++) {
        const size_t row = (tuner->m - 1) * i / (ROWS - 1);
        if (buffer_read(tuner->compute, &tuner->c, row * tuner->n * sizeof(float), tuner->host_c,
                        tuner->n * sizeof(float))) {
            return false;
        }
        for (size_t column = 0; column < tuner->n; column++) {
            if (!element_agrees(tuner, form, row, column)) {
                return false;
            }
        }
    }
    return true;
}

/* ---- one candidate */

static bool time_left(const struct tuner *tuner) {
    return progress_clock() - tuner->start < tuner->seconds && !interrupt_requested();
}

/* Seconds of all forms with the parameters in force; -1 when a product fails or is wrong, infinity when it is far
 * from `limit` already in one form. */
static double time_forms(struct tuner *tuner, double limit) {
    double total = 0.0;
    for (int i = 0; i < FORMS; i++) {
        double best = INFINITY, seconds;
        /* wrong elements of the product before must not pass for right ones */
        buffer_zero(tuner->compute, &tuner->c, 0, tuner->c.bytes);
        if (multiply(tuner, forms[i], &seconds) || !product_agrees(tuner, forms[i])) {
            return -1.0;
        }
        for (int repeat = 0; repeat < REPEATS; repeat++) {
            if (multiply(tuner, forms[i], &seconds)) {
                return -1.0;
            }
            best = seconds < best ? seconds : best;
            if (best > limit * GIVE_UP / FORMS) {
                return INFINITY;
            }
        }
        total += best;
    }
    return total;
}

static struct gemm_parameters parameters_of(const struct point *point, size_t direct_below) {
    const size_t *at = point->at;
    struct gemm_parameters parameters = {.direct_below = direct_below};
    size_t *value = parameters.value;
    value[GEMM_KREG] = 1;
    value[GEMM_KWI] = at[CHOICE_KWI];
    value[GEMM_KWG] = at[CHOICE_KWI] * at[CHOICE_KWG];
    value[GEMM_MDIMA] = at[CHOICE_MDIMA];
    value[GEMM_MDIMC] = at[CHOICE_MDIMC];
    value[GEMM_MWG] = at[CHOICE_MDIMC] * at[CHOICE_M] * at[CHOICE_VWM];
    value[GEMM_NDIMB] = at[CHOICE_NDIMB];
    value[GEMM_NDIMC] = at[CHOICE_NDIMC];
    value[GEMM_NWG] = at[CHOICE_NDIMC] * at[CHOICE_N] * at[CHOICE_VWN];
    value[GEMM_SA] = at[CHOICE_SA];
    value[GEMM_SB] = at[CHOICE_SB];
    value[GEMM_STRM] = at[CHOICE_STRM];
    value[GEMM_STRN] = at[CHOICE_STRN];
    value[GEMM_VWM] = at[CHOICE_VWM];
    value[GEMM_VWN] = at[CHOICE_VWN];
    return parameters;
}

static struct point point_of(const struct gemm_parameters *parameters) {
    const size_t *value = parameters->value;
    return (struct point){{
        [CHOICE_MDIMC] = value[GEMM_MDIMC],
        [CHOICE_NDIMC] = value[GEMM_NDIMC],
        [CHOICE_M] = value[GEMM_MWG] / (value[GEMM_MDIMC] * value[GEMM_VWM]),
        [CHOICE_N] = value[GEMM_NWG] / (value[GEMM_NDIMC] * value[GEMM_VWN]),
        [CHOICE_VWM] = value[GEMM_VWM],
        [CHOICE_VWN] = value[GEMM_VWN],
        [CHOICE_KWG] = value[GEMM_KWG] / value[GEMM_KWI],
        [CHOICE_KWI] = value[GEMM_KWI],
        [CHOICE_SA] = value[GEMM_SA],
        [CHOICE_SB] = value[GEMM_SB],
        [CHOICE_STRM] = value[GEMM_STRM],
        [CHOICE_STRN] = value[GEMM_STRN],
        [CHOICE_MDIMA] = value[GEMM_MDIMA],
        [CHOICE_NDIMB] = value[GEMM_NDIMB],
    }};
}

/* Tries it; true when it is the best so far. */
static bool try_point(struct tuner *tuner, const struct point *point) {
    struct gemm_tune_result *result = tuner->result;
    const struct gemm_parameters parameters = parameters_of(point, 0);
    if (!gemm_parameters_allowed(&parameters, &tuner->compute->device)) {
        return false;
    }
    result->tried++;
    const double limit = flops(tuner) / result->rate;
    const double seconds =
        gemm_parameters_apply(&parameters, &tuner->compute->device) ? -1.0 : time_forms(tuner, limit);
    if (seconds < 0.0) {
        result->refused++;
        compute_forget(tuner->compute);
        return false;
    }
    if (seconds >= limit) {
        return false;
    }
    result->rate = flops(tuner) / seconds;
    result->best = parameters;
    result->improved = true;
    return true;
}

/* ---- the walk */

static size_t draw(struct tuner *tuner, size_t bound) {
    return (size_t)random_below(tuner->key, tuner->draws++, bound);
}

/* Another allowed point near this one; the same point when chance finds none. */
static struct point neighbour(struct tuner *tuner, const struct point *point) {
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        struct point other = *point;
        for (size_t changes = 1 + draw(tuner, 3); changes > 0; changes--) {
            const size_t choice = draw(tuner, CHOICES);
            other.at[choice] = choices[choice].values[draw(tuner, choices[choice].count)];
        }
        const struct gemm_parameters parameters = parameters_of(&other, 0);
        if (memcmp(&other, point, sizeof other) != 0 &&
            gemm_parameters_allowed(&parameters, &tuner->compute->device)) {
            return other;
        }
    }
    return *point;
}

static void show(struct tuner *tuner, bool force) {
    char details[96];
    const double passed = progress_clock() - tuner->start;
    snprintf(details, sizeof details, "%d tried, %.4g GFLOP/s (CLBlast's own %.4g)", tuner->result->tried,
             1e-9 * tuner->result->rate, 1e-9 * tuner->result->stock);
    progress_show(&tuner->progress, "tuning, s", (int64_t)(passed < tuner->seconds ? passed : tuner->seconds),
                  (int64_t)tuner->seconds, details, force);
}

/* The best of those to begin with. */
static struct point try_first_points(struct tuner *tuner, const struct gemm_parameters *known) {
    const bool cpu = tuner->compute->device.is_cpu;
    const struct point *points = cpu ? cpu_points : gpu_points;
    const size_t count = cpu ? sizeof cpu_points / sizeof *cpu_points : sizeof gpu_points / sizeof *gpu_points;
    struct point best = points[0];
    if (known) {
        const struct point point = point_of(known);
        best = try_point(tuner, &point) ? point : best;
        show(tuner, true);
    }
    for (size_t i = 0; i < count && (tuner->result->tried == 0 || time_left(tuner)); i++) {
        best = try_point(tuner, &points[i]) ? points[i] : best;
        show(tuner, true);
    }
    return best;
}

static void walk(struct tuner *tuner, const struct gemm_parameters *known) {
    struct point best = try_first_points(tuner, known);
    while (time_left(tuner)) {
        const struct point other = neighbour(tuner, &best);
        if (try_point(tuner, &other)) {
            best = other;
        }
        show(tuner, false);
    }
}

/* ---- which kernel for small products */

/* Seconds of a product of edge `size` through one of CLBlast's kernels, -1 on failure. */
static double time_cube(struct tuner *tuner, size_t size, size_t direct_below) {
    struct gemm_parameters parameters = tuner->result->best;
    double seconds, best = INFINITY;
    struct tuner cube = *tuner;
    cube.m = cube.n = cube.k = size;
    parameters.direct_below = direct_below;
    if (gemm_parameters_apply(&parameters, &tuner->compute->device)) {
        return -1.0;
    }
    for (int repeat = 0; repeat <= REPEATS; repeat++) {
        if (multiply(&cube, forms[0], &seconds)) {
            compute_forget(tuner->compute);
            return -1.0;
        }
        best = repeat > 0 && seconds < best ? seconds : best; /* the first one compiles */
    }
    return best;
}

/* The smallest edge from which on the tuned kernel wins with the copies that it needs. */
static void choose_direct_below(struct tuner *tuner) {
    static const size_t sizes[SIZES] = {32, 64, 128, 256};
    size_t threshold = 0;
    for (size_t i = SIZES; i-- > 0;) {
        const size_t size = sizes[i];
        if (size > tuner->m || size > tuner->n || size > tuner->k) {
            continue;
        }
        const double direct = time_cube(tuner, size, NEVER), tiled = time_cube(tuner, size, 0);
        if (tiled < 0.0 || (direct >= 0.0 && direct < tiled)) {
            threshold = size + 1;
            break;
        }
    }
    tuner->result->best.direct_below = threshold;
}

/* ---- all of it */

static int create_operand(struct tuner *tuner, const char *name, size_t count, struct buffer *buffer,
                          float **host) {
    *host = calloc(count, sizeof **host);
    if (*host == NULL) {
        return error_set("out of memory");
    }
    random_normal(random_key(0, name), 0, count, 0.0, 1.0, *host);
    return buffer_create(tuner->compute, buffer, count * sizeof **host) ||
                   buffer_write(tuner->compute, buffer, 0, *host, count * sizeof **host)
               ? -1
               : 0;
}

static int create_operands(struct tuner *tuner) {
    const size_t most = (size_t)1 << 28; /* elements; CLBlast counts in int */
    if (tuner->m < 1 || tuner->n < 1 || tuner->k < 1 || tuner->m > most / tuner->n || tuner->m > most / tuner->k ||
        tuner->n > most / tuner->k) {
        return error_set("cannot tune for a product of %zu x %zu x %zu", tuner->m, tuner->n, tuner->k);
    }
    tuner->host_c = calloc(tuner->n, sizeof *tuner->host_c);
    if (tuner->host_c == NULL) {
        return error_set("out of memory");
    }
    return create_operand(tuner, "tune a", tuner->m * tuner->k, &tuner->a, &tuner->host_a) ||
                   create_operand(tuner, "tune b", tuner->n * tuner->k, &tuner->b, &tuner->host_b) ||
                   buffer_create(tuner->compute, &tuner->c, tuner->m * tuner->n * sizeof(float))
               ? -1
               : 0;
}

static void release_operands(struct tuner *tuner) {
    buffer_release(tuner->compute, &tuner->a);
    buffer_release(tuner->compute, &tuner->b);
    buffer_release(tuner->compute, &tuner->c);
    free(tuner->host_a);
    free(tuner->host_b);
    free(tuner->host_c);
}

static int measure_stock(struct tuner *tuner) {
    const double seconds = time_forms(tuner, INFINITY);
    if (seconds < 0.0) {
        return compute_check(tuner->compute) ? -1 : error_set("CLBlast's own choice gives a wrong product");
    }
    tuner->result->rate = tuner->result->stock = flops(tuner) / seconds;
    show(tuner, true);
    return 0;
}

int gemm_tune(struct compute *compute, size_t m, size_t n, size_t k, double seconds,
              const struct gemm_parameters *known, struct gemm_tune_result *result) {
    struct tuner tuner = {.compute = compute,
                          .m = m,
                          .n = n,
                          .k = k,
                          .seconds = seconds,
                          .start = progress_clock(),
                          .key = random_key(0, "tune"),
                          .result = result};
    *result = (struct gemm_tune_result){.tried = 0};
    progress_start(&tuner.progress, 0);
    const int status = create_operands(&tuner) || measure_stock(&tuner) ? -1 : 0;
    if (status == 0) {
        walk(&tuner, known);
    }
    if (result->improved) {
        choose_direct_below(&tuner);
    }
    progress_end(&tuner.progress);
    release_operands(&tuner);
    return status ? error_prefix("tuning CLBlast on %s", compute->device.name) : 0;
}
