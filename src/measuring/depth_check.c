#include "src/measuring/depth_check.h"
#include "runtime/system/memory.h"
#include "src/model/frame.h"
#include <math.h>
#include <stdlib.h>

/* By how much weights [count] of one token violate an invariant; *value: their sum, or the smallest. */
static double excess_of(enum residual_invariant invariant, const float *weights, size_t count, double *value) {
    double sum = 0.0, smallest = INFINITY;
    for (size_t i = 0; i < count; i++) {
        sum += (double)weights[i];
        smallest = (double)weights[i] < smallest || isnan(weights[i]) ? (double)weights[i] : smallest;
    }
    *value = invariant == INVARIANT_SIGN ? smallest : sum;
    return invariant == INVARIANT_SIGN ? -smallest : fabs(sum - 1.0);
}

/* Weights of all tokens [N, count], of one sublayer. `worst` is the largest excess so far. */
static void check_weights(struct h_violation *violation, const struct h_violation *looked_for, const float *weights,
                          size_t tokens, size_t count, double *worst) {
    for (size_t token = 0; token < tokens; token++) {
        double value;
        const double excess = excess_of(looked_for->invariant, weights + token * count, count, &value);
        if (!(excess <= *worst)) { /* NaN, too */
            *worst = isnan(excess) ? INFINITY : excess;
            *violation = *looked_for;
            violation->value = value;
        }
    }
}

static int check_invariant(struct h_violation *violation, struct gpt *gpt, struct h_violation looked_for) {
    const size_t tokens = gpt_tokens(gpt);
    double worst = RESIDUAL_TOLERANCE;
    int status = 0;
    for (size_t index = 0; index <= (size_t)(BRANCHES * gpt->config.n_layer) && status == 0; index++) {
        struct frame_value values[FRAME_MOST_VALUES];
        gpt->frame->values(gpt, (int64_t)index, values);
        const size_t count = (size_t)values[0].shape[0];
        float *weights = memory_allocate(tokens * count, sizeof *weights);
        status = buffer_read(gpt->compute, values[0].buffer, 0, weights, tokens * count * sizeof *weights);
        if (status == 0) {
            looked_for.sublayer = index;
            check_weights(violation, &looked_for, weights, tokens, count, &worst);
        }
        free(weights);
    }
    return status;
}

int depth_check(struct h_violation *violation, struct gpt *gpt, unsigned looked_for) {
    const unsigned made = gpt->config.residual->invariants & looked_for;
    struct h_violation next = {.invariant = 0};
    int status = 0;
    *violation = next;
    for (size_t i = 0;
         (next.invariant = residual_invariant_at(i, &next.name)) && status == 0 && !violation->invariant; i++) {
        if (made & next.invariant) {
            status = check_invariant(violation, gpt, next);
        }
    }
    return status;
}
