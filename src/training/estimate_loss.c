#include "src/training/estimate_loss.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include <stdlib.h>

static int batch_loss(struct gpt *gpt, const struct batch_sampler *sampler, int64_t index, double *loss) {
    float value = 0.0f;
    if (batch_sampler_read(sampler, index, 0) || gpt_set_batch(gpt, sampler->shape, sampler->x, sampler->y)) {
        return -1;
    }
    gpt_zero_loss(gpt);
    gpt_forward(gpt, (struct gpt_pass){.dropout = false});
    gpt_loss(gpt, 1.0f, false);
    const int status = gpt_read_results(gpt, &value, NULL);
    *loss = (double)value;
    return status;
}

/* This rank's share of the batches: losses [batches] stay 0 where they are another's. */
static int share_losses(struct gpt *gpt, const struct ranks *ranks, const struct batch_sampler *sampler,
                        int64_t batches, struct progress *progress, double *losses) {
    for (int64_t i = ranks->index; i < batches && !interrupt_requested(); i += ranks->count) {
        if (batch_loss(gpt, sampler, i, &losses[i])) {
            return -1;
        }
        if (progress) {
            progress_show(progress, "batches", i + 1, batches, "", false);
        }
    }
    return 0;
}

int estimate_loss(struct gpt *gpt, const struct ranks *ranks, const struct batch_sampler *sampler, int64_t batches,
                  struct progress *progress, double *loss) {
    double *losses = calloc((size_t)batches + 1, sizeof *losses);
    int status = losses ? share_losses(gpt, ranks, sampler, batches, progress, losses) : error_set("out of memory");
    if (status == 0) {
        losses[batches] = interrupt_requested();
        status = ranks_sum(ranks, losses, (size_t)batches + 1);
    }
    if (status == 0 && losses[batches] > 0.0) {
        status = error_set("interrupted");
    }
    *loss = 0.0;
    for (int64_t i = 0; status == 0 && i < batches; i++) {
        *loss += losses[i] / (double)batches;
    }
    free(losses);
    return status;
}
