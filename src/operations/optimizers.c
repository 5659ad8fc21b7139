#include "runtime/gemm/gemm.h"
#include "runtime/system/array.h"
#include "src/operations/kernels.h"
#include "src/operations/muon.h"
#include <math.h>

/* ---- the step of AdamW, and sums over whole vectors */

void sum_total(struct operations *operations, const struct buffer *x, size_t count, float scale, bool add,
               struct span out) {
    RUN_ROWS(sum_total, 1, ARG_IN(x, count), ARG_U64(count), ARG_F32(scale), ARG_I32(add), ARG_I32(0),
             ARG_SPAN_IN_OUT(out, 1));
}

/* out = scale * sum of squares, or the root of that */
static void total_squares(struct operations *operations, struct span x, size_t count, float scale, bool root,
                          struct span out) {
    const size_t most = operations->policy.square_chunks;
    const size_t per_chunk = ((count + most - 1) / most + 63) / 64 * 64; /* whole vectors */
    const size_t chunks = per_chunk ? (count + per_chunk - 1) / per_chunk : 0;
    RUN_ROWS(square_sums, chunks, ARG_SPAN_IN(x, count), ARG_U64(count), ARG_U64(per_chunk),
             ARG_OUT(&operations->partials, chunks));
    RUN_ROWS(sum_total, 1, ARG_IN(&operations->partials, chunks), ARG_U64(chunks), ARG_F32(scale), ARG_I32(0),
             ARG_I32(root), ARG_SPAN_OUT(out, 1));
}

void norm_total(struct operations *operations, const struct buffer *x, size_t count, float scale, struct span out) {
    total_squares(operations, (struct span){x, 0}, count, scale * scale, true, out);
}

void square_total(struct operations *operations, struct span x, size_t count, struct span out) {
    total_squares(operations, x, count, 1.0f, false, out);
}

/* Of ranges that are not whole vectors, which steps have only with rates of their own for small parameters. */
static const struct kernel *any_place_kernel(struct operations *operations) {
    static const char *const files[] = {"adamw.cl", NULL};
    char options[64];
    snprintf(options, sizeof options, "-DVEC=1 -DMOMENTS=%d -DMASTER=%d -DACT=%d", (int)operations->shape.moments,
             (int)operations->shape.master, (int)operations->shape.type);
    return kernel_find(operations->compute, files, options, "adamw");
}

void adamw_step(struct operations *operations, const struct update_arenas *arenas, struct optimizer_range range,
                const struct update_settings *settings, const struct buffer *norm) {
    const double correction1 = 1.0 / (1.0 - pow((double)settings->beta1, (double)settings->step));
    const double correction2 = 1.0 / sqrt(1.0 - pow((double)settings->beta2, (double)settings->step));
    const size_t count = range.count, rounded = arenas->weights_lowp == arenas->weights ? 0 : count;
    const uint64_t end = range.first + range.count, lowp_first = size_larger(range.first, arenas->lowp_only_from);
    const size_t lowp_only = operations->shape.master && end > lowp_first ? end - lowp_first : 0; /* without fp32 */
    const bool aligned = (range.first | range.count | range.states_first[0] | range.states_first[1]) % 64 == 0;
    const size_t vector = aligned ? operations->policy.arena_vector : 1;
    const struct kernel *kernel = aligned ? &operations->kernels->adamw : any_place_kernel(operations);
    KERNEL_RUN(operations->compute, kernel, groups_for(count / vector, ELEMENT_GROUP), ELEMENT_GROUP,
               ARG_IN_OUT(arenas->weights, count - lowp_only),
               ARG_MEMORY_(arenas->weights_lowp, 0, rounded, lowp_only > 0, 1), ARG_IN(arenas->gradients, count),
               ARG_IN_OUT(arenas->first_moments, count), ARG_IN_OUT(arenas->second_moments, count),
               ARG_U64(range.first), ARG_U64(range.states_first[0]), ARG_U64(range.states_first[1]), ARG_U64(count),
               ARG_U64(arenas->decayed_from), ARG_U64(arenas->lowp_only_from),
               ARG_F32X4(settings->rate, settings->beta1, settings->beta2, settings->decay),
               ARG_F32X4((float)correction1, (float)correction2, settings->clip, settings->unscale),
               ARG_F32X4(settings->epsilon, settings->centre, 0.0f, 0.0f), ARG_U64(settings->key), ARG_IN(norm, 1));
}

/* ---- the step of Muon, before its iterations and after them */

/* Matrices of a batch from `begin` on that lie in the arena at equal distances, which one launch takes. */
struct run {
    size_t count;
    uint64_t apart;
};

static struct run run_from(const struct muon_batch *batch, size_t begin) {
    const uint64_t *first = batch->first + begin;
    const size_t most = batch->count - begin;
    struct run run = {1, most > 1 ? first[1] - first[0] : 0};
    while (run.count < most && first[run.count] - first[run.count - 1] == run.apart) {
        run.count++;
    }
    return run;
}

/* Work-items of a launch in which each matrix has whole groups of them. */
static size_t items_for(const struct operations *operations, size_t matrices, size_t elements) {
    return matrices * groups_for(elements, (size_t)operations->policy.any_vector * ELEMENT_GROUP) * ELEMENT_GROUP;
}

/* Elements of a chunk of a matrix, whatever else is in the batch: as many as there are whole chunks of. */
static size_t chunk_of(const struct operations *operations, size_t padded) {
    const size_t lines = padded / 64;
    size_t chunk = groups_for(lines, operations->policy.square_chunks);
    while (lines % chunk) {
        chunk++;
    }
    return 64 * chunk;
}

void muon_begin(struct operations *operations, const struct update_arenas *arenas, const struct muon_batch *batch,
                const struct update_settings *settings, const struct muon_scratch *scratch,
                const struct buffer *norm) {
    const size_t count = batch->rows * batch->columns, padded = (count + 63) / 64 * 64;
    const size_t chunk = chunk_of(operations, padded), chunks = padded / chunk;
    for (size_t begin = 0; begin < batch->count;) {
        const struct run run = run_from(batch, begin);
        const uint64_t first = batch->first[begin];
        const struct span update = {scratch->update, begin * padded}, sums = {scratch->sums, begin * chunks};
        RUN_ROWS(muon_momentum, run.count * chunks, ARG_IN(arenas->gradients, run.count * count), ARG_U64(first),
                 ARG_U64(run.apart), ARG_IN_OUT(arenas->first_moments, run.count * count),
                 ARG_U64(first + batch->state_shift), ARG_U64(count), ARG_U64(padded), ARG_U64(chunk),
                 ARG_F32X4(settings->momentum, settings->clip, settings->unscale, 0.0f), ARG_U64(settings->key),
                 ARG_IN(norm, 1), ARG_SPAN_OUT(update, run.count * padded), ARG_SPAN_OUT(sums, run.count * chunks));
        begin += run.count;
    }
    RUN_ROWS(sum_total, batch->count, ARG_IN(scratch->sums, batch->count * chunks), ARG_U64(chunks), ARG_F32(1.0f),
             ARG_I32(0), ARG_I32(1), ARG_OUT(scratch->norms, batch->count), ARG_U64(0));
    RUN_ELEMENTS(muon_normalise, items_for(operations, batch->count, count), 1,
                 ARG_IN(scratch->update, batch->count * count), ARG_IN(scratch->norms, batch->count),
                 ARG_U64(count), ARG_U64(padded), ARG_OUT(scratch->x[0], batch->count * count));
}

void muon_end(struct operations *operations, const struct update_arenas *arenas, const struct muon_batch *batch,
              const struct update_settings *settings, const struct buffer *x, const struct buffer *norm) {
    const size_t count = batch->rows * batch->columns;
    const bool lowp_only = operations->shape.master;
    const size_t in_fp32 = lowp_only ? 0 : count, rounded = arenas->weights_lowp == arenas->weights ? 0 : count;
    for (size_t begin = 0; begin < batch->count;) {
        const struct run run = run_from(batch, begin);
        const struct span from = {x, begin * count};
        RUN_ELEMENTS(muon_update, items_for(operations, run.count, count), 1,
                     ARG_IN_OUT(arenas->weights, run.count * in_fp32),
                     ARG_MEMORY_(arenas->weights_lowp, 0, run.count * rounded, lowp_only, 1),
                     ARG_U64(batch->first[begin]), ARG_U64(run.apart), ARG_U64(count),
                     ARG_SPAN_IN(from, run.count * count), ARG_F32(1.0f - settings->rate * settings->decay),
                     ARG_F32(settings->rate * settings->scale), ARG_U64(settings->key), ARG_IN(norm, 1));
        begin += run.count;
    }
}

/* ---- the iterations of Muon */

/* A step makes Q X of X, with a polynomial Q of A = X X^T, and so Q A Q of A; A and all Q commute. So for a few
 * steps only A and the product P of all Q are computed, and then P X: less work where X has more columns than A.
 * Rounding of A is relative to its largest eigenvalue. What it makes of small ones grows as they do, about 12 times
 * in a step; so every few steps A is computed from X again. With 3 steps the result is as near to the exact one as
 * with one. */
enum { GRAM_STEPS = 3 };

bool newton_schulz_keeps_gram(enum element_type type, size_t rows, size_t columns) {
    return type == ELEMENT_FP32 && 2 * size_larger(rows, columns) >= 3 * size_smaller(rows, columns);
}

/* What the steps work with. */
struct iterations {
    struct operations *operations; /* NULL: FLOPs are counted, and nothing is launched */
    enum element_type type;        /* of X and A */
    const struct muon_batch *batch;
    const float *coefficients;
    const struct muon_scratch *scratch;
    double flops; /* of GEMMs so far; a symmetric result counts as a whole one */
};

static void run_gemm(struct iterations *iterations, struct gemm_call call) {
    const double sums = (double)(call.transpose_a ? call.a.rows : call.a.columns);
    call.batch = iterations->batch->count;
    iterations->flops += 2.0 * (double)call.batch * (double)call.c.rows * (double)call.c.columns * sums;
    if (iterations->operations) {
        gemm_run(iterations->operations->compute, &call);
    }
}

static void multiply(struct iterations *iterations, const struct buffer *a, const struct buffer *b,
                     const struct buffer *c) {
    const size_t side = size_smaller(iterations->batch->rows, iterations->batch->columns);
    run_gemm(iterations, (struct gemm_call){.a = matrix_of(a, 0, side, side),
                                            .b = matrix_of(b, 0, side, side),
                                            .c = matrix_of(c, 0, side, side),
                                            .symmetric = true});
}

/* `to` = the step's Q, of A and A A. */
static void make_polynomial(const struct iterations *iterations, const struct buffer *to) {
    struct operations *operations = iterations->operations;
    const struct muon_batch *batch = iterations->batch;
    const struct muon_scratch *scratch = iterations->scratch;
    const float *coefficients = iterations->coefficients;
    const size_t side = size_smaller(batch->rows, batch->columns), count = batch->count * side * side;
    if (operations) {
        RUN_ROWS(muon_polynomial, batch->count * side, ARG_IN(scratch->gram, count), ARG_IN(scratch->square, count),
                 ARG_I32(side), ARG_F32X4(coefficients[0], coefficients[1], coefficients[2], 0.0f),
                 ARG_OUT(to, count));
    }
}

/* One step of A, and P; `is_first`: P is the step's Q, `is_last`: A stays. Returns the buffer of P. */
static const struct buffer *step_gram(struct iterations *iterations, bool is_first, bool is_last,
                                      const struct buffer *p) {
    const struct muon_scratch *scratch = iterations->scratch;
    size_t next = 0; /* two buffers that are not P */
    while (scratch->polynomial[next] == p) {
        next++;
    }
    const struct buffer *q = scratch->polynomial[next];
    multiply(iterations, scratch->gram, scratch->gram, scratch->square);
    make_polynomial(iterations, q);
    if (!is_last) {
        multiply(iterations, q, scratch->gram, scratch->square);
        multiply(iterations, scratch->square, q, scratch->gram);
    }
    if (is_first) {
        return q;
    }
    const struct buffer *product = scratch->polynomial[scratch->polynomial[next + 1] == p ? next + 2 : next + 1];
    multiply(iterations, q, p, product);
    return product;
}

/* `to` = X after so many steps. */
static void iterate(struct iterations *iterations, int64_t steps, const struct buffer *from,
                    const struct buffer *to) {
    const struct muon_batch *batch = iterations->batch;
    const bool is_tall = batch->rows >= batch->columns; /* X^T X and X P need no copies of columns */
    const size_t side = size_smaller(batch->rows, batch->columns);
    const struct matrix x = matrix_of(from, 0, batch->rows, batch->columns);
    run_gemm(iterations, (struct gemm_call){.transpose_a = is_tall,
                                            .transpose_b = !is_tall,
                                            .a = x,
                                            .b = x,
                                            .c = matrix_of(iterations->scratch->gram, 0, side, side),
                                            .symmetric = true});
    const struct buffer *p = NULL;
    for (int64_t step = 0; step < steps; step++) {
        p = step_gram(iterations, step == 0, step + 1 == steps, p);
    }
    const struct matrix product = matrix_of(p, 0, side, side);
    run_gemm(iterations, (struct gemm_call){.a = is_tall ? x : product,
                                            .b = is_tall ? product : x,
                                            .c = matrix_of(to, 0, batch->rows, batch->columns)});
}

static const struct buffer *iterate_all(struct iterations *iterations, int64_t steps) {
    const struct muon_batch *batch = iterations->batch;
    const struct muon_scratch *scratch = iterations->scratch;
    const enum element_type type = iterations->type;
    const int64_t most = newton_schulz_keeps_gram(type, batch->rows, batch->columns) ? GRAM_STEPS : 1;
    const struct buffer *from = scratch->x[0];
    for (int64_t done = 0; done < steps; done += most) {
        const int64_t left = steps - done, taken = left < most ? left : most;
        const struct buffer *next = from == scratch->x[0] ? scratch->x[1] : scratch->x[0];
        const struct buffer *to = taken == left && type != ELEMENT_FP32 ? scratch->update : next;
        iterate(iterations, taken, from, to);
        from = to;
    }
    return from;
}

const struct buffer *newton_schulz(struct operations *operations, const struct muon_batch *batch, int64_t steps,
                                   const float coefficients[3], const struct muon_scratch *scratch) {
    struct iterations iterations = {.operations = operations,
                                    .type = operations->shape.muon_type,
                                    .batch = batch,
                                    .coefficients = coefficients,
                                    .scratch = scratch};
    return iterate_all(&iterations, steps);
}

double newton_schulz_flops(enum element_type type, size_t rows, size_t columns, int64_t steps) {
    static const struct buffer none[8]; /* the buffers are told apart by their addresses */
    const struct muon_scratch scratch = {.x = {&none[0], &none[1]},
                                         .update = &none[2],
                                         .gram = &none[3],
                                         .square = &none[4],
                                         .polynomial = {&none[5], &none[6], &none[7]}};
    const struct muon_batch batch = {rows, columns, .count = 1};
    struct iterations iterations = {.type = type, .batch = &batch, .scratch = &scratch};
    iterate_all(&iterations, steps);
    return iterations.flops;
}
