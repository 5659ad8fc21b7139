/* The step of Muon. */
#include "src/operations/muon.h"
#include "runtime/gemm/gemm.h"
#include "src/operations/kernels.h"

void muon_begin(struct operations *operations, const struct muon_arenas *arenas, const struct muon_matrix *matrix,
                const struct muon_settings *settings, const struct muon_scratch *scratch,
                const struct buffer *norm) {
    const size_t count = matrix->rows * matrix->columns, padded = (count + 63) / 64 * 64;
    RUN_ELEMENTS(muon_momentum, padded, 1, ARG_IN(arenas->gradients, count), ARG_U64(matrix->first),
                 ARG_IN_OUT(arenas->momentum, count), ARG_U64(matrix->state_first), ARG_U64(count), ARG_U64(padded),
                 ARG_F32X4(settings->momentum, settings->clip, settings->unscale, 0.0f), ARG_IN(norm, 1),
                 ARG_OUT(scratch->update, padded));
    norm_total(operations, scratch->update, padded, 1.0f, (struct span){scratch->norm, 0});
    RUN_ELEMENTS(muon_normalise, count, 1, ARG_IN(scratch->update, count), ARG_IN(scratch->norm, 1), ARG_U64(count),
                 ARG_OUT(scratch->x[0], count));
}

const struct buffer *newton_schulz(struct operations *operations, size_t rows, size_t columns, int64_t steps,
                                   const float coefficients[3], const struct muon_scratch *scratch) {
    const bool is_tall = rows > columns;
    const size_t side = is_tall ? columns : rows;
    const struct matrix gram = matrix_of(scratch->gram, 0, side, side);
    const struct buffer *from = scratch->x[0];
    for (int64_t step = 0; step < steps; step++) {
        const struct buffer *next = from == scratch->x[0] ? scratch->x[1] : scratch->x[0];
        const bool is_last = step + 1 == steps, is_fp32 = operations->shape.muon_type == ELEMENT_FP32;
        const struct buffer *to = is_last && !is_fp32 ? scratch->update : next;
        const struct matrix x = matrix_of(from, 0, rows, columns);
        gemm_run(operations->compute,
                 &(struct gemm_call){.transpose_a = is_tall, .transpose_b = !is_tall, .a = x, .b = x, .c = gram});
        gemm_run(operations->compute,
                 &(struct gemm_call){.a = gram, .b = gram, .c = matrix_of(scratch->square, 0, side, side)});
        RUN_ELEMENTS(muon_polynomial, side * side, 1, ARG_IN_OUT(scratch->gram, side * side),
                     ARG_IN(scratch->square, side * side), ARG_I32(side),
                     ARG_F32X4(coefficients[0], coefficients[1], coefficients[2], 0.0f));
        gemm_run(operations->compute, &(struct gemm_call){.a = is_tall ? x : gram,
                                                          .b = is_tall ? gram : x,
                                                          .c = matrix_of(to, 0, rows, columns)});
        from = to;
    }
    return from;
}

void muon_end(struct operations *operations, const struct muon_arenas *arenas, const struct muon_matrix *matrix,
              const struct muon_settings *settings, const struct buffer *x, const struct buffer *norm) {
    const size_t count = matrix->rows * matrix->columns;
    const size_t rounded = arenas->weights_lowp == arenas->weights ? 0 : count;
    RUN_ELEMENTS(muon_update, count, 1, ARG_IN_OUT(arenas->weights, count), ARG_OUT(arenas->weights_lowp, rounded),
                 ARG_U64(matrix->first), ARG_U64(count), ARG_IN(x, count),
                 ARG_F32(1.0f - settings->rate * settings->decay), ARG_F32(settings->rate * settings->scale),
                 ARG_IN(norm, 1));
}
