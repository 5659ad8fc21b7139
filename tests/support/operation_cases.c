#include "tests/support/operation_cases.h"
#include "runtime/system/array.h"
#include "runtime/system/random.h"
#include "tests/support/reference.h"
#include <math.h>

/* Rows start beyond 32 bits. */
struct dropout case_dropout(const struct bench *bench) {
    return (struct dropout){bench->shape.dropout, random_key(7, "dropout of a test"), 0x100000003u};
}

double case_kept(const struct bench *bench, size_t row, size_t element) {
    const struct dropout dropout = case_dropout(bench);
    return reference_dropout(dropout.rate, dropout.key, dropout.first_row + row, (uint32_t)element);
}

struct span case_weights(const struct bench *bench, const char *name) {
    return (struct span){&bench->weights, bench_offset(bench, name)};
}

struct span case_gradients(const struct bench *bench, const char *name) {
    return (struct span){&bench->gradients, bench_offset(bench, name)};
}

struct layer_norm case_norm_weights(const struct bench *bench) {
    return (struct layer_norm){case_weights(bench, "gain"), case_weights(bench, "bias")};
}

struct layer_norm case_norm_gradients(const struct bench *bench) {
    return (struct layer_norm){case_gradients(bench, "gain"), case_gradients(bench, "bias")};
}

static bool has_bias(const struct bench *bench) {
    return bench->shape.bias && norm_has_bias(bench->shape.norm);
}

void case_describe_norm(struct bench *bench) {
    bench_parameter(bench, "gain", bench->channels, 1.0, 0.5);
    bench_gap(bench);
    if (has_bias(bench)) {
        bench_parameter(bench, "bias", bench->channels, 0.0, 1.0);
    }
}

struct reference_norm case_norm(const struct bench *bench) {
    return (struct reference_norm){bench->shape.norm, bench->operations->shape.norm_eps,
                                   bench_values(bench, "gain"), bench_values_or_null(bench, "bias")};
}

const char *case_check_squares(const struct bench *bench, const char *streams) {
    const size_t c = bench->channels;
    for (size_t row = 0; row < bench->token_count * bench->streams; row++) {
        const double *x = bench_values(bench, streams) + row * c, sum = reference_dot(c, x, x);
        if (!(fabs(bench_values(bench, "squares")[row] - sum) <= 1e-5 * sum)) {
            return "squares are not those of the stored streams";
        }
    }
    return NULL;
}

const struct operation_case *operation_case_at(size_t number) {
    static const struct operation_case *const tables[] = {cases_embedding, cases_streams, cases_gates,
                                                          cases_depth,     cases_ways,    cases_attention,
                                                          cases_elements,  cases_head,    cases_muon};
    for (size_t i = 0; i < COUNT(tables); i++) {
        for (const struct operation_case *one = tables[i]; one->test; one++) {
            if (number-- == 0) {
                return one;
            }
        }
    }
    return case_of_variant(number);
}
