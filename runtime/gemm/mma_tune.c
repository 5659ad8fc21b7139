/* A random walk as that of runtime/gemm/gemm_tune.c: a candidate is the best one so far with one or two sizes
 * changed. */
#include "runtime/gemm/mma_tune.h"
#include "runtime/gemm/gemm.h"
#include "runtime/gemm/gemm_mma.h"
#include "runtime/gemm/mma_check.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/progress.h"
#include "runtime/system/random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FORMS    3
#define REPEATS  4 /* of each form; the first one compiles, the best of the others counts */
#define ATTEMPTS 1000
#define GIVE_UP  1.5 /* a candidate this much slower in one form is not timed in the others */
#define MOST     4

/* What the walk changes, in the order of struct mma_tiles. */
static const unsigned choices[][MOST] = {{32, 64, 128, 256}, {32, 64, 128, 256}, {16, 32, 64, 32},
                                         {16, 32, 64, 128},  {16, 32, 64, 128},  {2, 3, 4, 3}};
#define CHOICES (sizeof(choices) / sizeof(*choices))

/* Known to suit one GPU or another. */
static const struct mma_tiles first_points[] = {
    {128, 128, 32, 64, 64, 3}, {128, 256, 32, 64, 64, 2}, {256, 128, 32, 64, 64, 2}, {128, 64, 64, 64, 32, 2},
    {64, 128, 32, 32, 64, 4},  {128, 128, 16, 64, 32, 4}, {64, 64, 64, 32, 32, 3},
};

struct form {
    bool transpose_a, transpose_b, adds;
};

static const struct form forms[FORMS] = {{false, true, false}, {false, false, false}, {true, false, true}};

struct tuner {
    struct mma *mma;
    enum element_type type;
    size_t m, n, k;
    struct buffer a, b, c, sum; /* c of the type, sum of fp32 */
    double start, seconds;
    uint64_t key, draws;
    struct progress progress;
    struct mma_tune_result *result;
};

/* ---- one candidate */

static double flops(const struct tuner *tuner) {
    return 2.0 * FORMS * (double)tuner->m * (double)tuner->n * (double)tuner->k;
}

static struct gemm_call call_of(const struct tuner *tuner, struct form form) {
    return (struct gemm_call){.transpose_a = form.transpose_a,
                              .transpose_b = form.transpose_b,
                              .m = tuner->m,
                              .n = tuner->n,
                              .k = tuner->k,
                              .alpha = 1.0f,
                              .a = {&tuner->a, 0, form.transpose_a ? tuner->m : tuner->k},
                              .b = {&tuner->b, 0, form.transpose_b ? tuner->k : tuner->n},
                              .beta = form.adds ? 1.0f : 0.0f,
                              .c = {form.adds ? &tuner->sum : &tuner->c, 0, tuner->n},
                              .name = "tuning",
                              .batch = {.count = 1}};
}

static bool form_agrees(struct tuner *tuner, struct form form, const struct mma_tiles *tiles) {
    const struct mma_case wanted = {.transpose_a = form.transpose_a,
                                    .transpose_b = form.transpose_b,
                                    .type = tuner->type,
                                    .type_c = form.adds ? ELEMENT_FP32 : tuner->type,
                                    .m = tiles->block_m,
                                    .n = tiles->block_n,
                                    .k = 5 * (size_t)tiles->block_k,
                                    .batch = 1,
                                    .alpha = 1.0f,
                                    .beta = form.adds ? 1.0f : 0.0f};
    return mma_check(tuner->mma, &wanted) == 0;
}

/* Seconds of one form, -1 on failure. */
static double time_form(struct tuner *tuner, struct form form) {
    const struct gemm_call call = call_of(tuner, form);
    double best = INFINITY;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        const double start = progress_clock();
        mma_run(tuner->mma, &call);
        if (compute_finish(tuner->mma->compute)) {
            return -1.0;
        }
        const double seconds = progress_clock() - start;
        best = repeat > 0 && seconds < best ? seconds : best;
    }
    return best;
}

/* Seconds of all forms; -1 when a product fails or is wrong, infinity when one form is far from `limit` already. */
static double time_tiles(struct tuner *tuner, const struct mma_tiles *tiles, double limit) {
    double total = 0.0;
    tuner->mma->large = tuner->mma->small = *tiles;
    for (int i = 0; i < FORMS; i++) {
        const double seconds = form_agrees(tuner, forms[i], tiles) ? time_form(tuner, forms[i]) : -1.0;
        if (seconds < 0.0) {
            return -1.0;
        }
        if (seconds > limit * GIVE_UP / FORMS) {
            return INFINITY;
        }
        total += seconds;
    }
    return total;
}

static bool is_allowed(const struct tuner *tuner, const struct mma_tiles *tiles) {
    return mma_tiles_allowed(tiles, &tuner->mma->unit, mma_limits_of(&tuner->mma->compute->device));
}

/* Tries them; true when they are the best so far. */
static bool try_tiles(struct tuner *tuner, const struct mma_tiles *tiles) {
    struct mma_tune_result *result = tuner->result;
    if (!is_allowed(tuner, tiles)) {
        return false;
    }
    result->tried++;
    const double limit = flops(tuner) / result->rate, seconds = time_tiles(tuner, tiles, limit);
    mma_release(tuner->mma);
    if (seconds < 0.0) {
        result->refused++;
        compute_forget(tuner->mma->compute);
        return false;
    }
    if (seconds >= limit) {
        return false;
    }
    result->rate = flops(tuner) / seconds;
    result->best = *tiles;
    result->improved = true;
    return true;
}

/* ---- the walk */

static bool time_left(const struct tuner *tuner) {
    return progress_clock() - tuner->start < tuner->seconds && !interrupt_requested();
}

static size_t draw(struct tuner *tuner, size_t bound) {
    return (size_t)random_below(tuner->key, tuner->draws++, bound);
}

/* Other allowed tiles near the best; the best when chance finds none. */
static struct mma_tiles neighbour(struct tuner *tuner) {
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        unsigned sizes[CHOICES];
        struct mma_tiles other;
        memcpy(sizes, &tuner->result->best, sizeof sizes);
        for (size_t changes = 1 + draw(tuner, 3); changes > 0; changes--) {
            const size_t choice = draw(tuner, CHOICES);
            sizes[choice] = choices[choice][draw(tuner, MOST)];
        }
        memcpy(&other, sizes, sizeof other);
        if (memcmp(&other, &tuner->result->best, sizeof other) != 0 && is_allowed(tuner, &other)) {
            return other;
        }
    }
    return tuner->result->best;
}

static void show(struct tuner *tuner, bool force) {
    char details[96];
    const double passed = progress_clock() - tuner->start;
    snprintf(details, sizeof details, "%d tried, %.4g GFLOP/s (by default %.4g)", tuner->result->tried,
             1e-9 * tuner->result->rate, 1e-9 * tuner->result->stock);
    progress_show(&tuner->progress, "tuning, s", (int64_t)(passed < tuner->seconds ? passed : tuner->seconds),
                  (int64_t)tuner->seconds, details, force);
}

static void walk(struct tuner *tuner, const struct mma_tiles *known) {
    if (known) {
        try_tiles(tuner, known);
        show(tuner, true);
    }
    for (size_t i = 0; i < sizeof(first_points) / sizeof(*first_points) && time_left(tuner); i++) {
        try_tiles(tuner, &first_points[i]);
        show(tuner, true);
    }
    while (time_left(tuner)) {
        const struct mma_tiles other = neighbour(tuner);
        try_tiles(tuner, &other);
        show(tuner, false);
    }
}

/* ---- all of it */

/* A matrix of the type with something in it: zeros would not draw the power that real data does, nor slow the
 * device down. The bits are small numbers in either type. */
static int create_filled(struct tuner *tuner, struct buffer *buffer, size_t count) {
    struct compute *compute = tuner->mma->compute;
    uint16_t *elements = malloc(count * sizeof *elements);
    if (!elements) {
        return error_set("out of memory");
    }
    uint32_t random = 1;
    for (size_t i = 0; i < count; i++) {
        random = random * 1664525U + 1013904223U;
        elements[i] = (uint16_t)(0x3c00 | (random >> 16 & 0x80ff));
    }
    const int status = buffer_create(compute, buffer, count * sizeof *elements) ||
                               buffer_write(compute, buffer, 0, elements, count * sizeof *elements)
                           ? -1
                           : 0;
    buffer->type = tuner->type;
    free(elements);
    return status;
}

static int create_operands(struct tuner *tuner) {
    struct compute *compute = tuner->mma->compute;
    const size_t most = (size_t)1 << 28, size = element_size(tuner->type); /* elements */
    if (tuner->m < 1 || tuner->n < 1 || tuner->k < 1 || tuner->m > most / tuner->n || tuner->m > most / tuner->k ||
        tuner->n > most / tuner->k) {
        return error_set("cannot tune for a product of %zu x %zu x %zu", tuner->m, tuner->n, tuner->k);
    }
    if (create_filled(tuner, &tuner->a, tuner->m * tuner->k) ||
        create_filled(tuner, &tuner->b, tuner->n * tuner->k) ||
        buffer_create(compute, &tuner->c, tuner->m * tuner->n * size) ||
        buffer_create(compute, &tuner->sum, tuner->m * tuner->n * sizeof(float))) {
        return -1;
    }
    tuner->c.type = tuner->type;
    return 0;
}

static void release_operands(struct tuner *tuner) {
    buffer_release(tuner->mma->compute, &tuner->a);
    buffer_release(tuner->mma->compute, &tuner->b);
    buffer_release(tuner->mma->compute, &tuner->c);
    buffer_release(tuner->mma->compute, &tuner->sum);
}

static int measure_stock(struct tuner *tuner) {
    struct mma_tune_result *result = tuner->result;
    const struct mma_tiles tiles = tuner->mma->large;
    const double seconds = time_tiles(tuner, &tiles, INFINITY);
    if (seconds < 0.0) {
        return -1;
    }
    result->rate = result->stock = flops(tuner) / seconds;
    result->best = tiles;
    show(tuner, true);
    return 0;
}

/* The winner has run whole tiles only; what else there is, the self-test runs. */
static int check_best(struct tuner *tuner) {
    if (!tuner->result->improved) {
        return 0;
    }
    tuner->mma->large = tuner->mma->small = tuner->result->best;
    return mma_self_test(tuner->mma, tuner->type);
}

int mma_tune(struct compute *compute, enum element_type type, size_t m, size_t n, size_t k, double seconds,
             const struct mma_tiles *known, struct mma_tune_result *result) {
    struct tuner tuner = {.mma = mma_of(compute),
                          .type = type,
                          .m = m,
                          .n = n,
                          .k = k,
                          .seconds = seconds,
                          .start = progress_clock(),
                          .key = random_key(0, "tune"),
                          .result = result};
    *result = (struct mma_tune_result){.tried = 0};
    if (!tuner.mma) {
        return error_set("tuning matrix units on %s: the backend is %s", compute->device.name, gemm_name(compute));
    }
    progress_start(&tuner.progress, 0);
    int status = create_operands(&tuner) || measure_stock(&tuner) ? -1 : 0;
    if (status == 0) {
        walk(&tuner, known);
        status = check_best(&tuner);
    }
    progress_end(&tuner.progress);
    release_operands(&tuner);
    return status ? error_prefix("tuning matrix units on %s", compute->device.name) : 0;
}
