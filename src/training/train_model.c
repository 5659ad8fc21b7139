#include "src/training/train_model.h"
#include "runtime/gemm/gemm_measure.h"
#include "runtime/system/memory.h"
#include <stdlib.h>

#define PIECE ((uint64_t)1 << 20) /* weights moved between host and device at a time */

int train_model_plan(const struct train_settings *settings, const struct model_config *config, struct ranks *ranks,
                     struct compute *compute, struct gpt *gpt, struct data_parallel *parallel) {
    struct gpt_options options = {
        .batch = settings->batch_size,
        .sequence = config->block_size,
        .mode = GPT_TRAINING,
        .type = (enum element_type)settings->dtype,
        .optimizer = optimizer_at((size_t)settings->optimizer.optimizer),
        .recompute = settings->recompute == RECOMPUTE_LAYER,
    };
    if (data_parallel_begin(parallel, ranks, settings, config, &options) ||
        gpt_plan(compute, config, &options, gpt)) {
        return -1;
    }
    data_parallel_plan(parallel, gpt);
    return 0;
}

int train_model_create(struct gpt *gpt, struct ranks *ranks) {
    const bool is_first = ranks->local_index == 0; /* on its host: the others then find its programs in the cache */
    return ranks_agree(ranks, is_first ? gpt_create(gpt) : 0) || ranks_agree(ranks, is_first ? 0 : gpt_create(gpt))
               ? -1
               : 0;
}

int train_model_share_weights(struct gpt *gpt, const struct ranks *ranks) {
    if (ranks->count == 1) {
        return 0;
    }
    const struct buffer *weights = gpt->parameters.weights;
    const uint64_t bytes = gpt->parameters.elements * sizeof(float);
    char *piece = memory_allocate(PIECE, sizeof(float));
    int status = 0;
    for (uint64_t done = 0, count; status == 0 && done < bytes; done += count) {
        count = bytes - done < PIECE * sizeof(float) ? bytes - done : PIECE * sizeof(float);
        status = (ranks->index == 0 && buffer_read(gpt->compute, weights, done, piece, count)) ||
                 ranks_broadcast(ranks, piece, count) ||
                 (ranks->index != 0 && buffer_write(gpt->compute, weights, done, piece, count));
    }
    free(piece);
    parameters_round(gpt->compute, &gpt->parameters);
    return status ? -1 : 0;
}

int train_model_measure_rate(struct gpt *gpt, const struct ranks *ranks, double *rate) {
    const size_t width = (size_t)gpt->config.n_embd, tokens = gpt_tokens(gpt);
    const size_t most = gpt->compute->device.is_gpu ? 8192 : 1024; /* enough to keep the device busy */
    return gemm_measure_rate(gpt->compute, gpt->options.type, tokens < most ? tokens : most, 4 * width, width,
                             rate) ||
                   ranks_sum(ranks, rate, 1)
               ? -1
               : 0;
}
