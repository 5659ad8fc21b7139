#include "src/checkpoint/upcycle.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/checkpoint/weights.h"
#include "src/model/frame.h"
#include <stdlib.h>

int upcycle_check(struct model_config *config) {
    const struct frame *frame = frame_of(config);
    const bool has_head = residual_has_matrices(config->residual) && !residual_is_fixed(config->residual);
    if (config->stream_reduce == STREAM_REDUCE_AUTO && has_head && !config->read_delay) {
        config->stream_reduce = STREAM_REDUCE_HEAD;
    }
    return frame->check_upcycling ? frame->check_upcycling(config) : 0;
}

struct upcycling {
    struct gpt *gpt;
    uint64_t seed;
    struct parameters plain; /* of the plain model */
    struct weights *weights;
    const struct norm_offsets *norm; /* whose gain and bias are in memory; NULL: none */
    float *gain, *bias;              /* [n_embd] each */
};

/* Values of a parameter that the plain model lacks. They may follow from gain and bias of the plain model's norm in
 * the same sublayer, or of ln_f. */
static int new_values(struct upcycling *all, const struct parameter *parameter, uint64_t first, uint64_t count,
                      float *values) {
    const struct model_config *config = &all->gpt->config;
    if (!parameter->upcycled) {
        parameter_first_values(parameter, config, all->seed, first, count, values);
        return 0;
    }
    const struct norm_offsets *norm = &all->plain.sublayers[parameter->sublayer].norm;
    for (size_t i = 0; all->norm != norm && i < all->plain.count; i++) {
        const struct parameter *plain = &all->plain.table[i];
        float *to = plain->offset_copy == &norm->gain   ? all->gain
                    : plain->offset_copy == &norm->bias ? all->bias
                                                        : NULL;
        if (to && weights_read(all->weights, plain, false, 0, plain->elements, to)) {
            return -1;
        }
    }
    all->norm = norm;
    const struct residual_init init = {.streams = config->n_streams,
                                       .sublayer = parameter->sublayer,
                                       .stream = model_config_first_stream(config, parameter->sublayer),
                                       .settings = &config->settings,
                                       .hc_eps = config->hc_eps,
                                       .gain = all->gain,
                                       .bias = all->bias,
                                       .channels = config->n_embd};
    for (uint64_t i = 0; i < count; i++) {
        values[i] = parameter->upcycled((int64_t)(first + i), &init);
    }
    return 0;
}

static int load_piece(void *context, size_t number, uint64_t first, uint64_t count, float *values) {
    struct upcycling *all = context;
    const struct parameters *parameters = &all->gpt->parameters;
    const struct parameter *parameter = &parameters->table[number];
    const struct parameter *plain = parameters_find(&all->plain, parameter->name);
    if (plain ? weights_read(all->weights, plain, false, first, count, values)
              : new_values(all, parameter, first, count, values)) {
        return -1;
    }
    return parameters_write(all->gpt->compute, parameters, parameter->offset + first, count, values)
               ? error_prefix("tensor '%s'", parameter->name)
               : 0;
}

int upcycle_load(const char *folder, const struct model_config *plain, uint64_t seed, struct gpt *gpt) {
    const struct parameters *parameters = &gpt->parameters;
    const size_t width = (size_t)gpt->config.n_embd;
    struct upcycling all = {.gpt = gpt, .seed = seed};
    struct tensor_info *infos = weights_tensors(parameters);
    all.gain = memory_zeroed(width, sizeof *all.gain);
    all.bias = memory_zeroed(width, sizeof *all.bias);
    parameters_create(plain, &all.plain);
    const int status = weights_open(folder, plain, &all.plain, &all.weights) ||
                       tensors_each_piece(infos, parameters->count, load_piece, &all);
    weights_close(all.weights);
    parameters_release(&all.plain);
    free(all.gain);
    free(all.bias);
    free(infos);
    parameters_round(gpt->compute, parameters);
    return status ? -1 : 0;
}
