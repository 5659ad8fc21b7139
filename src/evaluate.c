#include "src/evaluate.h"
#include "runtime/error.h"
#include "runtime/interrupt.h"
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
    *loss += (double)value;
    return 0;
}

int evaluate_loss(struct gpt *gpt, const struct sampler *sampler, int64_t iterations, double *loss) {
    int32_t *tokens = malloc(2 * (size_t)(sampler->global_rows * sampler->sequence) * sizeof *tokens);
    int status = tokens ? 0 : error_set("out of memory");
    *loss = 0.0;
    for (int64_t iteration = 0; status == 0 && iteration < iterations; iteration++) {
        status = interrupt_requested() ? error_set("interrupted")
                                       : evaluate_batch(gpt, sampler, iteration, tokens, loss);
    }
    *loss /= (double)iterations;
    free(tokens);
    return status;
}
