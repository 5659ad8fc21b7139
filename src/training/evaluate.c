#include "src/training/evaluate.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include <stdlib.h>

static int evaluate_batch(struct gpt *gpt, const struct sampler *sampler, int64_t iteration, int32_t *tokens,
                          double *loss) {
    const struct token_shape shape = {sampler->global_rows, sampler->sequence};
    int32_t *targets = tokens + shape.batch * shape.sequence;
    float value = 0.0f;
    if (sampler_read(sampler, iteration, 0, shape.batch, tokens, targets) ||
        gpt_set_batch(gpt, shape, tokens, targets)) {
        return -1;
    }
    gpt_zero_loss(gpt);
    gpt_forward(gpt, (struct gpt_pass){.dropout = false});
    gpt_loss(gpt, 1.0f, false);
    if (gpt_read_results(gpt, &value, NULL)) {
        return -1;
    }
    *loss = (double)value;
    return 0;
}

/* This rank's share of the batches: losses [iterations] stay 0 where they are another's. */
static int evaluate_share(struct gpt *gpt, const struct ranks *ranks, const struct sampler *sampler,
                          int64_t iterations, struct progress *progress, int32_t *tokens, double *losses) {
    for (int64_t i = ranks->index; i < iterations && !interrupt_requested(); i += ranks->count) {
        if (evaluate_batch(gpt, sampler, i, tokens, &losses[i])) {
            return -1;
        }
        if (progress) {
            progress_show(progress, "batches", i + 1, iterations, "", false);
        }
    }
    return 0;
}

int evaluate_loss(struct gpt *gpt, const struct ranks *ranks, const struct sampler *sampler, int64_t iterations,
                  struct progress *progress, double *loss) {
    int32_t *tokens = malloc(2 * (size_t)(sampler->global_rows * sampler->sequence) * sizeof *tokens);
    double *losses = calloc((size_t)iterations + 1, sizeof *losses);
    int status = tokens && losses ? 0 : error_set("out of memory");
    status = status || evaluate_share(gpt, ranks, sampler, iterations, progress, tokens, losses);
    if (status == 0) {
        losses[iterations] = interrupt_requested();
        status = ranks_sum(ranks, losses, (size_t)iterations + 1);
    }
    if (status == 0 && losses[iterations] > 0.0) {
        status = error_set("interrupted");
    }
    *loss = 0.0;
    for (int64_t i = 0; status == 0 && i < iterations; i++) {
        *loss += losses[i] / (double)iterations;
    }
    free(tokens);
    free(losses);
    return status ? -1 : 0;
}
